package wiretest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// backend answers what a strict reader takes, and notes everything else. It
// speaks through the parser of this package alone.
type backend struct {
	listener net.Listener
	all      sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]bool
	whole []*message
	torn  []*message // whose connection ended within their bodies
	wrong []string   // what nobody may send, and bytes that belong to no request
}

func startBackend(tb testing.TB) *backend {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		tb.Fatal(err)
	}
	b := &backend{listener: l, open: map[net.Conn]bool{}}
	b.all.Go(b.accept)
	tb.Cleanup(b.close)
	return b
}

func (b *backend) url() string { return "http://" + b.listener.Addr().String() }

func (b *backend) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.open[c] = true
		b.mu.Unlock()
		b.all.Go(func() {
			b.talk(c)
			b.mu.Lock()
			delete(b.open, c)
			b.mu.Unlock()
			c.Close()
		})
	}
}

func (b *backend) close() {
	b.listener.Close()
	b.mu.Lock()
	for c := range b.open {
		c.Close()
	}
	b.mu.Unlock()
	b.all.Wait()
}

// talk answers the requests of a connection until it ends or goes wrong.
func (b *backend) talk(c net.Conn) {
	var have []byte
	room := make([]byte, 64<<10)
	continued := false
	for {
		n, err := c.Read(room)
		have = append(have, room[:n]...)
		if len(have) == 0 {
			if err != nil {
				return
			}
			continue
		}
		m, length, perr := parse(have)
		switch {
		case perr == nil:
			if !b.take(m, have[length:]) {
				return
			}
			if m.target == late {
				time.Sleep(time.Second)
			}
			if _, err := io.WriteString(c, reply(m)); err != nil {
				return
			}
			have, continued = nil, false
		case !errors.Is(perr, errShort):
			b.note("%v: %.300q", perr, have)
			return
		case err != nil && m == nil:
			b.note("the connection ends within a head: %.300q", have)
			return
		case err != nil:
			b.mu.Lock()
			b.torn = append(b.torn, m)
			b.mu.Unlock()
		case m != nil && !continued && len(values(m.header, "Expect")) > 0:
			_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			continued = true
		}
		if err != nil {
			return
		}
	}
}

// take notes a request, and reports whether all is well with it.
func (b *backend) take(m *message, rest []byte) bool {
	if len(rest) > 0 {
		b.note("after %s %s there is more before its answer: %.300q", m.method, m.target, rest)
		return false
	}
	if fault := audit(m); fault != "" {
		b.note("%s: %s %s %q", fault, m.method, m.target, m.header)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.whole = append(b.whole, m)
	return true
}

func (b *backend) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

// drain returns what was received since the last time.
func (b *backend) drain() (whole, torn []*message, wrong []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	whole, torn, wrong = b.whole, b.torn, b.wrong
	b.whole, b.torn, b.wrong = nil, nil, nil
	return whole, torn, wrong
}

const (
	large = "/a/large" // is answered with more than any buffer on the way takes
	late  = "/a/late"  // is answered after a second
)

// reply is the answer to a request.
func reply(m *message) string {
	body := "ok"
	if m.target == large {
		body = strings.Repeat("x", 8<<20)
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", len(body))
	if m.method == "HEAD" {
		return head
	}
	return head + body
}

// audit says what is wrong with a request as a proxy's that is "" if nothing is:
// what stands for its own connection, what can be misread, and what it must have.
func audit(m *message) string {
	if m.minor != 1 || m.target[0] != '/' {
		return "not HTTP/1.1, or no path"
	}
	for _, f := range slices.Concat(m.header, m.trailer) {
		name := strings.ToLower(f.name)
		switch {
		case strings.Contains(name, "_"):
			return "a name has _"
		case slices.Contains([]string{
			"keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "http2-settings", "forwarded", "x-real-ip",
		}, name):
			return "a field that is not to be passed on"
		case name == "te" && f.value != "trailers":
			return "TE is more than trailers"
		}
	}
	for _, f := range m.trailer {
		if slices.Contains(notInTrailers, strings.ToLower(f.name)) {
			return "a field that cannot stand in a trailer"
		}
	}
	for _, name := range []string{"X-Request-Id", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Via"} {
		if got := values(m.header, name); len(got) == 0 || len(got) > 1 && name != "Via" {
			if name == "X-Forwarded-Host" && len(got) == 0 && via(m) == "1.0 sentinel" {
				continue // the client has named no host
			}
			return name + " is missing or there more than once"
		}
	}
	switch {
	case values(m.header, "X-Forwarded-For")[0] != "127.0.0.1":
		return "X-Forwarded-For is not whom the edge has seen"
	case values(m.header, "X-Forwarded-Proto")[0] != "http":
		return "X-Forwarded-Proto is not what the edge has seen"
	case !slices.Contains([]string{"1.0 sentinel", "1.1 sentinel", "2.0 sentinel"}, via(m)):
		return "the last Via is not the edge's"
	}
	if len(values(m.header, "Expect")) > 0 && m.length == 0 && !m.chunked {
		return "Expect is for no body"
	}
	upgrade := values(m.header, "Upgrade")
	if len(upgrade) > 1 || len(upgrade) == 1 && !strings.EqualFold(upgrade[0], "websocket") {
		return "Upgrade is for another than a WebSocket"
	}
	var own []string // RFC 9110, 7.6.1 and 10.1.4
	if len(upgrade) > 0 {
		own = append(own, "Upgrade")
	}
	if len(values(m.header, "TE")) > 0 {
		own = append(own, "TE")
	}
	if got := strings.Join(values(m.header, "Connection"), ", "); got != strings.Join(own, ", ") {
		return "Connection names another than what is for it"
	}
	return ""
}

// via is the last one's name and version.
func via(m *message) string {
	all := values(m.header, "Via")
	return all[len(all)-1]
}

// notInTrailers are fields that say how a message is framed, routed, or to be
// understood: RFC 9110, 6.5.1.
var notInTrailers = []string{
	"content-length", "transfer-encoding", "host", "trailer", "te", "connection", "upgrade", "content-encoding", "content-type",
	"content-range", "authorization", "cookie", "set-cookie", "max-forwards", "expect", "via", "x-request-id", "x-forwarded-for",
	"x-forwarded-proto", "x-forwarded-host",
}
