package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// connections is how many a load has, each with one request at a time.
const connections = 64

// cell is what one contestant did in one round.
type cell struct {
	answers float64 // that were those wanted
	failed  float64 // others, of a request that tolerates them
	wall    time.Duration
	latency measure.Histogram // of all
	cpu     time.Duration     // of the proxy
}

func (c *cell) perSecond() float64 { return c.answers / c.wall.Seconds() }

// cost is the proxy's CPU-seconds for 1,000 requests.
func (c *cell) cost() float64 { return 1000 * c.cpu.Seconds() / (c.answers + c.failed) }

func (c *cell) millis(q float64) float64 { return c.latency.Quantile(q).Seconds() * 1e3 }

// source says when a worker's next request is due, as a time since the start, and
// false when there are no more. It is for one goroutine.
type source func() (due time.Duration, more bool)

// closedLoop has each connection send a request as soon as it has its answer, for
// d, after a tenth of that to warm up.
func closedLoop(ctx context.Context, p *process, r request, d time.Duration) (*cell, error) {
	wires := wiresTo(p.addr)
	defer hangUp(wires)
	var until time.Duration
	now := func(start time.Time) source {
		return func() (time.Duration, bool) {
			at := time.Since(start)
			return at, at < until
		}
	}
	until = d / 10
	if _, err := drive(ctx, p, wires, r, now); err != nil {
		return nil, err
	}
	until = d
	return drive(ctx, p, wires, r, now)
}

// openLoop has requests fall due at a rate, for d, as a Poisson process: they do
// not wait for answers. Whichever connection is free takes the next; where all are
// busy it is late, and its latency, which counts from when it was due, says so.
func openLoop(ctx context.Context, p *process, r request, rate float64, d time.Duration) (*cell, error) {
	wires := wiresTo(p.addr)
	defer hangUp(wires)
	warm := func(start time.Time) source {
		return func() (time.Duration, bool) { at := time.Since(start); return at, at < d/10 }
	}
	if _, err := drive(ctx, p, wires, r, warm); err != nil {
		return nil, err
	}
	due := make(chan time.Duration, int(2*rate*d.Seconds())+1000) // nothing waits to be put there
	return drive(ctx, p, wires, r, func(start time.Time) source {
		go pace(ctx, start, rate, d, due)
		return func() (time.Duration, bool) { at, more := <-due; return at, more }
	})
}

// pace sends when each request is due, when it is. The sleeps of Go's timers end up
// to a millisecond late; those of the kernel are better by an order of magnitude.
func pace(ctx context.Context, start time.Time, rate float64, d time.Duration, due chan<- time.Duration) {
	defer close(due)
	for at := 0.0; at < d.Seconds() && ctx.Err() == nil; at += rand.ExpFloat64() / rate {
		next := time.Duration(at * float64(time.Second))
		if left := next - time.Since(start); left > 0 {
			ts := syscall.NsecToTimespec(int64(left))
			_ = syscall.Nanosleep(&ts, nil) // a sleep that a signal ends is followed by a shorter one or none
		}
		due <- next
	}
}

func wiresTo(addr string) []*wire {
	wires := make([]*wire, connections)
	for i := range wires {
		wires[i] = newWire(addr)
	}
	return wires
}

func hangUp(wires []*wire) {
	for _, w := range wires {
		w.hangUp()
	}
}

// drive has every connection take from the source that begin returns. A source
// may be shared if it is safe for concurrent use.
func drive(ctx context.Context, p *process, wires []*wire, r request, begin func(start time.Time) source) (*cell, error) {
	workers := make([]worker, len(wires))
	var failed atomic.Bool
	var done sync.WaitGroup
	cpu, err := p.cpu()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	from := begin(start)
	for i, w := range wires {
		done.Go(func() { workers[i].run(ctx, w, &r, start, from, &failed) })
	}
	done.Wait()
	c := &cell{wall: time.Since(start)}
	for i := range workers {
		if workers[i].err != nil {
			return nil, p.explain(workers[i].err)
		}
		c.latency.Merge(&workers[i].latency)
		c.failed += float64(workers[i].failed)
	}
	c.answers = float64(c.latency.Count()) - c.failed
	after, err := p.cpu()
	c.cpu = after - cpu
	return c, err
}

// worker is one connection's part of a load.
type worker struct {
	latency measure.Histogram
	failed  int
	err     error
}

func (k *worker) run(ctx context.Context, w *wire, r *request, start time.Time, next source, failed *atomic.Bool) {
	for !failed.Load() && ctx.Err() == nil {
		due, more := next()
		if !more {
			return
		}
		ok, err := w.exchange(ctx, r)
		if err != nil {
			k.err = err
			failed.Store(true)
			return
		}
		if !ok {
			k.failed++
		}
		k.latency.Add(time.Since(start) - due)
	}
}
