package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// spinner is something that takes nanoseconds: too short to look at the clock
// for each. w is the worker, from 0, and i counts its calls; the result is what
// the contestant answered.
type spinner struct {
	name string
	call func(w, i int) bool
	want bool
}

// spun is what a spinner did in one round.
type spun struct {
	perCall float64 // ns that one worker spent on one call
	allocs  float64 // of one call
	bytes   float64
}

func nanoseconds(rounds []spun) []float64 {
	return measure.Each(rounds, func(s spun) float64 { return s.perCall })
}

const batch = 256 // calls between two looks at whether time is up

// spin calls s from the given number of workers for d.
func (l *lab) spin(workers int, d time.Duration, s spinner) (spun, error) {
	if _, _, err := spinFor(l.ctx, workers, d/10, s); err != nil {
		return spun{}, err
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls, wall, err := spinFor(l.ctx, workers, d, s)
	runtime.ReadMemStats(&after)
	return spun{
		perCall: float64(wall.Nanoseconds()) * float64(workers) / calls,
		allocs:  float64(after.Mallocs-before.Mallocs) / calls,
		bytes:   float64(after.TotalAlloc-before.TotalAlloc) / calls,
	}, err
}

func spinFor(ctx context.Context, workers int, d time.Duration, s spinner) (calls float64, wall time.Duration, err error) {
	var stop atomic.Bool
	var done sync.WaitGroup
	counts, errs := make([]int, workers), make([]error, workers)
	start := time.Now()
	for w := range workers {
		done.Go(func() {
			n := 0
			for !stop.Load() && ctx.Err() == nil {
				wrong := 0
				for range batch {
					if s.call(w, n) != s.want {
						wrong++
					}
					n++
				}
				if wrong > 0 {
					errs[w] = fmt.Errorf("%s: %d of %d answers are wrong, want %t", s.name, wrong, batch, s.want)
					break
				}
			}
			counts[w] = n
		})
	}
	time.Sleep(d)
	stop.Store(true)
	done.Wait()
	wall = time.Since(start)
	for _, n := range counts {
		calls += float64(n)
	}
	return calls, wall, firstOf(append(errs, ctx.Err()))
}

// spins are the results of several spinners, by name.
type spins struct {
	workers int
	names   []string
	rounds  [][]spun
}

func (l *lab) spinAll(workers int, d time.Duration, all []spinner) (*spins, error) {
	r := &spins{workers: workers}
	for _, s := range all {
		r.names = append(r.names, s.name)
	}
	var err error
	r.rounds, err = measure.Interleave(l.Rounds, len(all), func(i int) (spun, error) { return l.spin(workers, d, all[i]) })
	return r, err
}

func (r *spins) of(name string) []spun {
	for i, n := range r.names {
		if n == name {
			return r.rounds[i]
		}
	}
	panic("bench: no row " + name)
}

// ratio is the cost of a to that of b.
func (r *spins) ratio(a, b string) measure.Stat {
	return measure.RatioOf(nanoseconds(r.of(a)), nanoseconds(r.of(b)))
}

func (r *spins) allocs(name string) measure.Stat {
	return measure.StatOf(measure.Each(r.of(name), func(s spun) float64 { return s.allocs }))
}

// fastest is the one of the names that costs least.
func (r *spins) fastest(names ...string) string {
	best := names[0]
	for _, n := range names[1:] {
		if measure.StatOf(nanoseconds(r.of(n))).Median < measure.StatOf(nanoseconds(r.of(best))).Median {
			best = n
		}
	}
	return best
}

func (r *spins) table(title, base string) *measure.Table {
	t := &measure.Table{Title: title, Columns: []string{"", "ns a call", "to " + base, "M calls/s", "allocs", "bytes"}}
	for i, name := range r.names {
		ns := nanoseconds(r.rounds[i])
		t.Add(name, measure.StatOf(ns).String(), r.ratio(name, base).Factor(),
			measure.Number(1e3*float64(r.workers)/measure.StatOf(ns).Median), measure.Number(r.allocs(name).Median),
			measure.Number(measure.StatOf(measure.Each(r.rounds[i], func(s spun) float64 { return s.bytes })).Median))
	}
	return t
}
