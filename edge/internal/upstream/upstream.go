// Package upstream knows the backends: which there are, how they are, and which
// one is next.
package upstream

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// Options of a Registry.
type Options struct {
	Logger *slog.Logger
	// Changed is called after a transition of a backend's breaker, for metrics. May be nil.
	Changed func(pool, backend string, from, to breaker.State)
}

// Registry holds the state of every backend for as long as some generation of
// the configuration has it: requests in flight, health, breaker, connections. A
// backend is the same while its pool's name, scheme, host and port are.
type Registry struct{}

// NewRegistry returns one without backends.
func NewRegistry(o Options) *Registry { panic("to be written") }

// Generation is the pools of one configuration.
type Generation struct{}

// Generation builds the pools of a configuration, and begins to check whom it
// does not know yet. probe is the longest that a request may take, for the lease of a
// breaker's probe.
func (r *Registry) Generation(pools []config.Pool, probe time.Duration) *Generation {
	panic("to be written")
}

// Pool returns the pool of that name; nil if there is none.
func (g *Generation) Pool(name string) *Pool { panic("to be written") }

// Release is to be called once, when nobody will ask the generation for another
// backend. What no later generation has ends when its last request does.
func (g *Generation) Release() { panic("to be written") }

// Checked is closed when each backend has been checked once, or was not to be.
func (g *Generation) Checked() <-chan struct{} { panic("to be written") }

// Close ends all checks and idle connections.
func (r *Registry) Close(ctx context.Context) error { panic("to be written") }

// Pool chooses among its backends. It is safe for concurrent use.
type Pool struct{}

// Refusal is why there is no backend for a request.
type Refusal uint8

// The refusals.
const (
	NoBackend   Refusal = iota + 1 // none is well
	BreakerOpen                    // who is well is kept from by its breaker
	Overloaded                     // who is left has its most requests in flight
)

// Acquire chooses a backend, counts a request in flight on it and passes its
// breaker. except is whom the request has tried already. If there is
// none, lease is nil, and retryAfter is when the soonest may be back, 0 if nobody knows.
func (p *Pool) Acquire(except ...*Backend) (lease *Lease, refusal Refusal, retryAfter time.Duration) {
	panic("to be written")
}

// Lease is one request's use of a backend.
type Lease struct{}

// Backend is whose it is.
func (l *Lease) Backend() *Backend { panic("to be written") }

// Report tells the breaker how the request ended. The first report counts, further ones do not.
func (l *Lease) Report(o breaker.Outcome) { panic("to be written") }

// Done ends the request: it is no longer in flight, and if nothing was reported,
// that is neutral. Further calls do nothing.
func (l *Lease) Done() { panic("to be written") }

// Backend is one server and its state.
type Backend struct{}

// Name is its host and port.
func (b *Backend) Name() string { panic("to be written") }

// URL is its scheme and host.
func (b *Backend) URL() *url.URL { panic("to be written") }

// RoundTrip sends one request on a connection of this backend: the one place
// through which traffic reaches it, as http.RoundTripper says.
func (b *Backend) RoundTrip(r *http.Request) (*http.Response, error) { panic("to be written") }

// Status is how a backend is, at this moment, for a page and for metrics.
type Status struct {
	Pool, Backend string
	Health        string // "unknown", "healthy", "unhealthy", "unchecked"
	LastError     string // of its last failed check; "" if it passed
	Breaker       breaker.State
	InFlight      int64
	Weight        int
}

// Status lists the backends of a generation, in the order of the file.
func (g *Generation) Status() []Status { panic("to be written") }
