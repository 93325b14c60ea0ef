package integration_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Tests of the budget hold real durations against 20 ms. They are not parallel,
// so that they have the machine to themselves; yet it may be busy with something
// else, or its memory may have gone cold, and then it is late whatever Sentinel
// does. So the machine is watched meanwhile: what comes late counts only where
// nothing but Sentinel was late.

const (
	// budget is the default.
	budget = 20 * time.Millisecond
	// within is the budget and what scheduling may add to one check of many.
	within = budget + 40*time.Millisecond
	// late is a machine's lateness that explains what the limits above do not.
	late = 8 * time.Millisecond
	// trials is how often a test is tried that proves nothing.
	trials = 12
)

// onTime tries f until one trial is without a fault. A fault while the machine
// kept time is the test's. One while it did not proves nothing, and f is tried
// again. Where that never ends, the machine decides: if it is as late while f
// does not run, nothing can be said here of 20 ms, and the test is skipped; if
// not, then it is f that makes it late.
func onTime(t *testing.T, f func(*trial)) {
	t.Helper()
	busy := 0
	for n := 1; ; n++ {
		if idly() >= late {
			busy++
		}
		again := false
		t.Run(fmt.Sprint("trial ", n), func(t *testing.T) {
			r := &trial{T: t, machine: watch()}
			defer func() { // also where f ends by Fatal
				again = r.judge(n == trials, busy > trials/2)
			}()
			f(r)
		})
		if !again {
			return
		}
		time.Sleep(time.Duration(n) * 100 * time.Millisecond) // it may pass
	}
}

// A trial is one run of a test of the budget.
type trial struct {
	*testing.T
	machine *lateness
	mu      sync.Mutex
	faults  []string
}

// faultf notes what is a fault on a machine that keeps time. What is one on any
// machine goes to Errorf.
func (r *trial) faultf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// judge ends the trial, and reports whether there must be another.
func (r *trial) judge(isLast, isBusy bool) bool {
	worst := r.machine.end()
	if len(r.faults) == 0 {
		return false
	}
	what := fmt.Sprintf("%s (while the machine was late by %v at most)", strings.Join(r.faults, "; "), worst)
	switch {
	case r.Failed():
		r.Log(what)
	case worst >= late && !isLast:
		r.Log("does not count: " + what)
		return true
	case worst >= late && isBusy:
		r.Skip("this machine is too busy for a test of 20 ms: " + what)
	default:
		r.Error(what)
	}
	return false
}

// watchRedis watches a bare PING, too, which should take usual.
func (r *trial) watchRedis(c *redis.Client, usual time.Duration) {
	r.Helper()
	if err := c.Ping(r.Context()).Err(); err != nil { // dials
		r.Fatal(err)
	}
	r.machine.add(usual, func() { c.Ping(context.Background()) })
}

// lateness is by how much the machine is late at most, from watch to end.
type lateness struct {
	watching sync.WaitGroup
	ended    chan struct{}
	worst    atomic.Int64
}

// watch watches how late goroutines wake that need nothing but a CPU.
func watch() *lateness {
	l := &lateness{ended: make(chan struct{})}
	for range runtime.GOMAXPROCS(0) {
		l.add(time.Millisecond, func() { time.Sleep(time.Millisecond) })
	}
	return l
}

// add does f, which should take usual, again and again.
func (l *lateness) add(usual time.Duration, f func()) {
	l.watching.Go(func() {
		for {
			select {
			case <-l.ended:
				return
			case <-time.After(time.Millisecond):
			}
			start := time.Now()
			f()
			by := int64(time.Since(start) - usual)
			for old := l.worst.Load(); by > old && !l.worst.CompareAndSwap(old, by); old = l.worst.Load() {
			}
		}
	})
}

func (l *lateness) end() time.Duration {
	close(l.ended)
	l.watching.Wait()
	return time.Duration(l.worst.Load())
}

// idly is how late the machine is while no test runs.
func idly() time.Duration {
	l := watch()
	time.Sleep(100 * time.Millisecond)
	return l.end()
}
