// Package proxy is the edge's request path: it finds the route of a request, asks
// the limiter and a pool, and passes request and response on.
//
// A request has one snapshot of the configuration, from its beginning to its
// end. What it waits for is bounded: for the client's next bytes, for the
// client to take the next bytes, and for the backend's answer; a body that goes on may
// take as long as it likes. Whatever ends a request, the backend that it had is given back
// once, and the observer sees it once.
package proxy

import (
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Handler. What is not said to be optional must be set.
type Options struct {
	// TrustedProxies are whose X-Forwarded-* and Forwarded are believed. Optional.
	TrustedProxies []netip.Prefix
	// MaxBodyBytes is how long a request's body may be; beyond: 413.
	MaxBodyBytes int64
	// BodyIdle is from one read of a request's body to the next, and WriteIdle from one
	// write of a response to the next. TunnelIdle is how long neither
	// side of a tunnel may say anything.
	BodyIdle, WriteIdle, TunnelIdle time.Duration
	// Observer sees each request that has ended. Optional.
	Observer Observer
	// Logger gets what is a mistake of ours. Optional.
	Logger *slog.Logger
}

// Handler is the data plane. Make one with New. Its server needs
// DisableGeneralOptionsHandler, to have OPTIONS * answered here.
type Handler struct {
	options  Options
	trusted  trusted
	log      *slog.Logger
	current  atomic.Pointer[Snapshot]
	tunnels  tunnels
	stopping atomic.Bool
	memory   *memory
	drain    sync.Once
	draining chan struct{} // closed when nothing is tried again any more
}

// New returns a handler without configuration: until there is one, everything
// is answered with 503. It panics if an option is missing.
func New(o Options) *Handler {
	if o.MaxBodyBytes <= 0 || o.BodyIdle <= 0 || o.WriteIdle <= 0 || o.TunnelIdle <= 0 {
		panic("proxy: Options need MaxBodyBytes, BodyIdle, WriteIdle and TunnelIdle above 0")
	}
	h := &Handler{options: o, trusted: o.TrustedProxies, log: o.Logger, memory: newMemory(maxMemory), draining: make(chan struct{})}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	return h
}

// Drain has no request tried again from now on; what waits for another attempt gets
// the answer that there is. It is for the beginning of a graceful stop. Further
// calls do nothing.
func (h *Handler) Drain() { h.drain.Do(func() { close(h.draining) }) }

// Swap has all requests that begin from now on use next, which may be nil, and
// returns what those before had, which may be nil. It is not to be given a snapshot a second
// time. Requests that began under old go on with it: see [Snapshot.Unused].
func (h *Handler) Swap(next *Snapshot) (old *Snapshot) {
	if next != nil {
		next.begin()
	}
	old = h.current.Swap(next)
	if old != nil {
		old.leave()
	}
	return old
}

// Snapshot is the current one; nil if there is none.
func (h *Handler) Snapshot() *Snapshot { return h.current.Load() }

// enter returns the current snapshot, for a request that will leave it; nil if
// there is none.
func (h *Handler) enter() *Snapshot {
	for {
		s := h.current.Load()
		if s == nil || s.enter() {
			return s
		}
	}
}

// Tunnels is how many connections were switched to another protocol and are
// still open.
func (h *Handler) Tunnels() int { return h.tunnels.count() }

// CloseTunnels closes them, and those that were to be opened later. It is for the end of
// a graceful stop, before http.Server.Close, which ends other requests: they
// are cut off, so that none looks complete, and recorded as draining.
func (h *Handler) CloseTunnels() {
	h.stopping.Store(true)
	h.tunnels.close()
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := h.exchange(w, r)
	defer x.end()
	x.serve()
}
