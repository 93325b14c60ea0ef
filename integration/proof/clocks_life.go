package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
)

// life is one tenant's bucket under a clock that is set by hand, and beside it
// what the policy says. Times are microseconds on Redis's clock.
type life struct {
	policy sentinel.Policy
	tenant string
	reach  int64 // how far a stored time may be ahead; -1: as far as it likes
	fills  int64 // the policy's own horizon: the longest wait with a clock that is right

	most, least *buckettest.Content // of a token bucket; nil for a window
	window      *buckettest.Window
	stored      int64 // the time in its state; 0: none yet
	highest     int64 // that the clock has been at a decision
	last        int64 // of the clock, at the latest decision
	steps       int   // back, beyond the reach
	fresh       int   // fresh buckets that these have made
}

const microsPerMinute = 60_000_000

func newLife(p sentinel.Policy, now int64) *life {
	l := &life{policy: p, tenant: nobody(), highest: now, last: now}
	switch {
	case p.Algorithm == sentinel.SlidingWindow:
		l.window = &buckettest.Window{Limit: p.Limit, Length: p.Window.Microseconds()}
		l.reach, l.fills = l.window.Reach(), 2*p.Window.Microseconds()
		return l
	case p.RefillRate == 0:
		l.reach = -1
	default:
		l.fills = int64(p.Capacity)*1_000_000/int64(p.RefillRate) + 1 // proof's capacities fit
		l.reach = max(microsPerMinute, l.fills)
	}
	l.most = buckettest.NewContent(int64(p.Capacity), int64(p.RefillRate), now)
	l.least = buckettest.NewContent(int64(p.Capacity), int64(p.RefillRate), now)
	return l
}

// verdicts are the promises about clocks.
type verdicts struct{ more, less, wait, first, expiry trials }

// judge holds the decision that was taken at now to the policy. state is the
// key's, and expires its expiry, -1 for none, after an admission.
func (l *life) judge(v *verdicts, now int64, d sentinel.Decision, state string, expires int64) {
	if l.reach >= 0 && l.highest-now > l.reach && now < l.last {
		l.steps++
	}
	l.last = now
	ahead := max(0, l.stored-now)
	if l.window != nil {
		l.judgeWindow(v, now, d, state)
	} else {
		l.judgeTokens(v, now, d, state)
	}
	l.highest = max(l.highest, now)
	switch {
	case d.Allowed:
		l.judgeExpiry(v, state, expires)
	case d.RetryAfter > 0:
		v.wait.check(l.near(ahead) && d.RetryAfter.Microseconds() <= ahead+l.fills,
			"%v at %d: told to wait %v, by a clock that is %v behind", l, now, d.RetryAfter, micros(ahead))
	}
}

// near reports whether a stored time may be so far ahead.
func (l *life) near(ahead int64) bool { return l.reach < 0 || ahead <= l.reach }

// remember keeps the time that was stored at now, and reports whether the bucket
// was fresh: nothing else moves that time back. It may be so only where the time
// was out of reach, and then it must.
func (l *life) remember(v *verdicts, now, stored int64) bool {
	before := l.stored
	l.stored = stored
	back := stored < before
	v.more.check(back == (before > 0 && !l.near(before-now)), "%v at %d: the stored time went from %d to %d", l, now, before, stored)
	if back {
		l.fresh++
		l.highest = now
	}
	return back
}

func (l *life) judgeWindow(v *verdicts, now int64, d sentinel.Decision, state string) {
	want := l.window.Admits(now)
	v.more.check(want || !d.Allowed, "%v at %d: admitted; the window says no at %v", l, now, l.window)
	v.less.check(!want || d.Allowed, "%v at %d: denied; the window says yes at %v", l, now, l.window)
	if d.Allowed {
		v.more.check(state == l.window.String(), "%v at %d: stored %s, want %v", l, now, state, l.window)
		l.remember(v, now, l.window.Anchor())
	}
}

func (l *life) judgeTokens(v *verdicts, now int64, d sentinel.Decision, state string) {
	l.most.Flow(now)
	l.least.Flow(now)
	if !d.Allowed {
		v.less.check(!l.least.Enough() && l.near(l.stored-now), "%v at %d: denied with %v", l, now, l.least)
		return
	}
	if l.remember(v, now, numbers(state)[1]) {
		l.most.Fill(now)
		l.least.Fill(now)
	}
	v.more.check(l.most.Enough(), "%v at %d: admitted with %v", l, now, l.most)
	l.most.Take()
	l.least.Take()
	l.least.Round()
}

// judgeExpiry holds a key's expiry to what its state says: a bucket must not be
// forgotten before it is full, or counts nothing. Redis counts in milliseconds
// and cuts the rest off, which costs a window up to one.
func (l *life) judgeExpiry(v *verdicts, state string, expires int64) {
	n := numbers(state)
	switch {
	case l.window != nil:
		over := n[2] + 2*l.policy.Window.Microseconds()
		v.expiry.check(expires > over-1000, "%v: %s expires %v before it is over", l, state, micros(over-expires))
	case l.policy.RefillRate == 0:
		v.expiry.check(expires == -1, "%v: a bucket that never refills expires", l)
	default:
		full := n[1] + (int64(l.policy.Capacity)-n[0])*1_000_000/int64(l.policy.RefillRate)
		v.expiry.check(expires >= full, "%v: %s expires %v before it is full", l, state, micros(full-expires))
	}
}

// numbers are those of a state; of one that has fewer, zeros.
func numbers(state string) (n [3]int64) {
	for i, field := range strings.SplitN(state, ":", 3) {
		n[i], _ = strconv.ParseInt(field, 10, 64)
	}
	return n
}

func (l *life) String() string {
	if l.window != nil {
		return fmt.Sprintf("%d in %v", l.policy.Limit, l.policy.Window)
	}
	return fmt.Sprintf("capacity %d, rate %d", l.policy.Capacity, l.policy.RefillRate)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
