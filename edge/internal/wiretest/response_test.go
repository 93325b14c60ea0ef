package wiretest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// responses is where those are that a backend may send; its README says how they
// are written down.
const responses = "../../testdata/responses"

// script is what a backend sends to the first request that it gets.
type script struct {
	raw    []byte
	pieces int  // that it is sent in; 0: at once
	close  bool // the connection is closed then

	// all is what it sends to each request instead, on and on while it returns
	// something.
	all func(m *message, round int) []byte
}

// scripted is a backend that follows a script, and then answers "second" to whatever
// it is asked, on any connection.
type scripted struct {
	listener net.Listener
	all      sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	script script
	asked  []net.Conn // by which request
}

const second = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nsecond"

func startScripted(tb testing.TB) *scripted {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		tb.Fatal(err)
	}
	s := &scripted{listener: l, open: map[net.Conn]bool{}}
	s.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = true
			s.mu.Unlock()
			s.all.Go(func() { s.talk(c) })
		}
	})
	tb.Cleanup(s.stop)
	return s
}

// stop waits until all connections have ended, which are closed unless they are busy.
func (s *scripted) stop() {
	s.listener.Close()
	s.mu.Lock()
	for c := range s.open {
		_ = c.(*net.TCPConn).CloseRead()
	}
	s.mu.Unlock()
	s.all.Wait()
}

func (s *scripted) talk(c net.Conn) {
	defer func() {
		c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, c)
	}()
	var have []byte
	room := make([]byte, 32<<10)
	for {
		n, err := c.Read(room)
		have = append(have, room[:n]...)
		for {
			m, length, perr := parse(have)
			if perr != nil {
				break
			}
			have = have[length:]
			if s.answer(c, m) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// answer answers a request, and reports whether that was the last.
func (s *scripted) answer(c net.Conn, m *message) (last bool) {
	s.mu.Lock()
	now := s.script
	s.asked = append(s.asked, c)
	if now.all != nil {
		s.mu.Unlock()
		for round := 0; ; round++ {
			b := now.all(m, round)
			if len(b) == 0 {
				return now.close
			}
			if _, err := c.Write(b); err != nil {
				return true
			}
		}
	}
	if len(s.asked) > 1 {
		now = script{raw: []byte(second)}
	}
	s.mu.Unlock()
	if now.pieces == 0 {
		now.pieces = max(len(now.raw), 1)
	}
	for piece := range slices.Chunk(now.raw, now.pieces) {
		if _, err := c.Write(piece); err != nil {
			return true // it was refused
		}
	}
	return now.close
}

// play begins a script.
func (s *scripted) play(now script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.asked = now, nil
}

// again reports whether the second request came on the connection of the first.
func (s *scripted) again() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked) > 1 && s.asked[0] == s.asked[1]
}

// theatre is an edge before a scripted backend.
type theatre struct {
	*edge
	backend *scripted
}

func newTheatre(tb testing.TB) *theatre {
	b := startScripted(tb)
	return &theatre{startEdgeWith(tb, "http://"+b.listener.Addr().String(), "", "breaker: {failures: off}, health: {type: off}, retry: off, response_timeout: 5s"), b}
}

// ways are those on which a request goes to a backend.
var ways = map[string]string{
	"without a body": " /a/x HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n",
	"with a body":    " /a/x HTTP/1.1\r\nHost: edge\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
}

// ask sends a request on a connection of its own, and returns all that comes back.
func (e *edge) ask(tb testing.TB, request string) []byte {
	tb.Helper()
	c, err := net.Dial("tcp", e.addr) //nolint:noctx // loopback
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, request); err != nil {
		tb.Fatal(err)
	}
	all, err := io.ReadAll(c)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		tb.Fatalf("after %.1000q: %v", all, err)
	}
	return all
}

// perform has a script answer a request, and holds what comes of it to what must be so
// whatever the bytes are:
//
//   - What a strict reader takes the client gets: the same status, fields, body and
//     trailer, and interim responses.
//   - What it does not take is a 502, or ends by a cut where a part of a body had
//     been right.
//   - Nothing that came after the response is seen by anybody, and only a connection
//     on which nothing is wrong, or open, is used again.
//
// It returns what the client got, and whether the connection was used again.
func (th *theatre) perform(tb testing.TB, method, way string, s script) (view got, again bool) {
	tb.Helper()
	th.backend.play(s)
	head := method == "HEAD"
	bytes := th.ask(tb, method+ways[way])
	view = parseResponses(bytes, head, true)
	want := parseResponses(s.raw, head, s.close)
	next := th.ask(tb, "GET"+ways[way])
	again = th.backend.again()
	if other := parseResponses(next, false, true); !want.reusable(s.close) && other.final != nil && other.final.status == 502 {
		next = th.ask(tb, "GET"+ways[way]) // the end of the connection, or what is to end it, was noticed late
	}
	fail := func(format string, args ...any) {
		tb.Helper()
		tb.Errorf("%s\nto %s %s the backend sent %.2000q\nclient  %.2000q\nread    %v", fmt.Sprintf(format, args...), method, way, s.raw, bytes, want.err)
	}
	if other := parseResponses(next, false, true); other.err != nil || other.final.status != 200 || string(other.final.body) != "second" {
		fail("the next client got %.1000q", next)
	}
	if fault := judge(view, want); fault != "" {
		fail("%s", fault)
	}
	if again && !want.reusable(s.close) {
		fail("the connection was used again")
	}
	th.access.take()
	return view, again
}

// judge says what a client has got that it should not have, "" if nothing.
func judge(view, want got) string {
	refused := view.err == nil && view.final.status == 502 && slices.Contains(values(view.final.header, "Content-Type"), "application/problem+json")
	switch {
	case view.final == nil:
		return "the client got no answer"
	case len(view.rest) > 0:
		return "the client got more than an answer"
	case view.err != nil && !errors.Is(view.err, errShort):
		return "the client got what is no answer: " + view.err.Error()
	case len(view.interim) > len(want.interim):
		return "the client got interim answers that were not sent"
	}
	for i, m := range view.interim {
		if m.status != want.interim[i].status || !slices.Equal(answering(m), answering(want.interim[i])) {
			return fmt.Sprintf("interim answer %d is another", i)
		}
	}
	switch {
	case want.final == nil || want.final.status == 101:
		if !refused {
			return "what is no response is not 502"
		}
	case want.cut:
		if !refused && (!view.cut || view.final.status != want.final.status || !bytes.HasPrefix(want.final.body, view.final.body)) {
			return "what is no whole response is neither 502 nor cut"
		}
	case refused && want.stricter(), view.cut && want.stricter() && bytes.HasPrefix(want.final.body, view.final.body):
	default:
		return differing(view.final, want.final)
	}
	return ""
}

// stricter reports whether the edge may refuse what the grammar has no limit for: of
// what stands in the lines of chunks, and in trailers and what announces them.
func (g got) stricter() bool {
	return g.final.extras || len(g.final.trailer) > 0 || len(values(g.final.header, "Trailer")) > 0
}

// differing says how a response is not the one that was sent.
func differing(view, want *message) string {
	switch {
	case view.status != want.status:
		return "the status is another"
	case !bytes.Equal(view.body, want.body):
		return "the body is another"
	}
	have, sent := answering(view), answering(want)
	if len(values(want.header, "Cache-Control")) == 0 && len(have) > len(sent) {
		have = slices.DeleteFunc(have, func(f string) bool { return f == "cache-control: no-cache" }) // net/http's, for Pragma
	}
	if !slices.Equal(have, sent) {
		return fmt.Sprintf("the header is another: %q, want %q", have, sent)
	}
	for _, f := range view.trailer {
		if slices.Contains(notInTrailers, strings.ToLower(f.name)) || !slices.ContainsFunc(want.trailer, func(s field) bool {
			return strings.EqualFold(s.name, f.name) && s.value == f.value
		}) {
			return fmt.Sprintf("the trailer has %q", f)
		}
	}
	return ""
}

// answering is the fields of a response that a proxy passes on as they are, each as
// one text, in an order of their own.
func answering(m *message) (all []string) {
	own := []string{
		"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
		"transfer-encoding", "upgrade", "http2-settings", "content-length", "via", "x-request-id", "date",
	}
	for _, value := range values(m.header, "Connection") {
		for name := range strings.SplitSeq(value, ",") {
			own = append(own, strings.ToLower(strings.Trim(name, " \t")))
		}
	}
	for _, f := range m.header {
		if name := strings.ToLower(f.name); !slices.Contains(own, name) {
			all = append(all, name+": "+f.value)
		}
	}
	slices.Sort(all)
	return all
}

// reusable reports whether a connection may be used again after a response.
func (g got) reusable(closed bool) bool {
	m := g.final
	if closed || g.err != nil || len(g.rest) > 0 || m.status == 101 {
		return false
	}
	for _, value := range values(m.header, "Connection") {
		for name := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.Trim(name, " \t"), "close") {
				return false
			}
		}
	}
	return true
}

// shown is what a client got, as expected.txt has it.
func (g got) shown() string {
	var texts []string
	for _, m := range g.interim {
		texts = append(texts, fmt.Sprint(m.status))
	}
	if len(texts) > 3 {
		texts = []string{fmt.Sprintf("%d interim", len(texts))}
	}
	if m := g.final; m != nil {
		texts = append(texts, fmt.Sprint(m.status))
		switch {
		case slices.Contains(values(m.header, "Content-Type"), "application/problem+json"):
			_, rest, _ := strings.Cut(string(m.body), `"reason":"`)
			reason, _, _ := strings.Cut(rest, `"`)
			texts[len(texts)-1] += ":" + reason
		case len(m.body) > 40:
			texts = append(texts, fmt.Sprintf("%.10q...(%d)", m.body, len(m.body)))
		case len(m.body) > 0:
			texts = append(texts, fmt.Sprintf("%q", m.body))
		}
		if len(m.trailer) > 3 {
			texts = append(texts, fmt.Sprintf("%d fields behind", len(m.trailer)))
		} else {
			for _, f := range m.trailer {
				texts = append(texts, fmt.Sprintf("%s:%.20s", f.name, f.value))
			}
		}
	}
	if g.cut {
		texts = append(texts, "cut")
	}
	return strings.Join(texts, " ")
}

// response is one of the corpus.
type response struct {
	name, method string
	script       script
	answer       string
	kept         bool
}

// allResponses reads the corpus.
func allResponses(tb testing.TB) (all []response) {
	tb.Helper()
	for _, f := range files(tb, responses, ".resp", "name | method end | answer | connection") {
		method, end, _ := strings.Cut(f.parts[1], " ")
		all = append(all, response{
			name: f.parts[0], method: method, answer: f.parts[2], kept: f.parts[3] == "kept",
			script: script{raw: f.raw, close: end == "close"},
		})
	}
	return all
}

// Every response is to its client what it should be, on both ways, however it arrives.
func TestResponses(t *testing.T) {
	th := newTheatre(t)
	defer leavesNothing(t)()
	for _, r := range allResponses(t) {
		for way := range ways {
			for _, pieces := range []int{0, 7} {
				if pieces == 7 && (len(r.script.raw) > 2000 || len(parseResponses(r.script.raw, r.method == "HEAD", r.script.close).rest) > 0) {
					continue // a piece that comes when the next request was sent is its answer
				}
				s := r.script
				s.pieces = pieces
				t.Run(fmt.Sprintf("%s %s in %d", r.name, way, pieces), func(t *testing.T) {
					view, again := th.perform(t, r.method, way, s)
					for try := 0; try < 5 && r.kept && !again; try++ {
						// net/http keeps none whose request it finds sent only 50 ms after the answer
						view, again = th.perform(t, r.method, way, s)
					}
					connection := map[bool]string{true: "kept", false: "closed"}
					end := map[bool]string{true: "close", false: "open"}
					if view.shown() != r.answer || again != r.kept {
						t.Errorf("%s | %s %s | %s | %s\nwant %s | %s", r.name, r.method, end[s.close], view.shown(), connection[again], r.answer, connection[r.kept])
					}
				})
			}
		}
	}
}

// leavesNothing is that descriptors and goroutines come back to what they are now, a few
// kept connections aside.
func leavesNothing(t *testing.T) (check func()) {
	descriptors, goroutines := edgetest.Descriptors(t, os.Getpid()), runtime.NumGoroutine()
	return func() {
		t.Helper()
		edgetest.Soon(t, "descriptors and goroutines are back", func() bool {
			return edgetest.Descriptors(t, os.Getpid()) <= descriptors+8 && runtime.NumGoroutine() <= goroutines+8
		})
	}
}

// Whatever a backend sends after its answers, nobody gets what belongs to another, however
// many ask at once.
func TestNobodyGetsWhatComesAfterAnothersAnswer(t *testing.T) {
	const surplus = "HTTP/1.1 200 OK\r\nX-Stolen: yes\r\nContent-Length: 6\r\n\r\nstolen"
	chunked := func(id string) string {
		return fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(id), id)
	}
	for name, answer := range map[string]func(id string) string{
		"length": func(id string) string {
			return fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Of: %s\r\nContent-Length: %d\r\n\r\n%s%s", id, len(id), id, surplus)
		},
		"chunked": func(id string) string { return "HTTP/1.1 200 OK\r\nX-Of: " + id + "\r\n" + chunked(id) + surplus },
		"no body": func(id string) string { return "HTTP/1.1 204 No Content\r\nX-Of: " + id + "\r\n\r\n" + surplus },
		"both": func(id string) string {
			return fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Of: %s\r\nContent-Length: %d\r\n", id, len(chunked(id))) + chunked(id) + surplus
		},
	} {
		t.Run(name, func(t *testing.T) {
			th := newTheatre(t)
			th.backend.play(script{all: func(m *message, round int) []byte {
				if round > 0 {
					return nil
				}
				return []byte(answer(values(m.header, "X-Request-Id")[0]))
			}})
			for way := range ways {
				var clients sync.WaitGroup
				for c := range 16 {
					clients.Go(func() {
						for i := range 50 {
							id := fmt.Sprintf("%d-%d", c, i)
							view := parseResponses(th.ask(t, "GET"+strings.Replace(ways[way], "Host: edge", "Host: edge\r\nX-Request-Id: "+id, 1)), false, true)
							if view.final == nil || view.err != nil || len(view.rest) > 0 {
								t.Errorf("%s: %+v", id, view)
							} else if of := values(view.final.header, "X-Of"); view.final.status != 502 && (len(of) != 1 || of[0] != id) {
								t.Errorf("%s got %q %q", id, view.final.header, view.final.body)
							}
						}
					})
				}
				clients.Wait()
			}
			th.access.take()
		})
	}
}

// What has no end ends by our limits, and takes no more memory than they say.
func TestAnEndlessResponseEnds(t *testing.T) {
	for name, c := range map[string]struct{ first, on, want string }{
		"head":              {"HTTP/1.1 200 OK\r\n", "X: " + strings.Repeat("y", 1000) + "\r\n", "502:upstream_reset"},
		"line":              {"HTTP/1.1 200 OK\r\nX: ", strings.Repeat("y", 1000), "502:upstream_reset"},
		"interim":           {"HTTP/1.1 103 X\r\n\r\n", "HTTP/1.1 103 X\r\nLink: </a>\r\n\r\n", "502:upstream_reset"},
		"interim for us":    {"HTTP/1.1 100 X\r\n\r\n", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 50), "502:upstream_reset"},
		"chunk's extension": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", strings.Repeat("y", 1000), "200 cut"},
		"extensions":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;" + strings.Repeat("y", 900) + "\r\nx\r\n", "200 \"xxxxxxxxxxxxxxxxxx\" cut"},
		"trailer":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n", "200 cut"},
		"line of a trailer": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", strings.Repeat("y", 1000), "200 cut"},
	} {
		for way := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				th := newTheatre(t)
				rounds := 0
				th.backend.play(script{all: func(_ *message, round int) []byte {
					rounds = round
					if round == 0 {
						return []byte(c.first)
					}
					return []byte(c.on)
				}})
				all := th.ask(t, "GET"+ways[way])
				view := parseResponses(all[bytes.LastIndex(all, []byte("HTTP/1.1 ")):], false, true) // without interim ones
				if view.shown() != c.want {
					t.Errorf("%s, want %s", view.shown(), c.want)
				}
				th.backend.stop() // it goes on until the edge has closed the connection
				if sent := rounds * len(c.on); sent > 16<<20 {
					t.Errorf("the edge took %d bytes", sent)
				}
				th.access.take()
			})
		}
	}
}
