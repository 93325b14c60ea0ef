package bucket

import (
	"math"
	"math/bits"
)

// decideTokens decides for a token bucket whose state can be used, and returns
// the state thereafter and whether it denies.
func (r Rule) decideTokens(s State, now, cost int64, charge bool) (State, bool) {
	level := r.level(s, now)
	if level < cost*Token {
		return s, true
	}
	if charge {
		s = State{count: level - cost*Token, stamp: max(s.stamp, now+1)}
	}
	return s, false
}

// tokenNumbers are the numbers of an Answer about s, which does not have wanted
// tokens; 0: the wait is that for one more.
func (r Rule) tokenNumbers(s State, now, wanted int64) (remaining, wait, reset int64) {
	level := r.level(s, now)
	remaining = level / Token
	return remaining, r.waitForTokens(s, now, max(remaining+1, wanted)*Token), r.secondsUntilFull(s, now, level)
}

// level returns the tokens of s at now:
// min(capacity, tokens + floor(elapsed*rate/1e6)). Tokens above the capacity are
// legal, for the capacity may have been lowered in place, and are cut.
func (r Rule) level(s State, now int64) int64 {
	elapsed := max(0, now-s.time())
	gain := flow(elapsed, r.pace)
	if gain >= r.size-s.count { // compared without a sum that could overflow
		return r.size
	}
	return s.count + gain
}

// flow returns what flows in meanwhile: floor(elapsed*rate/1e6).
func flow(elapsed, rate int64) int64 {
	if hi, lo := bits.Mul64(uint64(elapsed), uint64(rate)); hi == 0 {
		return int64(lo / second) // by a constant, which takes no division
	}
	gain, _ := mulDiv(elapsed, rate, second)
	return gain
}

// fillTime returns how long need microtokens take to flow in, exactly: whole
// seconds, and microseconds beyond them rounded up. In one number of
// microseconds it might not fit an int64.
func (r Rule) fillTime(need int64) (seconds, micros int64) {
	if need <= math.MaxInt64/second {
		t := ceilDiv(need*second, r.pace) // one division instead of two
		return t / second, t % second
	}
	micros, rest := mulDiv(need%r.pace, second, r.pace)
	if rest {
		micros++
	}
	return need / r.pace, micros
}

// waitForTokens returns the microseconds from now until s, untouched, holds
// target tokens. They are counted from the stored state and not from the
// refilled level, whose floor would lose up to one microtoken.
func (r Rule) waitForTokens(s State, now, target int64) int64 {
	if target > r.size || r.pace == 0 {
		return Never
	}
	seconds, micros := r.fillTime(target - s.count)
	if seconds > 2*(MaxWait/second) { // whatever part of it has passed; below it nothing overflows
		return MaxWait
	}
	return min(MaxWait, seconds*second+micros+s.time()-now)
}

// secondsUntilFull returns the whole seconds, rounded up, from now until s,
// which has risen to level by now, is full.
func (r Rule) secondsUntilFull(s State, now, level int64) int64 {
	switch {
	case level == r.size:
		return 0
	case r.pace == 0:
		return Never
	}
	seconds, micros := r.fillTime(r.size - s.count)
	// The rest may be negative, for s may be long ago; the sum is not.
	rest := micros + s.time() - now
	up := rest / second
	if rest > 0 && rest%second != 0 {
		up++
	}
	return seconds + up
}
