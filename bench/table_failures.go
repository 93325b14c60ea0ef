package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

const (
	budget    = 20 * time.Millisecond // the default
	witnesses = 4                     // sleep beside each crowd
	tick      = time.Millisecond      // how long each time
	tolerated = 2500 * time.Microsecond
)

// fault is a way for Redis to be away.
type fault struct {
	name  string
	slack time.Duration // that a check may take over the budget
	warm  bool          // the limiter was connected before
	begin func(l *lab) (addr string, done func(), err error)
}

var faults = []fault{
	{name: "dead port", slack: 5 * time.Millisecond, begin: func(*lab) (string, func(), error) { return deadPort() }},
	{name: "black hole that accepts, cold", slack: 5 * time.Millisecond, begin: func(*lab) (string, func(), error) { return silentHole() }},
	{name: "stopped server, connected before", slack: 5 * time.Millisecond, warm: true, begin: stoppedServer},
	{name: "black hole that drops SYN, cold", slack: 10 * time.Millisecond, begin: func(l *lab) (string, func(), error) { return droppingHole(l.ctx) }},
}

// stoppedServer is the benchmark's Redis; it is frozen later, once the limiters
// are connected.
func stoppedServer(l *lab) (string, func(), error) { return l.redis.addr, func() {}, nil }

// outcome is what the checks of one fault came to: those of crowds beside which
// the machine was on time, and the longest of the others.
type outcome struct {
	latency     measure.Histogram
	reasons     map[sentinel.Reason]int
	late        int // checks of crowds beside which the machine was late
	longestLate time.Duration
}

// measureFailures is about the time of a check whose Redis does not answer.
func measureFailures(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "7 Failure path",
		About: fmt.Sprintf("The longest of many checks that meet a fault, with the default budget of %s. The breaker would spare nearly all of them the fault, "+
			"so each crowd of goroutines has a limiter of its own and every goroutine checks once, all at the same moment; one goroutine checks five times, "+
			"then its breaker is open. Times are as the caller sees them.\n\nBeside each crowd, %d goroutines do nothing but sleep for %s, again and again until the crowd is done. Where one of them "+
			"wakes more than %s late, the machine stood still or was busy with something else; these checks are counted apart, and others made instead. "+
			"The bars are of those that remain.", budget, witnesses, tick, tolerated),
	}
	t := &measure.Table{Columns: []string{"fault", "goroutines", "checks", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", "machine late: checks", "longest ms", "reasons"}}
	for _, f := range faults {
		longest := time.Duration(0)
		for _, workers := range []int{1, 64, 256} {
			checks := pick(l, 10_000, 2*workers)
			if workers == 1 {
				checks = pick(l, 500, 5)
			}
			o, err := l.meet(f, workers, checks)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			longest = max(longest, o.latency.Longest())
			t.Add(f.name, fmt.Sprint(workers), fmt.Sprint(o.latency.Count()), millis(o.latency.Quantile(0.5)), millis(o.latency.Quantile(0.99)),
				millis(o.latency.Quantile(0.999)), millis(o.latency.Longest()), fmt.Sprint(o.late), millis(o.longestLate), o.words())
		}
		s.Bars = append(s.Bars, measure.AtMost(f.name+": longest check",
			measure.StatOf([]float64{float64(longest) / 1e6}), float64(budget+f.slack)/1e6).In(" ms").AsGate())
	}
	s.Tables = append(s.Tables, t)
	return s, nil
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }

func (o *outcome) words() string {
	var texts []string
	for _, r := range []sentinel.Reason{sentinel.ReasonFailClosed, sentinel.ReasonCircuitOpen} {
		if n := o.reasons[r]; n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", n, r))
		}
	}
	return strings.Join(texts, ", ")
}

// meet has crowds of checks meet a fault until there were enough of them that a
// late machine did not spoil.
func (l *lab) meet(f fault, workers, checks int) (o *outcome, err error) {
	o = &outcome{reasons: map[sentinel.Reason]int{}}
	addr, done, err := f.begin(l)
	if err != nil {
		return nil, err
	}
	defer done()
	each := 1 // of a goroutine
	if workers == 1 {
		each = 5
	}
	for n := 0; n < checks; n = int(o.latency.Count()) {
		if o.late > 2*checks {
			return nil, fmt.Errorf("the machine was late beside %d checks and on time beside %d: measure while it is idle", o.late, n)
		}
		missing := (checks - n + workers*each - 1) / (workers * each)
		// A few at a time: their connections stay open until they have met it.
		if err := l.meetTogether(f, addr, min(missing, 20), workers, each, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// meetTogether makes n limiters, and has each meet the fault with a crowd.
func (l *lab) meetTogether(f fault, addr string, n, workers, each int, o *outcome) (err error) {
	limiters := make([]*sentinel.Limiter, 0, n)
	defer func() {
		for _, limiter := range limiters {
			_ = limiter.Close()
		}
	}()
	open := func() (*sentinel.Limiter, error) {
		limiter, err := openFaulty(l, f, addr)
		if err == nil {
			limiters = append(limiters, limiter)
		}
		return limiter, err
	}
	if f.warm {
		for range n {
			if _, err := open(); err != nil {
				return err
			}
		}
		if err := l.redis.freeze(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.redis.thaw()) }()
	}
	for i := range n {
		if !f.warm {
			if _, err := open(); err != nil {
				return err
			}
		}
		if err := crowdMeets(l, limiters[i], workers, each, o); err != nil {
			return err
		}
	}
	return nil
}

// openFaulty opens a limiter on a fault. Open would wait for two seconds for an
// answer that does not come.
func openFaulty(l *lab, f fault, addr string) (*sentinel.Limiter, error) {
	ctx, cancel := l.ctx, context.CancelFunc(func() {})
	if !f.warm {
		ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
	}
	defer cancel()
	limiter, err := openWith(ctx, settings("redis://"+addr, plenty))
	if err != nil || !f.warm {
		return limiter, err
	}
	// On a busy machine the first answers may be late.
	for range 100 {
		d, err := limiter.Allow(l.ctx, "warm", endpoint)
		if err != nil || d.Allowed {
			return limiter, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("the limiter does not get connected"), limiter.Close())
}

// crowdMeets has all workers check at the same moment.
func crowdMeets(l *lab, limiter *sentinel.Limiter, workers, each int, o *outcome) error {
	type check struct {
		took   time.Duration
		reason sentinel.Reason
		err    error
	}
	results := make([]check, workers*each)
	keys := names("tenant", workers)
	begin := make(chan struct{})
	var done, seen sync.WaitGroup
	var oversleep [witnesses]time.Duration
	var over atomic.Bool
	for i := range oversleep {
		seen.Go(func() {
			<-begin
			for !over.Load() { // one goroutine checks several times
				start := time.Now()
				time.Sleep(tick)
				oversleep[i] = max(oversleep[i], time.Since(start)-tick)
			}
		})
	}
	for w := range workers {
		done.Go(func() {
			<-begin
			for i := range each {
				start := time.Now()
				d, err := limiter.Allow(l.ctx, keys[w], endpoint)
				results[w*each+i] = check{took: time.Since(start), reason: d.Reason, err: err}
			}
		})
	}
	close(begin)
	done.Wait()
	over.Store(true)
	seen.Wait()
	late := l.Full && slices.Max(oversleep[:]) > tolerated // the short form runs on machines that are never idle
	for _, r := range results {
		if r.err != nil {
			return r.err
		}
		if r.reason != sentinel.ReasonFailClosed && r.reason != sentinel.ReasonCircuitOpen {
			return fmt.Errorf("answered %q, want a denial by the failure table", r.reason)
		}
		if late {
			o.late++
			o.longestLate = max(o.longestLate, r.took)
			continue
		}
		o.latency.Add(r.took)
		o.reasons[r.reason]++
	}
	return nil
}
