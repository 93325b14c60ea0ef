package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

const (
	nameDenied      = "Sentinel, a known denial"
	nameDeniedMute  = "Sentinel, a known denial, no metrics"
	nameLoadClock   = "floor: load by key, look at the clock"
	nameLoadClockID = "the same behind a SHA-256 of the tenant"
)

// measureDenials is about a client who is over quota and does not stop.
func measureDenials(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "2 Known denials",
		About: "A tenant whose bucket denies asks again and again, through Limiter.Allow on Redis. The floor loads an instant from a sync.Map " +
			"by the tenant's name and compares it with the clock; the row below it also hashes the name, which everything does that keeps names out of Redis.",
	}
	limiter, err := openLimiter(l, scarce)
	if err != nil {
		return nil, err
	}
	defer limiter.Close()
	if err := prove(l.ctx, nameDenied, allow(limiter)); err != nil {
		return nil, err
	}
	mute, err := openLimiter(l, scarce, withoutMetrics())
	if err != nil {
		return nil, err
	}
	defer mute.Close()
	spinners, err := denialSpinners(l, limiter, mute)
	if err != nil {
		return nil, err
	}
	byWorkers := map[int]*spins{}
	for _, workers := range []int{1, 2} {
		r, err := l.spinAll(workers, l.Cell, spinners)
		if err != nil {
			return nil, err
		}
		byWorkers[workers] = r
		s.Tables = append(s.Tables, r.table(goroutines(workers), nameLoadClock))
	}
	two := byWorkers[2]
	s.Bars = []measure.Bar{
		measure.AtMost("known denial to load and clock, two cores", two.ratio(nameDenied, nameLoadClock), 2).AsGate(),
		measure.AtMost("known denial without metrics to load and clock, two cores", two.ratio(nameDeniedMute, nameLoadClock), 2),
		measure.NoAllocations("known denial", two.allocs(nameDenied)).AsGate(),
		measure.AtLeast("known denial, gain of a second core beside the floor's", measure.RatioOf(gain(byWorkers, nameDenied), gain(byWorkers, nameLoadClock)), 0.8).AsGate(),
	}
	s.Notes = append(s.Notes, "Two cores do "+measure.StatOf(gain(byWorkers, nameDenied)).Factor()+" what one does; of the floor, "+
		measure.StatOf(gain(byWorkers, nameLoadClock)).Factor()+".")
	return s, addFloods(l, s, limiter)
}

// gain is how much more two workers do than one, in every round.
func gain(r map[int]*spins, name string) []float64 {
	one, two := nanoseconds(r[1].of(name)), nanoseconds(r[2].of(name))
	values := make([]float64, len(one))
	for i := range one {
		values[i] = 2 * one[i] / two[i]
	}
	return values
}

func denialSpinners(l *lab, limiter, mute *sentinel.Limiter) ([]spinner, error) {
	const tenant = "over-quota"
	for range scarce.burst + 1 {
		if _, err := genuine(limiter.Allow(l.ctx, tenant, endpoint)); err != nil {
			return nil, err
		}
	}
	denied := func(on *sentinel.Limiter) func(int, int) bool {
		return func(int, int) bool {
			d, err := on.Allow(l.ctx, tenant, endpoint)
			return err != nil || d.Allowed || d.Reason != sentinel.ReasonRateLimited
		}
	}
	var until sync.Map
	base := time.Now()
	instant := new(atomic.Int64)
	instant.Store(int64(time.Hour))
	until.Store(tenant, instant)
	sum := sha256.Sum256([]byte(tenant))
	until.Store(hex.EncodeToString(sum[:]), instant)
	passed := func(key string) bool {
		v, ok := until.Load(key)
		return !ok || int64(time.Since(base)) >= v.(*atomic.Int64).Load()
	}
	return []spinner{
		{name: nameLoadClock, call: func(int, int) bool { return passed(tenant) }},
		{name: nameLoadClockID, call: func(int, int) bool {
			sum := sha256.Sum256([]byte(tenant))
			return passed(hex.EncodeToString(sum[:]))
		}},
		{name: nameDenied, call: denied(limiter)},
		{name: nameDeniedMute, call: denied(mute)},
	}, nil
}

// addFloods counts what floods of tenants who are all over quota are to Redis.
// Each bucket need be asked about once a second, however often its tenant asks;
// when the second is over, each goroutine may ask at the same moment.
func addFloods(l *lab, s *measure.Section, limiter *sentinel.Limiter) error {
	t := &measure.Table{
		Title:   "A flood by tenants who are over quota, 64 goroutines",
		Columns: []string{"", "checks a second", "script calls a second for each tenant"},
	}
	const workers = 64
	for _, tenants := range []int{1, 1000} {
		rounds, err := l.flood(limiter, workers, tenants)
		if err != nil {
			return err
		}
		who := plural(tenants, "tenant")
		calls := measure.StatOf(measure.Each(rounds, func(f flood) float64 { return f.calls / float64(tenants) }))
		t.Add(who, measure.StatOf(measure.Each(rounds, func(f flood) float64 { return f.checks })).String(), calls.String())
		s.Bars = append(s.Bars, measure.AtMost("flood over quota by "+who+", script calls a second for each",
			calls, 1.1*float64(tenants+workers)/float64(tenants)).In("").AsGate())
	}
	s.Tables = append(s.Tables, t)
	return nil
}

func (l *lab) flood(limiter *sentinel.Limiter, workers, tenants int) ([]flood, error) {
	keys := names("flood", tenants)
	decide := allow(limiter)
	for _, k := range keys {
		for range scarce.burst + 1 {
			if _, err := decide(l.ctx, k); err != nil {
				return nil, err
			}
		}
	}
	ld := load{workers: workers, keys: len(keys)}
	take := func(ctx context.Context, i int) (bool, error) {
		// As a handler does when it writes its response. Goroutines that never wait
		// for anything keep each processor for 10 ms: those who wait for Redis would
		// have it seconds after their answers are there.
		defer runtime.Gosched()
		return decide(ctx, keys[i])
	}
	results, err := measure.Interleave(pick(l, l.Rounds, 1), 1, func(int) (flood, error) {
		before, err := l.redis.scriptCalls(l.ctx)
		if err != nil {
			return flood{}, err
		}
		c := &cell{}
		if err := ld.drive(l.ctx, pick(l, 5*time.Second, time.Second), take, c); err != nil {
			return flood{}, err
		}
		after, err := l.redis.scriptCalls(l.ctx)
		return flood{checks: c.perSecond(), calls: float64(after-before) / c.wall.Seconds()}, err
	})
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

// flood is what a flood was, each second, to us and to Redis.
type flood struct{ checks, calls float64 }
