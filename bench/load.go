package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// taker takes the decision on the i-th key and reports whether it admitted.
// An answer that is not the contestant's own, such as that of a failure mode,
// is an error.
type taker func(ctx context.Context, i int) (bool, error)

// load is a closed loop: workers that each take one decision after another, on
// keys drawn uniformly.
type load struct {
	workers int
	keys    int
	want    bool // the right answer
}

// cell is what one contestant did in one round.
type cell struct {
	decisions float64
	wall      time.Duration
	latency   measure.Histogram
	client    time.Duration // CPU of this process, the load included
	redis     time.Duration // CPU of the server
	mallocs   float64
	bytes     float64
}

func (c *cell) perSecond() float64 { return c.decisions / c.wall.Seconds() }

func (c *cell) per(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / c.decisions }

// run loads take for d, after a tenth of that to warm up.
func (l *lab) run(ld load, d time.Duration, take taker) (*cell, error) {
	if err := ld.drive(l.ctx, d/10, take, &cell{}); err != nil {
		return nil, err
	}
	runtime.GC() // what others left behind is not this contestant's
	c := &cell{}
	redisBefore, err := l.redis.cpu(l.ctx)
	if err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	clientBefore := ownCPU()
	if err := ld.drive(l.ctx, d, take, c); err != nil {
		return nil, err
	}
	c.client = ownCPU() - clientBefore
	runtime.ReadMemStats(&after)
	redisAfter, err := l.redis.cpu(l.ctx)
	if err != nil {
		return nil, err
	}
	c.redis = redisAfter - redisBefore
	c.mallocs = float64(after.Mallocs - before.Mallocs)
	c.bytes = float64(after.TotalAlloc - before.TotalAlloc)
	return c, nil
}

// drive lets the workers run for d and collects in c what they did.
func (ld load) drive(ctx context.Context, d time.Duration, take taker, c *cell) error {
	var stop atomic.Bool
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	latencies := make([]measure.Histogram, ld.workers)
	errs := make([]error, ld.workers)
	for w := range ld.workers {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-begin
			errs[w] = ld.work(ctx, &stop, take, &latencies[w])
		})
	}
	ready.Wait()
	start := time.Now()
	close(begin)
	time.Sleep(d)
	stop.Store(true)
	done.Wait()
	c.wall = time.Since(start)
	for i := range latencies {
		c.latency.Merge(&latencies[i])
	}
	c.decisions = float64(c.latency.Count())
	return firstOf(errs)
}

// firstOf is the first error there is: the others are mostly its echo.
func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (ld load) work(ctx context.Context, stop *atomic.Bool, take taker, h *measure.Histogram) error {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	before := time.Now()
	for !stop.Load() {
		got, err := take(ctx, rnd.IntN(ld.keys))
		if err != nil {
			stop.Store(true)
			return err
		}
		if got != ld.want {
			stop.Store(true)
			return fmt.Errorf("wrong answer: admitted %t, want %t", got, ld.want)
		}
		now := time.Now()
		h.Add(now.Sub(before))
		before = now
	}
	return nil
}

// ownCPU is the time that this process has spent on CPUs.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // not for these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
