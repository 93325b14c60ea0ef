package main

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-kratos/kratos/v2/selector"
	"github.com/go-kratos/kratos/v2/selector/p2c"
	"github.com/go-kratos/kratos/v2/selector/wrr"
	"github.com/julienschmidt/httprouter"
	"github.com/labstack/echo/v4"
	"github.com/sony/gobreaker/v2"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/limit"
	"github.com/sentinelgo/sentinel/edge/internal/router"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
	"github.com/sentinelgo/sentinel/measure"
)

// measureParts is about the parts by themselves.
func measureParts(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "7 The parts",
		About: "One goroutine calls one part again and again, no network.",
	}
	for _, part := range []func(*lab) (*measure.Table, []measure.Bar, error){
		(*lab).routers, (*lab).limiters, (*lab).pools, (*lab).breakers,
	} {
		t, bars, err := part(l)
		if err != nil {
			return nil, err
		}
		s.Tables, s.Bars = append(s.Tables, t), append(s.Bars, bars...)
	}
	return s, nil
}

// routes are as a small service has them. httprouter refuses those of which one
// takes a path of another, so there are none.
var routes = []string{
	"/", "/users", "/users/:id", "/users/:id/posts", "/users/:id/posts/:post", "/videos/:id", "/healthz", "/readyz",
	"/login", "/logout", "/api/v1/orders", "/api/v1/orders/:order", "/api/v1/orders/:order/items/:item",
}

// What is looked up.
const (
	staticPath = "/api/v1/orders"
	paramPath  = "/users/1234567"
)

// lookup finds the route of a path, and reports whether it is the right one.
type lookup func(path, want string) bool

func (l *lab) routers() (*measure.Table, []measure.Bar, error) {
	ours, err := ourRouter()
	if err != nil {
		return nil, nil, err
	}
	var spinners []spinner
	for _, r := range []struct {
		name string
		find lookup
	}{{"sentinel", ours}, {"gin", ginRouter()}, {"echo", echoRouter()}, {"httprouter", httpRouter()}} {
		spinners = append(spinners,
			spinner{r.name + ", static", func() bool { return r.find(staticPath, staticPath) }},
			spinner{r.name + ", one parameter", func() bool { return r.find(paramPath, "/users/:id") }})
	}
	g, err := l.spinAll(spinners)
	if err != nil {
		return nil, nil, err
	}
	return g.table("Routers: 13 routes. gin has no lookup of its own: it serves a request with a handler that does nothing"), []measure.Bar{
		measure.AtMost("router, one parameter, to the faster of gin and echo", g.ratio("sentinel, one parameter", "gin, one parameter", "echo, one parameter"), 1).AsGate(),
		measure.NoAllocations("router, one parameter", g.allocs("sentinel, one parameter")).AsGate(),
		measure.AtMost("router, static, to httprouter", g.ratio("sentinel, static", "httprouter, static"), 0.7).AsGate(),
		measure.NoAllocations("router, static", g.allocs("sentinel, static")).AsGate(),
	}, nil
}

func ourRouter() (lookup, error) {
	var patterns []router.Pattern
	for _, path := range routes {
		patterns = append(patterns, router.Pattern{Path: path})
	}
	r, faults := router.New(patterns)
	if len(faults) > 0 {
		return nil, errors.New(faults[0].Text)
	}
	var m router.Match
	return func(path, want string) bool {
		return r.Match(http.MethodGet, path, &m) == router.Found && routes[m.Pattern] == want
	}, nil
}

func ginRouter() lookup {
	gin.SetMode(gin.ReleaseMode)
	found := ""
	e := gin.New()
	for _, path := range routes {
		e.GET(path, func(*gin.Context) { found = path })
	}
	requests := map[string]*http.Request{}
	for _, path := range []string{staticPath, paramPath} {
		requests[path] = &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}
	}
	static, param := requests[staticPath], requests[paramPath]
	w := nowhere{header: http.Header{}}
	return func(path, want string) bool {
		r := param
		if path == staticPath {
			r = static
		}
		e.ServeHTTP(w, r)
		return found == want
	}
}

// nowhere is a response that nobody gets.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

func echoRouter() lookup {
	e := echo.New()
	for _, path := range routes {
		e.GET(path, func(echo.Context) error { return nil })
	}
	r, c := e.Router(), e.NewContext(nil, nil)
	return func(path, want string) bool {
		r.Find(http.MethodGet, path, c)
		return c.Path() == want
	}
}

func httpRouter() lookup {
	found := ""
	r := httprouter.New()
	for _, path := range routes {
		r.GET(path, func(http.ResponseWriter, *http.Request, httprouter.Params) { found = path })
	}
	return func(path, want string) bool {
		h, _, _ := r.Lookup(http.MethodGet, path)
		if h == nil {
			return false
		}
		h(nil, nil, nil)
		return found == want
	}
}

// clients is how many the limiters know.
const clients = 10_000

func (l *lab) limiters() (*measure.Table, []measure.Bar, error) {
	const bare, ours = "a bare compare-and-swap with its reading of the clock", "sentinel: the client's key, lookup and take"
	var word atomic.Int64
	epoch := time.Now()
	capacity, cost := time.Hour.Nanoseconds(), int64(1)
	policy := limit.NewStore(2*clients).Policy("bench", bucket.MaxExact/2, bucket.MaxExact/2, limit.ByClient())
	r := &http.Request{Header: http.Header{}}
	addrs := make([]netip.Addr, clients)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		policy.Take(r, addrs[i], nil)
	}
	i := 0
	g, err := l.spinAll([]spinner{
		{bare, func() bool {
			for {
				now, was := int64(time.Since(epoch)), word.Load()
				full := max(was, now) + cost
				if full-now > capacity {
					return false
				}
				if word.CompareAndSwap(was, full) {
					return true
				}
			}
		}},
		{ours, func() bool { return policy.Take(r, addrs[0], nil) }},
		{ours + ", of 10,000 clients in turn", func() bool { i++; return policy.Take(r, addrs[i%clients], nil) }},
	})
	if err != nil {
		return nil, nil, err
	}
	return g.table("Limiters"), []measure.Bar{
		measure.AtMost("limiter, lookup and take, to "+bare, g.ratio(ours, bare), 3).AsGate(),
		measure.NoAllocations("limiter, lookup and take", g.allocs(ours)).AsGate(),
	}, nil
}

func (l *lab) pools() (*measure.Table, []measure.Bar, error) {
	registry := upstream.NewRegistry(upstream.Options{})
	defer registry.Close(l.ctx) //nolint:errcheck // there is nothing to wait for
	const robin, two = "sentinel, round robin", "sentinel, power of two"
	const kratosRobin, kratosTwo = "kratos, round robin by weight", "kratos, power of two"
	g, err := l.spinAll([]spinner{
		{robin, ourPool(registry, config.RoundRobin)},
		{two, ourPool(registry, config.PowerOfTwo)},
		{"sentinel, least connections", ourPool(registry, config.LeastConnections)},
		{kratosRobin, kratosPool(l.ctx, wrr.New())},
		{kratosTwo, kratosPool(l.ctx, p2c.New())},
	})
	if err != nil {
		return nil, nil, err
	}
	return g.table("Balancers: three backends; choose one, count it in flight, and give it back. sentinel's asks health and breaker, too, and tells the breaker"), []measure.Bar{
		measure.AtMost("balancer, round robin, to kratos", g.ratio(robin, kratosRobin), 1),
		measure.AtMost("balancer, power of two, to kratos", g.ratio(two, kratosTwo), 1),
	}, nil
}

func threeURLs() []*url.URL {
	var urls []*url.URL
	for _, host := range []string{"10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"} {
		urls = append(urls, &url.URL{Scheme: "http", Host: host})
	}
	return urls
}

func ourPool(registry *upstream.Registry, b config.Balance) func() bool {
	c := config.Pool{Name: string(b), Balance: b, Health: config.Health{Type: config.HealthOff}, Breaker: config.Breaker{Failures: 5, OpenFor: time.Second}}
	for _, u := range threeURLs() {
		c.Backends = append(c.Backends, config.Backend{URL: u, Weight: 1})
	}
	pool := registry.Generation([]config.Pool{c}, time.Minute).Pool(c.Name)
	return func() bool {
		lease, _, _ := pool.Acquire()
		if lease == nil {
			return false
		}
		lease.Report(breaker.Success)
		lease.Done()
		return true
	}
}

func kratosPool(ctx context.Context, s selector.Selector) func() bool {
	var nodes []selector.Node
	for _, u := range threeURLs() {
		nodes = append(nodes, selector.NewNode("http", u.Host, nil))
	}
	s.Apply(nodes)
	return func() bool {
		node, done, err := s.Select(ctx)
		if err != nil || !strings.HasPrefix(node.Address(), "10.") {
			return false
		}
		done(ctx, selector.DoneInfo{})
		return true
	}
}

func (l *lab) breakers() (*measure.Table, []measure.Bar, error) {
	const ours, theirs = "sentinel", "gobreaker"
	b := breaker.New(breaker.Settings{Failures: 5, OpenFor: time.Second})
	epoch := time.Now()
	peer := gobreaker.NewCircuitBreaker[bool](gobreaker.Settings{})
	call := func() (bool, error) { return true, nil }
	g, err := l.spinAll([]spinner{
		{ours, func() bool {
			pass, ok := b.Acquire(time.Since(epoch))
			b.Report(time.Since(epoch), pass, breaker.Success)
			return ok
		}},
		{theirs, func() bool { ok, err := peer.Execute(call); return ok && err == nil }},
	})
	if err != nil {
		return nil, nil, err
	}
	return g.table("Breakers: closed; one call that succeeds, with the clock read before and after it"), []measure.Bar{
		measure.AtMost("breaker to gobreaker", g.ratio(ours, theirs), 1),
		measure.NoAllocations("breaker", g.allocs(ours)),
	}, nil
}
