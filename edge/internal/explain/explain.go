// Package explain says what the edge does with a request, and why, without doing
// it. It decides nothing: the route is the router's, all else the
// configuration's.
package explain

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

// Question is a request that might be sent.
type Question struct {
	Method string // "" is GET
	URL    string // with or without scheme and host, as it would stand on the wire
	Header http.Header
	Peer   netip.Addr // at the other end of the connection; the zero Addr: nobody in particular
}

// State is how a backend is at the moment, where somebody knows.
type State struct {
	Pool, Backend   string // the latter by its host and port
	Health, Breaker string
	InFlight        int64
	Candidate       bool // it may be chosen, if it has room
}

// Answer is what would happen.
type Answer struct {
	Method string `json:"method"`
	Host   string `json:"host,omitempty"`
	Path   string `json:"path"`
	// Reason is the one that the access log has: "ok" is for a request that goes
	// to a backend, as far as the configuration says.
	Reason   string    `json:"reason"`
	Status   int       `json:"status,omitempty"` // of a request that goes to no backend
	Why      string    `json:"why"`
	Allow    string    `json:"allow,omitempty"`
	Route    *Route    `json:"route,omitempty"`
	Captures []Capture `json:"captures,omitempty"`
	Limit    *Limit    `json:"rate_limit,omitempty"`
	Pool     *Pool     `json:"pool,omitempty"`
	Closest  []Near    `json:"closest,omitempty"`
}

// Route is one of the configuration's.
type Route struct {
	Place         int      `json:"place"` // in the order of precedence, from 1
	Line          int      `json:"line"`  // in the file
	Path          string   `json:"path"`
	Methods       []string `json:"methods,omitempty"` // none: all
	TrailingSlash string   `json:"trailing_slash"`
	Backend       string   `json:"backend"`
	Timeout       string   `json:"timeout"`
	Limit         string   `json:"rate_limit"` // in words
	Retry         string   `json:"retry"`      // in words
}

// Capture is what a parameter has.
type Capture struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Limit is who counts the request, and as whose.
type Limit struct {
	Mode   string `json:"mode"`
	Quota  string `json:"quota"` // in words
	ID     string `json:"id"`    // whose buckets they are: "default" is the file's own limit
	Key    string `json:"key"`   // whose bucket it is
	Why    string `json:"why"`
	Policy string `json:"policy,omitempty"`
}

// Pool is where the request would go.
type Pool struct {
	Name       string      `json:"name"`
	Balance    string      `json:"balance"`
	Most       int         `json:"max_in_flight,omitempty"` // of each backend; 0: no bound
	Candidates []Candidate `json:"candidates"`
}

// Candidate is a backend of the pool.
type Candidate struct {
	URL      string `json:"url"`
	Weight   int    `json:"weight"`
	Eligible bool   `json:"eligible"`
	Why      string `json:"why"`
}

// Near is a route that almost takes the path.
type Near struct {
	Path    string   `json:"path"`
	Methods []string `json:"methods,omitempty"`
	Line    int      `json:"line"`
	Why     string   `json:"why"`
}

// Request explains a request. The router is that of the configuration's
// patterns; states may be nil.
func Request(c *config.Config, r *router.Router, q Question, states []State) Answer {
	if q.Method == "" {
		q.Method = http.MethodGet
	}
	a := Answer{Method: q.Method}
	a.Host, a.Path = split(q.URL)
	if a.front(c, len(q.URL)) {
		return a
	}
	var m router.Match
	switch r.Match(q.Method, a.Path, &m) {
	case router.Found:
		a.found(c, r, &m, q, states)
	case router.MethodNotAllowed:
		a.refuse("method_not_allowed", http.StatusMethodNotAllowed, "routes take this path, but none takes "+q.Method)
		a.Allow = m.Allow
		a.otherMethods(c, r)
	case router.BadPath:
		a.refuse("bad_path", http.StatusBadRequest, m.Why)
	default:
		a.refuse("no_route", http.StatusNotFound, "no route takes this path")
		a.closest(c, r)
	}
	return a
}

// split returns the host and the path of a URL, as they stand there.
func split(url string) (host, path string) {
	url, _, _ = strings.Cut(url, "#")
	url, _, _ = strings.Cut(url, "?")
	if _, rest, ok := strings.Cut(url, "://"); ok && !strings.HasPrefix(url, "/") {
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			return rest[:i], rest[i:]
		}
		return rest, "/"
	}
	return "", url
}

func (a *Answer) refuse(reason string, status int, why string) {
	a.Reason, a.Status, a.Why = reason, status, why
}

// front explains what is answered before any route is looked for.
func (a *Answer) front(c *config.Config, bytes int) bool {
	switch {
	case bytes > c.Server.MaxURLBytes:
		a.refuse("header_too_large", http.StatusRequestURITooLong, fmt.Sprintf("the URL has %d bytes; server.max_url_bytes is %d", bytes, c.Server.MaxURLBytes))
	case a.Method == http.MethodConnect || a.Method == http.MethodTrace:
		a.refuse("method_not_allowed", http.StatusMethodNotAllowed, a.Method+" is never forwarded")
	case strings.ContainsFunc(a.Path, needsEscape):
		a.refuse("bad_path", http.StatusBadRequest, "the path has a byte that must be escaped, as %20 for a space")
	case a.Method == http.MethodOptions && a.Path == "*":
		a.refuse("ok", http.StatusNoContent, "OPTIONS * is about the edge itself, which answers it")
	default:
		return false
	}
	return true
}

// needsEscape reports whether a character stands in no path as itself. Of
// control characters the router tells.
func needsEscape(c rune) bool { return c == ' ' || c > 0x7f }

func (a *Answer) found(c *config.Config, r *router.Router, m *router.Match, q Question, states []State) {
	route := &c.Routes[m.Pattern]
	a.Reason = "ok"
	p := &c.Pools[slices.IndexFunc(c.Pools, func(p config.Pool) bool { return p.Name == route.Backend })]
	a.Route = describe(route, p)
	a.Route.Place = slices.Index(r.Order(), m.Pattern) + 1
	m.Captures(func(name, value string) { a.Captures = append(a.Captures, Capture{name, value}) })
	a.Why = "of the routes that take this path and method, this one comes first in the order of precedence"
	if l := route.RateLimit; l != nil {
		a.Limit = a.limit(c, l, q)
	}
	a.Pool = pool(p, states)
}

// Routes lists the routes in the order of precedence: of two that take the same
// path, the one that is chosen comes first.
func Routes(c *config.Config, r *router.Router) []Route {
	pools := make(map[string]*config.Pool, len(c.Pools))
	for i := range c.Pools {
		pools[c.Pools[i].Name] = &c.Pools[i]
	}
	routes := []Route{}
	for place, i := range r.Order() {
		route := describe(&c.Routes[i], pools[c.Routes[i].Backend])
		route.Place = place + 1
		routes = append(routes, *route)
	}
	return routes
}

func describe(r *config.Route, p *config.Pool) *Route {
	d := &Route{
		Line: r.Line, Path: r.Path, Methods: r.Methods, TrailingSlash: "strict",
		Backend: r.Backend, Timeout: r.Timeout.String(), Limit: r.RateLimit.String(), Retry: p.Retry.String(),
	}
	if r.EitherSlash {
		d.TrailingSlash = "either"
	}
	return d
}

// limit says whose bucket a request is counted in.
func (a *Answer) limit(c *config.Config, l *config.RateLimit, q Question) *Limit {
	d := &Limit{Mode: string(l.Mode), ID: l.ID, Quota: l.String(), Policy: l.Policy}
	name, byHeader := strings.CutPrefix(l.Key, "header:")
	values := q.Header.Values(name)
	if strings.EqualFold(name, "host") {
		values = []string{a.Host}
	}
	switch {
	case l.Mode == config.Distributed:
		d.Key, d.Why = "tenant", "the policy's identity says who the tenant is, and Redis has the bucket"
	case byHeader && strings.Join(values, "") != "":
		d.Key, d.Why = name+": "+strings.Join(values, ", "), "the limit's key is this header"
	case byHeader:
		d.Why = "the request has no " + name + ", so its client's address counts"
		d.address(c, q)
	default:
		d.Why = "the limit's key is the client's address"
		d.address(c, q)
	}
	return d
}

// address makes the client's address the key.
func (l *Limit) address(c *config.Config, q Question) {
	client := proxy.Client(c.Server.TrustedProxies, q.Peer, q.Header.Values("X-Forwarded-For"))
	if client != q.Peer.Unmap().WithZone("") {
		l.Why += "; X-Forwarded-For says which, and " + q.Peer.String() + " is a trusted proxy"
	}
	switch {
	case !client.IsValid():
		l.Key = "the client's address"
	case client.Is4():
		l.Key = client.String()
	default:
		l.Key = netip.PrefixFrom(client, 64).Masked().String()
		l.Why += "; who has one address of an IPv6 /64 has all"
	}
}

func pool(p *config.Pool, states []State) *Pool {
	d := &Pool{Name: p.Name, Balance: string(p.Balance), Most: p.MaxInFlight}
	weights := 0
	for _, b := range p.Backends {
		weights += b.Weight
	}
	for _, b := range p.Backends {
		c := Candidate{URL: b.URL.String(), Weight: b.Weight, Eligible: b.Weight > 0}
		c.Why = chance(p, b.Weight, weights)
		if i := slices.IndexFunc(states, func(s State) bool { return s.Pool == p.Name && s.Backend == b.Address() }); i >= 0 {
			s := states[i]
			full := p.MaxInFlight > 0 && s.InFlight >= int64(p.MaxInFlight)
			c.Eligible = s.Candidate && !full
			c.Why += fmt.Sprintf("; health %s, breaker %s, %d in flight", s.Health, s.Breaker, s.InFlight)
			if full {
				c.Why += ", which is max_in_flight"
			}
		}
		d.Candidates = append(d.Candidates, c)
	}
	return d
}

// chance says how a backend comes to be chosen, while all are well.
func chance(p *config.Pool, weight, weights int) string {
	switch {
	case weight == 0:
		return "weight 0: gets nothing"
	case len(p.Backends) == 1:
		return "the only one"
	case p.Balance == config.RoundRobin:
		return strconv.Itoa(weight) + " of " + strconv.Itoa(weights) + " requests"
	case p.Balance == config.LeastConnections:
		return "when it has the fewest requests in flight for its weight"
	default:
		return "when it is drawn, and has fewer in flight for its weight than the other one that is"
	}
}
