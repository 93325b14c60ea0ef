package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

const (
	hour = time.Hour
	year = 365 * 24 * time.Hour
)

func init() { chapters = append(chapters, chapter{"clocks", proveClocks}) }

// proveClocks has Redis's clock step, stand and run wrong, under both
// algorithms.
func proveClocks(ctx context.Context, l *lab) (*section, error) {
	s := &section{
		title: "Clocks",
		about: "A Redis whose wall clock is set by the proof: a preloaded library gives the server the time that stands in a file. What it does to TIME, it does to the script and to expiry.",
	}
	for _, part := range []func(*scope, *lab, *section){walkClocks, stepClocks, changeMasters} {
		if err := within(ctx, func(sc *scope) { part(sc, l, s) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// clockPolicies are many shapes of both algorithms: horizons of milliseconds to
// years, below and beyond the minute that any stored time may be ahead.
func clockPolicies() []sentinel.Policy {
	var all []sentinel.Policy
	for _, n := range [][2]sentinel.Micro{
		{sentinel.Token, sentinel.Token},
		{5 * sentinel.Token, 333_333},
		{10 * sentinel.Token, 50 * sentinel.Token},
		{3*sentinel.Token + 1, 1000},
		{20 * sentinel.Token, 5000},
		{2 * sentinel.Token, 1},
		{7 * sentinel.Token, 0},
		{1 << 40, 1 << 40},
		{4 * sentinel.Token, 999_999},
	} {
		all = append(all, tokenBucket(fmt.Sprintf("bucket.%d", len(all)), n[0], n[1]))
	}
	for _, w := range []time.Duration{time.Millisecond, time.Second, 7 * time.Second, time.Minute, time.Hour, 30 * 24 * time.Hour} {
		for _, limit := range []int64{1, 4, 25} {
			all = append(all, slidingWindow(fmt.Sprintf("window.%d", len(all)), limit, w))
		}
	}
	return all
}

// clocked is a limiter on a server with a clock of its own. It asks for every
// decision: what a process remembers of a denial is by its own clock.
type clocked struct {
	s       *scope
	server  *redistest.Server
	client  *redis.Client
	clock   *clock
	limiter *sentinel.Limiter
}

func newClocked(s *scope, library string) *clocked {
	server, clock := startClocked(s, library)
	cfg := configure(server.URL(), clockPolicies()...)
	cfg.App.DisableKnownDenials = true
	return &clocked{s, server, server.Client(s), clock, openLimiter(s, cfg)}
}

// at takes one decision with Redis's clock standing at now, and judges it.
func (c *clocked) at(now int64, l *life, v *verdicts) sentinel.Decision {
	c.clock.hold(now)
	d := allow(c.s, c.limiter, l.tenant, l.policy.EndpointID)
	if !d.FromStore {
		c.s.Fatalf("no decision of Redis: %s", d.Reason)
	}
	state, expires := "", int64(0)
	if d.Allowed {
		state, expires = c.stored(keyOf("v1", l.tenant, l.policy.EndpointID))
	}
	l.judge(v, now, d, state, expires)
	return d
}

// stored is a key's text, and when it expires on Redis's clock, microseconds; -1
// is never.
func (c *clocked) stored(key string) (state string, expires int64) {
	pipe := c.client.Pipeline()
	text, at := pipe.Get(c.s.Context(), key), pipe.PExpireTime(c.s.Context(), key)
	if _, err := pipe.Exec(c.s.Context()); err != nil {
		c.s.Fatal(err)
	}
	if at.Val() < 0 {
		return text.Val(), -1
	}
	return text.Val(), at.Val().Microseconds()
}

// walkClocks has single buckets live through random steps of a clock that else
// stands, so that every decision is exact to the microsecond.
func walkClocks(s *scope, l *lab, sec *section) {
	c := newClocked(s, shim(s))
	policies := clockPolicies()
	lives, steps := pick(l, 25, 2)*len(policies), pick(l, 150, 60)
	l.logf("clocks: %d lives of %d decisions", lives, steps)
	var v verdicts
	var far, fresh, admitted, decisions int
	r := rand.New(rand.NewPCG(41, 42)) // #nosec G404 -- no secret
	for i := range lives {
		now := time.Now().UnixMicro()
		b := newLife(policies[i%len(policies)], now)
		var d sentinel.Decision
		for step := range steps {
			if step > 0 {
				now = walk(r, b, now, d)
			}
			d = c.at(now, b, &v)
			decisions++
			if d.Allowed {
				admitted++
			} else if d.RetryAfter > 0 && r.IntN(4) == 0 {
				now = c.waitExactly(now, b, &v, d)
				decisions += 2
				admitted++
			}
		}
		far += b.steps
		fresh += b.fresh
	}
	sec.promise(v.more.promise("whatever the clock does, measured on Redis's clock nobody is admitted more often than by the policy, except one fresh bucket per step back beyond the limit",
		fmt.Sprintf("%d admitted of %d; %d steps back beyond the limit made %d fresh buckets", admitted, decisions, far, fresh)))
	sec.promise(v.less.promise("nor less often, time counting once the clock is back where it was", ""))
	sec.promise(v.wait.promise("nobody is told to wait longer than the clock is behind, within the limit, plus the policy's own horizon", ""))
	sec.promise(v.first.promise("waiting exactly that long on Redis's clock admits, one microsecond less does not", ""))
	sec.promise(v.expiry.promise("a state expires no earlier than it stops to matter, one that is ahead of the clock included", ""))
}

// waitExactly tries a Retry-After to the microsecond.
func (c *clocked) waitExactly(now int64, b *life, v *verdicts, d sentinel.Decision) int64 {
	then := now + d.RetryAfter.Microseconds()
	early := c.at(then-1, b, v)
	on := c.at(then, b, v)
	v.first.check(!early.Allowed && on.Allowed, "%v at %d, told to wait %v: admitted a microsecond early: %t, on time: %t", b, now, d.RetryAfter, early.Allowed, on.Allowed)
	return then
}

// walk moves a clock: a little, to where a denial pointed, by seconds, an hour
// or a year in either direction.
func walk(r *rand.Rand, b *life, now int64, d sentinel.Decision) int64 {
	step := func(d time.Duration) int64 { return d.Microseconds() + r.Int64N(1000) }
	switch r.IntN(16) {
	case 0, 1, 2, 3, 4:
		return now
	case 5, 6:
		return now + r.Int64N(10)
	case 7, 8:
		return now + r.Int64N(b.fills/4+2)
	case 9:
		return now + max(0, d.RetryAfter.Microseconds()-1+r.Int64N(3))
	case 10:
		return now + step(time.Duration(r.Int64N(int64(90*time.Second))))
	case 11:
		return now + step([]time.Duration{hour, year}[r.IntN(2)])
	case 12:
		return now - step([]time.Duration{hour, year}[r.IntN(2)])
	case 13: // back to where it was
		return max(now, b.highest)
	default:
		return now - step(time.Duration(r.Int64N(int64(90*time.Second))))
	}
}
