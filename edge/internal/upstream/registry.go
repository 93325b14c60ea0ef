// Package upstream knows the backends: which there are, how they are, and which
// one is next.
//
// A [Registry] outlives configurations. Each configuration has a [Generation] of
// it, with a [Pool] for each of the file's; a request asks a pool for a backend
// and gets a [Lease]:
//
//	lease, refusal, retryAfter := pool.Acquire()
//	if lease == nil { ... }
//	defer lease.Done()
//	response, err := lease.Backend().RoundTrip(request, nil)
//	lease.Report(breaker.Success)
//
// Three things keep a request from a backend, and none of them changes another:
// its health, which is what its checks say; its breaker, which is what its
// requests say; and the bound on its requests in flight. A breaker whose open
// period is over keeps nobody away: a request has to go there for it to close.
//
// It does not retry, and it does not judge responses: whoever sends the request
// reports how it ended.
package upstream

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// Options of a Registry.
type Options struct {
	// Logger is told when a backend's health or its breaker changes; nil: nobody is.
	Logger *slog.Logger
	// Changed is called after a transition of a backend's breaker, for metrics, on
	// the goroutine of the request that caused it. May be nil.
	Changed func(pool, backend string, from, to breaker.State)
	// TLS is how https backends are spoken to, by traffic and by checks alike; nil
	// is Go's default, with the system's certificate authorities.
	TLS *tls.Config
}

// Registry holds the state of every backend for as long as some generation of
// the configuration has it: requests in flight, health, breaker, connections. A
// backend is the same while its pool's name, scheme, host and port are; one that
// left and came back is another, of which nothing is known. It is safe for
// concurrent use.
//
// Where generations differ in how a backend is to be checked, guarded or spoken
// to, the newest one that has not been released decides, for all of them. Then
//   - another check begins at once; what the earlier ones said stays,
//   - another breaker goes on where the earlier one was, see [breaker.Breaker.Adjust],
//   - other timeouts need other connections; those in use end with their requests.
type Registry struct {
	options Options
	epoch   time.Time // the origin of all breakers' times
	dial    dialer

	checkers sync.WaitGroup // those that are at work

	mu       sync.Mutex
	closed   bool
	backends map[identity]*Backend
}

// NewRegistry returns one without backends.
func NewRegistry(o Options) *Registry {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Registry{options: o, epoch: time.Now(), backends: map[identity]*Backend{}}
}

// now is the time of breakers and checks.
func (r *Registry) now() time.Duration { return time.Since(r.epoch) }

// Generation is the pools of one configuration.
type Generation struct {
	registry *Registry
	pools    []*Pool // in the order of the file
	byName   map[string]*Pool
	checked  chan struct{}

	release sync.Once
}

// Generation builds the pools of a configuration, and begins to check whom it
// does not know yet. probe is the longest that a request may take: a breaker's
// probe has so long to report, and never less than ten seconds. It panics on
// pools that package config would refuse, and after Close.
func (r *Registry) Generation(pools []config.Pool, probe time.Duration) *Generation {
	g := &Generation{registry: r, byName: make(map[string]*Pool, len(pools)), checked: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		panic("upstream: Generation after Close")
	}
	for i := range pools {
		p := r.pool(g, &pools[i], max(probe, shortestLease))
		g.pools = append(g.pools, p)
		g.byName[p.name] = p
	}
	go g.awaitChecks()
	return g
}

// pool builds one pool of g; the caller holds the lock.
func (r *Registry) pool(g *Generation, c *config.Pool, lease time.Duration) *Pool {
	p := newPool(r, c)
	s := settingsOf(c, lease)
	for _, cb := range c.Backends {
		id := identify(c.Name, cb.URL)
		b := r.backends[id]
		if b == nil {
			b = newBackend(r, id, s)
			r.backends[id] = b
		}
		if p.add(b, cb.Weight) {
			b.hold(g, s)
		}
	}
	p.shuffle()
	return p
}

// awaitChecks closes checked when each backend has been checked once.
func (g *Generation) awaitChecks() {
	for _, p := range g.pools {
		for _, m := range p.members {
			<-m.backend.checkedOnce()
		}
	}
	close(g.checked)
}

// Pool returns the pool of that name; nil if there is none.
func (g *Generation) Pool(name string) *Pool { return g.byName[name] }

// Checked is closed when each backend has been checked once, or was not to be,
// or is gone.
func (g *Generation) Checked() <-chan struct{} { return g.checked }

// Release is to be called when nobody will ask the generation for another
// backend; further calls do nothing. A backend that no other generation has gets
// no more requests and is no longer checked; its connections are closed as the
// requests in flight on them end.
func (g *Generation) Release() { g.release.Do(g.drop) }

func (g *Generation) drop() {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range g.pools {
		for _, m := range p.members {
			if m.backend.letGo(g) {
				delete(r.backends, m.backend.identity)
			}
		}
	}
}

// Close ends all checks and idle connections. It returns when the checks have
// ended, or with ctx's error. Requests in flight go on.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	for _, b := range r.backends {
		b.stop()
	}
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() { r.checkers.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
