package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/router"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// setup is an edge that is about to be built. Its zero durations are long.
type setup struct {
	options  Options
	route    Route
	pool     config.Pool
	routes   []string // patterns; none: /*
	backends []string // URLs
	bare     bool     // without package wire
}

// edge is a handler behind a real listener, for HTTP/1.1 and HTTP/2 alike.
type edge struct {
	t       *testing.T
	handler *Handler
	gen     *upstream.Generation
	addr    string
	url     string
	server  *http.Server

	mu      sync.Mutex
	records []Record
}

func (e *edge) Ended(r *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records = append(e.records, *r)
}

// guarded is the tests whose goroutines are already being watched.
var guarded sync.Map

// noLeaks checks, when all else of the test has ended, that no goroutine is left.
func noLeaks(t *testing.T) {
	t.Helper()
	if _, already := guarded.LoadOrStore(t, true); already {
		return
	}
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		guarded.Delete(t)
		// net/http keeps a connection for half a second after it has hung up.
		for deadline := time.Now().Add(patience); ; {
			err := goleak.Find(before)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
}

// newEdge starts one and, at the end of the test, checks that nothing is left of it.
func newEdge(t *testing.T, s setup) *edge {
	t.Helper()
	noLeaks(t)
	e := &edge{t: t}
	o := s.options
	o.Observer = e
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 10 << 20
	}
	for _, d := range []*time.Duration{&o.BodyIdle, &o.WriteIdle, &o.TunnelIdle} {
		if *d == 0 {
			*d = patience
		}
	}
	e.handler = New(o)
	registry := upstream.NewRegistry(upstream.Options{})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := registry.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	e.gen = registry.Generation([]config.Pool{s.poolConfig(t)}, time.Minute)
	e.handler.Swap(s.snapshot(t, e.gen, 1))
	e.listen(s.bare)
	t.Cleanup(e.close)
	return e
}

func (s *setup) poolConfig(t *testing.T) config.Pool {
	t.Helper()
	p := s.pool
	p.Name, p.Balance = "pool", config.RoundRobin
	p.MaxIdle = 256
	if p.Health.Type == "" {
		p.Health.Type = config.HealthOff
	}
	if p.Breaker.Failures == 0 {
		p.Breaker = config.Breaker{Failures: 1, OpenFor: time.Hour}
	}
	for _, d := range []*time.Duration{&p.DialTimeout, &p.TLSTimeout, &p.ResponseTimeout, &p.IdleTimeout} {
		if *d == 0 {
			*d = patience
		}
	}
	for _, raw := range s.backends {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		p.Backends = append(p.Backends, config.Backend{URL: u, Weight: 1})
	}
	return p
}

func (s *setup) snapshot(t *testing.T, gen *upstream.Generation, version int64) *Snapshot {
	t.Helper()
	patterns := s.routes
	if patterns == nil {
		patterns = []string{"/*"}
	}
	snap := &Snapshot{Version: version, Backends: gen}
	var routed []router.Pattern
	for _, p := range patterns {
		method, path, ok := strings.Cut(p, " ")
		if !ok {
			method, path = "", p
		}
		pattern := router.Pattern{Path: path}
		if method != "" {
			pattern.Methods = []string{method}
		}
		routed = append(routed, pattern)
		route := s.route
		route.Pattern, route.PoolName, route.Pool = path, "pool", gen.Pool("pool")
		if route.Timeout == 0 {
			route.Timeout = patience
		}
		if route.Upgrades == nil {
			route.Upgrades = []string{"websocket"}
		}
		if route.FailureStatus == nil {
			route.FailureStatus = []int{502, 503, 504}
		}
		snap.Routes = append(snap.Routes, route)
	}
	r, faults := router.New(routed)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	snap.Router = r
	return snap
}

func (e *edge) listen(bare bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	e.addr, e.url = l.Addr().String(), "http://"+l.Addr().String()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	e.server = &http.Server{
		Handler: e.handler, Protocols: protocols, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: patience, ConnState: wire.ConnState, ConnContext: wire.ConnContext,
	}
	if !bare {
		l = wire.Listen(l, wire.Limits{HeaderBytes: 32 << 10, HeaderFields: 100, URLBytes: 8 << 10, Connections: 1000})
	}
	go e.server.Serve(l)
}

func (e *edge) close() {
	e.handler.CloseTunnels()
	e.server.Close()
	e.eventually("what was kept of bodies is not given back", func() bool { return e.handler.memory.used.Load() == 0 })
	if old := e.handler.Swap(nil); old != nil {
		select {
		case <-old.Unused():
		case <-time.After(patience):
			e.t.Error("the snapshot is still in use")
		}
		old.Backends.Release()
	}
	e.idle()
}

// idle waits until no request is in flight.
func (e *edge) idle() {
	e.t.Helper()
	e.eventually("a request is still in flight", func() bool {
		for _, s := range e.gen.Status() {
			if s.InFlight != 0 {
				return false
			}
		}
		return e.handler.Tunnels() == 0
	})
}

// eventually waits for a condition.
func (e *edge) eventually(what string, ok func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatal(what)
		}
	}
}

// record waits for the n-th request's.
func (e *edge) record(n int) Record {
	e.t.Helper()
	var r Record
	e.eventually("the observer has not seen the request", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.records) < n {
			return false
		}
		r = e.records[n-1]
		return true
	})
	return r
}

// wantRecord checks the first request's.
func (e *edge) wantRecord(status int, reason Reason) Record {
	e.t.Helper()
	r := e.record(1)
	if r.Status != status || r.Reason != reason {
		e.t.Errorf("recorded %d %s, want %d %s", r.Status, r.Reason, status, reason)
	}
	return r
}

// wantBreaker checks what the requests came to.
func (e *edge) wantBreaker(state string) {
	e.t.Helper()
	if got := e.gen.Status()[0].Breaker.String(); got != state {
		e.t.Errorf("the breaker is %s, want %s", got, state)
	}
}

// client is one of the edge, for a version of HTTP.
func (e *edge) client(version int) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(version == 1)
	p.SetUnencryptedHTTP2(version == 2)
	tr := &http.Transport{Protocols: p, DisableCompression: true, MaxIdleConnsPerHost: 100}
	e.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// overBoth runs a test over HTTP/1.1 and over HTTP/2.
func overBoth(t *testing.T, f func(t *testing.T, version int)) {
	t.Helper()
	t.Run("http1", func(t *testing.T) { f(t, 1) })
	t.Run("http2", func(t *testing.T) { f(t, 2) })
}

// inTime tries with a time that is longer each time, until nothing is wrong: on a busy
// machine a short one is over before those whom it is for were let run. What is wrong
// by itself is so whatever the time is.
func inTime(t *testing.T, try func(unit time.Duration) (wrong string)) {
	t.Helper()
	for _, unit := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 8 * time.Second} {
		wrong := try(unit)
		if wrong == "" {
			return
		}
		t.Logf("with %s: %s", unit, wrong)
	}
	t.Error("it is wrong whatever time there is")
}

// answer is a response that was read to its end, or to where it tore.
type answer struct {
	*http.Response
	body string
	torn error
}

func (e *edge) do(c *http.Client, r *http.Request) answer {
	e.t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b), err}
}

func (e *edge) request(method, path string, body io.Reader) *http.Request {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, e.url+path, body)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

func (e *edge) get(version int, path string) answer {
	e.t.Helper()
	return e.do(e.client(version), e.request(http.MethodGet, path, nil))
}

// wantProblem checks that an answer is one of ours.
func (a answer) wantProblem(t *testing.T, status int, reason Reason) {
	t.Helper()
	if a.StatusCode != status {
		t.Errorf("status %d, want %d", a.StatusCode, status)
	}
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	if got := a.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control %q", got)
	}
	if want := `"reason":"` + string(reason) + `"`; !strings.Contains(a.body, want) {
		t.Errorf("body %q has no %s", a.body, want)
	}
}

// client is one that says exactly what it is told to.
type client struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func (e *edge) dial() *client {
	e.t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{c.(*net.TCPConn), e.t, bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// response reads one, of a request with the method.
func (c *client) response(method string) answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b), err}
}

// wantClosed checks that the connection ends here.
func (c *client) wantClosed() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		c.t.Errorf("the connection goes on with %q", b)
	} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		c.t.Error("the connection stays open")
	}
}

// serve is a backend of net/http.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	noLeaks(t)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// peer is a backend's end of a connection.
type peer struct {
	*net.TCPConn
	r *bufio.Reader
}

// head reads a request up to its body, and returns it as it came.
func (p *peer) head() string {
	var b strings.Builder
	for {
		line, err := p.r.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String()
		}
	}
}

func (p *peer) say(s string) { io.WriteString(p, s) }

// reset ends the connection as a crash does.
func (p *peer) reset() {
	p.SetLinger(0)
	p.Close()
}

// raw is a backend that does exactly what talk does, with each connection. talk
// is over when the test is: what it reads from is closed then.
func raw(t *testing.T, talk func(p *peer)) string {
	t.Helper()
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				talk(&peer{c.(*net.TCPConn), bufio.NewReader(c)})
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// loopback trusts who connects in these tests.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// contextOf is a request's context, to be cancelled.
func contextOf(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithCancel(r.Context())
}

// panics is a limiter with a mistake.
type panics struct{ value any }

func (p panics) Allow(http.ResponseWriter, *http.Request, netip.Addr) (bool, Reason) { panic(p.value) }
