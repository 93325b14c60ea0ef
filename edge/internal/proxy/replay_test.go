package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// unknownLength is a body of which a client does not know how long it will be.
func unknownLength(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }

func TestAShortBodyIsKeptAndHasALength(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		for _, size := range []int{1, 5, smallKept - 1, smallKept, smallKept + 1, maxKept - 1, maxKept, maxKept + 1, 3 * maxKept} {
			for _, known := range []bool{true, false} {
				body := strings.Repeat("x", size-1) + "y"
				hits := 0
				e := newEdge(t, setup{route: Route{Retry: quick}, pool: forgiving, backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
					hits++
					got, err := io.ReadAll(r.Body)
					if err != nil || string(got) != body {
						t.Errorf("%d bytes, known %t: the backend got %d, %v", size, known, len(got), err)
					}
					if has := r.ContentLength >= 0; has != (known || size <= maxKept) {
						t.Errorf("%d bytes, known %t: length %d", size, known, r.ContentLength)
					}
					if hits < 3 {
						w.WriteHeader(503)
					}
				})}})
				reader := io.Reader(strings.NewReader(body))
				if !known {
					reader = unknownLength(body)
				}
				status, want := 200, 3
				if size > maxKept {
					status, want = 503, 1
				}
				if a := e.do(e.client(version), e.request("PUT", "/", reader)); a.StatusCode != status || hits != want {
					t.Errorf("%d bytes, known %t: %d after %d attempts", size, known, a.StatusCode, hits)
				}
			}
		}
	})
}

func TestChunksWithoutAByteAreABodyOfNone(t *testing.T) {
	var j journal
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, response(503, "x"), response(200, "fine"))}})
	c := e.dial()
	c.send("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	if a := c.response("PUT"); a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
	for _, got := range j.all() {
		if got != "PUT 0 []  map[]" {
			t.Errorf("the backend got %q", got)
		}
	}
	j.wantHits(t, 2)
}

func TestATrailerKeepsABodyInChunks(t *testing.T) {
	for name, announce := range map[string]string{"announced": "Trailer: X-Sum\r\n", "not announced": ""} {
		t.Run(name, func(t *testing.T) {
			var j journal
			e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, response(503, "x"), response(200, "fine"))}})
			c := e.dial()
			c.send("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + announce + "\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n")
			if a := c.response("PUT"); a.StatusCode != 200 {
				t.Error(a.StatusCode)
			}
			for _, got := range j.all() {
				if got != "PUT -1 [chunked] hello map[X-Sum:[7]]" {
					t.Errorf("the backend got %q", got)
				}
			}
			j.wantHits(t, 2)
		})
	}
}

func TestWithoutMemoryABodyIsSentOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		var j journal
		e := newEdge(t, setup{route: Route{Retry: quick}, pool: forgiving, backends: []string{serial(t, &j, response(503, "theirs"))}})
		e.handler.memory.most = smallKept - 1
		if a := e.do(e.client(version), e.request("PUT", "/", unknownLength("hello"))); a.StatusCode != 503 || a.body != "theirs" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		if got := j.all(); len(got) != 1 || !strings.HasPrefix(got[0], "PUT -1 [chunked] hello ") {
			t.Errorf("the backend got %q", got)
		}
		// What has no body needs none, and the answer waits in its connection.
		if a := e.get(version, "/"); a.StatusCode != 503 || a.body != "theirs" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		j.wantHits(t, 4)
		e.handler.memory.most = smallKept // too little for all of it: it goes on from there
		long := strings.Repeat("0123456789", 1000)
		e.do(e.client(version), e.request("PUT", "/", unknownLength(long)))
		if got := j.all(); len(got) != 5 || !strings.HasPrefix(got[4], "PUT -1 [chunked] "+long+" ") {
			t.Errorf("the backend got %d requests", len(got))
		}
	})
}

func TestAClientWhoWaitsToBeAskedIsAskedOnce(t *testing.T) {
	var hits atomic.Int64
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{raw(t, func(p *peer) {
		if head := p.head(); !strings.Contains(head, "Expect: 100-continue") || !strings.Contains(head, "Content-Length: 5") {
			t.Errorf("the backend got %q", head)
		}
		switch hits.Add(1) {
		case 1:
			p.say(response(503, "x")) // before anything of the body
		case 2:
			p.reset()
		default:
			p.say("HTTP/1.1 100 Continue\r\n\r\n")
			body := make([]byte, 5)
			io.ReadFull(p.r, body)
			p.say(response(200, string(body)))
		}
	})}})
	c := e.dial()
	c.send("PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	if a := c.response("PUT"); a.StatusCode != 100 {
		t.Fatal(a.StatusCode)
	}
	c.send("hello")
	if a := c.response("PUT"); a.StatusCode != 200 || a.body != "hello" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if r := e.record(1); r.Attempts != 3 || r.BytesIn != 5 {
		t.Errorf("%+v", r)
	}
	e.wantBreaker("closed")
}

func TestWhatWasAskedForIsNotSentAgain(t *testing.T) {
	for name, send := range map[string]string{
		"long":     fmt.Sprintf("Content-Length: %d\r\n\r\nhello", maxKept+1),
		"expected": "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
	} {
		t.Run(name, func(t *testing.T) {
			var hits atomic.Int64
			e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{raw(t, func(p *peer) {
				hits.Add(1)
				p.head()
				if name == "expected" {
					p.say("HTTP/1.1 100 Continue\r\n\r\n")
				}
				io.ReadFull(p.r, make([]byte, 5))
				p.reset()
			})}})
			c := e.dial()
			c.send("PUT / HTTP/1.1\r\nHost: h\r\n" + send)
			a := c.response("PUT")
			if a.StatusCode == 100 {
				a = c.response("PUT")
			}
			a.wantProblem(t, 502, UpstreamReset)
			if hits.Load() != 1 {
				t.Errorf("%d attempts", hits.Load())
			}
			e.wantBreaker("open")
		})
	}
}

func TestAClientsFaultInAShortBodyReachesNoBackend(t *testing.T) {
	for name, c := range map[string]struct {
		send   string
		end    func(c *client)
		status int
		reason Reason
	}{
		"bad chunk":    {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", nil, 400, BadBody},
		"short length": {"Content-Length: 10\r\n\r\nabc", func(c *client) { c.CloseWrite() }, 400, BadBody},
		"chunks end":   {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", func(c *client) { c.CloseWrite() }, 400, BadBody},
		"idle":         {"Content-Length: 10\r\n\r\nabc", nil, 408, BadBody},
		"too long":     {"Transfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("x", 0x65) + "\r\n0\r\n\r\n", nil, 413, BodyTooLarge},
		"resets":       {"Content-Length: 10\r\n\r\nabc", func(c *client) { c.SetLinger(0); c.Close() }, 499, ClientClosed},
	} {
		t.Run(name, func(t *testing.T) {
			var j journal
			s := setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, response(503, "x"))}}
			s.options = Options{BodyIdle: 200 * time.Millisecond, MaxBodyBytes: 100}
			e := newEdge(t, s)
			conn := e.dial()
			conn.send("PUT / HTTP/1.1\r\nHost: h\r\n" + c.send)
			if c.end != nil {
				c.end(conn)
			}
			if c.status != 499 {
				a := conn.response("PUT")
				a.wantProblem(t, c.status, c.reason)
				if !a.Close {
					t.Error("no Connection: close")
				}
			}
			e.wantRecord(c.status, c.reason)
			e.wantBreaker("closed")
			j.wantHits(t, 0)
		})
	}
}

func TestTheDeadlineHoldsWhileABodyIsKept(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{route: Route{Retry: quick, Timeout: 200 * time.Millisecond}, backends: []string{edgetest.Nowhere(t)}})
		pr, pw := io.Pipe()
		defer pw.Close()
		go io.WriteString(pw, "abc")
		e.do(e.client(version), e.request("PUT", "/", pr)).wantProblem(t, 504, UpstreamTimeout)
		if r := e.wantRecord(504, UpstreamTimeout); r.Attempts != 0 || r.Duration > time.Second {
			t.Errorf("%+v", r)
		}
		e.wantBreaker("closed")
	})
}

func TestABackendIsNotBlamedForTheTimeThatAClientTook(t *testing.T) {
	for name, retry := range map[string]Retry{"kept": quick, "streamed": {}} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, setup{route: Route{Retry: retry, Timeout: 400 * time.Millisecond}, backends: []string{raw(t, func(p *peer) { p.drain() })}})
			c := e.dial()
			c.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhell")
			time.Sleep(300 * time.Millisecond)
			c.send("o")
			c.response("PUT").wantProblem(t, 504, UpstreamTimeout)
			e.wantBreaker("closed")
			c = e.dial()
			c.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")
			c.response("PUT").wantProblem(t, 504, UpstreamTimeout)
			e.wantBreaker("open")
		})
	}
}

func TestWhatWasSentOfALongBodyTakesNoMemory(t *testing.T) {
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{serve(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })}})
	pr, pw := io.Pipe()
	answered := make(chan answer)
	go func() { answered <- e.do(e.client(1), e.request("PUT", "/", pr)) }()
	pw.Write(make([]byte, 2*maxKept))
	e.eventually("what was sent is still kept", func() bool { return e.gen.Status()[0].InFlight == 1 && e.handler.memory.used.Load() == 0 })
	pw.Close()
	if a := <-answered; a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
}

func TestTwoHundredStalledUploadsToABackendThatIsDead(t *testing.T) {
	const clients = 200
	for name, send := range map[string]string{
		"POST":    stalled,
		"PUT":     fmt.Sprintf("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nabc", maxKept+1),
		"promise": "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			var b Budget
			retry := Retry{Attempts: 3, Base: 25 * time.Millisecond, Cap: 250 * time.Millisecond, Percent: 20, Least: 3, Budget: &b}
			s := setup{route: Route{Timeout: 2 * time.Second, Retry: retry}, pool: forgiving, backends: []string{edgetest.Nowhere(t)}}
			e := newEdge(t, s)
			var all sync.WaitGroup
			for range clients {
				c := e.dial()
				all.Go(func() { c.badGateway(send) })
			}
			all.Wait()
			e.idle()
			for n := range clients {
				if r := e.record(n + 1); r.Reason != UpstreamUnreachable || r.Duration > 2*time.Second {
					t.Errorf("%s after %v", r.Reason, r.Duration)
				}
			}
		})
	}
}

// Attempts are cut off in the midst of bodies, whose buffers are at once another's.
func TestNoBodyIsMixedWithAnother(t *testing.T) {
	s := setup{route: Route{Retry: quick}, backends: []string{raw(t, func(p *peer) {
		for {
			r, err := http.ReadRequest(p.r)
			if err != nil {
				return
			}
			if rand.IntN(3) == 0 {
				io.CopyN(io.Discard, r.Body, rand.Int64N(maxKept))
				p.reset()
				return
			}
			sum := sha256.New()
			if n, err := io.Copy(sum, r.Body); err != nil || n != r.ContentLength || fmt.Sprintf("%x", sum.Sum(nil)) != r.Header.Get("X-Sum") {
				t.Errorf("a body of %d bytes, %v, is not the one that was sent", n, err)
			}
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})}}
	s.pool.Breaker = config.Breaker{Failures: 1000, OpenFor: time.Hour}
	e := newEdge(t, s)
	c := e.client(1)
	var all sync.WaitGroup
	var fine atomic.Int64
	for range 8 {
		all.Go(func() {
			for range 40 {
				body := bytes.Repeat([]byte{byte(rand.Int())}, 1+rand.IntN(maxKept))
				r := e.request("PUT", "/", bytes.NewReader(body))
				r.Header.Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256(body)))
				if e.do(c, r).StatusCode == 200 {
					fine.Add(1)
				}
			}
		})
	}
	all.Wait()
	if fine.Load() < 200 {
		t.Errorf("only %d of 320 were answered", fine.Load())
	}
}

func TestMemoryIsGivenBackOnce(t *testing.T) {
	m := newMemory(maxKept + 2*smallKept)
	var none *buffer
	none.free()
	large, small, other := m.take(smallKept+1), m.take(smallKept), m.take(1)
	if large == nil || small == nil || other == nil || m.take(1) != nil {
		t.Fatal("not as much as there is")
	}
	if cap(large.data) != maxKept+1 || cap(small.data) != smallKept {
		t.Errorf("%d and %d bytes", cap(large.data), cap(small.data))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			small.free()
			large.free()
		})
	}
	all.Wait()
	if m.used.Load() != smallKept {
		t.Errorf("%d bytes are in use", m.used.Load())
	}
	other.free()
	if m.used.Load() != 0 {
		t.Errorf("%d bytes are in use", m.used.Load())
	}
}

func TestABufferIsFilledWithWhatThereIs(t *testing.T) {
	failed := errors.New("broken")
	for _, c := range []struct {
		most         int64
		there, known int // bytes; -1: their number is not known
		kept         int // -1: no buffer
		whole        bool
		err          error
	}{
		{maxMemory, 0, -1, 0, true, nil},
		{maxMemory, 5, 5, 5, true, nil},
		{maxMemory, smallKept, -1, smallKept, true, nil},
		{maxMemory, smallKept, smallKept, smallKept, true, nil},
		{maxMemory, maxKept, maxKept, maxKept, true, nil},
		{maxMemory, maxKept, -1, maxKept, true, nil},
		{maxMemory, maxKept + 1, -1, maxKept + 1, false, nil},
		{maxMemory, maxKept + 1, maxKept + 1, -1, false, nil},
		{maxMemory, 2 * maxKept, -1, maxKept + 1, false, nil},
		{smallKept, 2 * smallKept, -1, smallKept, false, nil},
		{smallKept, 2 * smallKept, 2 * smallKept, -1, false, nil},
		{0, 5, -1, -1, false, nil},
		{maxMemory, 5, 10, -1, false, failed},
		{maxMemory, 2 * smallKept, -1, -1, false, failed},
	} {
		m := newMemory(c.most)
		from := io.Reader(bytes.NewReader(make([]byte, c.there)))
		if c.err != nil {
			from = io.MultiReader(from, iotest.ErrReader(c.err))
		}
		b, whole, err := m.fill(from, int64(c.known))
		kept := -1
		if b != nil {
			kept = len(b.data)
		}
		if kept != c.kept || whole != c.whole || !errors.Is(err, c.err) {
			t.Errorf("%+v: kept %d, whole %t, %v", c, kept, whole, err)
		}
		b.free()
		if m.used.Load() != 0 {
			t.Errorf("%+v: %d bytes are in use", c, m.used.Load())
		}
	}
}

func TestAnAttemptThatIsOverReadsNothing(t *testing.T) {
	m := newMemory(maxMemory)
	b := m.take(5)
	b.data = append(b.data, "hello"...)
	first, second := upload{kept: b, whole: true}, upload{kept: b, whole: true}
	p := make([]byte, 2)
	if n, err := first.Read(p); n != 2 || err != nil || string(p) != "he" {
		t.Errorf("%d %q %v", n, p, err)
	}
	first.end()
	first.Close()
	if n, err := first.Read(p); n != 0 || !errors.Is(err, errOver) {
		t.Errorf("%d %v", n, err)
	}
	if all, err := io.ReadAll(&second); string(all) != "hello" || err != nil {
		t.Errorf("%q %v", all, err)
	}
}
