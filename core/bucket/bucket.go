// Package bucket is the arithmetic of Sentinel's two algorithms as pure
// functions, and buckets that live in this process on top of it.
//
// Everything is a whole number. Quota is counted in microtokens: a request
// costs one [Token]. Time is microseconds since any fixed point that all calls
// share, from 0 to [MaxExact], and always a parameter: nothing here reads a
// clock.
//
// A [Rule] holds the numbers of one quota, a [State] what one bucket
// remembers, and [Rule.Decide] is the whole algorithm. The Redis script decides
// by the same formulas, and the two agree to the microtoken on every state.
// [Table] is a store of many buckets for one process, [Bucket] a single one.
//
// # The token bucket
//
// With capacity 10 tokens and a rate of 2 tokens a second, a bucket that held 3
// tokens at 12.0 s holds 3 + 2*0.7 = 4.4 at 12.7 s. A request takes one and
// leaves 3.4, so three more would be admitted at this very instant; the fourth
// is refused until the bucket holds one token again, 0.3 s later.
//
// # The sliding window
//
// With a limit of 10 in 60 s, 8 requests in the previous window and 3 in the
// current one, of which 45 s are over, the last 60 s are taken to hold
// 3 + 8*15/60 = 5 requests, and five more are admitted. Windows are anchored at
// a bucket's first request, so that not all buckets roll over at one instant.
package bucket

import (
	"math"
	"math/bits"
)

const (
	// Token is the price of one request in microtokens.
	Token = 1_000_000
	// Never stands for a wait that never ends.
	Never = -1
	// MaxExact is the greatest capacity, rate and limit*window. Below it every
	// product can be split so that a double, the only number that a Redis
	// script has, holds each part exactly.
	MaxExact = 1 << 52
	// MaxCost is the most that a request can cost, in requests: more tokens than
	// any bucket holds.
	MaxCost = MaxExact/Token + 1
	// MaxWait is the longest wait that is told apart, 285 years in
	// microseconds; it stands for any longer one.
	MaxWait = 1 << 53

	second = 1_000_000 // microseconds
	// tolerance is how far ahead of the clock a stored time may always be, in
	// microseconds; see Rule.unusable.
	tolerance = 60 * second
)

// Rule is the quota of one bucket. It is a comparable value. The zero Rule is a
// token bucket of no capacity: it refuses everything, for ever.
type Rule struct {
	sliding bool
	size    int64 // capacity in microtokens, or the limit
	pace    int64 // microtokens per second, or the window in microseconds
}

// NewTokenBucket returns the rule of a bucket that holds up to capacity
// microtokens, from Token to MaxExact, and gains rate microtokens per second,
// from 0 (it never refills) to MaxExact. Other numbers are a programmer's
// mistake, for configuration is checked before: it panics.
func NewTokenBucket(capacity, rate int64) Rule {
	if capacity < Token || capacity > MaxExact || rate < 0 || rate > MaxExact {
		panic("bucket: NewTokenBucket expects Token <= capacity <= MaxExact and 0 <= rate <= MaxExact")
	}
	return Rule{size: capacity, pace: rate}
}

// NewSlidingWindow returns the rule of a window that admits limit requests per
// window microseconds. Both are at least 1 and their product is at most
// MaxExact. Other numbers are a programmer's mistake: it panics.
func NewSlidingWindow(limit, window int64) Rule {
	if limit < 1 || window < 1 || limit > MaxExact/window {
		panic("bucket: NewSlidingWindow expects limit >= 1, window >= 1 and limit*window <= MaxExact")
	}
	return Rule{sliding: true, size: limit, pace: window}
}

// Sliding reports whether the rule is a sliding window's.
func (r Rule) Sliding() bool { return r.sliding }

// Numbers returns the two numbers that the rule was made of: capacity and rate,
// or limit and window.
func (r Rule) Numbers() (int64, int64) { return r.size, r.pace }

// State is what a bucket remembers between requests. The zero State is that of
// a bucket that nobody has used: it decides like a full one. It is a value, and
// belongs to the kind of rule that made it.
type State struct {
	count    int64 // microtokens, or the requests of the current window
	previous int64 // the requests of the previous window
	stamp    int64 // 1 + the time of the last refill or of the window's start
}

// The stamps of states that hold no time.
const (
	missing = 0
	corrupt = -1
)

func (s State) time() int64 { return s.stamp - 1 }

// Fresh returns the state of an unused bucket as a reset writes it.
func (r Rule) Fresh(now int64) State {
	if r.sliding {
		return State{stamp: now + 1}
	}
	return State{count: r.size, stamp: now + 1}
}

// TTL returns how long s still matters, in whole seconds rounded up: until
// which its key must not expire. It is counted from the stored time where that
// is ahead of the clock. 0 means for ever, or that s is not a stored state.
func (r Rule) TTL(s State, now int64) int64 {
	if s.stamp <= 0 {
		return 0
	}
	ahead := max(0, s.time()-now)
	switch {
	case r.sliding:
		return ceilDiv(2*r.pace+ahead, second)
	case r.pace == 0:
		return 0
	default:
		return ceilDiv(r.size-min(r.size, s.count), r.pace) + 1 + ceilDiv(ahead, second)
	}
}

// Answer is the verdict of one bucket. The zero Answer is not a denial; read a
// verdict only from where Decide has put one.
type Answer struct {
	// Denied reports that this bucket does not admit the request.
	Denied bool
	// Corrupt reports that the stored state was unusable and was read as that
	// of a fresh bucket.
	Corrupt bool
	// Remaining is how many further requests of cost 1 would be admitted at this very
	// instant, after the charge if there was one.
	Remaining int64
	// Wait is exact, in microseconds: on a denial until the bucket, untouched,
	// admits; else until Remaining grows by one. Never: it does not. MaxWait
	// stands for anything longer.
	Wait int64
	// Reset is whole seconds, rounded up, until an untouched bucket is full, or
	// counts nothing, again. 0: it is already. Never: it will not be.
	Reset int64
}

// Decide is one decision at the time now: may one request pass, given what the
// bucket remembers? If it may and charge is set, the state that is returned has
// been charged. In every other case it is s itself: a denial changes nothing,
// and charge unset is a look. Decide has no side effects.
//
// A stored time ahead of now counts as no time elapsed and never moves back. If
// it is further ahead than one minute and than the rule's horizon (the time in
// which an empty bucket fills; two windows), the state is corrupt, because a
// fresh bucket once is a smaller harm than a client locked out until the clock
// has caught up.
func (r Rule) Decide(s State, now int64, charge bool) (State, Answer) {
	return r.DecideCost(s, now, 1, charge)
}

// DecideCost is Decide for a request that costs as much as cost requests, 1 to
// [MaxCost]. What costs more than the rule can ever hold is denied for ever.
func (r Rule) DecideCost(s State, now, cost int64, charge bool) (State, Answer) {
	o := r.decide(s, now, cost, charge)
	var a Answer
	r.answer(&a, o, now, cost)
	if o.denied || !charge {
		return s, a
	}
	return o.after, a
}

// outcome is a decision without the numbers of its Answer, which take divisions
// and are not always asked for.
type outcome struct {
	after   State // charged, or as it was read: fresh, or rolled
	denied  bool
	corrupt bool
}

func (r Rule) decide(s State, now, cost int64, charge bool) outcome {
	var o outcome
	if s.stamp <= missing || s.time()-now > tolerance {
		o.corrupt = s.stamp == corrupt || s.stamp != missing && r.unusable(s, now)
		if o.corrupt || s.stamp == missing {
			s = r.Fresh(now)
		}
	}
	if r.sliding {
		o.after, o.denied = r.decideWindow(s, now, cost, charge)
	} else {
		o.after, o.denied = r.decideTokens(s, now, cost, charge)
	}
	return o
}

// answer puts an outcome at now, for a request of that cost, into numbers.
func (r Rule) answer(a *Answer, o outcome, now, cost int64) {
	a.Denied, a.Corrupt = o.denied, o.corrupt
	if !o.denied {
		cost = 0
	}
	if r.sliding {
		a.Remaining, a.Wait, a.Reset = r.windowNumbers(o.after, now, cost)
	} else {
		a.Remaining, a.Wait, a.Reset = r.tokenNumbers(o.after, now, cost)
	}
}

// unusable reports whether the stored time is too far ahead of the clock. A
// bucket that never refills does not look at the time.
func (r Rule) unusable(s State, now int64) bool {
	ahead := s.time() - now
	switch {
	case ahead <= tolerance:
		return false
	case r.sliding:
		return ahead > 2*r.pace
	case r.pace == 0:
		return false
	default: // ahead > capacity/rate, without dividing
		flow, rest := mulDiv(ahead, r.pace, second)
		return flow > r.size || flow == r.size && rest
	}
}

// mulDiv returns floor(a*b/c) and whether the division leaves a rest. a and b
// are not negative, c is positive. A quotient beyond an int64 is given as the
// greatest int64.
func mulDiv(a, b, c int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64, true
	}
	q, rest := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64, true
	}
	return int64(q), rest != 0
}

// ceilDiv returns a/b rounded up. a is not negative, b is positive.
func ceilDiv(a, b int64) int64 {
	if a%b != 0 {
		return a/b + 1
	}
	return a / b
}
