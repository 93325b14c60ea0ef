package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const stalled = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"

// badGateway sends a request, and wants a 502. Unlike response it may be called on
// any goroutine.
func (c *client) badGateway(request string) {
	c.send(request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		c.t.Error(err)
		return
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway {
		c.t.Errorf("status %d", resp.StatusCode)
	}
}

func TestAResetDuringAStalledUploadIs502AtOnce(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		time.Sleep(50 * time.Millisecond)
		p.reset()
	})}})
	c := e.dial()
	began := time.Now()
	c.send(stalled)
	c.response("POST").wantProblem(t, 502, UpstreamReset)
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("took %v", took)
	}
	e.wantRecord(502, UpstreamReset)
	e.wantBreaker("open")
	c.wantClosed()
}

func TestOverHTTP2AResetDuringAStalledUploadIs502AtOnce(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		time.Sleep(50 * time.Millisecond)
		p.reset()
	})}})
	pr, pw := io.Pipe()
	defer pw.Close()
	go io.WriteString(pw, "abc")
	began := time.Now()
	e.do(e.client(2), e.request("POST", "/", pr)).wantProblem(t, 502, UpstreamReset)
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("took %v", took)
	}
	e.wantRecord(502, UpstreamReset)
	e.wantBreaker("open")
}

func TestFiftyStalledUploadsToABackendThatResets(t *testing.T) {
	var all sync.WaitGroup
	all.Add(50)
	s := setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		all.Done()
		all.Wait() // until all are in flight
		p.reset()
	})}}
	s.pool.Breaker.Failures = 1000
	s.pool.Breaker.OpenFor = time.Hour
	e := newEdge(t, s)
	var clients sync.WaitGroup
	for range 50 {
		c := e.dial()
		clients.Go(func() { c.badGateway(stalled) })
	}
	all.Wait()
	began := time.Now()
	clients.Wait()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	e.idle()
	e.record(50)
}

func TestTheDeadlineHoldsWhileTheClientStalls(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{
			backends: []string{raw(t, func(p *peer) { p.drain() })},
			route:    Route{Timeout: 200 * time.Millisecond},
		})
		pr, pw := io.Pipe()
		defer pw.Close()
		go io.WriteString(pw, "abc")
		began := time.Now()
		e.do(e.client(version), e.request("POST", "/", pr)).wantProblem(t, 504, UpstreamTimeout)
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
		e.wantRecord(504, UpstreamTimeout)
		e.wantBreaker("closed") // the client was waited for, not the backend
	})
}

func TestABackendThatReadsNothingTimesOut(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		done := make(chan bool)
		defer close(done)
		e := newEdge(t, setup{
			backends: []string{raw(t, func(*peer) { <-done })},
			route:    Route{Timeout: 2 * time.Second}, options: Options{MaxBodyBytes: 1 << 40},
		})
		e.do(e.client(version), e.request("POST", "/", io.LimitReader(zeros{}, 64<<20))).wantProblem(t, 504, UpstreamTimeout)
		e.wantRecord(504, UpstreamTimeout)
		e.wantBreaker("open")
	})
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestTheClientsFaultsAreTheClients(t *testing.T) {
	for name, c := range map[string]struct {
		send   string
		end    func(c *client)
		status int
		reason Reason
	}{
		"bad chunk":      {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", nil, 400, BadBody},
		"short length":   {"Content-Length: 10\r\n\r\nabc", func(c *client) { c.CloseWrite() }, 400, BadBody},
		"chunks end":     {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", func(c *client) { c.CloseWrite() }, 400, BadBody},
		"idle":           {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", func(*client) {}, 408, BadBody},
		"too long":       {"Transfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("x", 0x65) + "\r\n0\r\n\r\n", nil, 413, BodyTooLarge},
		"bad trailer":    {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nbroken\r\n\r\n", nil, 400, BadBody},
		"client resets":  {"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", func(c *client) { c.SetLinger(0); c.Close() }, 499, ClientClosed},
		"length, resets": {"Content-Length: 10\r\n\r\nabc", func(c *client) { c.SetLinger(0); c.Close() }, 499, ClientClosed},
	} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan bool, 1)
			s := setup{backends: []string{raw(t, func(p *peer) { p.head(); reached <- true; p.drain() })}}
			s.options = Options{BodyIdle: 300 * time.Millisecond, MaxBodyBytes: 100}
			e := newEdge(t, s)
			conn := e.dial()
			conn.send("PUT / HTTP/1.1\r\nHost: h\r\n" + c.send)
			if c.end != nil {
				<-reached
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
			e.idle()
			e.wantBreaker("closed")
		})
	}
}

func TestOverHTTP2TheClientsFaultsAreTheClients(t *testing.T) {
	s := setup{backends: []string{raw(t, func(p *peer) { p.drain() })}}
	s.options = Options{BodyIdle: 300 * time.Millisecond, MaxBodyBytes: 100}
	t.Run("idle", func(t *testing.T) {
		e := newEdge(t, s)
		pr, pw := io.Pipe()
		defer pw.Close()
		go io.WriteString(pw, "abc")
		e.do(e.client(2), e.request("PUT", "/", pr)).wantProblem(t, 408, BadBody)
		e.wantRecord(408, BadBody)
		e.wantBreaker("closed")
	})
	t.Run("too long", func(t *testing.T) {
		e := newEdge(t, s)
		e.do(e.client(2), e.request("PUT", "/", io.LimitReader(zeros{}, 101))).wantProblem(t, 413, BodyTooLarge)
		e.wantRecord(413, BodyTooLarge)
		e.wantBreaker("closed")
	})
	t.Run("gone", func(t *testing.T) {
		e := newEdge(t, s)
		pr, pw := io.Pipe()
		r := e.request("PUT", "/", pr)
		ctx, cancel := contextOf(r)
		go func() { io.WriteString(pw, "abc"); cancel(); pw.Close() }()
		if _, err := e.client(2).Do(r.WithContext(ctx)); err == nil {
			t.Error("there is a response")
		}
		e.wantRecord(499, ClientClosed)
		e.wantBreaker("closed")
	})
}

func TestASlowButSteadyUploadSurvives(t *testing.T) {
	for name, framing := range map[string]string{"one big chunk": "Transfer-Encoding: chunked\r\n\r\n800\r\n", "known length": "Content-Length: 2048\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, setup{
				options:  Options{BodyIdle: 500 * time.Millisecond},
				backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) { n, _ := io.Copy(io.Discard, r.Body); fmt.Fprint(w, n) })},
			})
			c := e.dial()
			c.send("POST / HTTP/1.1\r\nHost: h\r\n" + framing)
			for range 32 { // 64 bytes in 50 ms: twice as long as the idle time in all
				c.send(strings.Repeat("x", 64))
				time.Sleep(30 * time.Millisecond)
			}
			if strings.HasPrefix(framing, "T") {
				c.send("\r\n0\r\n\r\n")
			}
			if a := c.response("POST"); a.StatusCode != 200 || a.body != "2048" {
				t.Errorf("%d %q", a.StatusCode, a.body)
			}
			e.wantRecord(200, OK)
		})
	}
}

func TestADeadlineOfOneRequestDoesNotEndTheNext(t *testing.T) {
	e := newEdge(t, setup{
		options: Options{BodyIdle: 100 * time.Millisecond, WriteIdle: 100 * time.Millisecond},
		backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/slow" {
				http.NewResponseController(w).Flush()
				time.Sleep(300 * time.Millisecond)
			}
			io.WriteString(w, "done")
		})},
	})
	overVersions := func(version int) {
		c := e.client(version)
		for range 2 {
			for _, path := range []string{"/", "/slow"} {
				if a := e.do(c, e.request("POST", path, strings.NewReader("hello"))); a.body != "done" || a.torn != nil {
					t.Errorf("HTTP/%d %s: %q %v", version, path, a.body, a.torn)
				}
			}
		}
	}
	overVersions(1)
	overVersions(2)
}

func TestAnEarlyRefusalOfTheBackendReachesAClientThatStillSends(t *testing.T) {
	refuse := "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge"
	for name, send := range map[string]string{"stalled": "3\r\nabc\r\n", "sending": "10000\r\n" + strings.Repeat("x", 0x10000) + "\r\n"} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) { p.head(); p.say(refuse); p.drain() })}})
			c := e.dial()
			c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + send)
			a := c.response("POST")
			if a.StatusCode != 413 || a.body != "large" || !a.Close || a.torn != nil {
				t.Errorf("%d %q close %t %v", a.StatusCode, a.body, a.Close, a.torn)
			}
			c.wantClosed()
			e.wantRecord(413, OK)
			e.wantBreaker("closed")
		})
	}
}

func TestBothDirectionsMayStreamAtOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			rc.EnableFullDuplex()
			rc.Flush()
			b := make([]byte, 1)
			for {
				if _, err := r.Body.Read(b); err != nil {
					return
				}
				w.Write(b)
				rc.Flush()
			}
		})}})
		pr, pw := io.Pipe()
		resp, err := e.client(version).Do(e.request("POST", "/", pr))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := make([]byte, 1)
		for i := range 10 {
			pw.Write([]byte{byte(i)})
			if _, err := io.ReadFull(resp.Body, b); err != nil || b[0] != byte(i) {
				t.Fatalf("got %d, %v; want %d", b[0], err, i)
			}
		}
		pw.Close()
		if _, err := io.ReadFull(resp.Body, b); err != io.EOF {
			t.Errorf("the end is %v", err)
		}
		e.wantRecord(200, OK)
	})
}

const expecting = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"

func TestContinueComesWhenTheBackendWantsTheBody(t *testing.T) {
	asked := make(chan string, 1)
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		asked <- p.head()
		p.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
		b := make([]byte, 5)
		io.ReadFull(p.r, b)
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + string(b))
	})}})
	c := e.dial()
	c.send(expecting)
	if head := <-asked; !strings.Contains(head, "Expect: 100-continue\r\n") {
		t.Errorf("the backend got %q", head)
	}
	if a := c.response("POST"); a.StatusCode != 103 {
		t.Errorf("first %d", a.StatusCode)
	}
	if a := c.response("POST"); a.StatusCode != 100 {
		t.Errorf("second %d", a.StatusCode)
	}
	c.send("hello")
	if a := c.response("POST"); a.StatusCode != 200 || a.body != "hello" || a.Close {
		t.Errorf("%d %q close %t", a.StatusCode, a.body, a.Close)
	}
}

func TestContinueComesFromABackendThatKnowsNone(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		b := make([]byte, 5)
		io.ReadFull(p.r, b)
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + string(b))
	})}})
	c := e.dial()
	c.send(expecting)
	if a := c.response("POST"); a.StatusCode != 100 {
		t.Errorf("first %d", a.StatusCode)
	}
	c.send("hello")
	if a := c.response("POST"); a.StatusCode != 200 || a.body != "hello" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

func TestAFinalAnswerComesInsteadOfContinue(t *testing.T) {
	for _, connection := range []string{"", "Connection: close\r\n"} {
		e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n" + connection + "\r\nno")
			if b, _ := io.ReadAll(p.r); len(b) > 0 {
				t.Errorf("the backend got a body %q", b)
			}
		})}})
		c := e.dial()
		c.send(expecting)
		if a := c.response("POST"); a.StatusCode != 401 || a.body != "no" || !a.Close {
			t.Errorf("%d %q close %t", a.StatusCode, a.body, a.Close)
		}
		c.wantClosed()
		if r := e.wantRecord(401, OK); r.BytesIn != 0 {
			t.Errorf("%d bytes were read", r.BytesIn)
		}
	}
}

func TestTrailersPassInBothDirections(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		got := make(chan http.Header, 1)
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			got <- r.Trailer
			w.Header().Set("Trailer", "X-Announced")
			w.WriteHeader(200)
			io.WriteString(w, "body")
			w.Header().Set("X-Announced", "1")
			w.Header().Set(http.TrailerPrefix+"X-Surprise", "2")
		})}})
		r := e.request("POST", "/", io.MultiReader(strings.NewReader("hello")))
		r.Trailer = http.Header{"X-Sum": {"42"}, "X-Forwarded-For": {"9.9.9.9"}}
		a := e.do(e.client(version), r)
		equalHeaders(t, <-got, http.Header{"X-Sum": {"42"}})
		equalHeaders(t, a.Trailer, http.Header{"X-Announced": {"1"}, "X-Surprise": {"2"}})
		if a.body != "body" {
			t.Errorf("body %q", a.body)
		}
	})
}

func TestARequestsUnannouncedTrailerPasses(t *testing.T) {
	got := make(chan string, 1)
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		b := make([]byte, len("3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"))
		io.ReadFull(p.r, b)
		got <- string(b)
		p.say("HTTP/1.1 204 No Content\r\n\r\n")
	})}})
	c := e.dial()
	c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nX-Forwarded-For: 9.9.9.9\r\nX_Y: 1\r\n\r\n")
	if a := c.response("POST"); a.StatusCode != 204 {
		t.Errorf("status %d", a.StatusCode)
	}
	if want := "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"; <-got != want {
		t.Errorf("the backend got something other than %q", want)
	}
}

func TestABackendMayTakeItsTimeToReadTheBody(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		inTime(t, func(unit time.Duration) string {
			e := newEdge(t, setup{
				options: Options{BodyIdle: unit, MaxBodyBytes: 1 << 30},
				backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(2 * unit)
					n, _ := io.Copy(io.Discard, r.Body)
					fmt.Fprint(w, n)
				})},
			})
			if a := e.do(e.client(version), e.request("PUT", "/", io.LimitReader(zeros{}, 32<<20))); a.body != itoa(32<<20) {
				return fmt.Sprintf("%d %q", a.StatusCode, a.body)
			}
			return ""
		})
	})
}

func TestARefusalIsWholeWhateverTheClientSendsAfterIt(t *testing.T) {
	refused := make(chan bool)
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say("HTTP/1.1 413 Too Large\r\nContent-Length: 10\r\n\r\nlarge")
		<-refused
		time.Sleep(50 * time.Millisecond)
		p.say("large")
		p.drain()
	})}})
	c := e.dial()
	c.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
	if _, err := c.r.Peek(1); err != nil {
		t.Fatal(err)
	}
	c.send("3\r\nabc\r\n")
	c.send("3\r\nabc\r\nzz\r\n")
	close(refused)
	if a := c.response("POST"); a.StatusCode != 413 || a.body != "largelarge" || a.torn != nil {
		t.Errorf("%d %q %v", a.StatusCode, a.body, a.torn)
	}
}

func TestAnEmptyChunkedBodyStaysOne(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	_, h := headOf(t, c.response("GET").body)
	if h.Get("Transfer-Encoding") != "chunked" {
		t.Errorf("the backend got %v", h)
	}
}

func TestInterimResponsesAndOurContinueDoNotMix(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		body := make(chan string)
		go func() { b := make([]byte, 5); io.ReadFull(p.r, b); body <- string(b) }()
		for {
			select {
			case b := <-body:
				p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + b)
				return
			case <-time.After(time.Millisecond):
				p.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
			}
		}
	})}})
	c := e.dial()
	c.send(expecting)
	continues := 0
	for {
		a := c.response("POST")
		switch {
		case a.StatusCode == 100:
			continues++
			if len(a.Header) > 0 {
				t.Errorf("100 with %v", a.Header)
			}
			c.send("hello")
		case a.StatusCode == 103 && a.Header.Get("Link") == "</a>":
		case a.StatusCode == 200 && a.body == "hello" && continues == 1:
			return
		default:
			t.Fatalf("%d %q after %d continues", a.StatusCode, a.body, continues)
		}
	}
}

func TestAClientThatIsSendingCanReadWhyItIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		after  string // a megabyte
		status int
		reason Reason
	}{
		"reset":     {"10000\r\n" + strings.Repeat("x", 0x10000) + "\r\n", 502, UpstreamReset},
		"bad chunk": {"junk\r\n" + strings.Repeat("x", 0x10000), 400, BadBody},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, setup{options: Options{MaxBodyBytes: 1 << 40}, backends: []string{raw(t, func(p *peer) {
				p.head()
				io.ReadFull(p.r, make([]byte, 1<<20))
				p.reset()
			})}})
			conn := e.dial()
			conn.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("10000\r\n"+strings.Repeat("x", 0x10000)+"\r\n", 15))
			go func() {
				for {
					if _, err := io.WriteString(conn, c.after); err != nil {
						return
					}
				}
			}()
			conn.response("POST").wantProblem(t, c.status, c.reason)
			if _, err := conn.r.ReadByte(); err != io.EOF { // some systems forget at a reset what they have received
				t.Errorf("the connection ends with %v", err)
			}
		})
	}
}
