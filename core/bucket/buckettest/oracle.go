// Package buckettest holds what every implementation of the arithmetic is
// tested with: an oracle that decides by the definitions alone, in big integers
// and by search instead of by formula, cases aimed at the places where an
// implementation goes wrong, and the known answers.
//
// It is for tests only, and slow.
package buckettest

import (
	"math/big"
	"regexp"
)

// Case is one decision on one bucket.
type Case struct {
	// Sliding is the algorithm: the sliding window, or else the token bucket.
	Sliding bool
	// P1 and P2 are capacity and rate, or limit and window.
	P1, P2 int64
	// Stored reports whether there is a state; Text is it.
	Stored bool
	Text   string
	// Now is in microseconds.
	Now int64
	// Charge reports whether an admission is charged.
	Charge bool
	// Cost is as how many requests it counts; 0 means 1.
	Cost int64
}

// Price is Cost, at least 1.
func (c Case) Price() int64 { return max(c.Cost, 1) }

// Result is everything that a decision comes to.
type Result struct {
	Denied, Corrupt        bool
	Remaining, Wait, Reset int64 // wait in microseconds, reset in seconds, -1: never
	Text                   string
	TTL                    int64 // seconds, 0: none. TTL and Text are those of a charged state.
}

// Oracle returns the result that the definitions demand.
func Oracle(c Case) Result {
	b := &bucket{c: c, p1: n(c.P1), p2: n(c.P2), now: n(c.Now)}
	b.read()
	price := n(c.Price())
	r := Result{Corrupt: b.corrupt, Denied: b.room(b.now).Cmp(price) < 0}
	if c.Charge && !r.Denied {
		b.charge()
		r.Text, r.TTL = b.text(), b.ttl()
	}
	room := b.room(b.now)
	r.Remaining = room.Int64()
	r.Wait = -1
	if t := b.first(func(t *big.Int) bool { return b.room(t).Cmp(room) > 0 && (!r.Denied || b.room(t).Cmp(price) >= 0) }); t != nil {
		r.Wait = upTo(1<<62, t.Sub(t, b.now)) // it may be more than an int64 holds
	}
	r.Reset = -1
	if t := b.first(b.idle); t != nil {
		r.Reset = ceil(t.Sub(t, b.now), million).Int64()
	}
	return r
}

// bucket is a bucket under the oracle.
type bucket struct {
	c           Case
	p1, p2, now *big.Int
	corrupt     bool
	x, y, time  *big.Int // tokens and nothing, or current and previous; then the time
}

var (
	million = n(1_000_000)
	minute  = n(60_000_000)
	tokens  = regexp.MustCompile(`\A([0-9]{1,16})():([0-9]{1,16})\z`)
	windows = regexp.MustCompile(`\A([0-9]{1,16}):([0-9]{1,16}):([0-9]{1,16})\z`)
)

// read reads the stored state, or makes a fresh one.
func (b *bucket) read() {
	form := tokens
	if b.c.Sliding {
		form = windows
	}
	b.x, b.y, b.time = n(0), n(0), b.now
	if !b.c.Sliding {
		b.x = b.p1
	}
	if !b.c.Stored {
		return
	}
	b.corrupt = true
	m := form.FindStringSubmatch(b.c.Text)
	if m == nil {
		return
	}
	x, y, time := digits(m[1]), digits(m[2]), digits(m[3])
	exact := n(1 << 52)
	if x.Cmp(exact) > 0 || y.Cmp(exact) > 0 || time.Cmp(n(1<<53-1)) > 0 || b.tooFarAhead(sub(time, b.now)) {
		return
	}
	if !b.c.Sliding {
		x = least(x, b.p1)
	}
	b.corrupt, b.x, b.y, b.time = false, x, y, time
}

func (b *bucket) tooFarAhead(ahead *big.Int) bool {
	switch {
	case ahead.Cmp(minute) <= 0:
		return false
	case b.c.Sliding:
		return ahead.Cmp(add(b.p2, b.p2)) > 0
	default: // at rate 0 the horizon is infinite: never too far
		return mul(ahead, b.p2).Cmp(mul(b.p1, million)) > 0
	}
}

// level is a token bucket's tokens at t.
func (b *bucket) level(t *big.Int) *big.Int {
	elapsed := sub(t, b.time)
	if elapsed.Sign() < 0 {
		elapsed = n(0)
	}
	gain := mul(elapsed, b.p2)
	gain.Div(gain, million)
	return least(gain.Add(gain, b.x), b.p1)
}

// rolled is a sliding window at t: its counts, its anchor, and what is left of
// the current window.
func (b *bucket) rolled(t *big.Int) (current, previous, start, left *big.Int) {
	elapsed := sub(t, b.time)
	current, previous, start = b.x, b.y, b.time
	switch {
	case elapsed.Cmp(add(b.p2, b.p2)) >= 0:
		current, previous, start = n(0), n(0), t
	case elapsed.Cmp(b.p2) >= 0:
		current, previous, start = n(0), b.x, add(b.time, b.p2)
	}
	left = b.p2
	if t.Cmp(start) > 0 {
		left = sub(add(start, b.p2), t)
	}
	return current, previous, start, left
}

// room is how many requests would be admitted at t.
func (b *bucket) room(t *big.Int) *big.Int {
	if !b.c.Sliding {
		return new(big.Int).Div(b.level(t), million)
	}
	current, previous, _, left := b.rolled(t)
	room := sub(sub(mul(b.p1, b.p2), mul(current, b.p2)), mul(previous, left))
	room = ceil(room, b.p2)
	if room.Sign() < 0 {
		return n(0)
	}
	return room
}

// idle reports whether the bucket is full, or counts nothing, at t.
func (b *bucket) idle(t *big.Int) bool {
	if !b.c.Sliding {
		return b.level(t).Cmp(b.p1) == 0
	}
	current, previous, _, left := b.rolled(t)
	return current.Sign() == 0 && mul(previous, left).Sign() == 0
}

func (b *bucket) charge() {
	if !b.c.Sliding {
		b.x = sub(b.level(b.now), mul(million, n(b.c.Price())))
		if b.now.Cmp(b.time) > 0 {
			b.time = b.now
		}
		return
	}
	b.x, b.y, b.time, _ = b.rolled(b.now)
	b.x = add(b.x, n(b.c.Price()))
}

func (b *bucket) text() string {
	if b.c.Sliding {
		return b.x.String() + ":" + b.y.String() + ":" + b.time.String()
	}
	return b.x.String() + ":" + b.time.String()
}

func (b *bucket) ttl() int64 {
	ahead := sub(b.time, b.now)
	if ahead.Sign() < 0 {
		ahead = n(0)
	}
	switch {
	case b.c.Sliding:
		return ceil(add(add(b.p2, b.p2), ahead), million).Int64()
	case b.p2.Sign() == 0:
		return 0
	default:
		return add(ceil(sub(b.p1, b.x), b.p2), ceil(ahead, million)).Int64() + 1
	}
}

// first returns the first instant from now on at which holds holds, or nil if
// there is none. Once true, holds stays true.
func (b *bucket) first(holds func(*big.Int) bool) *big.Int {
	lo, hi := sub(b.now, n(1)), b.end()
	if !holds(hi) {
		return nil
	}
	for {
		width := sub(hi, lo)
		if width.Cmp(n(1)) == 0 {
			return hi
		}
		mid := add(lo, width.Rsh(width, 1))
		if holds(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
}

// end is an instant after which an untouched bucket changes no more.
func (b *bucket) end() *big.Int {
	from := b.now
	if b.time.Cmp(from) > 0 {
		from = b.time
	}
	switch {
	case b.c.Sliding:
		return add(from, add(b.p2, b.p2))
	case b.p2.Sign() == 0:
		return from
	default:
		return add(from, ceil(mul(b.p1, million), b.p2))
	}
}

func n(v int64) *big.Int         { return big.NewInt(v) }
func add(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
func sub(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }
func mul(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }

// ceil is a/b rounded up; b is positive. Div rounds down.
func ceil(a, b *big.Int) *big.Int {
	q := new(big.Int).Neg(a)
	return q.Neg(q.Div(q, b))
}

func least(a, b *big.Int) *big.Int {
	if b.Cmp(a) < 0 {
		return b
	}
	return a
}

func digits(s string) *big.Int {
	v, _ := new(big.Int).SetString("0"+s, 10)
	return v
}
