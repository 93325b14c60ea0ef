package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

const (
	nameUnguarded = "unguarded"
	nameGuarded   = "guarded by a token bucket on Redis"
	namePacing    = "no service: what the pacing itself costs"

	openConnections = 64
)

// measureLatency is about what a guard does to the latency of a service that is
// not saturated.
func measureLatency(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "8 Latency at a fixed rate of arrivals",
		About: fmt.Sprintf("An open loop over %d connections to a net/http service. Requests are due at instants that do not depend on the answers, "+
			"spread as a Poisson process; a latency counts from the instant a request was due, so that a stall is charged to everyone who had to wait "+
			"for it. Both services get the same rate, a part of what the guarded one can do at most.", openConnections),
	}
	limiter, err := openLimiter(l, plenty)
	if err != nil {
		return nil, err
	}
	defer limiter.Close()
	svc, err := startService(limiter, endpoint)
	if err != nil {
		return nil, err
	}
	defer svc.stop()
	contestants, done, err := latencyContestants(l, svc)
	defer done()
	if err != nil {
		return nil, err
	}
	closed, err := l.grid(load{workers: openConnections, keys: uniformKeys, want: true}, l.Cell, contestants[:2])
	if err != nil {
		return nil, err
	}
	s.Tables = append(s.Tables, closed.table("Saturation, closed loop", nameUnguarded))
	most := measure.StatOf(throughput(closed.of(nameGuarded))).Median
	for _, part := range []float64{0.5, 0.8} {
		if err := l.addOpenLoop(s, contestants, most, part); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func latencyContestants(l *lab, svc *service) (all []contestant, done func(), err error) {
	bareRequest := raw("/", "")
	guardedRequests := tokenRequests("/"+endpoint, uniformKeys)
	unguarded, doneA, err := svc.overHTTP(l.ctx, openConnections, func(int) []byte { return bareRequest })
	if err != nil {
		return nil, func() {}, err
	}
	guarded, doneB, err := svc.overHTTP(l.ctx, openConnections, func(i int) []byte { return guardedRequests[i] })
	if err != nil {
		return nil, doneA, err
	}
	return []contestant{
		{nameUnguarded, unguarded},
		{nameGuarded, guarded},
		{namePacing, func(context.Context, int) (bool, error) { return true, nil }},
	}, func() { doneA(); doneB() }, nil
}

func (l *lab) addOpenLoop(s *measure.Section, all []contestant, most, part float64) error {
	rate := most * part
	d := pick(l, 5*l.Cell, l.Cell)
	results, err := measure.Interleave(l.Rounds, len(all), func(i int) (*measure.Histogram, error) {
		h, err := openLoop(l.ctx, rate, d, all[i].take)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].name, err)
		}
		return h, nil
	})
	if err != nil {
		return err
	}
	t := &measure.Table{
		Title:   fmt.Sprintf("At %.0f %% of saturation: %.0f requests a second", 100*part, rate),
		Columns: []string{"", "p50 us", "p99 us", "p99.9 us", "p50", "p99", "p99.9 to unguarded"},
	}
	for i, c := range all {
		row, ratios := []string{c.name}, []string(nil)
		for _, q := range []float64{0.5, 0.99, 0.999} {
			of := func(h *measure.Histogram) float64 { return float64(h.Quantile(q)) / 1e3 }
			row = append(row, measure.StatOf(measure.Each(results[i], of)).String())
			ratios = append(ratios, measure.RatioOf(measure.Each(results[i], of), measure.Each(results[0], of)).Factor())
		}
		t.Add(append(row, ratios...)...)
	}
	s.Tables = append(s.Tables, t)
	return nil
}

// openLoop has requests fall due at the rate for d. A worker takes the next one
// that is due; where all are busy it is late, and its latency says so.
func openLoop(ctx context.Context, rate float64, d time.Duration, take taker) (*measure.Histogram, error) {
	due := make([]time.Duration, 0, int(rate*d.Seconds())+1)
	for at := 0.0; at < d.Seconds(); at += rand.ExpFloat64() / rate {
		due = append(due, time.Duration(at*float64(time.Second)))
	}
	var mu sync.Mutex
	next := 0
	total := &measure.Histogram{}
	var failed error
	start := time.Now()
	var done sync.WaitGroup
	for range openConnections {
		done.Go(func() {
			var h measure.Histogram
			rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
			var err error
			for err == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(due) || ctx.Err() != nil {
					break
				}
				time.Sleep(due[i] - time.Since(start))
				var ok bool
				if ok, err = take(ctx, rnd.IntN(uniformKeys)); err == nil && !ok {
					err = errDenied("a request")
				}
				h.Add(time.Since(start) - due[i])
			}
			mu.Lock()
			defer mu.Unlock()
			total.Merge(&h)
			if err != nil {
				failed, next = err, len(due)
			}
		})
	}
	done.Wait()
	return total, failed
}
