package proxy

import (
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/router"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

// Snapshot is one whole configuration. It is immutable: a request loads it once
// and uses it to its end.
type Snapshot struct {
	Version  int64
	Router   *router.Router
	Routes   []Route // by the router's pattern
	Backends *upstream.Generation

	// users is the handler, as long as this is its snapshot, and the requests
	// that may still ask for a backend.
	users  atomic.Int64
	unused chan struct{}
}

// Route is what happens to the requests of a pattern.
type Route struct {
	Pattern       string
	Pool          *upstream.Pool
	PoolName      string
	Limit         Limiter       // nil: none
	Timeout       time.Duration // from the request's beginning to the response's; 0: none
	RewriteHost   bool
	Upgrades      []string
	FailureStatus []int // what counts on the backend's breaker
	Retry         Retry
}

// Limiter says whether a request may go on, before a backend is chosen.
type Limiter interface {
	// Allow sets the headers of w that an allowed response carries, or writes the
	// whole response of one that is not, and says which reason that had; nothing is
	// written to a client who has gone.
	// client is who is limited where the limiter does not know better.
	Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (ok bool, reason Reason)
}

// Unused is closed when the handler has another snapshot and no request will ask
// this one for a backend: then its Backends may be released. Only what
// [Handler.Swap] returned may be asked.
func (s *Snapshot) Unused() <-chan struct{} { return s.unused }

// begin makes the handler the first user.
func (s *Snapshot) begin() {
	if !s.users.CompareAndSwap(0, 1) || s.unused != nil {
		panic("proxy: a snapshot is for one Swap")
	}
	s.unused = make(chan struct{})
}

// enter reports whether the snapshot is still in use, and if so adds a user.
func (s *Snapshot) enter() bool {
	for {
		n := s.users.Load()
		if n == 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave takes a user away.
func (s *Snapshot) leave() {
	if s.users.Add(-1) == 0 {
		close(s.unused)
	}
}
