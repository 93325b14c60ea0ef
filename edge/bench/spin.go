package main

import (
	"fmt"
	"runtime"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// spinner is something that takes nanoseconds: too short to look at the clock
// for each.
type spinner struct {
	name string
	call func() bool // whether it was right
}

// spun is what a spinner did in one round, on one goroutine.
type spun struct {
	perCall float64 // ns
	allocs  float64 // of one call
}

// batch is how many calls go by between two looks at the clock.
const batch = 256

func spin(s spinner, d time.Duration) (*spun, error) {
	if _, err := turn(s, d/10); err != nil {
		return nil, err
	}
	runtime.GC() // what others left behind is not this contestant's
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	calls, err := turn(s, d)
	wall := time.Since(start)
	runtime.ReadMemStats(&after)
	return &spun{
		perCall: float64(wall.Nanoseconds()) / calls,
		allocs:  float64(after.Mallocs-before.Mallocs) / calls,
	}, err
}

func turn(s spinner, d time.Duration) (calls float64, err error) {
	for start := time.Now(); time.Since(start) < d || calls == 0; calls += batch {
		for range batch {
			if !s.call() {
				return calls, fmt.Errorf("%s: wrong answer", s.name)
			}
		}
	}
	return calls, nil
}

// spins is what spinners did, by spinner and round.
type spins struct {
	names []string
	all   [][]*spun
}

func (l *lab) spinAll(spinners []spinner) (*spins, error) {
	all, err := measure.Interleave(l.Rounds, len(spinners), func(i int) (*spun, error) { return spin(spinners[i], l.Cell/10) })
	if err != nil {
		return nil, err
	}
	r := &spins{all: all}
	for _, s := range spinners {
		r.names = append(r.names, s.name)
	}
	return r, nil
}

func (r *spins) of(name string) []*spun {
	for i, n := range r.names {
		if n == name {
			return r.all[i]
		}
	}
	return nil
}

func times(s []*spun) []float64 { return measure.Each(s, func(s *spun) float64 { return s.perCall }) }

func (r *spins) allocs(name string) measure.Stat {
	return measure.StatOf(measure.Each(r.of(name), func(s *spun) float64 { return s.allocs }))
}

// ratio is the time of a to the least of others, in each round.
func (r *spins) ratio(a string, others ...string) measure.Stat {
	least := times(r.of(others[0]))
	for _, o := range others[1:] {
		for i, v := range times(r.of(o)) {
			least[i] = min(least[i], v)
		}
	}
	return measure.RatioOf(times(r.of(a)), least)
}

func (r *spins) table(title string) *measure.Table {
	t := &measure.Table{Title: title, Columns: []string{"", "ns", "allocations"}}
	for _, name := range r.names {
		t.Add(name, measure.StatOf(times(r.of(name))).String(), r.allocs(name).String())
	}
	return t
}
