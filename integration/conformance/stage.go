package conformance

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// stage is what one case has in its hands.
type stage struct {
	*testing.T
	adapter Adapter
	store   string
}

// The endpoints of every limiter. Those of tenants and of the anonymous with
// the same last name have the same quota. Refills are slow enough for none to
// fall due while a case runs.
const (
	tenantTwo    = "tenant.two"    // 2 tokens, one more in 10,000 s; fails open, one emergency token
	tenantMany   = "tenant.many"   // 50 tokens; fails closed
	tenantNever  = "tenant.never"  // 1 token, for ever; fails closed
	tenantWindow = "tenant.window" // 3 in an hour; fails closed
	anonTwo      = "anon.two"
	anonMany     = "anon.many"
	anonNever    = "anon.never"
	anonWindow   = "anon.window"
	unknown      = "not.configured"
)

const (
	jwtSecret    = "conformance-jwt-secret-0123456789abcdef"    // #nosec G101 -- of tests
	cookieSecret = "conformance-cookie-secret-0123456789abcdef" // #nosec G101 -- of tests
	cookieName   = "sentinel_anon_id"
)

// policies returns those endpoints under a version that no other limiter has,
// so that cases can share a Redis.
func policies() map[string]sentinel.Policy {
	version := 1 + rand.Int64N(1<<31-1) // #nosec G404 -- no secret
	all := map[string]sentinel.Policy{}
	for prefix, identity := range map[string]sentinel.IdentityMode{"tenant.": sentinel.TenantJWT, "anon.": sentinel.Anonymous} {
		for name, p := range map[string]sentinel.Policy{
			"two":    {Algorithm: sentinel.TokenBucket, Capacity: 2 * sentinel.Token, RefillRate: 100, FailMode: sentinel.FailOpen},
			"many":   {Algorithm: sentinel.TokenBucket, Capacity: 50 * sentinel.Token, RefillRate: 100, FailMode: sentinel.FailClosed},
			"never":  {Algorithm: sentinel.TokenBucket, Capacity: sentinel.Token, FailMode: sentinel.FailClosed},
			"window": {Algorithm: sentinel.SlidingWindow, Limit: 3, Window: time.Hour, FailMode: sentinel.FailClosed},
		} {
			p.EndpointID, p.Identity, p.Version = prefix+name, identity, version
			p.FallbackRate = 2000 // a token in 500 s, and never less than one in the bucket
			all[p.EndpointID] = p
		}
	}
	return all
}

// limiter opens a limiter on the store of the run. change, unless it is nil,
// alters the configuration first.
func (t *stage) limiter(change func(*sentinel.Config), opts ...sentinel.Option) *sentinel.Limiter {
	t.Helper()
	return t.open(t.Context(), t.store, change, opts...)
}

func (t *stage) open(ctx context.Context, store string, change func(*sentinel.Config), opts ...sentinel.Option) *sentinel.Limiter {
	t.Helper()
	cfg := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(store),
			JWTSecret:             sentinel.NewSecrets(jwtSecret),
			AnonymousCookieSecret: sentinel.NewSecrets(cookieSecret),
			// A busy machine must not turn a decision into a failure.
			RedisBudget: time.Second,
		},
		Policies: policies(),
	}
	if change != nil {
		change(cfg)
	}
	opts = append([]sentinel.Option{sentinel.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	if os.Getenv("SENTINEL_TEST_GATHERING") == "off" {
		opts = append(opts, sentinel.WithoutGathering())
	}
	l, err := sentinel.Open(ctx, cfg, opts...)
	if err != nil {
		t.Fatalf("sentinel.Open: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Limiter.Close: %v", err)
		}
	})
	return l
}

// unenforced has no policy enforced.
func unenforced(c *sentinel.Config) {
	for id, p := range c.Policies {
		p.Unenforced = true
		c.Policies[id] = p
	}
}

// failure is a way in which a Redis is away.
type failure struct {
	name string
	// silent: it takes connections and says nothing. Otherwise it hangs up.
	silent bool
}

var failureKinds = []failure{{name: "hangs up"}, {name: "is silent", silent: true}}

// without opens a limiter whose Redis is away. The changes alter its configuration.
func (t *stage) without(f failure, changes ...func(*sentinel.Config)) *sentinel.Limiter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if !f.silent {
				conn.Close()
				continue
			}
			wg.Go(func() {
				<-done
				conn.Close()
			})
		}
	})
	// In front of the limiter's Close, which waits for what it has begun.
	defer t.Cleanup(func() {
		close(done)
		listener.Close()
		wg.Wait()
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for what will not come
	return t.open(ctx, "redis://"+listener.Addr().String(), func(c *sentinel.Config) {
		c.App.RedisBudget = 20 * time.Millisecond
		for _, change := range changes {
			change(c)
		}
	})
}

// patience is how long a case waits for what takes no time at all, unless the
// adapter is broken.
const patience = 20 * time.Second

// wait waits for c, and reports whether it came.
func (t *stage) wait(c <-chan struct{}, what string) bool {
	t.Helper()
	select {
	case <-c:
		return true
	case <-time.After(patience):
		t.Errorf("waited %v for %s", patience, what)
		return false
	}
}

// server is an adapter's server on the loopback interface.
type server struct {
	t      *stage
	scheme string
	addr   string // host:port
	client *http.Client
	log    *buffer // what net/http's server reports
}

// serve starts the adapter's server for app. outer are wrapped around the whole
// of it, the first outermost.
func (t *stage) serve(l *sentinel.Limiter, app App, outer ...func(http.Handler) http.Handler) *server {
	t.Helper()
	return t.serveOver("http", l, app, outer...)
}

// serveOver is serve for http, which is HTTP/1.1, https, which is HTTP/2, or
// unix, which is HTTP/1.1 over a socket without addresses.
func (t *stage) serveOver(scheme string, l *sentinel.Limiter, app App, outer ...func(http.Handler) http.Handler) *server {
	t.Helper()
	handler := t.adapter.New(l, app)
	for _, wrap := range slices.Backward(outer) {
		handler = wrap(handler)
	}
	s := &server{t: t, scheme: scheme, log: &buffer{}}
	srv := httptest.NewUnstartedServer(handler)
	srv.Config.ErrorLog = log.New(s.log, "", 0)
	switch scheme {
	case "https":
		srv.EnableHTTP2 = true
		srv.StartTLS()
	case "unix":
		srv.Listener.Close()
		srv.Listener = t.unixListener()
		srv.Start()
	default:
		srv.Start()
	}
	t.Cleanup(srv.Close)
	s.addr = srv.Listener.Addr().String()
	s.client = srv.Client()
	if scheme == "unix" {
		path := s.addr
		s.scheme, s.addr = "http", "conformance"
		s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		t.Cleanup(s.client.CloseIdleConnections)
	}
	s.client.Timeout = patience
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s
}

// unixListener listens on a socket in a folder whose name is short, and does
// not hold the case's: such paths may have no more than about a hundred bytes.
func (t *stage) unixListener() net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "conf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// with is the header of a request: name, value, name, value. A name may come
// twice.
func with(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// as is the header of a tenant's request.
func as(tenant string) http.Header { return with("Authorization", bearer(tenant)) }

// request is a request to the server that ends with the case.
func (s *server) request(method, path string, header http.Header) *http.Request {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.scheme+"://"+s.addr+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	return req
}

// send sends a request and reads the answer. It may be called by several
// goroutines at once: only the error tells that there was no answer.
func (s *server) send(req *http.Request) (answer, error) {
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

func (s *server) do(method, path string, header http.Header) answer {
	s.t.Helper()
	a, err := s.send(s.request(method, path, header))
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (s *server) get(path string, header http.Header) answer {
	s.t.Helper()
	return s.do(http.MethodGet, path, header)
}

// dial opens a connection to the server that has a deadline.
func (s *server) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// exchange sends lines as they are, each ended with CRLF, and returns all bytes
// that come back until the server closes the connection.
func (s *server) exchange(lines ...string) string {
	s.t.Helper()
	conn := s.dial()
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n"); err != nil {
		s.t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		s.t.Fatalf("after %q: %v", all, err)
	}
	return string(all)
}

// guarded is a server with one route, GET (and HEAD) path, guarded by ids in
// order.
func guarded(path string, handler http.HandlerFunc, ids ...string) Group {
	chain := make([]Link, len(ids))
	for i, id := range ids {
		chain[i].Guard = id
	}
	return Group{Routes: []Route{
		{Method: http.MethodGet, Path: path, Chain: chain, Handler: handler},
		{Method: http.MethodHead, Path: path, Chain: chain, Handler: handler},
	}}
}

// everything is a server with every endpoint, each under "/" and its id.
func everything(handler http.HandlerFunc) Group {
	var root Group
	for _, id := range []string{
		tenantTwo, tenantMany, tenantNever, tenantWindow, anonTwo, anonMany, anonNever, anonWindow, unknown,
	} {
		root.Routes = append(root.Routes, guarded("/"+id, handler, id).Routes...)
	}
	return root
}

// ok is a handler that says so.
func ok(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
}
