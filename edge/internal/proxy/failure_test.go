package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// drain reads until the connection ends.
func (p *peer) drain() { io.Copy(io.Discard, p.r) }

func TestABackendsFailureIsAnsweredAndCounted(t *testing.T) {
	for name, c := range map[string]struct {
		backend func(t *testing.T) string
		status  int
		reason  Reason
		failure string // what the operator is told
	}{
		"nobody listens": {edgetest.Nowhere, 502, UpstreamUnreachable, "connection refused"},
		"reset before headers": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.reset() })
		}, 502, UpstreamReset, "connection reset by peer"},
		"closed before headers": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head() })
		}, 502, UpstreamReset, "EOF"},
		"closed within headers": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.say("HTTP/1.1 200 OK\r\nContent-Le") })
		}, 502, UpstreamReset, "EOF"},
		"not HTTP": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.say("SSH-2.0-OpenSSH\r\n\r\n"); p.drain() })
		}, 502, UpstreamReset, "malformed HTTP response"},
		"a status that is none": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.say("HTTP/1.1 042 Odd\r\nContent-Length: 2\r\n\r\nok"); p.drain() })
		}, 502, UpstreamReset, "status 42"},
		"silent": {func(t *testing.T) string { return raw(t, func(p *peer) { p.drain() }) }, 504, UpstreamTimeout, "the time of the request is over"},
		"headers and then reset": {func(t *testing.T) string {
			return raw(t, func(p *peer) {
				p.head()
				p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Theirs: 1\r\n\r\n")
				p.reset()
			})
		}, 502, UpstreamTruncated, "connection reset by peer"},
		"headers and then closed": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Theirs: 1\r\n\r\n") })
		}, 502, UpstreamTruncated, "unexpected EOF"},
		"headers and then silent": {func(t *testing.T) string {
			return raw(t, func(p *peer) { p.head(); p.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"); p.drain() })
		}, 504, UpstreamTimeout, "the time of the request is over"},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, version int) {
				e := newEdge(t, setup{backends: []string{c.backend(t)}, route: Route{Timeout: 300 * time.Millisecond}})
				a := e.get(version, "/")
				if c.reason != UpstreamReset || a.StatusCode != 502 { // a reset may overtake the header that came before
					a.wantProblem(t, c.status, c.reason)
				}
				if a.Header.Get("X-Theirs") != "" {
					t.Error("the lost response's header leaks")
				}
				e.wantRecord(c.status, c.reason)
				e.wantBreaker("open")
				if got := e.gen.Status()[0].LastFailure; got == "" || !strings.Contains(got, c.failure) && c.reason != UpstreamReset {
					t.Errorf("the last failure is %q, want %q", got, c.failure)
				}
				e.get(version, "/").wantProblem(t, 503, BreakerOpen)
			})
		})
	}
}

func TestNoBackendTellsWhenToComeBack(t *testing.T) {
	e := newEdge(t, setup{backends: []string{edgetest.Nowhere(t)}, pool: config.Pool{Breaker: config.Breaker{Failures: 1, OpenFor: 30 * time.Second}}})
	e.get(1, "/")
	a := e.get(1, "/")
	a.wantProblem(t, 503, BreakerOpen)
	if got := a.Header.Get("Retry-After"); got != "30" && got != "29" {
		t.Errorf("Retry-After %q", got)
	}
}

func TestAnAnswerAfterTheHeaderTimeoutIs504AndOneHit(t *testing.T) {
	var hits atomic.Int32
	e := newEdge(t, setup{
		pool: config.Pool{ResponseTimeout: 100 * time.Millisecond},
		backends: []string{raw(t, func(p *peer) {
			p.head()
			hits.Add(1)
			io.ReadFull(p.r, make([]byte, 5))
			p.drain()
		})},
	})
	e.do(e.client(1), e.request("POST", "/", strings.NewReader("hello"))).wantProblem(t, 504, UpstreamTimeout)
	e.wantRecord(504, UpstreamTimeout)
	if n := hits.Load(); n != 1 {
		t.Errorf("%d hits", n)
	}
	e.wantBreaker("open")
}

func TestABodyThatTearsIsNeverCompleteToTheClient(t *testing.T) {
	for name, talk := range map[string]string{
		"known length": "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 50000),
		"chunked":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"bad chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
		"events":       "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		for _, end := range []string{"reset", "closed"} {
			t.Run(name+" "+end, func(t *testing.T) {
				overBoth(t, func(t *testing.T, version int) {
					sent := make(chan bool)
					e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
						p.head()
						p.say(talk)
						<-sent
						if end == "reset" {
							p.reset()
						}
					})}})
					resp, err := e.client(version).Do(e.request("GET", "/", nil))
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					io.ReadFull(resp.Body, make([]byte, 5))
					close(sent)
					_, err = io.Copy(io.Discard, resp.Body)
					if err == nil {
						t.Error("the body looks complete")
					}
					e.wantRecord(200, UpstreamTruncated)
					if resp.ContentLength < 0 { // a stream has reported its success before
						e.wantBreaker("closed")
					} else {
						e.wantBreaker("open")
					}
				})
			})
		}
	}
}

// To a client of HTTP/1.0 the end of the connection is the end of a body without a
// length, unless it is a reset.
func TestABodyThatTearsIsNotCompleteToAnOldClient(t *testing.T) {
	for name, c := range map[string]struct {
		rest string
		stop bool
		torn bool
	}{
		"the backend ends it":   {"", false, true},
		"the server ends it":    {"wait", true, true},
		"it comes to its end":   {"0\r\n\r\n", false, false},
		"with bytes at the end": {"3\r\nend\r\n0\r\n\r\n", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			read := make(chan bool)
			e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
				p.head()
				p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
				<-read
				if c.stop {
					p.head() // until the edge hangs up
				} else {
					p.say(c.rest)
				}
			})}})
			conn := e.dial()
			conn.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n")
			for line := ""; line != "\r\n"; {
				line, _ = conn.r.ReadString('\n')
			}
			io.ReadFull(conn.r, make([]byte, 5))
			close(read)
			if c.stop {
				e.handler.CloseTunnels()
				e.server.Close()
			}
			if rest, err := io.ReadAll(conn.r); (err != nil) != c.torn {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
}

func TestTheBackendsOwnFailuresPassUnchangedAndCount(t *testing.T) {
	for _, c := range []struct {
		status int
		open   string
	}{{200, "closed"}, {404, "closed"}, {429, "closed"}, {500, "closed"}, {501, "closed"}, {502, "open"}, {503, "open"}, {504, "open"}} {
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(c.status)
			io.WriteString(w, "theirs")
		})}})
		if a := e.get(1, "/"); a.StatusCode != c.status || a.body != "theirs" || a.Header.Get("Retry-After") != "3" {
			t.Errorf("%d became %d %q", c.status, a.StatusCode, a.body)
		}
		e.wantRecord(c.status, OK)
		e.wantBreaker(c.open)
	}
}

func TestAClientThatGoesAwayIsNoFailure(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		reached := make(chan bool, 1)
		e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) { p.head(); reached <- true; p.drain() })}})
		r := e.request("GET", "/", nil)
		ctx, cancel := contextOf(r)
		go func() { <-reached; cancel() }()
		if _, err := e.client(version).Do(r.WithContext(ctx)); err == nil {
			t.Error("there is a response")
		}
		e.wantRecord(499, ClientClosed)
		e.idle()
		e.wantBreaker("closed")
	})
}

func TestAClientThatLeavesAStreamFreesTheBackend(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		left := make(chan bool)
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				io.WriteString(w, "data: x\n\n")
				http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
			close(left)
		})}})
		r := e.request("GET", "/", nil)
		ctx, cancel := contextOf(r)
		defer cancel()
		resp, err := e.client(version).Do(r.WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(resp.Body, make([]byte, 9))
		cancel()
		resp.Body.Close()
		<-left
		e.idle()
		e.wantRecord(200, ClientClosed)
		e.wantBreaker("closed")
	})
}

func TestAPanicIsAnInternalErrorAndSeenOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{route: Route{Limit: panics{errors.New("oops")}}, backends: []string{edgetest.Nowhere(t)}})
		e.get(version, "/").wantProblem(t, 500, Internal)
		e.wantRecord(500, Internal)
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.records) != 1 {
			t.Errorf("seen %d times", len(e.records))
		}
	})
}

func TestALimiterThatAbortsIsRecorded(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{route: Route{Limit: panics{http.ErrAbortHandler}}, backends: []string{edgetest.Nowhere(t)}})
		if resp, err := e.client(version).Do(e.request("GET", "/", nil)); err == nil {
			resp.Body.Close()
			t.Errorf("it is answered %s", resp.Status)
		}
		e.wantRecord(500, Internal)
	})
}

// silent is a limiter that says no and nothing else, as to a client who has gone.
type silent struct{}

func (silent) Allow(http.ResponseWriter, *http.Request, netip.Addr) (bool, Reason) {
	return false, ClientClosed
}

// Who has ended its half only still reads, and must not take silence for a 200.
func TestALimiterThatSaysNothingIsNoAnswer(t *testing.T) {
	e := newEdge(t, setup{route: Route{Limit: silent{}}, backends: []string{raw(t, func(p *peer) { t.Error("the backend was reached: " + p.head()) })}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	c.wantClosed()
	e.wantRecord(499, ClientClosed)
}
