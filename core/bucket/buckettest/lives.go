package buckettest

import (
	"fmt"
	"math/big"
)

// Content is what a token bucket holds in a world without rounding, in 10^-12
// tokens: in these every flow is a whole number. It is one of the two models
// that a bucket's whole life is held to; [Window] is the other.
type Content struct {
	capacity, rate *big.Int
	held           *big.Int
	highest        int64 // of the clock: time that was credited is not credited again
}

// requestPrice is one token, and rounding what an admission may lose by it, one
// microtoken.
var requestPrice, rounding = mul(n(token), million), million

// NewContent returns that of a full bucket of so many microtokens that gains
// rate microtokens per second.
func NewContent(capacity, rate, now int64) *Content {
	c := &Content{capacity: mul(n(capacity), million), rate: n(rate)}
	c.Fill(now)
	return c
}

// Fill makes the bucket full, as of now and no earlier time.
func (c *Content) Fill(now int64) { c.held, c.highest = new(big.Int).Set(c.capacity), now }

// Flow credits the time until now. A clock that is behind where it has been
// gives nothing.
func (c *Content) Flow(now int64) {
	if now <= c.highest {
		return
	}
	c.held.Add(c.held, mul(n(now-c.highest), c.rate))
	if c.held.Cmp(c.capacity) > 0 {
		c.held.Set(c.capacity)
	}
	c.highest = now
}

// Highest is the furthest that the clock has been.
func (c *Content) Highest() int64 { return c.highest }

// Enough reports whether there is a token.
func (c *Content) Enough() bool { return c.held.Cmp(requestPrice) >= 0 }

// Take takes a token, and Round what an admission may lose besides.
func (c *Content) Take() { c.held.Sub(c.held, requestPrice) }

// Round takes the microtoken that an admission may lose by rounding.
func (c *Content) Round() {
	if c.held.Sub(c.held, rounding).Sign() < 0 {
		c.held.SetInt64(0)
	}
}

// String is the content in tokens.
func (c *Content) String() string {
	return new(big.Rat).SetFrac(c.held, requestPrice).FloatString(12) + " tokens"
}

// Window is a sliding window as one would write it down: every admission is kept
// under the start of its window, and the estimate is a fraction.
type Window struct {
	// Limit is the requests in a window of Length microseconds.
	Limit, Length int64

	anchor   int64
	admitted map[int64]int64 // by the start of the window
}

// Reach is how far a stored time may be ahead of the clock, in microseconds: a
// minute, or the horizon, which is two windows.
func (w *Window) Reach() int64 { return max(60*token, 2*w.Length) }

// Anchor is the start of the current window.
func (w *Window) Anchor() int64 { return w.anchor }

// Admits reports whether a request at now is admitted, and counts it if so. A
// window that starts too far ahead of the clock is forgotten.
func (w *Window) Admits(now int64) bool {
	if w.admitted == nil || w.anchor-now > w.Reach() {
		w.admitted, w.anchor = map[int64]int64{}, now
	}
	anchor := w.anchor
	switch {
	case now >= anchor+2*w.Length:
		anchor = now
	case now >= anchor+w.Length:
		anchor += w.Length
	}
	used := new(big.Rat).SetFrac(
		mul(n(w.admitted[anchor-w.Length]), n(w.Length-max(0, now-anchor))), n(w.Length))
	used.Add(used, new(big.Rat).SetInt(n(w.admitted[anchor])))
	if used.Cmp(new(big.Rat).SetInt(n(w.Limit))) >= 0 {
		return false
	}
	w.anchor = anchor
	w.admitted[anchor]++
	return true
}

// Most is the greatest number that one window has admitted.
func (w *Window) Most() int64 {
	most := int64(0)
	for _, count := range w.admitted {
		most = max(most, count)
	}
	return most
}

// String is what the window would have stored.
func (w *Window) String() string {
	return fmt.Sprintf("%d:%d:%d", w.admitted[w.anchor], w.admitted[w.anchor-w.Length], w.anchor)
}
