package proxy

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// quick tries three times, and hardly waits.
var quick = Retry{Attempts: 3, Base: time.Millisecond, Cap: 2 * time.Millisecond, Percent: 20, Least: 1000}

// forgiving is a breaker that takes longer to open than a test.
var forgiving = config.Pool{Breaker: config.Breaker{Failures: 1000, OpenFor: time.Hour}}

// journal is what a backend got, one text for each request.
type journal struct {
	mu   sync.Mutex
	list []string
}

func (j *journal) add(s string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, s)
	return len(j.list)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.list)
}

// wantHits checks how often the backend was asked.
func (j *journal) wantHits(t *testing.T, n int) {
	t.Helper()
	if got := j.all(); len(got) != n {
		t.Errorf("the backend got %d requests, want %d: %q", len(got), n, got)
	}
}

// serial is a backend that gives each of these answers once, the last of them
// for ever, each on a connection of its own. "" is a reset.
func serial(t *testing.T, j *journal, answers ...string) string {
	t.Helper()
	return raw(t, func(p *peer) {
		r, err := http.ReadRequest(p.r)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		n := j.add(fmt.Sprintf("%s %d %v %s %v", r.Method, r.ContentLength, r.TransferEncoding, body, r.Trailer))
		answer := answers[min(n, len(answers))-1]
		if answer == "" {
			p.reset()
			return
		}
		p.say(answer)
	})
}

func response(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nConnection: close\r\nX-Body: %s\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), beginning(body), len(body), body)
}

// beginning is enough of a body to know it.
func beginning(body string) string { return body[:min(len(body), 5)] }

func TestAnUploadIsSentAgainWhole(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		var j journal
		e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{
			serial(t, &j, response(503, "one"), response(503, "two"), response(200, "done")),
		}})
		a := e.do(e.client(version), e.request("PUT", "/", strings.NewReader("hello")))
		if a.StatusCode != 200 || a.body != "done" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		want := "PUT 5 [] hello map[]"
		if got := j.all(); !slices.Equal(got, []string{want, want, want}) {
			t.Errorf("the backend got %q", got)
		}
		r := e.wantRecord(200, OK)
		if r.Attempts != 3 || len(r.Retried) != 2 || r.Retried[1].Reason != "503" || r.Retried[1].Wires != 1 || r.RetryDelay <= 0 || r.BytesIn != 5 {
			t.Errorf("%+v", r)
		}
		e.wantBreaker("closed") // three attempts that end well are one success
	})
}

func TestWhatIsSentAgain(t *testing.T) {
	again, once := 2, 1
	for _, c := range []struct {
		method, first string
		hits          int
	}{
		{"GET", response(502, "x"), again},
		{"GET", response(503, "x"), again},
		{"GET", response(504, "x"), again},
		{"GET", "", again},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Le", again},
		{"HEAD", strings.TrimSuffix(response(503, "x"), "x"), again},
		{"OPTIONS", response(503, "x"), again},
		{"PUT", response(503, "x"), again},
		{"DELETE", response(503, "x"), again},
		{"DELETE", "", again},
		{"POST", response(503, "x"), once},
		{"POST", "", once},
		{"PATCH", response(503, "x"), once},
		{"BREW", response(503, "x"), once},
		{"GET", response(200, "x"), once},
		{"GET", response(404, "x"), once},
		{"GET", response(429, "x"), once},
		{"GET", response(500, "x"), once},
		{"GET", response(501, "x"), once},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", once}, // after the header nothing is
	} {
		var j journal
		e := newEdge(t, setup{route: Route{Retry: quick}, pool: forgiving, backends: []string{serial(t, &j, c.first, response(200, "fine"))}})
		a := e.do(e.client(1), e.request(c.method, "/", nil))
		if ok := a.StatusCode == 200 && c.first != response(200, "x"); ok != (c.hits == again) {
			t.Errorf("%s, and first %q: %d", c.method, c.first, a.StatusCode)
		}
		j.wantHits(t, c.hits)
		if r := e.record(1); r.Attempts != c.hits || len(r.Retried) != c.hits-1 {
			t.Errorf("%s, and first %q: recorded %+v", c.method, c.first, r)
		}
	}
}

func TestEachAttemptIsTheSameRequest(t *testing.T) {
	for _, method := range []string{"GET", "DELETE", "PUT"} {
		var j journal
		e := newEdge(t, setup{route: Route{Retry: quick}, options: Options{TrustedProxies: loopback}, backends: []string{raw(t, func(p *peer) {
			j.add(p.head())
			if method == "PUT" {
				io.ReadFull(p.r, make([]byte, 5))
			}
			p.say(response(503, "x"))
		})}})
		c := e.dial()
		c.send(method + " /a%2Fb?x=1;y HTTP/1.1\r\nHost: h\r\nVia: 1.0 before\r\nX-Forwarded-For: 192.0.2.1\r\nCookie: a=b\r\nTE: trailers\r\n")
		if method == "PUT" {
			c.send("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n")
		}
		c.send("\r\n")
		c.response(method)
		j.wantHits(t, 3)
		if heads := slices.Compact(j.all()); len(heads) != 1 || !strings.Contains(heads[0], "X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\n") {
			t.Errorf("%s: %q", method, heads)
		}
	}
}

func TestOneAttemptIsNoRetry(t *testing.T) {
	for _, n := range []int{0, 1} {
		var j journal
		e := newEdge(t, setup{route: Route{Retry: Retry{Attempts: n, Base: time.Second, Cap: time.Second}}, backends: []string{serial(t, &j, response(503, "theirs"))}})
		if a := e.get(1, "/"); a.StatusCode != 503 || a.body != "theirs" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		j.wantHits(t, 1)
	}
}

func TestAnUpgradeIsNeverSentAgain(t *testing.T) {
	var j journal
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, response(503, "x"))}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	if a := c.response("GET"); a.StatusCode != 503 {
		t.Error(a.StatusCode)
	}
	j.wantHits(t, 1)
}

func TestTheLastResponseOfABackendIsTheAnswer(t *testing.T) {
	long := strings.Repeat("long.", 100_000)
	chunked := "HTTP/1.1 503 Unwell\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\nConnection: close\r\n\r\n"
	for name, c := range map[string]struct {
		answers []string
		status  int
		body    string
		trailer string
	}{
		"the last of three":       {[]string{response(503, "one"), response(502, "two"), response(504, "three")}, 504, "three", ""},
		"an earlier one":          {[]string{response(503, "one"), "", ""}, 503, "one", ""},
		"the one in between":      {[]string{"", response(502, "two"), ""}, 502, "two", ""},
		"no body":                 {[]string{response(503, ""), "", ""}, 503, "", ""},
		"a long one":              {[]string{response(503, long), "", ""}, 503, long, ""},
		"chunks":                  {[]string{chunked + "3\r\none\r\n0\r\nX-Sum: 7\r\n\r\n", "", ""}, 503, "one", "7"},
		"many chunks":             {[]string{chunked + fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Sum: 7\r\n\r\n", len(long), long), "", ""}, 503, long, "7"},
		"not one that was broken": {[]string{response(503, "one"), "HTTP/1.1 504 T\r\nContent-Length: 9\r\n\r\nbro", response(503, "three")}, 503, "three", ""},
	} {
		t.Run(name, func(t *testing.T) {
			overBoth(t, func(t *testing.T, version int) {
				var j journal
				s := setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, c.answers...)}}
				s.pool.Breaker = config.Breaker{Failures: 2, OpenFor: time.Hour}
				e := newEdge(t, s)
				a := e.get(version, "/")
				if a.StatusCode != c.status || a.body != c.body || a.torn != nil || a.Trailer.Get("X-Sum") != c.trailer {
					t.Errorf("%d, %d bytes, %v, trailer %v", a.StatusCode, len(a.body), a.torn, a.Trailer)
				}
				if h := a.Header["X-Body"]; c.trailer == "" && !slices.Equal(h, []string{beginning(c.body)}) {
					t.Errorf("a header of another response: %q", h)
				}
				j.wantHits(t, 3)
				reason := OK
				if c.answers[2] == "" {
					reason = UpstreamReset // of the last attempt, whoever's the answer is
				}
				e.wantRecord(c.status, reason)
				e.wantBreaker("closed") // one failure of the two
				e.get(version, "/")
				e.wantBreaker("open")
			})
		})
	}
}

func TestALongResponseOutlivesTheTimeOfItsAttempt(t *testing.T) {
	var j journal
	long := strings.Repeat("long.", 100_000)
	retry := quick
	retry.PerTry = 100 * time.Millisecond
	e := newEdge(t, setup{route: Route{Retry: retry}, pool: forgiving, backends: []string{raw(t, func(p *peer) {
		if j.add(p.head()) == 1 {
			p.say(response(503, long))
		}
		p.drain()
	})}})
	if a := e.get(1, "/"); a.StatusCode != 503 || a.body != long || a.torn != nil {
		t.Errorf("%d, %d bytes, %v", a.StatusCode, len(a.body), a.torn)
	}
	j.wantHits(t, 3)
}

func TestWithoutAnyResponseItIsOurs(t *testing.T) {
	var j journal
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, "")}})
	e.get(1, "/").wantProblem(t, 502, UpstreamReset)
	j.wantHits(t, 3)
	e.wantBreaker("open")

	e = newEdge(t, setup{route: Route{Retry: quick}, backends: []string{edgetest.Nowhere(t)}})
	e.get(1, "/").wantProblem(t, 502, UpstreamUnreachable)
	if r := e.wantRecord(502, UpstreamUnreachable); r.Attempts != 3 {
		t.Errorf("%d attempts", r.Attempts)
	}

	retry := quick
	retry.PerTry = 30 * time.Millisecond
	e = newEdge(t, setup{route: Route{Retry: retry}, backends: []string{raw(t, func(p *peer) { j.add(p.head()); p.drain() })}})
	e.get(1, "/").wantProblem(t, 504, UpstreamTimeout)
	j.wantHits(t, 6)
	e.wantBreaker("open")
}

func TestAnAttemptHasATimeOfItsOwn(t *testing.T) {
	var hits atomic.Int64
	retry := quick
	retry.PerTry = 100 * time.Millisecond
	e := newEdge(t, setup{route: Route{Retry: retry}, backends: []string{raw(t, func(p *peer) {
		p.head()
		if hits.Add(1) == 1 {
			p.drain() // never answers
			return
		}
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})}})
	if a := e.get(1, "/"); a.StatusCode != 200 || a.body != "ok" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if r := e.wantRecord(200, OK); r.Retried[0].Reason != string(UpstreamTimeout) {
		t.Errorf("%+v", r)
	}
	e.wantBreaker("closed")
}

// slowly waits for hours before another attempt.
var slowly = Retry{Attempts: 3, Base: time.Hour, Cap: time.Hour, Percent: 20, Least: 3}

func TestNobodyWaitsForWhatCannotBeInTime(t *testing.T) {
	var j journal
	e := newEdge(t, setup{route: Route{Retry: slowly, Timeout: time.Second}, backends: []string{serial(t, &j, response(503, "theirs"))}})
	if a := e.get(1, "/"); a.StatusCode != 503 || a.body != "theirs" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if r := e.record(1); r.RetryDelay != 0 || r.Duration > time.Second/2 {
		t.Errorf("%+v", r)
	}
	j.wantHits(t, 1)
}

func TestAClientThatLeavesEndsTheWait(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		var j journal
		var b Budget
		retry := slowly
		retry.Budget = &b
		e := newEdge(t, setup{route: Route{Retry: retry, Timeout: 1000 * time.Hour}, backends: []string{serial(t, &j, response(503, "theirs"))}})
		r := e.request("PUT", "/", strings.NewReader("hello"))
		ctx, cancel := contextOf(r)
		go func() {
			e.eventually("no retry is scheduled", func() bool { return b.underWay() == 1 })
			cancel()
		}()
		if _, err := e.client(version).Do(r.WithContext(ctx)); err == nil {
			t.Error("there is a response")
		}
		if r := e.wantRecord(499, ClientClosed); len(r.Retried) != 0 || r.RetryDelay <= 0 {
			t.Errorf("%+v", r)
		}
		e.wantBreaker("closed")
		j.wantHits(t, 1)
		if b.active.Load() != 0 || b.underWay() != 0 {
			t.Errorf("the budget is %+v", &b)
		}
	})
}

func TestWhoeverWaitsWhenTheServerStopsGetsWhatThereIs(t *testing.T) {
	var j journal
	var b Budget
	retry := slowly
	retry.Budget = &b
	e := newEdge(t, setup{route: Route{Retry: retry, Timeout: 1000 * time.Hour}, pool: forgiving, backends: []string{serial(t, &j, response(503, "theirs"))}})
	go func() {
		e.eventually("no retry is scheduled", func() bool { return b.underWay() == 1 })
		e.handler.Drain()
		e.handler.Drain()
	}()
	for range 2 { // and nobody waits any more
		if a := e.get(1, "/"); a.StatusCode != 503 || a.body != "theirs" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
	}
	e.wantRecord(503, OK)
	j.wantHits(t, 2)
}

func TestARequestIsOneFailureHoweverOftenItIsSent(t *testing.T) {
	var j journal
	s := setup{route: Route{Retry: quick}, backends: []string{serial(t, &j, response(503, "x"))}}
	s.pool.Breaker = config.Breaker{Failures: 3, OpenFor: time.Hour}
	e := newEdge(t, s)
	for i := range 3 {
		e.wantBreaker("closed")
		e.get(1, "/")
		j.wantHits(t, 3*(i+1))
	}
	e.wantBreaker("open")
}

func TestAnOpenBreakerEndsTheRetriesOfThoseWhoCameBefore(t *testing.T) {
	var j journal
	var b Budget
	retry := slowly
	retry.Base, retry.Cap, retry.Budget = 300*time.Millisecond, 300*time.Millisecond, &b
	e := newEdge(t, setup{route: Route{Retry: retry}, backends: []string{serial(t, &j, response(503, "x"))}}) // one failure opens it
	var all sync.WaitGroup
	all.Go(func() {
		e.eventually("no retry is scheduled", func() bool { return b.underWay() == 1 })
		e.do(e.client(1), e.request("POST", "/", nil))
	})
	if a := e.get(1, "/"); a.StatusCode != 503 {
		t.Error(a.StatusCode)
	}
	all.Wait()
	if got := j.all(); got[len(got)-1] != "POST 0 [] "+" map[]" {
		t.Errorf("the backend got %q", got)
	}
}

func TestTheNextBackendGetsTheNextAttempt(t *testing.T) {
	var j journal
	s := setup{route: Route{Retry: quick}, backends: []string{
		edgetest.Nowhere(t), serial(t, &j, ""), serial(t, &j, response(200, "fine"), response(200, "fine"), response(200, "fine")),
	}}
	s.route.Retry.NextBackend = true
	s.pool.Breaker = config.Breaker{Failures: 1000, OpenFor: time.Hour}
	e := newEdge(t, s)
	seen := map[int]bool{}
	for n := 1; n <= 9; n++ {
		a := e.do(e.client(1), e.request("PUT", "/", strings.NewReader("hello")))
		if a.StatusCode != 200 || a.body != "fine" {
			t.Errorf("%d %q", a.StatusCode, a.body)
		}
		seen[e.record(n).Attempts] = true
	}
	if !seen[1] || !seen[2] && !seen[3] {
		t.Errorf("attempts %v", seen)
	}
	for _, got := range j.all() {
		if got != "PUT 5 [] hello map[]" {
			t.Errorf("a backend got %q", got)
		}
	}
}

func TestABackendThatWasLeftIsFreeWhileAnotherStreams(t *testing.T) {
	for name, answer := range map[string]string{"reset": "", "short": response(503, "x"), "long": response(503, strings.Repeat("long.", 100_000))} {
		t.Run(name, func(t *testing.T) {
			var j journal
			done := make(chan bool)
			defer close(done)
			stream := raw(t, func(p *peer) {
				p.head()
				p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
				<-done
			})
			s := setup{route: Route{Retry: quick}, pool: forgiving, backends: []string{serial(t, &j, answer), stream}}
			var b Budget
			s.route.Retry.NextBackend, s.route.Retry.Budget = true, &b
			e := newEdge(t, s)
			for len(j.all()) == 0 { // until it has begun with that one
				resp, err := e.client(1).Do(e.request("GET", "/", nil))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Error(resp.Status)
				}
			}
			e.eventually("the backend that was left still has the request", func() bool { return e.gen.Status()[0].InFlight == 0 })
			if n := e.gen.Status()[1].InFlight; n == 0 || b.active.Load() != 0 {
				t.Errorf("the other has %d, and %d wait for one", n, b.active.Load())
			}
		})
	}
}

func TestEachBackendOfARequestHasItsOwnOutcome(t *testing.T) {
	var j journal
	s := setup{route: Route{Retry: quick}, backends: []string{
		serial(t, &j, response(503, "one")), serial(t, &j, response(503, "one")), serial(t, &j, response(503, "one")),
	}}
	s.route.Retry.NextBackend = true
	e := newEdge(t, s) // one failure opens a breaker
	if a := e.get(1, "/"); a.StatusCode != 503 || a.body != "one" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	for _, b := range e.gen.Status() {
		if b.Breaker.String() != "open" {
			t.Errorf("the breaker of %s is %v", b.Backend, b.Breaker)
		}
	}
	e.get(1, "/").wantProblem(t, 503, BreakerOpen)
	j.wantHits(t, 3)
}

func TestWithNobodyElseTheNextBackendIsNone(t *testing.T) {
	var j journal
	s := setup{route: Route{Retry: quick}, pool: forgiving, backends: []string{serial(t, &j, response(503, "one"))}}
	s.route.Retry.NextBackend = true
	e := newEdge(t, s)
	if a := e.get(1, "/"); a.StatusCode != 503 || a.body != "one" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if r := e.record(1); r.RetryDelay != 0 {
		t.Errorf("%+v", r)
	}
	j.wantHits(t, 1)
}

func TestHintsOfAResponseThatIsSkippedStayHere(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		var j journal
		hint := func(of string) string { return "HTTP/1.1 103 Early Hints\r\nLink: <" + of + ">\r\n\r\n" }
		e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{
			serial(t, &j, hint("/a")+response(503, "x"), hint("/b")+response(200, "fine")),
		}})
		var hints []string
		r := e.request("GET", "/", nil)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints = append(hints, h.Get("Link"))
			return nil
		}}))
		if a := e.do(e.client(version), r); a.StatusCode != 200 || a.Header.Get("Link") != "" {
			t.Errorf("%d %v", a.StatusCode, a.Header)
		}
		if !slices.Equal(hints, []string{"</b>"}) {
			t.Errorf("hints %q", hints)
		}
	})
}

func TestHintsDoNotWaitForASlowResponse(t *testing.T) {
	next := make(chan bool)
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{raw(t, func(p *peer) {
		p.head()
		for range 3 {
			p.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
			<-next
		}
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	for range 3 {
		if a := c.response("GET"); a.StatusCode != 103 || a.Header.Get("Link") != "</a>" {
			t.Errorf("%d %v", a.StatusCode, a.Header)
		}
		next <- true
	}
	if a := c.response("GET"); a.StatusCode != 200 || a.body != "ok" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

// net/http sends again by itself what a kept connection did not answer. That counts,
// too.
func TestWhatTheTransportSendsAgainIsCounted(t *testing.T) {
	var hits atomic.Int64
	e := newEdge(t, setup{route: Route{Retry: quick}, backends: []string{raw(t, func(p *peer) {
		for first := true; p.head() != ""; first = false {
			hits.Add(1)
			if !first {
				p.reset()
				return
			}
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})}})
	e.get(1, "/")
	if a := e.get(1, "/"); a.StatusCode != 200 {
		t.Error(a.StatusCode)
	}
	if r := e.record(2); r.Attempts != 2 || len(r.Retried) != 0 || hits.Load() != 3 {
		t.Errorf("%d attempts, retried %v, %d hits", r.Attempts, r.Retried, hits.Load())
	}
}

func TestRetriesStayWithinTheBudget(t *testing.T) {
	const clients = 1000
	var hits, held atomic.Int64
	first := make(chan bool)
	var b Budget
	retry := Retry{Attempts: 3, Base: 25 * time.Millisecond, Cap: 250 * time.Millisecond, Percent: 20, Least: 3, Budget: &b}
	s := setup{route: Route{Retry: retry}, backends: []string{serve(t, func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		if held.Add(1) == clients {
			close(first) // all are in flight
		}
		<-first
		w.WriteHeader(503)
	})}}
	s.pool.Breaker.Failures = -1 // off
	e := newEdge(t, s)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			w := httptest.NewRecorder()
			e.handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if w.Code != 503 {
				t.Errorf("status %d", w.Code)
			}
		})
	}
	all.Wait()
	retries, spent := 0, 0
	for n := range clients {
		r := e.record(n + 1)
		retries += len(r.Retried)
		if r.BudgetSpent {
			spent++
		}
	}
	if n := hits.Load(); n > clients*12/10 || n != int64(clients+retries) || retries < 3 || spent == 0 {
		t.Errorf("%d hits of %d requests, %d retries, %d were not sent again for the budget", n, clients, retries, spent)
	}
	if b.active.Load() != 0 || b.underWay() != 0 {
		t.Errorf("the budget is %+v", &b)
	}
}

func TestTheWaitDoublesUpToItsBound(t *testing.T) {
	r := Retry{Base: 25 * time.Millisecond, Cap: 250 * time.Millisecond}
	for k, want := range []time.Duration{1: 25, 2: 50, 3: 100, 4: 200, 5: 250, 6: 250, 1000: 250} {
		if want != 0 && r.bound(k) != want*time.Millisecond {
			t.Errorf("after attempt %d: %v", k, r.bound(k))
		}
	}
	huge := Retry{Base: math.MaxInt64/2 + 1, Cap: math.MaxInt64}
	if huge.bound(1) != math.MaxInt64/2+1 || huge.bound(2) != math.MaxInt64 || huge.bound(99) != math.MaxInt64 {
		t.Errorf("%v %v %v", huge.bound(1), huge.bound(2), huge.bound(99))
	}
	if less := (&Retry{Base: time.Second, Cap: time.Millisecond}); less.bound(1) != time.Millisecond || less.bound(9) != time.Millisecond {
		t.Errorf("%v", less.bound(1))
	}
	if none := (&Retry{}); none.delay(1) != 0 {
		t.Errorf("%v", none.delay(1))
	}
}

func TestTheWaitIsAnythingBelowItsBound(t *testing.T) {
	r := Retry{Base: 25 * time.Millisecond, Cap: 250 * time.Millisecond}
	const n = 20_000
	for _, k := range []int{1, 2, 5} {
		bound := float64(r.bound(k))
		var sum, cross, squares float64
		var tenths [10]int
		for range n {
			one, other := float64(r.delay(k)), float64(r.delay(k)) // two clients
			if one < 0 || one >= bound {
				t.Fatalf("after attempt %d: %v", k, time.Duration(one))
			}
			sum += one
			cross += (one - bound/2) * (other - bound/2)
			squares += (one - bound/2) * (one - bound/2)
			tenths[int(10*one/bound)]++
		}
		if mean := sum / n / bound; math.Abs(mean-0.5) > 0.02 {
			t.Errorf("after attempt %d: the mean is %.3f of the bound", k, mean)
		}
		if c := cross / squares; math.Abs(c) > 0.05 {
			t.Errorf("after attempt %d: two clients correlate by %.3f", k, c)
		}
		for i, count := range tenths {
			if math.Abs(float64(count)-n/10) > n/50 {
				t.Errorf("after attempt %d: %d of %d are in tenth %d", k, count, n, i)
			}
		}
	}
}

func TestAPauseEndsInTime(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(cancel func(), h *Handler)
		goes bool
		took time.Duration
	}{
		"its time":      {func(func(), *Handler) {}, true, 200 * time.Millisecond},
		"client leaves": {func(cancel func(), _ *Handler) { cancel() }, false, 50 * time.Millisecond},
		"server stops":  {func(_ func(), h *Handler) { h.Drain() }, false, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequest("GET", "/", nil)
				ctx, cancel := contextOf(r)
				defer cancel()
				x := &exchange{r: r.WithContext(ctx), h: New(Options{MaxBodyBytes: 1, BodyIdle: 1, WriteIdle: 1, TunnelIdle: 1})}
				x.deadline = time.Now().Add(time.Second)
				time.AfterFunc(50*time.Millisecond, func() { c.end(cancel, x.h) })
				began := time.Now()
				if goes := x.pause(200 * time.Millisecond); goes != c.goes || time.Since(began) != c.took || x.record.RetryDelay != c.took {
					t.Errorf("%t after %v, recorded %v", goes, time.Since(began), x.record.RetryDelay)
				}
				began = time.Now()
				if x.pause(x.left()) || time.Since(began) != 0 {
					t.Error("it waited for what cannot be in time")
				}
			})
		})
	}
}

// Whatever the moment, the decision is that of the list of what must not be.
func TestTheDecisionIsThatOfItsRules(t *testing.T) {
	rules := []func(m moment, r Retry) bool{
		func(m moment, _ Retry) bool {
			return !strings.Contains(" GET HEAD OPTIONS PUT DELETE ", " "+m.method+" ")
		},
		func(m moment, _ Retry) bool { return m.upgrade },
		func(m moment, _ Retry) bool { return m.begun },
		func(m moment, _ Retry) bool { return !m.replayable },
		func(m moment, _ Retry) bool { return m.draining },
		func(m moment, r Retry) bool { return m.attempts >= r.Attempts },
		func(m moment, _ Retry) bool { return m.delay >= m.left },
	}
	methods := []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH", "BREW", "get"}
	follows := 0
	for range 200_000 {
		likely := func() bool { return rand.IntN(8) > 0 }
		m := moment{
			method: methods[rand.IntN(len(methods))], upgrade: !likely(), begun: !likely(), replayable: likely(), draining: !likely(),
			attempts: rand.IntN(5), delay: time.Duration(rand.IntN(4)), left: time.Duration(rand.IntN(6) - 1),
		}
		r := Retry{Attempts: rand.IntN(5)}
		want := !slices.ContainsFunc(rules, func(forbids func(moment, Retry) bool) bool { return forbids(m, r) })
		if got := r.follows(m); got != want {
			t.Fatalf("%+v of %d: %t", m, r.Attempts, got)
		}
		if want {
			follows++
		}
	}
	if follows < 1000 {
		t.Errorf("only %d of the moments had an attempt follow", follows)
	}
}

// refusingAt returns an address at which nobody listens, and what changes that.
func refusingAt(t *testing.T, h http.HandlerFunc) (url string, listen func()) {
	t.Helper()
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	return "http://" + addr, func() {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		s := httptest.NewUnstartedServer(h)
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
	}
}

func TestABackendThatIsUpAtTheSecondDialGetsTheWholeBody(t *testing.T) {
	for name, size := range map[string]int{"kept": 5, "streamed": maxKept + 1} {
		t.Run(name, func(t *testing.T) {
			url, listen := refusingAt(t, func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, r.ContentLength, n, err)
			})
			var b Budget
			retry := Retry{Attempts: 10, Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond, Least: 3, Budget: &b}
			e := newEdge(t, setup{route: Route{Retry: retry}, backends: []string{url}})
			up := make(chan bool)
			go func() {
				e.eventually("no retry is scheduled", func() bool { return b.underWay() == 1 })
				listen()
				close(up)
			}()
			a := e.do(e.client(1), e.request("PUT", "/", strings.NewReader(strings.Repeat("x", size))))
			<-up
			if want := fmt.Sprint(size, size, nil); a.StatusCode != 200 || a.body != want {
				t.Errorf("%d %q", a.StatusCode, a.body)
			}
			if r := e.wantRecord(200, OK); r.Attempts < 2 || r.Retried[0].Reason != string(UpstreamUnreachable) {
				t.Errorf("%+v", r)
			}
			e.wantBreaker("closed")
		})
	}
}
