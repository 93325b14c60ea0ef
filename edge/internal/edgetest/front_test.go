package edgetest

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// front is an edge whose limits on clients are these, before a backend that takes
// whatever comes.
func front(t *testing.T, limits string) *edge {
	t.Helper()
	b := startBackend(t, "a", "")
	return startEdge(t, "server: {listen: \"127.0.0.1:0\", "+limits+"}\nroutes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", b))
}

func TestTheFilesLimitsOfRequestsHold(t *testing.T) {
	e := front(t, "max_header_bytes: 2000, max_header_fields: 10, max_url_bytes: 128, max_body_bytes: 100")
	const host = " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
	long := strings.Repeat("a", 2000)
	for _, c := range []struct {
		name, request string
		status        int
		reason        string
	}{
		{"all within", "GET /" + long[:127] + host + "\r\n", 200, ""},
		{"a long head", "GET /" + host + "X: " + long + "\r\n\r\n", 431, "header_too_large"},
		{"many fields", "GET /" + host + strings.Repeat("X: y\r\n", 9) + "\r\n", 431, "header_too_large"},
		{"a long target", "GET /" + long[:128] + host + "\r\n", 414, "header_too_large"},
		{"a body of the limit", "POST /echo" + host + "Content-Length: 100\r\n\r\n" + long[:100], 200, ""},
		{"a long body", "POST /echo" + host + "Content-Length: 101\r\n\r\n" + long[:101], 413, "body_too_large"},
		{"a body that grows long", "POST /echo" + host + "Transfer-Encoding: chunked\r\n\r\n65\r\n" + long[:101] + "\r\n0\r\n\r\n", 413, "body_too_large"},
	} {
		answer := raw(t, e.addr, c.request)
		if !strings.HasPrefix(answer, "HTTP/1.1 "+strconv.Itoa(c.status)+" ") || c.reason != "" && !strings.Contains(answer, `"reason":"`+c.reason+`"`) {
			t.Errorf("%s: want %d %s, got %q", c.name, c.status, c.reason, answer)
		}
	}
}

// A client that stands still is left after the time that the file says. Without it, each
// of these would last ten times as long at least.
func TestTheFilesTimesForClientsHold(t *testing.T) {
	const short = "100ms"
	for _, c := range []struct{ name, limit, sent, want string }{
		{"in the head", "read_header_timeout", "GET / HT", ""},
		{"in the body", "body_idle_timeout", "PUT /ok HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", "HTTP/1.1 408 "},
		{"between requests", "keep_alive_timeout", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 "},
		{"in a tunnel", "tunnel_idle_timeout", "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", "HTTP/1.1 101 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := front(t, c.limit+": "+short)
			conn := e.dial(t)
			if _, err := io.WriteString(conn, c.sent); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(4 * time.Second))
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(answer), c.want) {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
}

func TestAClientThatTakesNothingIsLeftInTime(t *testing.T) {
	b := startBackend(t, "a", "")
	e := startEdge(t, "server: {listen: \"127.0.0.1:0\", write_idle_timeout: 200ms}\nroutes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", b))
	get(t, e.url("/ok"))
	before := e.baseline()
	conn := e.dial(t)
	if _, err := io.WriteString(conn, "GET /bytes?n=50000000 HTTP/1.1\r\nHost: a\r\nX-Request-Id: reads-nothing\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if a := e.logged("reads-nothing"); a.Reason != "client_closed" || a.BytesOut >= 50_000_000 {
		t.Errorf("%+v", a)
	}
	if n, ok := e.attempts(b, "client_closed"), e.metric(fmt.Sprintf("sentinel_breaker_state{name=\"a/%s\",scope=\"backend\"}", b.addr)); n != 1 || ok != 0 {
		t.Errorf("%v attempts were counted as ended by the client, the breaker is %v", n, ok)
	}
	e.quiet(before, b)
}

// Those who stop within their bodies hold nothing once their time is over, and no backend
// is blamed: neither one that had a part of it nor one that was to get all at once.
func TestClientsThatSendNoMoreAreLeftInTime(t *testing.T) {
	const each = 20
	b := startBackend(t, "a", "")
	e := startEdge(t, "server: {listen: \"127.0.0.1:0\", body_idle_timeout: 300ms}\nroutes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", ", breaker: {failures: 1, open_for: 1h}", b))
	get(t, e.url("/ok"))
	before := e.baseline()
	var conns []net.Conn
	for range each {
		for _, method := range []string{"POST", "PUT"} {
			conn := e.dial(t)
			if _, err := io.WriteString(conn, method+" /hang HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(limit))
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408 ") {
			t.Errorf("%q, %v", answer, err)
		}
	}
	if post, put := e.answered("POST", 408), e.answered("PUT", 408); post != each || put != each {
		t.Errorf("%v and %v were counted as too slow, want %d of each", post, put, each)
	}
	if got := e.metric(fmt.Sprintf("sentinel_breaker_state{name=\"a/%s\",scope=\"backend\"}", b.addr)); got != 0 {
		t.Errorf("the breaker is %v", got)
	}
	e.quiet(before, b)
}

func TestNoMoreConnectionsThanTheFileSays(t *testing.T) {
	e := front(t, "max_connections: 2")
	first, _ := e.dial(t), e.dial(t)
	third := e.dial(t) // the kernel takes it
	if _, err := io.WriteString(third, "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = third.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := third.Read(make([]byte, 1)); err == nil {
		t.Fatalf("a third one is answered: %d", n)
	}
	first.Close()
	_ = third.SetReadDeadline(time.Now().Add(limit))
	if answer, err := io.ReadAll(third); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("when there is room: %q, %v", answer, err)
	}
}

func (e *edge) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
