package edgetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// quiet waits until the edge has nothing in flight, and its goroutines and
// descriptors are back where they were.
func (e *edge) quiet(before baseline, pools ...*backend) {
	e.t.Helper()
	for _, b := range pools {
		Soon(e.t, "nothing is in flight", func() bool {
			return e.metric(fmt.Sprintf("sentinel_edge_inflight{backend=%q,pool=\"a\"}", b.addr)) == 0
		})
	}
	Soon(e.t, "goroutines and descriptors are back", func() bool {
		now := e.baseline()
		return now.goroutines <= before.goroutines+8 && now.descriptors <= before.descriptors+8
	})
}

// attempts is how many requests to a backend had this result.
func (e *edge) attempts(b *backend, result string) float64 {
	e.t.Helper()
	return e.metric(fmt.Sprintf("sentinel_edge_upstream_attempts_total{backend=%q,result=%q}", b.addr, result))
}

// answered is how many requests by a method were answered so.
func (e *edge) answered(method string, code int) float64 {
	e.t.Helper()
	return e.metric(fmt.Sprintf("sentinel_edge_requests_total{code=\"%d\",method=%q,route=\"/*rest\"}", code, method))
}

// baseline is what a process holds. A few more of each are idle connections to
// backends, which are kept on purpose.
type baseline struct{ goroutines, descriptors int }

func (e *edge) baseline() baseline {
	e.t.Helper()
	return baseline{int(e.metric("go_goroutines")), e.descriptors()}
}

// one starts an edge before a single backend, on every path.
func one(t *testing.T, more string) (*edge, *backend) {
	t.Helper()
	b := startBackend(t, "a", "")
	e := startEdge(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", more, b))
	get(t, e.url("/ok")) // warm: what the first request makes is there
	return e, b
}

const quickTimeout = ", response_timeout: 300ms"

// reason asks for a path and holds what comes of it to status and reason, in the
// answer, the log and the metrics.
func (e *edge) reason(method, path string, status int, reason string) *response {
	e.t.Helper()
	r, err := http.NewRequestWithContext(e.t.Context(), method, e.url(path), http.NoBody)
	if err != nil {
		e.t.Fatal(err)
	}
	id := fmt.Sprintf("%s-%d", strings.Trim(strings.ReplaceAll(e.t.Name(), "/", "."), "."), time.Now().UnixNano())
	if len(id) > 64 {
		id = id[len(id)-64:]
	}
	r.Header.Set("X-Request-Id", id)
	resp := do(e.t, r)
	if resp.StatusCode != status {
		e.t.Errorf("%s %s: %s, want %d", method, path, resp.Status, status)
	}
	if a := e.logged(id); a.Reason != reason || a.Status != status {
		e.t.Errorf("%s %s was logged as %d %s, want %d %s", method, path, a.Status, a.Reason, status, reason)
	}
	return resp
}

func TestAnUnwellBackendIsTheReasonThatIsGiven(t *testing.T) {
	e, b := one(t, quickTimeout+", breaker: {failures: 100}")
	before := e.baseline()
	for _, c := range []struct {
		path   string
		status int
		reason string
	}{
		{"/rst0", 502, "upstream_reset"},
		{"/rsthead", 502, "upstream_truncated"}, // nothing of it has gone to the client
		{"/hang", 504, "upstream_timeout"},
		{"/status/503", 503, "ok"}, // what a backend says itself is passed on
		{"/status/500", 500, "ok"},
	} {
		resp := e.reason(http.MethodGet, c.path, c.status, c.reason)
		if own := strings.Contains(resp.Header.Get("Content-Type"), "problem+json"); own != (c.reason != "ok") {
			t.Errorf("%s: whose answer is %q?", c.path, resp.body)
		}
	}
	for result, want := range map[string]float64{"upstream_reset": 3, "upstream_truncated": 1, "upstream_timeout": 3} { // with retries
		if got := e.attempts(b, result); got != want {
			t.Errorf("%v were counted as %s, want %v", got, result, want)
		}
	}
	for code, want := range map[int]float64{502: 2, 504: 1, 503: 1, 500: 1} {
		if got := e.answered("GET", code); got != want {
			t.Errorf("%v were counted as %d, want %v", got, code, want)
		}
	}
	e.quiet(before, b)
}

func TestAResponseThatIsCutOffIsNotEndedCleanly(t *testing.T) {
	e, b := one(t, ", breaker: {failures: 100}")
	before := e.baseline()
	for _, path := range []string{"/rstmid", "/trunc"} {
		resp := get(t, e.url(path))
		if resp.StatusCode != http.StatusOK || resp.err == nil {
			t.Errorf("%s: %s, and the body ended with %v", path, resp.Status, resp.err)
		}
	}
	e.quiet(before, b)
	if n := e.attempts(b, "upstream_truncated"); n != 2 {
		t.Errorf("%v were counted as truncated, want 2", n)
	}
}

func TestABackendKilledInMidResponse(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	resp, err := http.Get(e.url("/slowbody?n=100&d=20ms")) //nolint:noctx // it ends with the backend
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	b.kill()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the body of a response that was cut off ended cleanly")
	}
	e.reason(http.MethodGet, "/ok", http.StatusBadGateway, "upstream_unreachable")
	if cut, dead := e.attempts(b, "upstream_truncated"), e.attempts(b, "upstream_unreachable"); cut != 1 || dead != 3 {
		t.Errorf("%v were counted as cut off, and %v as not reached", cut, dead)
	}
	b = b.restart()
	Soon(t, "the backend is back", func() bool { return get(t, e.url("/ok")).StatusCode == http.StatusOK })
	e.quiet(before, b)
}

func TestAStoppedBackendFailsHTTPChecksAndPassesTCPOnes(t *testing.T) {
	a, b := startBackend(t, "a", ""), startBackend(t, "b", "")
	const quick = "interval: 100ms, timeout: 50ms, fall: 2, rise: 2"
	e := startEdge(t, "routes: [{path: /http, backend: http}, {path: /tcp, backend: tcp}]\nbackends:\n"+
		pool("http", ", response_timeout: 300ms, health: {path: /health, "+quick+"}", a)+
		pool("tcp", ", response_timeout: 300ms, health: {type: tcp, "+quick+"}", b))
	health := func(pool string, b *backend) float64 {
		return e.metric(fmt.Sprintf("sentinel_edge_backend_up{backend=%q,pool=%q}", b.addr, pool))
	}
	Soon(t, "both are up", func() bool { return health("http", a) == 1 && health("tcp", b) == 1 })
	before := e.baseline()
	a.stop()
	b.stop()
	Soon(t, "the HTTP check fails", func() bool { return health("http", a) == 0 })
	e.reason(http.MethodGet, "/http", http.StatusServiceUnavailable, "no_backend")
	e.reason(http.MethodGet, "/tcp", http.StatusGatewayTimeout, "upstream_timeout") // the kernel shakes hands for it
	if health("tcp", b) != 1 {
		t.Error("a TCP check noticed that the process is stopped")
	}
	a.cont()
	b.cont()
	Soon(t, "it is up again", func() bool { return health("http", a) == 1 })
	e.reason(http.MethodGet, "/http", http.StatusOK, "ok")
	if n := e.attempts(b, "upstream_timeout"); n == 0 {
		t.Error("no attempt was counted as too late")
	}
	for pool, b := range map[string]*backend{"http": a, "tcp": b} {
		if n := e.metric(fmt.Sprintf("sentinel_edge_inflight{backend=%q,pool=%q}", b.addr, pool)); n != 0 {
			t.Errorf("%v are in flight to %s", n, pool)
		}
	}
	e.quiet(before)
}

func TestABackendThatAcceptsAndNeverReads(t *testing.T) {
	silent := silent(t)
	e := startEdge(t, "routes: [{path: /*rest, backend: a, timeout: 400ms}]\nbackends:\n"+pool("a", "", silent))
	before := e.baseline()
	begin := time.Now()
	body := strings.NewReader(strings.Repeat("x", 8<<20)) // more than any buffer on the way
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url("/"), body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Request-Id", "never-read")
	if resp := do(t, r); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("%s after %v", resp.Status, time.Since(begin))
	}
	if a := e.logged("never-read"); a.Reason != "upstream_timeout" || a.BytesIn >= 8<<20 {
		t.Errorf("logged %+v", a)
	}
	if late, answers := e.attempts(silent, "upstream_timeout"), e.answered("POST", 504); late != 1 || answers != 1 {
		t.Errorf("%v attempts were counted as too late, and %v answers", late, answers)
	}
	e.quiet(before, silent)
}

func TestTheBreakerOpensAndTheFirstRequestAfterItsTimeIsTheProbe(t *testing.T) {
	e, b := one(t, ", breaker: {failures: 5, open_for: 300ms}, health: {type: off}")
	b.fault("503")
	for range 5 {
		e.reason(http.MethodGet, "/ok", http.StatusServiceUnavailable, "ok")
	}
	received := len(b.journal())
	resp := e.reason(http.MethodGet, "/ok", http.StatusServiceUnavailable, "breaker_open")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("an open breaker does not say when to come again")
	}
	if len(b.journal()) != received {
		t.Error("a request went through an open breaker")
	}
	b.fault("none")
	name := fmt.Sprintf("sentinel_breaker_state{name=\"a/%s\",scope=\"backend\"}", b.addr)
	Soon(t, "the breaker is closed by a request", func() bool { return get(t, e.url("/ok")).StatusCode == http.StatusOK })
	if e.metric(name) != 0 {
		t.Error("the breaker is not closed after a probe that was answered")
	}
}

func TestClientsThatGoAwayLeaveNothingBehind(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	series := fmt.Sprintf("sentinel_edge_inflight{backend=%q,pool=\"a\"}", b.addr)
	const each = 20
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range each {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url("/sse?n=1000&d=50ms"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "data: 0\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	var sockets []*websocket.Conn
	for range each {
		c, _, err := websocket.Dial(ctx, strings.Replace(e.url("/ws"), "http", "ws", 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, c)
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if got := e.metric(series); got != 2*each {
		t.Errorf("%v are in flight, want %d", got, 2*each)
	}
	if got := e.metric("sentinel_edge_tunnels"); got != each {
		t.Errorf("%v tunnels are open, want %d", got, each)
	}
	cancel() // all of them, without a good-bye
	for _, c := range sockets {
		_ = c.CloseNow()
	}
	e.quiet(before, b)
	if got := e.metric("sentinel_edge_tunnels"); got != 0 {
		t.Errorf("%v tunnels are open", got)
	}
}

func TestTheQueryArrivesAsItWasSent(t *testing.T) {
	e, b := one(t, "")
	answer := raw(t, e.addr, "GET /x?p=1;q=2&z=%zz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
		t.Fatal(answer)
	}
	journal := b.journal()
	if got := journal[len(journal)-1].Target; got != "/x?p=1;q=2&z=%zz" {
		t.Errorf("the backend got %s", got)
	}
}

func TestAClientCannotStripWhatTheEdgeAdds(t *testing.T) {
	e, b := one(t, "")
	raw(t, e.addr, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nConnection:\r\nConnection: close, X-Forwarded-For, X-Request-Id, Via\r\n\r\n")
	journal := b.journal()
	h := journal[len(journal)-1].Header
	if got := h.Get("X-Forwarded-For"); got != "127.0.0.1" {
		t.Errorf("X-Forwarded-For is %q", got)
	}
	for _, name := range []string{"X-Request-Id", "Via"} {
		if h.Get(name) == "" {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestALengthAndAnEncodingTogetherEndTheConnection(t *testing.T) {
	e, b := one(t, "")
	before := len(b.journal())
	answer := raw(t, e.addr, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || strings.Count(answer, "HTTP/1.1 ") != 1 {
		t.Errorf("got %q", answer)
	}
	for _, r := range b.journal()[before:] {
		t.Errorf("the backend received %s %s", r.Method, r.Target)
	}
}
