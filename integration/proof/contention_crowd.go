package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

const crowdRole = "crowd"

func init() { roles[crowdRole] = func() any { return &crowd{} } }

// crowd is one process that asks for much at once.
type crowd struct {
	limiter *sentinel.Limiter
	run     *sustained
}

// Opening is how a crowd opens its limiter.
type Opening struct {
	URL          string
	Policies     []sentinel.Policy
	Budget       time.Duration
	OneByOne     bool // without gathering
	AskEveryTime bool // without known denials
}

// Open opens the limiter, in place of the one before.
func (c *crowd) Open(o Opening, _ *int) error {
	if err := c.Close(0, nil); err != nil {
		return err
	}
	cfg := configure(o.URL, o.Policies...)
	cfg.App.RedisBudget = o.Budget
	cfg.App.DisableKnownDenials = o.AskEveryTime
	opts := []sentinel.Option{sentinel.WithLogger(slog.New(slog.DiscardHandler)), sentinel.WithStrictStart()}
	if o.OneByOne {
		opts = append(opts, sentinel.WithoutGathering())
	}
	var err error
	c.limiter, err = sentinel.Open(context.Background(), cfg, opts...)
	return err
}

// Close closes it.
func (c *crowd) Close(_ int, _ *int) error {
	if c.limiter == nil {
		return nil
	}
	return c.limiter.Close()
}

// Push is a burst on one bucket.
type Push struct {
	Tenant, Endpoint string
	Goroutines, Each int
	At               time.Time // when it begins
}

// Count is what came of it.
type Count struct {
	Admitted, Denied int // by Redis
	Else             int // not decided by Redis
}

// Push takes from the bucket.
func (c *crowd) Push(p Push, total *Count) error {
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for range p.Goroutines {
		all.Go(func() {
			time.Sleep(time.Until(p.At))
			var n Count
			var err error
			for range p.Each {
				var d sentinel.Decision
				if d, err = c.limiter.Allow(context.Background(), p.Tenant, p.Endpoint); err != nil {
					break
				}
				n.add(d)
			}
			mu.Lock()
			defer mu.Unlock()
			total.sum(n)
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	return failed
}

func (n *Count) add(d sentinel.Decision) {
	switch {
	case !d.FromStore:
		n.Else++
	case d.Allowed:
		n.Admitted++
	default:
		n.Denied++
	}
}

func (n *Count) sum(m Count) {
	n.Admitted += m.Admitted
	n.Denied += m.Denied
	n.Else += m.Else
}

// Mix is requests of anonymous clients, each of a random cookie at a random peer.
type Mix struct {
	Endpoint         string
	Cookies, Peers   []string // cookies as a browser sends them
	Goroutines, Each int
	Seed             uint64
}

// Mixed is what came of it: how often each cookie and each peer was admitted by
// Redis.
type Mixed struct {
	Cookies, Peers []int
	Count          Count
}

// Mix asks.
func (c *crowd) Mix(m Mix, total *Mixed) error {
	total.Cookies, total.Peers = make([]int, len(m.Cookies)), make([]int, len(m.Peers))
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for g := range m.Goroutines {
		all.Go(func() {
			r := rand.New(rand.NewPCG(m.Seed, uint64(g))) // #nosec G404 -- no secret
			for range m.Each {
				cookie, peer := r.IntN(len(m.Cookies)), r.IntN(len(m.Peers))
				d, err := c.limiter.Check(context.Background(), sentinel.Request{
					EndpointID: m.Endpoint, Cookies: []string{m.Cookies[cookie]}, Peer: m.Peers[peer],
				})
				mu.Lock()
				if err != nil {
					failed = err
				}
				total.Count.add(d)
				if d.Allowed && d.FromStore {
					total.Cookies[cookie]++
					total.Peers[peer]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return failed
}

// sustained is traffic without end on one bucket.
type sustained struct {
	stop chan struct{}
	all  sync.WaitGroup

	mu          sync.Mutex
	count       Count
	emergency   int // admitted by the emergency bucket
	first, last time.Time
	failed      error
}

// Taken is what it has come to so far.
type Taken struct {
	Count
	Emergency int
	// Outage is from the first of what the emergency bucket admitted to the
	// last.
	Outage time.Duration
}

// Start starts it: goroutines that ask again and again until Stop. One that
// Redis has not admitted pauses for a millisecond.
func (c *crowd) Start(p Push, _ *int) error {
	r := &sustained{stop: make(chan struct{})}
	c.run = r
	for range p.Goroutines {
		r.all.Go(func() {
			for {
				select {
				case <-r.stop:
					return
				default:
				}
				start := time.Now()
				d, err := c.limiter.Allow(context.Background(), p.Tenant, p.Endpoint)
				r.note(d, err, start)
				if !d.FromStore || !d.Allowed {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	return nil
}

func (r *sustained) note(d sentinel.Decision, err error, start time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = err
	}
	r.count.add(d)
	if d.Allowed && !d.FromStore {
		r.emergency++
		if r.first.IsZero() || start.Before(r.first) {
			r.first = start
		}
		r.last = time.Now()
	}
}

// Taken tells what the traffic has come to.
func (c *crowd) Taken(_ int, t *Taken) error {
	r := c.run
	r.mu.Lock()
	defer r.mu.Unlock()
	*t = Taken{Count: r.count, Emergency: r.emergency, Outage: r.last.Sub(r.first)}
	return r.failed
}

// Stop ends it.
func (c *crowd) Stop(_ int, t *Taken) error {
	close(c.run.stop)
	c.run.all.Wait()
	return c.Taken(0, t)
}

// processes are crowds that act together.
type processes []*worker

func startProcesses(s *scope, n int) processes {
	all := make(processes, n)
	for i := range all {
		all[i] = startWorker(s, crowdRole, nil, nil, os.Stderr)
	}
	return all
}

// together calls a method of all at once.
func together[Args, Reply any](s *scope, all processes, method string, args func(i int) Args) []Reply {
	replies, errs := make([]Reply, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, w := range all {
		wg.Go(func() { errs[i] = w.call(method, args(i), &replies[i]) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			s.Fatal(fmt.Errorf("process %d: %w", i, err))
		}
	}
	return replies
}

func (all processes) open(s *scope, o Opening) {
	together[Opening, int](s, all, "Open", func(int) Opening { return o })
}

// push has all take from one bucket at the same time.
func (all processes) push(s *scope, tenant, id string, goroutines, each int) Count {
	at := time.Now().Add(2 * time.Millisecond)
	var total Count
	for _, n := range together[Push, Count](s, all, "Push", func(int) Push { return Push{tenant, id, goroutines, each, at} }) {
		total.sum(n)
	}
	return total
}
