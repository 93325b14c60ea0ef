package bucket

// decideWindow decides for a sliding window whose state can be used, and returns
// the state thereafter, rolled, and whether it denies. Counts above the limit
// are legal: the limit was lowered in place.
func (r Rule) decideWindow(s State, now, cost int64, charge bool) (State, bool) {
	s = r.roll(s, now)
	if r.free(s, now) < cost {
		return s, true
	}
	if charge {
		s.count += cost
	}
	return s, false
}

// free returns how many requests s, which has been rolled, has room for; below 1
// none.
//
// It is current*window + previous*left < limit*window, divided by the window;
// for whole numbers x/window < n and floor(x/window) < n are the same.
func (r Rule) free(s State, now int64) int64 {
	free := r.size - s.count
	if s.previous > 0 {
		left := r.pace - max(0, now-s.time()) // of the current window
		weight, _ := mulDiv(s.previous, left, r.pace)
		free -= weight
	}
	return free
}

// windowNumbers are the numbers of an Answer about s, which has been rolled and
// has no room for wanted requests; 0: the wait is that for one more.
func (r Rule) windowNumbers(s State, now, wanted int64) (remaining, wait, reset int64) {
	remaining = max(0, r.free(s, now))
	return remaining, r.waitForRoom(s, now, max(remaining+1, wanted)), r.secondsUntilIdle(s, now)
}

// roll advances the anchor to the window that holds now. After two windows
// nothing counts and the anchor is now.
func (r Rule) roll(s State, now int64) State {
	switch elapsed := now - s.time(); {
	case elapsed >= 2*r.pace:
		return r.Fresh(now)
	case elapsed >= r.pace:
		return State{previous: s.count, stamp: s.stamp + r.pace}
	default:
		return s
	}
}

// waitForRoom returns the microseconds from now until s, untouched, would admit
// n requests at one instant, given that now it would not. s has been rolled.
//
// At e microseconds into a window there is room for n if
// previous*(window-e) < (limit-n+1 - current)*window. Room never shrinks by
// itself, so the answer is the least e that satisfies this: in the current
// window if there is one, else in the next, where the current count has become
// the previous one.
func (r Rule) waitForRoom(s State, now, n int64) int64 {
	if n > r.size {
		return Never
	}
	var e int64
	if within := r.size - n + 1 - s.count; within > 0 {
		e = r.pace - (within*r.pace-1)/s.previous
	} else {
		e = 2*r.pace - ((r.size-n+1)*r.pace-1)/s.count
	}
	return min(MaxWait, s.time()-now+e)
}

// secondsUntilIdle returns the whole seconds, rounded up, from now until s,
// which has been rolled, counts nothing.
func (r Rule) secondsUntilIdle(s State, now int64) int64 {
	switch {
	case s.count > 0:
		return ceilDiv(s.time()-now+2*r.pace, second)
	case s.previous > 0:
		return ceilDiv(s.time()-now+r.pace, second)
	default:
		return 0
	}
}
