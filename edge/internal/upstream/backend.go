package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// shortestLease is how long a breaker's probe may take at least.
const shortestLease = 10 * time.Second

// longestFailure is how many bytes of an error are remembered.
const longestFailure = 300

// identity is what makes a backend the same from one configuration to the next.
type identity struct{ pool, scheme, host, port string }

func identify(pool string, u *url.URL) identity {
	id := identity{pool, strings.ToLower(u.Scheme), strings.ToLower(u.Hostname()), u.Port()}
	if id.port == "" {
		id.port = id.defaultPort()
	}
	return id
}

func (id identity) defaultPort() string {
	if id.scheme == "https" {
		return "443"
	}
	return "80"
}

// address is host:port.
func (id identity) address() string { return net.JoinHostPort(id.host, id.port) }

// url is without the port that goes without saying: it is what a backend gets as
// Host.
func (id identity) url() *url.URL {
	host := id.address()
	if id.port == id.defaultPort() {
		host = strings.TrimSuffix(host, ":"+id.port)
	}
	return &url.URL{Scheme: id.scheme, Host: host}
}

// settings are what a configuration says about a backend beyond its identity.
type settings struct {
	health   config.Health
	failures int // that open the breaker; below 1: it is not asked
	openFor  time.Duration
	lease    time.Duration
	transport
}

func settingsOf(c *config.Pool, lease time.Duration) settings {
	return settings{
		health:   c.Health,
		failures: c.Breaker.Failures,
		openFor:  c.Breaker.OpenFor,
		lease:    lease,
		transport: transport{
			dial: c.DialTimeout, tls: c.TLSTimeout, response: c.ResponseTimeout,
			idle: c.IdleTimeout, maxIdle: c.MaxIdle,
		},
	}
}

// guarded reports whether there is to be a breaker.
func (s settings) guarded() bool { return s.failures >= 1 }

// holding is one generation's wish for a backend.
type holding struct {
	by       *Generation
	settings settings
}

// newest is whose wish decides; there is one.
func newest(h []holding) settings { return h[len(h)-1].settings }

func without(h []holding, g *Generation) []holding {
	return slices.DeleteFunc(h, func(h holding) bool { return h.by == g })
}

// Backend is one server and its state. It is safe for concurrent use.
type Backend struct {
	registry *Registry
	identity identity
	url      *url.URL
	name     string

	breaker   *breaker.Breaker
	inFlight  atomic.Int64
	waiting   atomic.Int64  // requests in flight that have no response yet
	standing  atomic.Uint32 // health's, for who chooses
	nextCheck atomic.Int64  // by the registry's clock; 0: there is none
	link      atomic.Pointer[link]
	failure   atomic.Pointer[failure] // of the last request that failed by its fault; nil: there was none

	mu          sync.Mutex
	holders     []holding // oldest first
	applied     settings
	health      health
	lastError   string        // of the last check; "": it passed
	lastFailure string        // of the last check that failed
	checker     *checker      // nil: there is none
	quiet       chan struct{} // closed when no check is under way: the last checker has ended; nil: there was none
	once        chan struct{} // closed when there has been a check, or will be none
}

func newBackend(r *Registry, id identity, s settings) *Backend {
	b := &Backend{
		registry: r, identity: id, name: id.address(), url: id.url(),
		once: make(chan struct{}),
	}
	guard := breaker.Settings{Failures: 1, OpenFor: time.Second} // for when there is to be none
	if s.guarded() {
		guard = breaker.Settings{Failures: s.failures, OpenFor: s.openFor, ProbeLease: s.lease}
	}
	guard.OnChange = b.breakerChanged
	b.breaker = breaker.New(guard)
	b.applied = s
	b.link.Store(newLink(r, b.name, s.transport))
	b.check(s.health)
	return b
}

// breakerChanged tells of a transition, on the goroutine of the request that
// caused it. A probe that failed is no news.
func (b *Backend) breakerChanged(from, to breaker.State) {
	level := slog.LevelInfo
	switch {
	case to == breaker.Open && from == breaker.Closed:
		level = slog.LevelWarn
	case to != breaker.Closed:
		level = slog.LevelDebug
	}
	b.registry.options.Logger.LogAttrs(context.Background(), level, "breaker is "+to.String(),
		slog.String("pool", b.identity.pool), slog.String("backend", b.name), slog.String("was", from.String()), slog.String("last_failure", b.lastFailureOfRequest().text))
	if changed := b.registry.options.Changed; changed != nil {
		changed(b.identity.pool, b.name, from, to)
	}
}

// Name is its host and port.
func (b *Backend) Name() string { return b.name }

// URL is its scheme and host, and the port where it is not the scheme's. It is
// not to be changed.
func (b *Backend) URL() *url.URL { return b.url }

// Breaker is the state of its breaker, at this moment.
func (b *Backend) Breaker() breaker.State { return b.breaker.State() }

// RoundTrip sends one request on a connection of this backend: the one place
// through which traffic reaches it, as http.RoundTripper says. The request's URL
// has the backend's scheme and host, and its context no trace: that is here, or nil.
// Where no TCP connection can be made, the error is a *net.OpError whose Op is "dial".
func (b *Backend) RoundTrip(r *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	b.waiting.Add(1)
	resp, err := b.link.Load().roundTrip(r, trace)
	b.waiting.Add(-1)
	if err == nil && resp.StatusCode < 100 { // net/http takes 042
		_ = resp.Body.Close()
		return nil, fmt.Errorf("malformed response: status %d", resp.StatusCode)
	}
	return resp, err
}

// hold has g keep the backend, with its settings from now on.
func (b *Backend) hold(g *Generation, s settings) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holders = append(b.holders, holding{g, s})
	b.apply(s)
}

// letGo ends g's hold, and reports whether it was the last.
func (b *Backend) letGo(g *Generation) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holders = without(b.holders, g)
	if len(b.holders) > 0 {
		b.apply(newest(b.holders))
		return false
	}
	b.endChecker()
	b.settle()
	b.setHealth(health{standing: removed})
	b.closeIdle(b.link.Load())
	return true
}

// closeIdle closes idle connections if no request waits for its response:
// http.Transport takes a connection as idle a moment before it hands over the
// response that came on it, and one that is closed in that moment fails a request
// that has been answered. Else the end of the last such request closes them, where
// the backend is removed, or their time.
func (b *Backend) closeIdle(l *link) {
	if b.waiting.Load() == 0 {
		l.CloseIdleConnections()
	}
}

// stop ends the checks and the idle connections, not the requests.
func (b *Backend) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endChecker()
	b.settle()
	b.link.Load().CloseIdleConnections()
}

// apply brings the backend to s; the caller holds the lock.
func (b *Backend) apply(s settings) {
	was := b.applied
	b.applied = s
	if s.guarded() && (was.failures != s.failures || was.openFor != s.openFor || was.lease != s.lease) {
		b.breaker.Adjust(breaker.Settings{Failures: s.failures, OpenFor: s.openFor, ProbeLease: s.lease})
	}
	if was.transport != s.transport {
		b.closeIdle(b.link.Swap(newLink(b.registry, b.name, s.transport)))
	}
	if was.health != s.health {
		b.check(s.health)
	}
}

// failure is why a request failed, and when.
type failure struct {
	text string
	at   time.Time
}

// failed remembers why a request failed.
func (b *Backend) failed(err error) {
	b.failure.Store(&failure{brief(err), time.Now()})
}

// brief is as much of an error as is remembered: some of them quote what came.
func brief(err error) string {
	text := err.Error()
	return text[:min(len(text), longestFailure)]
}

// lastFailureOfRequest is the zero value if there was none.
func (b *Backend) lastFailureOfRequest() failure {
	if f := b.failure.Load(); f != nil {
		return *f
	}
	return failure{}
}

// ended is what a lease does at the end of its request.
func (b *Backend) ended() {
	b.inFlight.Add(-1)
	if standing(b.standing.Load()) == removed {
		b.closeIdle(b.link.Load())
	}
}
