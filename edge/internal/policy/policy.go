// Package policy is a quota that is shared by several processes: `mode:
// distributed`. It is the Sentinel library behind a route: the same file, keys,
// decisions and responses as a service has that uses the library itself, so that
// proxy and services can share quotas.
//
// It is the one package of the edge that knows the library and Redis.
package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// Options of [Open]. Both may be nil.
type Options struct {
	Logger *slog.Logger // nil: slog.Default()
	// Registerer gets the library's metrics; nil: there are none. It is a registry of
	// its own, for those of the edge have some of the same names: as
	// [prometheus.Gatherers] both are scraped from one address.
	Registerer prometheus.Registerer
}

// Use is a route's use of a policy.
type Use struct {
	Route  string // its pattern, for messages
	Policy string // its endpoint id in the library's configuration
}

// Limiter is the library's limiter and its connections, for all routes and for as
// long as the process runs. It is safe for concurrent use.
type Limiter struct{ limiter *sentinel.Limiter }

// Open reads the library's configuration from the file at path, and connects. It
// is an error that names each, if a route uses a policy that is not there.
//
// It blocks for two seconds at most. A Redis that does not answer is no error: its
// routes fail open or closed, as their policies say, until it does.
func Open(ctx context.Context, path string, uses []Use, o Options) (*Limiter, error) {
	cfg, err := load(path, uses)
	if err != nil {
		return nil, err
	}
	var opts []sentinel.Option
	if o.Logger != nil {
		opts = append(opts, sentinel.WithLogger(o.Logger))
	}
	if o.Registerer != nil {
		opts = append(opts, sentinel.WithRegisterer(o.Registerer))
	}
	l, err := sentinel.Open(ctx, cfg, opts...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Limiter{l}, nil
}

// Check says what is wrong with the file at path for these uses. It connects to nothing.
func Check(path string, uses []Use) error {
	_, err := load(path, uses)
	return err
}

// load reads a configuration that has all that is used.
func load(path string, uses []Use) (*sentinel.Config, error) {
	cfg, err := sentinel.LoadConfig(path)
	if err != nil {
		return nil, named(path, err)
	}
	var missing []error
	for _, u := range uses {
		if _, ok := cfg.Policies[u.Policy]; !ok {
			missing = append(missing, fmt.Errorf("%s: route %s uses policy %q, which is not there; add it under \"policies\"", path, u.Route, u.Policy))
		}
	}
	if len(missing) > 0 {
		return nil, errors.Join(missing...)
	}
	return cfg, nil
}

// named has each line of the library's faults begin with the file: the edge has two.
func named(path string, err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return err
	}
	return errors.New(path + ": " + strings.ReplaceAll(err.Error(), "\n", "\n"+path+": "))
}

// Update reads the file at path, which may be another than before, and has the
// limiter go on by it. Buckets, connections and the breaker stay. If the file is
// wrong, lacks a policy that is used, or differs in something that needs a restart,
// such as redis_url, the error says so and the limiter goes on as it was.
//
// A policy that is gone has its routes answer 404 from then on: call it as the last
// that can fail before the routes change.
func (l *Limiter) Update(path string, uses []Use) error {
	cfg, err := load(path, uses)
	if err != nil {
		return err
	}
	if err := l.limiter.Update(cfg); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Status is the state of the store at this moment.
func (l *Limiter) Status() sentinel.Status { return l.limiter.Status() }

// Close ends the connections. Policies then take the row of a failed store.
func (l *Limiter) Close() error { return l.limiter.Close() }

// Policy is one policy of the library, as a [proxy.Limiter]. It is safe for
// concurrent use.
type Policy struct {
	limiter *sentinel.Limiter
	gate    *sentinelhttp.Gate
}

var _ proxy.Limiter = (*Policy)(nil)

// Policy returns the policy of an id, which is one of those that Open or Update
// was told of.
func (l *Limiter) Policy(id string) *Policy {
	return &Policy{limiter: l.limiter, gate: sentinelhttp.NewGate("policy", id, "l.Policy(id).Allow(w, r, client)")}
}

// Allow implements [proxy.Limiter]. Who is limited is the library's to say: the
// tenant of the bearer token, or an anonymous cookie and the client's address. The
// responses are those of package sentinelhttp. The token stays on the request, for
// the backend.
func (p *Policy) Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (bool, proxy.Reason) {
	peer := ""
	if client.IsValid() {
		peer = client.String()
	}
	attached := sentinelhttp.Attach(r, sentinelhttp.Attachment{Limiter: p.limiter, Peer: peer})
	_, denial := p.gate.Decide(w, attached)
	if denial == nil {
		return true, proxy.OK
	}
	if errors.Is(denial.Err, context.Canceled) {
		return false, proxy.ClientClosed // nobody reads an answer
	}
	denial.ServeHTTP(w, r)
	return false, reasonOf(denial)
}

// reasonOf is why a request is denied.
func reasonOf(d *sentinelhttp.Denial) proxy.Reason {
	switch d.Status {
	case http.StatusTooManyRequests:
		return proxy.RateLimited
	case http.StatusUnauthorized:
		return proxy.Unauthenticated
	case http.StatusNotFound:
		return proxy.NotConfigured // the policy has gone after the route was made
	default:
		return proxy.LimiterUnavailable
	}
}
