package proxy

import (
	"net/http"
	"net/netip"
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
}

// Route is what happens to the requests of a pattern.
type Route struct {
	Pattern       string
	Pool          *upstream.Pool
	PoolName      string
	Limit         Limiter // nil: none
	Timeout       time.Duration
	RewriteHost   bool
	Upgrades      []string
	FailureStatus []int // what counts on the backend's breaker
}

// Limiter says whether a request may go on, before a backend is chosen.
type Limiter interface {
	// Allow sets the headers of w that an allowed response carries, or writes the
	// whole response of one that is not, and says which reason that had.
	// client is who is limited where the limiter does not know better.
	Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (ok bool, reason Reason)
}
