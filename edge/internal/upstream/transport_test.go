package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// backend is a server that knows its connections.
type backend struct {
	*httptest.Server

	mu    sync.Mutex
	state map[net.Conn]http.ConnState
	made  int
}

func newBackendServer(t *testing.T, h http.HandlerFunc) *backend {
	t.Helper()
	b := &backend{Server: httptest.NewUnstartedServer(h), state: map[net.Conn]http.ConnState{}}
	b.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	b.Config.ConnState = func(c net.Conn, s http.ConnState) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if s == http.StateNew {
			b.made++
		}
		b.state[c] = s
	}
	b.Start()
	t.Cleanup(b.Close)
	return b
}

// connections are those that were made, and those that are open.
func (b *backend) connections() (made, open int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.state {
		if s != http.StateClosed {
			open++
		}
	}
	return b.made, open
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// get is a whole request by way of p.
func get(t *testing.T, p *Pool, path string) (string, error) {
	t.Helper()
	l := acquire(t, p)
	defer l.Done()
	response, err := l.Backend().RoundTrip(request(t, l.Backend(), path), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func request(t *testing.T, b *Backend, path string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL().String()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func must(t *testing.T, p *Pool) {
	t.Helper()
	if body, err := get(t, p, "/"); body != "ok" || err != nil {
		t.Fatalf("%q, %v", body, err)
	}
}

func TestRequestsAndResponsesStayAsTheyAre(t *testing.T) {
	t.Setenv("HTTP_PROXY", edgetest.Nowhere(t))
	t.Setenv("NO_PROXY", "")
	s := newBackendServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("the transport asks for an encoding")
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "not really")
	})
	p := single(t, poolOf(t, s.URL))
	if body, err := get(t, p, "/"); body != "not really" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	s := newBackendServer(t, ok)
	p := single(t, poolOf(t, s.URL))
	for range 50 {
		must(t, p)
	}
	if made, _ := s.connections(); made != 1 {
		t.Errorf("%d connections", made)
	}
}

func TestNoConnectionIsKeptWhereNoneMayBe(t *testing.T) {
	s := newBackendServer(t, ok)
	c := poolOf(t, s.URL)
	c.MaxIdle = 0
	p := single(t, c)
	for range 3 {
		must(t, p)
	}
	edgetest.Soon(t, "all are closed", func() bool { made, open := s.connections(); return made == 3 && open == 0 })
}

func TestManyConnectionsAreKept(t *testing.T) {
	all := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Add(40)
	s := newBackendServer(t, func(w http.ResponseWriter, r *http.Request) { waiting.Done(); <-all; ok(w, r) })
	p := single(t, poolOf(t, s.URL))
	go func() { waiting.Wait(); close(all) }()
	var clients sync.WaitGroup
	for range 40 {
		clients.Go(func() { must(t, p) })
	}
	clients.Wait()
	if made, open := s.connections(); made != 40 || open != 40 {
		t.Errorf("%d made, %d open, want 40 of each", made, open)
	}
}

func TestADialThatFailedIsSeenAsOne(t *testing.T) {
	_, err := get(t, single(t, poolOf(t, edgetest.Nowhere(t))), "/")
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("%T %v", err, err)
	}
	s := newBackendServer(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, err = get(t, single(t, poolOf(t, s.URL)), "/")
	if err == nil || errors.As(err, &op) && op.Op == "dial" {
		t.Errorf("%T %v", err, err)
	}
}

func TestAResponseHasItsTime(t *testing.T) {
	c := poolOf(t, listen(t, nil))
	c.ResponseTimeout = 50 * time.Millisecond
	_, err := get(t, single(t, c), "/")
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%T %v", err, err)
	}
}

func TestTrafficVerifiesCertificatesAndSpeaksHTTP1(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	if _, err := get(t, single(t, poolOf(t, s.URL)), "/"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("nobody knows its authority: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	r := newTest(t, Options{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	p := r.Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout).Pool("pool")
	if body, err := get(t, p, "/"); body != "HTTP/1.1" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

// What is said within TLS is read as strictly as without.
func TestWithinTLSResponsesAreReadStrictly(t *testing.T) {
	said := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, said)
	}))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	p := newTest(t, Options{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}).Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout).Pool("pool")
	must(t, p)
	said = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	if body, err := get(t, p, "/"); err == nil || !strings.Contains(err.Error(), "Content-Length and Transfer-Encoding") {
		t.Errorf("%q, %v", body, err)
	}
}

// answering is a pool of a server that sends the answers one by one, and never closes a
// connection first.
func answering(t *testing.T, secure bool, answers ...string) *Pool {
	t.Helper()
	next := make(chan string, len(answers))
	for _, a := range answers {
		next <- a
	}
	close(next)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, <-next)
		_, _ = io.Copy(io.Discard, c)
	}))
	s.TLS = &tls.Config{DynamicRecordSizingDisabled: true, MinVersion: tls.VersionTLS12} // an answer is in one record
	roots := x509.NewCertPool()
	if secure {
		s.StartTLS()
		roots.AddCert(s.Certificate())
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	r := newTest(t, Options{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	return r.Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout).Pool("pool")
}

// put is a request with a body, which may be sent again.
func put(t *testing.T, b *Backend, trace *httptrace.ClientTrace) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.URL().String()+"/", strings.NewReader("hello"))
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Idempotency-Key", "a")
	response, err := b.RoundTrip(r, trace)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// What has come before a request is not its response, however late it is read: net/http
// has put the connection back by then.
func TestNothingThatCameBeforeARequestIsItsResponse(t *testing.T) {
	const (
		surplus = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
		second  = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nsecond"
		head    = "HTTP/1.1 200 OK\r\nContent-Length: 8151\r\n\r\n"
	)
	long := strings.Repeat("x", 2*lineBuffer-len(head)) // net/http reads as much at once, and so no surplus with it
	for scheme, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(scheme, func(t *testing.T) {
			l := acquire(t, answering(t, secure, head+long+surplus, second))
			defer l.Done()
			back, used := make(chan struct{}), make(chan struct{})
			var once, first sync.Once
			var all sync.WaitGroup
			defer all.Wait()
			all.Go(func() {
				body := put(t, l.Backend(), &httptrace.ClientTrace{PutIdleConn: func(error) {
					first.Do(func() { close(back) })
					select { // net/http reads behind this
					case <-used:
					case <-time.After(100 * time.Millisecond): // somebody may wait for just that
					}
				}})
				if body != long {
					t.Errorf("the first: %.100q", body)
				}
				first.Do(func() { close(back) })
			})
			<-back
			body := put(t, l.Backend(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { once.Do(func() { close(used) }) }})
			if body != "second" {
				t.Errorf("the second: %.100q", body)
			}
		})
	}
}

func TestAHandshakeHasItsTime(t *testing.T) {
	c := poolOf(t, strings.Replace(listen(t, nil), "http:", "https:", 1))
	c.TLSTimeout = 50 * time.Millisecond
	soon := inTime(t)
	_, err := get(t, single(t, c), "/")
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%T %v", err, err)
	}
	soon()
}

// A request whose URL names another host goes to the backend all the same.
func TestARequestGoesNowhereElse(t *testing.T) {
	s := newBackendServer(t, ok)
	b := single(t, poolOf(t, s.URL)).members[0].backend
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, edgetest.Nowhere(t), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := b.RoundTrip(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}
