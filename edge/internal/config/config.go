// Package config is the edge's file: strict YAML, read once, with every fault of
// it reported at once and at its line.
//
// A field that is absent has its default; what zero means otherwise stands with
// the field. After [Load] everything is set and in range.
package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"time"
)

// Config is a whole file.
type Config struct {
	Server    Server
	Admin     Admin
	RateLimit *RateLimit // of every route that has none of its own; nil: none
	Sentinel  string     // absolute path of the library's configuration, for mode distributed; in the file relative to it
	Routes    []Route
	Pools     []Pool // `backends` in the file

	// maxClients bounds the memory of mode local: 100000, for all routes together. In
	// the file the outermost rate_limit has it.
	maxClients int
	// ownLimit is that the file of a node with a control plane has a rate_limit: it
	// goes before the shared one.
	ownLimit bool
	// origins are the environment variables that values come from, by the value's
	// path in the effective configuration.
	origins map[string]string
}

// MaxClients bounds the buckets of all local rate limits together.
func (c *Config) MaxClients() int { return c.maxClients }

// Server is the listener for traffic.
type Server struct {
	Listen         string         // host:port; `port: 8080` is short for ":8080"
	TrustedProxies []netip.Prefix // whose X-Forwarded-For is believed
	AccessLog      string         // "stdout" (default), "stderr", "off" or a file's path

	MaxHeaderBytes    int           // 32 KiB; beyond: 431
	MaxHeaderFields   int           // 100; beyond: 431
	MaxURLBytes       int           // 8 KiB; beyond: 414
	MaxBodyBytes      int64         // 10 MiB; beyond: 413
	MaxConnections    int           // 10000; beyond, a connection waits to be accepted
	ReadHeaderTimeout time.Duration // 5s
	BodyIdleTimeout   time.Duration // 10s, from one read of a request's body to the next
	WriteIdleTimeout  time.Duration // 30s, from one write of a response to the next
	KeepAliveTimeout  time.Duration // 60s
	TunnelIdleTimeout time.Duration // 5m, without a byte in either direction
	RequestTimeout    time.Duration // 30s, of every route that has none of its own

	DrainDelay time.Duration // 0s; how long SIGTERM leaves the listener open
	Grace      time.Duration // 30s; how long requests in flight may take to end
}

// Admin is the operator's listener.
type Admin struct {
	Listen      string   // 127.0.0.1:9901
	AllowRemote bool     // Listen may be more than the loopback
	Hosts       []string // the names by which it may be asked, besides localhost, addresses and Listen's own
}

// Mode is who counts.
type Mode string

// The modes of a rate limit.
const (
	Local       Mode = "local"       // this process, in memory
	Distributed Mode = "distributed" // a policy of the Sentinel library, on Redis
)

// RateLimit is a quota. In the file `enabled: false` switches it off, which here
// is a nil *RateLimit.
type RateLimit struct {
	// ID is the same only for who shares buckets: "default" is the file's own, for all
	// routes that have none of their own; a route's is its methods and path. It stays
	// the same while these do.
	ID   string
	Mode Mode
	// Of mode local: tokens, and tokens a second, both as exact microtokens.
	Capacity, RefillRate int64
	// Key is "client" (the peer's address, default), or "header:NAME". "" in mode distributed.
	Key string
	// Policy is the endpoint id in the library's configuration, of mode distributed.
	Policy string
	Line   int
}

// String is the quota in words, "none" for nil.
func (l *RateLimit) String() string {
	switch {
	case l == nil:
		return "none"
	case l.Mode == Distributed:
		return "policy " + l.Policy
	default:
		return fmt.Sprintf("%s tokens, %s a second, by %s", Decimal(l.Capacity), Decimal(l.RefillRate), l.Key)
	}
}

// Route leads requests to a pool.
type Route struct {
	Path        string        // a pattern, see package router
	Methods     []string      // none: all
	Backend     string        // a pool's name
	EitherSlash bool          // `trailing_slash: either`
	Timeout     time.Duration // server.request_timeout, if the file has none here
	// RateLimit is what counts for this route: its own, or else the Config's, by the
	// same pointer. nil: none, even if the Config has one.
	RateLimit *RateLimit
	Line      int
}

// Balance is how a backend is chosen.
type Balance string

// The ways to balance.
const (
	RoundRobin       Balance = "round_robin" // smooth and weighted; the default
	LeastConnections Balance = "least_connections"
	PowerOfTwo       Balance = "power_of_two"
)

// Pool is a set of backends that answer alike.
type Pool struct {
	Name        string
	Balance     Balance
	Backends    []Backend // `url` is short for one, `urls` for several of weight 1
	Health      Health
	Breaker     Breaker
	Retry       Retry
	MaxInFlight int      // per backend; 0: no bound
	RewriteHost bool     // `host: backend`; default `host: preserve`
	Upgrades    []string // the protocols that may be switched to; default websocket

	DialTimeout     time.Duration // 2s
	TLSTimeout      time.Duration // 5s
	ResponseTimeout time.Duration // 10s, from the request sent to the response's headers
	IdleTimeout     time.Duration // 60s, of a kept connection; less than the backend's
	MaxIdle         int           // 256 kept connections per backend
	Line            int
}

// Backend is one server.
type Backend struct {
	URL    *url.URL // scheme and host, nothing else
	Weight int      // 1; 0: gets nothing
	Line   int
}

// HealthType is what a check does.
type HealthType string

// The types of checks. In the file `auto`, the default, is http if there is a
// path, and else tcp.
const (
	HealthHTTP HealthType = "http"
	HealthTCP  HealthType = "tcp"
	HealthOff  HealthType = "off"
)

// Health is how a pool's backends are checked.
type Health struct {
	Type     HealthType
	Path     string
	Interval time.Duration // 2s, plus or minus a tenth
	Timeout  time.Duration // 1s, at most the interval
	Fall     int           // 3 failures in a row
	Rise     int           // 2 successes in a row
	Status   [2]int        // from, to: 200 to 399 pass
}

// Breaker is how a backend's circuit breaker is set.
type Breaker struct {
	Failures int           // 5 in a row; 0 in the file is a fault, `off` is -1
	OpenFor  time.Duration // 30s
	// FailureStatus are the final statuses that count as failures: 502, 503, 504.
	FailureStatus []int
}

// Scope is where another attempt goes.
type Scope string

// The scopes of retries.
const (
	SameBackend Scope = "same_backend" // the default
	NextBackend Scope = "next_backend" // one that was not tried yet; if there is none, no attempt follows
)

// Retry is how often a request is sent, and when again.
type Retry struct {
	Attempts int // 3 in all; 1, or `off` in the place of the mapping, is no retry
	Scope    Scope
	// Base and Cap bound the wait before an attempt, of which a random part is waited:
	// 25ms, twice as long before each further attempt, up to 250ms.
	Base, Cap time.Duration
	PerTry    time.Duration // `per_try_timeout`, to the response's headers; 0s: no more than the pool's other timeouts
	Budget    RetryBudget
}

// String is the retries by the words of the file, "none" for a single attempt.
func (r Retry) String() string {
	if r.Attempts == 1 {
		return "none"
	}
	text := fmt.Sprintf("%d attempts, %s, base %s, cap %s", r.Attempts, r.Scope, duration(r.Base), duration(r.Cap))
	if r.PerTry > 0 {
		text += ", per try " + duration(r.PerTry)
	}
	return text + fmt.Sprintf(", budget %d%% or %d", r.Budget.Percent, r.Budget.Least)
}

// RetryBudget bounds the retries of a pool.
type RetryBudget struct {
	Percent int // 20 of a hundred requests that wait for a backend
	Least   int // 3 at once in any case; `min` in the file
}
