package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/measure"
)

const (
	nameClock      = "floor: time.Now"
	nameAcquire    = "breaker alone: clock and Acquire"
	nameOpenClosed = "Sentinel, breaker open, fail closed"
	nameOpenMute   = "Sentinel, breaker open, fail closed, no metrics"
	nameOpenOpen   = "Sentinel, breaker open, fail open"
	nameCAS        = "floor: clock and one compare-and-swap"
	nameEmergency  = "emergency bucket: clock and Take"
)

// errDenied is a denial where there must be none.
func errDenied(name string) error { return fmt.Errorf("%s: denied within its quota", name) }

// measureBreaker is about a service whose Redis is known to be away.
func measureBreaker(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "4 Breaker open",
		About: "What a check costs while the breaker is open. Failing closed it reads the clock and asks the breaker; failing open it also takes " +
			"from the emergency bucket. The floor of the latter is a GCRA in one word: read the clock, load, compare and swap.",
	}
	limiter, err := openBroken(l)
	if err != nil {
		return nil, err
	}
	defer limiter.Close()
	mute, err := openBroken(l, withoutMetrics())
	if err != nil {
		return nil, err
	}
	defer mute.Close()
	for _, workers := range []int{1, 2} {
		r, err := l.spinAll(workers, l.Cell, breakerSpinners(l, limiter, mute))
		if err != nil {
			return nil, err
		}
		s.Tables = append(s.Tables, r.table(goroutines(workers), nameClock))
		if workers == 1 {
			s.Bars = append(s.Bars,
				measure.AtMost("breaker open, fail closed, to reading the clock", r.ratio(nameOpenClosed, nameClock), 5).AsGate(),
				measure.NoAllocations("breaker open, fail closed", r.allocs(nameOpenClosed)).AsGate())
		}
		s.Bars = append(s.Bars, measure.AtMost("emergency bucket to a bare compare-and-swap, "+goroutines(workers),
			r.ratio(nameEmergency, nameCAS), 2).AsGate())
	}
	return s, nil
}

// openBroken returns a limiter on a port where nobody listens, whose breaker is
// open.
func openBroken(l *lab, opts ...sentinel.Option) (*sentinel.Limiter, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	limiter, err := openWith(l.ctx, settings("redis://127.0.0.1:"+port, plenty), opts...)
	if err != nil {
		return nil, err
	}
	for range 100 {
		d, err := limiter.Allow(l.ctx, "tenant", endpoint)
		if err != nil {
			return nil, errors.Join(err, limiter.Close())
		}
		if d.Reason == sentinel.ReasonCircuitOpen {
			return limiter, nil
		}
	}
	return nil, errors.Join(errors.New("the breaker does not open"), limiter.Close())
}

func breakerSpinners(l *lab, limiter, mute *sentinel.Limiter) []spinner {
	base := time.Now()
	open := breaker.New(breaker.Settings{Failures: 1, OpenFor: time.Hour})
	pass, _ := open.Acquire(0)
	open.Report(0, pass, breaker.Failure)

	now := func() int64 { return time.Since(base).Microseconds() }
	emergency := bucket.New(bucket.NewTokenBucket(1<<50, 1<<50))
	var gcra atomic.Int64
	// A probe of a breaker whose time is over takes the connection's row.
	denied := func(on *sentinel.Limiter) func(int, int) bool {
		return func(int, int) bool {
			d, err := on.Allow(l.ctx, "tenant", endpoint)
			return err != nil || d.Allowed || d.FromStore
		}
	}
	return []spinner{
		{name: nameClock, want: true, call: func(int, int) bool { return !time.Now().IsZero() }},
		{name: nameAcquire, call: func(int, int) bool { _, ok := open.Acquire(time.Since(base)); return ok }},
		{name: nameOpenClosed, call: denied(limiter)},
		{name: nameOpenMute, call: denied(mute)},
		{name: nameOpenOpen, want: true, call: func(int, int) bool {
			d, err := limiter.Allow(l.ctx, "tenant", failOpen)
			return err == nil && d.Allowed && !d.FromStore
		}},
		{name: nameCAS, want: true, call: func(int, int) bool { return takeGCRA(&gcra, int64(time.Since(base))) }},
		{name: nameEmergency, want: true, call: func(int, int) bool { return emergency.Take(now(), nil) }},
	}
}

// takeGCRA takes one of a thousand million a second, with a burst of a second.
func takeGCRA(arrival *atomic.Int64, now int64) bool {
	for {
		was := arrival.Load()
		next := max(was, now) + 1
		if next-now > int64(time.Second) {
			return false
		}
		if arrival.CompareAndSwap(was, next) {
			return true
		}
	}
}
