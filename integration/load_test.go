package integration_test

import (
	"context"
	"maps"
	"sync"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// load is callers who ask several limiters without a pause, and what they were
// told.
type load struct {
	stop    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex
	n       int
	slowest time.Duration
	tenants map[string]*told
}

// told is what one tenant was told.
type told struct {
	admitted, failed int64 // by the store; by its failure
	rows             map[sentinel.Reason]int
	// lastFailed and firstAgain bound the time without the store.
	firstFailed, lastFailed time.Time
}

// loadCallers is how many callers each limiter has.
const loadCallers = 4

// startLoad has callers ask endpoint a for tenant(n), the n-th question.
func startLoad(limiters []*sentinel.Limiter, tenant func(n int) string) *load {
	ld := &load{stop: make(chan struct{}), tenants: make(map[string]*told)}
	for _, l := range limiters {
		for range loadCallers {
			ld.running.Go(func() {
				for {
					select {
					case <-ld.stop:
						return
					default:
						ld.ask(l, tenant)
					}
				}
			})
		}
	}
	return ld
}

func (ld *load) ask(l *sentinel.Limiter, tenant func(int) string) {
	ld.mu.Lock()
	name := tenant(ld.n)
	ld.n++
	ld.mu.Unlock()
	start := time.Now()
	d, err := l.Allow(context.Background(), name, "a")
	now := time.Now()
	if err != nil {
		d = sentinel.Decision{Reason: sentinel.Reason(err.Error())}
	}
	ld.mu.Lock()
	defer ld.mu.Unlock()
	of := ld.tenants[name]
	if of == nil {
		of = &told{rows: make(map[sentinel.Reason]int)}
		ld.tenants[name] = of
	}
	ld.slowest = max(ld.slowest, now.Sub(start))
	of.rows[d.Reason]++
	switch {
	case !d.FromStore:
		of.failed++
		if of.firstFailed.IsZero() {
			of.firstFailed = now
		}
		of.lastFailed = now
		if !d.Allowed && d.Reason == sentinel.ReasonCircuitOpen { // it costs nothing, so it would crowd the others out
			ld.mu.Unlock()
			time.Sleep(time.Millisecond)
			ld.mu.Lock()
		}
	case d.Allowed:
		of.admitted++
	}
}

// total is how many questions there were.
func (ld *load) total() int {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return ld.n
}

// end stops the callers.
func (ld *load) end() {
	close(ld.stop)
	ld.running.Wait()
}

func (ld *load) of(tenant string) told {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	of := ld.tenants[tenant]
	if of == nil {
		return told{}
	}
	now := *of
	now.rows = maps.Clone(of.rows)
	return now
}
