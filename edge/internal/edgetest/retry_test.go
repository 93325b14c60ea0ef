package edgetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// send sends a request with a body, of unknown length if known is false.
func (e *edge) send(method, path, body string, known bool) *response {
	e.t.Helper()
	reader := io.Reader(strings.NewReader(body))
	if !known {
		reader = io.MultiReader(reader)
	}
	r, err := http.NewRequestWithContext(e.t.Context(), method, e.url(path), reader)
	if err != nil {
		e.t.Fatal(err)
	}
	return do(e.t, r)
}

// wantReceived checks that a backend received a path n times, each time with this
// body and its length.
func (b *backend) wantReceived(path string, n int, body string) {
	b.t.Helper()
	sum := sha256.Sum256([]byte(body))
	for _, r := range b.journal() {
		if r.Target != path {
			continue
		}
		n--
		if r.Length != int64(len(body)) || r.Body != int64(len(body)) || r.SHA256 != hex.EncodeToString(sum[:]) {
			b.t.Errorf("the backend received a length of %d, and %d bytes", r.Length, r.Body)
		}
	}
	if n != 0 {
		b.t.Errorf("the backend received %s %d times too seldom", path, n)
	}
}

func TestAnUploadThatIsRefusedTwiceArrivesThreeTimes(t *testing.T) {
	e, b := one(t, "")
	for i, known := range []bool{true, false} {
		path := fmt.Sprintf("/503x2?key=%d", i)
		if resp := e.send(http.MethodPut, path, "hello", known); resp.StatusCode != http.StatusOK || string(resp.body) != "hello" {
			t.Errorf("%s %q", resp.Status, resp.body)
		}
		b.wantReceived(path, 3, "hello")
	}
	for series, want := range map[string]float64{
		`sentinel_edge_retries_total{reason="503"}`:                                               4,
		fmt.Sprintf(`sentinel_edge_upstream_attempts_total{backend=%q,result="503"}`, b.addr):     4,
		fmt.Sprintf(`sentinel_edge_upstream_attempts_total{backend=%q,result="ok"}`, b.addr):      3, // with the one of the start
		`sentinel_edge_retry_budget_exhausted_total`:                                              0,
		fmt.Sprintf(`sentinel_breaker_state{name="a/%s",scope="backend"}`, b.addr):                0,
		fmt.Sprintf(`sentinel_edge_inflight{backend=%q,pool="a"}`, b.addr):                        0,
		`sentinel_edge_requests_total{code="200",method="PUT",route="/*rest"}`:                    2,
		`sentinel_edge_requests_total{code="503",method="PUT",route="/*rest"}`:                    0,
		fmt.Sprintf(`sentinel_edge_upstream_attempts_total{backend=%q,result="nothing"}`, b.addr): 0,
	} {
		if got := e.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}

func TestABackendThatRefusesIsLeftForTheNext(t *testing.T) {
	dead, well := startBackend(t, "a", ""), startBackend(t, "b", "")
	e := startEdge(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+
		pool("a", ", health: {type: off}, breaker: {failures: off}, retry: {scope: next_backend}", dead, well))
	dead.kill()
	for i := range 4 { // in turns to one and the other
		if resp := e.send(http.MethodPut, fmt.Sprintf("/echo?n=%d", i), "hello", true); resp.StatusCode != http.StatusOK || string(resp.body) != "hello" {
			t.Errorf("%s %q", resp.Status, resp.body)
		}
		well.wantReceived(fmt.Sprintf("/echo?n=%d", i), 1, "hello")
	}
	if got := e.metric(`sentinel_edge_retries_total{reason="upstream_unreachable"}`); got != 2 {
		t.Errorf("%v retries, want 2", got)
	}
}

func TestABackendThatComesBackGetsTheSecondAttempt(t *testing.T) {
	e, b := one(t, ", health: {type: off}, retry: {attempts: 10, base: 1s, cap: 1s}")
	b.kill()
	answers := make(chan *response)
	go func() { answers <- e.send(http.MethodPut, "/echo", "hello", true) }()
	Soon(t, "the first attempt has failed", func() bool {
		return e.metric(fmt.Sprintf(`sentinel_edge_inflight{backend=%q,pool="a"}`, b.addr)) == 1
	})
	b = b.restart()
	if resp := <-answers; resp.StatusCode != http.StatusOK || string(resp.body) != "hello" {
		t.Errorf("%s %q", resp.Status, resp.body)
	}
	b.wantReceived("/echo", 1, "hello")
}

func TestWhatMayNotBeDoneTwiceIsDoneOnce(t *testing.T) {
	e, b := one(t, ", response_timeout: 200ms, breaker: {failures: 100}")
	for path, want := range map[string]int{"/status/503": 503, "/rst0": 502, "/hang": 504} {
		if resp := e.send(http.MethodPost, path, "hello", true); resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
		b.wantReceivedTimes(path, 1)
		if resp := get(t, e.url(path)); resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
		b.wantReceivedTimes(path, 4) // and three of the GET
	}
}

func (b *backend) wantReceivedTimes(path string, n int) {
	b.t.Helper()
	got := 0
	for _, r := range b.journal() {
		if r.Target == path {
			got++
		}
	}
	if got != n {
		b.t.Errorf("the backend received %s %d times, want %d", path, got, n)
	}
}

func TestAWebSocketIsOpenedOnce(t *testing.T) {
	e, b := one(t, "")
	c, _, err := websocket.Dial(t.Context(), strings.Replace(e.url("/ws"), "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(t.Context()); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	_ = c.Close(websocket.StatusNormalClosure, "")
	b.fault("503")
	if _, _, err := websocket.Dial(t.Context(), strings.Replace(e.url("/ws"), "http", "ws", 1), nil); err == nil {
		t.Error("it was opened")
	}
	b.wantReceivedTimes("/ws", 2)
}

func TestAStalledUploadIsAnsweredWhenTheBackendResets(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /rst0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_ = conn.SetReadDeadline(begin.Add(limit))
	answer := make([]byte, 13)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 502 " {
		t.Errorf("%q, %v after %v", answer, err, time.Since(begin))
	}
	conn.Close()
	e.quiet(before, b)
}

func TestWhenAllFailBackendsGetAFifthMore(t *testing.T) {
	const clients = 200
	e, b := one(t, ", breaker: {failures: 100000}, response_timeout: 300ms, health: {type: off}")
	before := len(b.journal())
	b.fault("hang") // all are in flight before the first one fails
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url("/"), http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusGatewayTimeout {
				t.Error(resp.Status)
			}
		})
	}
	all.Wait()
	b.fault("none")
	hits := len(b.journal()) - before
	if hits <= clients || hits > clients*12/10+3 {
		t.Errorf("the backend received %d requests of %d", hits, clients)
	}
	if n := e.metric("sentinel_edge_retry_budget_exhausted_total"); n < clients/2 {
		t.Errorf("%v requests found the budget exhausted", n)
	}
}

func TestAStopSchedulesNoRetry(t *testing.T) {
	e, b := one(t, ", health: {type: off}, retry: {base: 20s, cap: 20s}")
	b.fault("503")
	answers := make(chan *response)
	go func() { answers <- get(t, e.url("/waits")) }()
	Soon(t, "the first attempt has failed", func() bool {
		for _, r := range b.journal() {
			if r.Target == "/waits" {
				return r.Ended
			}
		}
		return false
	})
	e.signal(syscall.SIGTERM)
	if resp := <-answers; resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(resp.body), "the fault is 503") {
		t.Errorf("%s %q", resp.Status, resp.body)
	}
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
