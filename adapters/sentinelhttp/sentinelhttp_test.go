package sentinelhttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// none is what no answer without a store's numbers may carry.
var none = map[string]string{
	"RateLimit": "", "RateLimit-Policy": "", "Retry-After": "", "WWW-Authenticate": "", "Set-Cookie": "",
}

func with(base map[string]string, more ...string) map[string]string {
	m := maps.Clone(base)
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func TestOutcomesWithStore(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok))
	acme := bearer("acme")
	steps := []struct {
		name, id, auth string
		status         int
		detail         string // "" where the handler runs
		header         map[string]string
	}{
		{"no token", "tenant.two", "", 401, "authentication required", with(none, "WWW-Authenticate", "Bearer")},
		{"bad token", "tenant.two", acme + "x", 401, "authentication required", with(none, "WWW-Authenticate", "Bearer")},
		{"other scheme", "tenant.two", "Basic YTpi", 401, "authentication required", with(none, "WWW-Authenticate", "Bearer")},
		{"blank tenant", "tenant.two", bearer("  "), 401, "authentication required", with(none, "WWW-Authenticate", "Bearer")},
		{"unknown endpoint, stranger", "not.configured", "", 401, "authentication required", with(none, "WWW-Authenticate", "Bearer")},
		{"unknown endpoint, tenant", "not.configured", acme, 404, "unknown endpoint", none},
		{"first of two", "tenant.two", acme, 200, "", with(none, "RateLimit-Policy", `"tenant.two";q=2;w=2000`, "RateLimit", `"tenant.two";r=1;t=1000`)},
		{"second of two", "tenant.two", acme, 200, "", with(none, "RateLimit-Policy", `"tenant.two";q=2;w=2000`, "RateLimit", `"tenant.two";r=0;t=1000`)},
		{"third of two", "tenant.two", acme, 429, "rate limit exceeded", with(none, "RateLimit-Policy", `"tenant.two";q=2;w=2000`, "RateLimit", `"tenant.two";r=0;t=1000`, "Retry-After", "1000")},
		{"another tenant's first", "tenant.two", bearer("globex"), 200, "", with(none, "RateLimit-Policy", `"tenant.two";q=2;w=2000`, "RateLimit", `"tenant.two";r=1;t=1000`)},
		{"first of one, for ever", "tenant.never", acme, 200, "", with(none, "RateLimit-Policy", `"tenant.never";q=1`, "RateLimit", `"tenant.never";r=0`)},
		{"second of one, for ever", "tenant.never", acme, 429, "rate limit exceeded", with(none, "RateLimit-Policy", `"tenant.never";q=1`, "RateLimit", `"tenant.never";r=0`)},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			a := get(t, srv.URL+"/"+s.id, s.auth)
			wantHeaders(t, a, s.header)
			if s.detail != "" {
				wantProblem(t, a, s.status, s.detail)
				return
			}
			if a.status != s.status || a.body != "ok" {
				t.Errorf("got %d %q, want %d %q", a.status, a.body, s.status, "ok")
			}
		})
	}
}

// Without Redis the numbers of the store are unknown, so no answer tells any.
func TestOutcomesWithoutStore(t *testing.T) {
	srv := serve(t, guarded(away(t), ok))
	acme := bearer("acme")

	a := get(t, srv.URL+"/tenant.open", acme)
	if a.status != 200 || a.body != "ok" {
		t.Fatalf("fail open: %d %q", a.status, a.body)
	}
	wantHeaders(t, a, none)

	a = get(t, srv.URL+"/tenant.open", acme)
	wantProblem(t, a, 429, "rate limit exceeded")
	retry := a.header.Get("Retry-After")
	if retry != "500" && retry != "499" { // the bucket refills while the test runs
		t.Errorf("emergency Retry-After %q, want 500", retry)
	}
	wantHeaders(t, a, with(none, "Retry-After", retry))

	for range 10 { // more than the breaker bears
		a = get(t, srv.URL+"/tenant.closed", acme)
		wantProblem(t, a, 503, "rate limiter unavailable")
		wantHeaders(t, a, with(none, "Retry-After", a.header.Get("Retry-After")))
	}

	a = get(t, srv.URL+"/tenant.closed", "")
	wantProblem(t, a, 401, "authentication required")
	a = get(t, srv.URL+"/not.configured", acme)
	wantProblem(t, a, 404, "unknown endpoint")
	wantHeaders(t, a, none)
}

func TestAnonymousCookie(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok))

	a := get(t, srv.URL+"/anon.one", "")
	if a.status != 200 {
		t.Fatalf("status %d", a.status)
	}
	set := a.header.Values("Set-Cookie")
	if len(set) != 1 {
		t.Fatalf("%d cookies, want 1", len(set))
	}
	cookie, err := http.ParseSetCookie(set[0])
	if err != nil {
		t.Fatal(err)
	}
	if cookie.Name != "sentinel_anon_id" || cookie.Path != "/" || cookie.MaxAge != 2592000 ||
		!cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" {
		t.Errorf("cookie attributes: %s", strings.Replace(set[0], cookie.Value, "...", 1))
	}

	denied := get(t, srv.URL+"/anon.one", "")
	wantProblem(t, denied, 429, "rate limit exceeded")
	wantHeaders(t, denied, with(none, "Retry-After", "1000", "RateLimit-Policy", `"anon.one";q=1;w=1000`, "RateLimit", `"anon.one";r=0;t=1000`))

	// A client that shows its cookie keeps it.
	a = do(t, http.MethodGet, srv.URL+"/anon.five", http.Header{"Cookie": {"a=1; " + cookie.Name + "=" + cookie.Value}})
	if a.status != 200 {
		t.Fatalf("status %d", a.status)
	}
	if got := a.header.Get("RateLimit"); !strings.HasPrefix(got, `"anon.five";r=4`) || a.header.Get("Set-Cookie") != "" {
		t.Errorf("RateLimit %q with %d cookies, want r=4 and no cookie", got, len(a.header.Values("Set-Cookie")))
	}
}

// An earlier guard's cookie is taken back when a later one denies, and two
// anonymous guards on one request hand out one cookie.
func TestCookieOnlyWithAnAllowedResponse(t *testing.T) {
	chain := func(ids ...string) http.Handler {
		var h http.Handler = ok
		for _, id := range slices.Backward(ids) {
			h = sentinelhttp.Guard(id)(h)
		}
		l := inMemory(t)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Set-Cookie", "session=1")
			sentinelhttp.Middleware(l)(h).ServeHTTP(w, r)
		})
	}

	srv := serve(t, chain("anon.five", "anon.one"))
	a := get(t, srv.URL, "")
	if got := a.header.Values("Set-Cookie"); a.status != 200 || len(got) != 2 {
		t.Errorf("allowed by both: %d with %d cookies, want 200 with 2", a.status, len(got))
	}
	a = get(t, srv.URL, "")
	if got := a.header.Values("Set-Cookie"); a.status != 429 || len(got) != 1 || got[0] != "session=1" {
		t.Errorf("denied by the second: %d with %d cookies, want 429 with the session's alone", a.status, len(got))
	}
	if got := a.header.Get("RateLimit"); got != `"anon.one";r=0;t=1000` {
		t.Errorf("RateLimit %q, want the denying guard's", got)
	}

	srv = serve(t, chain("anon.five", "tenant.closed"))
	a = get(t, srv.URL, "")
	wantProblem(t, a, 401, "authentication required")
	wantHeaders(t, a, with(none, "WWW-Authenticate", "Bearer", "Set-Cookie", "session=1"))
}

func TestHandlerReadsTheDecision(t *testing.T) {
	var got sentinel.Decision
	var found bool
	h := guarded(inMemory(t), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, found = sentinel.FromContext(r.Context())
	}))
	r := httptest.NewRequest(http.MethodPost, "/tenant.two", nil)
	r.Header.Set("Authorization", bearer("acme"))
	h.ServeHTTP(httptest.NewRecorder(), r)
	if !found || !got.Allowed || got.EndpointID != "tenant.two" || got.Reason != sentinel.ReasonAllowed || got.Remaining != 1 {
		t.Errorf("found %v: %+v", found, got)
	}
}

func TestSameIDIsDecidedOnce(t *testing.T) {
	l := inMemory(t)
	guard := sentinelhttp.Guard("tenant.two")
	mw := sentinelhttp.Middleware(l)
	handlers := map[string]http.Handler{
		"on group and route":        mw(guard(guard(ok))),
		"two guards of one id":      mw(guard(sentinelhttp.Guard("tenant.two")(ok))),
		"nested Middleware":         mw(guard(mw(guard(ok)))),
		"Middleware twice":          mw(mw(guard(guard(ok)))),
		"another id between":        mw(guard(sentinelhttp.Guard("tenant.closed")(guard(ok)))),
		"a timeout's own goroutine": mw(guard(http.TimeoutHandler(guard(ok), time.Minute, ""))),
	}
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			srv := serve(t, h)
			auth := bearer(name)
			for i, want := range []int{200, 200, 429} {
				a := get(t, srv.URL, auth)
				if a.status != want {
					t.Fatalf("request %d: %d, want %d", i+1, a.status, want)
				}
				if got, want := a.header.Get("RateLimit"), fmt.Sprintf(`"tenant.two";r=%d;t=1000`, max(0, 1-i)); got != want {
					t.Errorf("request %d: RateLimit %q, want %q", i+1, got, want)
				}
			}
		})
	}
}

// A nested Middleware with another limiter makes other decisions.
func TestInnerLimiterCounts(t *testing.T) {
	outer, inner := inMemory(t), inMemory(t)
	guard := sentinelhttp.Guard("tenant.two")
	srv := serve(t, sentinelhttp.Middleware(outer)(guard(sentinelhttp.Middleware(inner)(guard(ok)))))
	if a := get(t, srv.URL, bearer("acme")); a.status != 200 {
		t.Fatal(a.status)
	}
	for name, l := range map[string]*sentinel.Limiter{"outer": outer, "inner": inner} {
		d, err := l.Peek(t.Context(), "acme", "tenant.two")
		if err != nil || d.Remaining != 1 {
			t.Errorf("%s: remaining %d, %v, want 1", name, d.Remaining, err)
		}
	}
}

func TestTwoIDsAreTwoDecisionsInOrder(t *testing.T) {
	l := inMemory(t)
	srv := serve(t, sentinelhttp.Middleware(l)(sentinelhttp.Guard("tenant.closed")(sentinelhttp.Guard("tenant.two")(ok))))
	auth := bearer("acme")
	for i, want := range []int{200, 200, 429} {
		a := get(t, srv.URL, auth)
		if a.status != want || !strings.HasPrefix(a.header.Get("RateLimit"), `"tenant.two"`) {
			t.Errorf("request %d: %d %q, want %d by tenant.two", i+1, a.status, a.header.Get("RateLimit"), want)
		}
	}
	d, err := l.Peek(t.Context(), "acme", "tenant.closed")
	if err != nil || d.Remaining != 47 {
		t.Errorf("the first stays charged: remaining %d, %v, want 47", d.Remaining, err)
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	tests := map[string]func(){
		"sentinelhttp: Middleware: ":      func() { sentinelhttp.Middleware(nil) },
		"sentinelhttp: WithDenial: ":      func() { sentinelhttp.WithDenial(nil) },
		"sentinelhttp: WithSkip: ":        func() { sentinelhttp.WithSkip(nil) },
		"sentinelhttp: WithTrustedPeer: ": func() { sentinelhttp.WithTrustedPeer(nil) },
		`sentinelhttp: Guard(""): `:       func() { sentinelhttp.Guard("") },
		`sentinelhttp: Guard("A"): `:      func() { sentinelhttp.Guard("A") },
		`sentinelhttp: Guard("a b"): `:    func() { sentinelhttp.Guard("a b") },
		`sentinelhttp: Guard("a/b"): `:    func() { sentinelhttp.Guard("a/b") },
		`sentinelhttp: Guard("a:b"): `:    func() { sentinelhttp.Guard("a:b") },
		`sentinelhttp: Guard("a\n"): `:    func() { sentinelhttp.Guard("a\n") },
		`sentinelhttp: Guard("a\""): `:    func() { sentinelhttp.Guard(`a"`) },
		`sentinelhttp: Guard("ä"): `:      func() { sentinelhttp.Guard("ä") },
	}
	for prefix, wire := range tests {
		t.Run(prefix, func(t *testing.T) {
			defer func() {
				got, _ := recover().(string)
				if !strings.HasPrefix(got, prefix) {
					t.Errorf("panic %q, want it to begin with %q", got, prefix)
				}
			}()
			wire()
		})
	}
	sentinelhttp.Guard("a-z_0.9") // does not
}

// captureDefaultLog sends slog's default logger to a buffer while a test runs.
func captureDefaultLog(t *testing.T) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&buf, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &buf
}

func TestGuardWithoutMiddleware(t *testing.T) {
	log := captureDefaultLog(t)
	var ran atomic.Int64
	guard := sentinelhttp.Guard("tenant.two")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) }))
	srv := serve(t, guard)
	for range 3 {
		a := get(t, srv.URL, bearer("acme"))
		wantProblem(t, a, 503, "rate limiter unavailable")
		wantHeaders(t, a, none)
	}
	if ran.Load() != 0 {
		t.Error("the handler ran")
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], "level=ERROR") ||
		!strings.Contains(lines[0], "sentinelhttp.Middleware(limiter)") || !strings.Contains(lines[0], "tenant.two") {
		t.Errorf("want one ERROR that shows the missing line, got:\n%s", log)
	}
}

func TestEndedContextNeverRunsTheHandler(t *testing.T) {
	l := inMemory(t)
	ran := false
	var denial sentinelhttp.Denial
	h := guarded(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }),
		sentinelhttp.WithDenial(func(_ http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) { denial = d }))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/tenant.two", nil)
	r.Header.Set("Authorization", bearer("acme"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	wantProblem(t, answer{w.Code, w.Result().Header, w.Body.String()}, 503, "rate limiter unavailable")
	if ran {
		t.Error("the handler ran")
	}
	if !errors.Is(denial.Err, context.Canceled) {
		t.Errorf("Err %v, want the context's", denial.Err)
	}
	d, err := l.Peek(t.Context(), "acme", "tenant.two")
	if err != nil || d.Remaining != 2 {
		t.Errorf("remaining %d, %v: who went away was charged", d.Remaining, err)
	}
}

func TestHandlerPanicPassesThrough(t *testing.T) {
	h := guarded(inMemory(t), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	r := httptest.NewRequest(http.MethodGet, "/tenant.two", nil)
	r.Header.Set("Authorization", bearer("acme"))
	defer func() {
		err, _ := recover().(error)
		if !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("panic %v, want the handler's own", err)
		}
	}()
	h.ServeHTTP(httptest.NewRecorder(), r)
}

func TestResponseWriterIsTheServersOwn(t *testing.T) {
	w := httptest.NewRecorder()
	var got http.ResponseWriter
	h := guarded(inMemory(t), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got = w }))
	r := httptest.NewRequest(http.MethodGet, "/tenant.two", nil)
	r.Header.Set("Authorization", bearer("acme"))
	h.ServeHTTP(w, r)
	if got != http.ResponseWriter(w) {
		t.Errorf("the handler got a %T", got)
	}
}

func TestStreamsAndUpgrades(t *testing.T) {
	released := make(chan struct{})
	srv := serve(t, guarded(inMemory(t), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "one\n")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-released // the client has the first line while the handler waits
			_, _ = io.WriteString(w, "two\n")
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
	})))

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/tenant.closed", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer("acme"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != "one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	close(released)
	rest, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || string(rest) != "two\n" {
		t.Fatalf("%q, %v", rest, err)
	}

	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err = http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	hello, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || string(hello) != "hello" {
		t.Errorf("%d %q, %v", resp.StatusCode, hello, err)
	}
}

func TestEarlierHeadersSurvive(t *testing.T) {
	h := guarded(inMemory(t), ok)
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Request-Id", "42")
		w.Header().Set("Vary", "Origin")
		w.Header().Set("Content-Length", "2") // what the handler would have sent
		w.Header().Add("Set-Cookie", "session=1")
		h.ServeHTTP(w, r)
	}))
	earlier := map[string]string{"Access-Control-Allow-Origin": "*", "X-Request-Id": "42", "Vary": "Origin", "Set-Cookie": "session=1"}
	a := get(t, srv.URL+"/anon.one", "")
	wantHeaders(t, a, earlier)
	if got := len(a.header.Values("Set-Cookie")); a.status != 200 || got != 2 {
		t.Errorf("allowed: %d with %d cookies, want 200 with 2", a.status, got)
	}
	for path, status := range map[string]int{"/anon.one": 429, "/tenant.two": 401} {
		a := get(t, srv.URL+path, "")
		wantHeaders(t, a, earlier)
		if a.status != status || len(a.header.Values("Set-Cookie")) != 1 {
			t.Errorf("%s: %d with %d cookies, want %d with 1", path, a.status, len(a.header.Values("Set-Cookie")), status)
		}
	}
}

func TestHEAD(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok))
	wanted := get(t, srv.URL+"/tenant.two", "")
	a := do(t, http.MethodHead, srv.URL+"/tenant.two", nil)
	if a.status != 401 || a.body != "" {
		t.Errorf("%d %q", a.status, a.body)
	}
	wantHeaders(t, a, map[string]string{
		"Content-Type": "application/problem+json", "WWW-Authenticate": "Bearer", "Cache-Control": "no-store",
		"Content-Length": fmt.Sprint(len(wanted.body)),
	})
	a = do(t, http.MethodHead, srv.URL+"/tenant.two", http.Header{"Authorization": {bearer("acme")}})
	if a.status != 200 || a.header.Get("RateLimit") == "" {
		t.Errorf("%d, RateLimit %q", a.status, a.header.Get("RateLimit"))
	}
}

func TestWithDenial(t *testing.T) {
	type write = func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial)
	tests := []struct {
		name   string
		write  write
		status int
		body   string // "" for the default problem document
	}{
		{"status and body", func(w http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(d.Status)
			fmt.Fprintf(w, "no: %s, %s", d.Detail, d.Decision.Reason)
		}, 429, "no: rate limit exceeded, rate_limited"},
		{"another status", func(w http.ResponseWriter, _ *http.Request, _ sentinelhttp.Denial) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "teapot")
		}, 418, "teapot"},
		{"a body without a status", func(w http.ResponseWriter, _ *http.Request, _ sentinelhttp.Denial) {
			_, _ = io.WriteString(w, "no")
			_, _ = io.WriteString(w, "!")
		}, 429, "no!"},
		{"nothing", func(http.ResponseWriter, *http.Request, sentinelhttp.Denial) {}, 429, ""},
		{"an announcement, then nothing", func(w http.ResponseWriter, _ *http.Request, _ sentinelhttp.Denial) {
			w.WriteHeader(http.StatusEarlyHints)
		}, 429, ""},
		{"the default, explicitly", func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
			d.ServeHTTP(w, r)
		}, 429, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, guarded(inMemory(t), ok, sentinelhttp.WithDenial(tt.write)))
			if a := get(t, srv.URL+"/anon.one", ""); a.status != 200 || a.body != "ok" {
				t.Fatalf("allowed: %d %q", a.status, a.body)
			}
			a := get(t, srv.URL+"/anon.one", "")
			wantHeaders(t, a, map[string]string{
				"Retry-After": "1000", "RateLimit": `"anon.one";r=0;t=1000`, "Cache-Control": "no-store", "Set-Cookie": "",
			})
			if tt.body == "" {
				wantProblem(t, a, tt.status, "rate limit exceeded")
			} else if a.status != tt.status || a.body != tt.body {
				t.Errorf("%d %q, want %d %q", a.status, a.body, tt.status, tt.body)
			}
		})
	}
}

func TestWithSkip(t *testing.T) {
	l := inMemory(t)
	var decided atomic.Bool
	srv := serve(t, guarded(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, found := sentinel.FromContext(r.Context())
		decided.Store(found)
	}), sentinelhttp.WithSkip(func(r *http.Request) bool { return r.Method == http.MethodOptions })))
	for range 10 {
		a := do(t, http.MethodOptions, srv.URL+"/anon.one", nil)
		if a.status != 200 || decided.Load() {
			t.Fatalf("skipped: %d, decided %v", a.status, decided.Load())
		}
		wantHeaders(t, a, none)
	}
	if a := get(t, srv.URL+"/anon.one", ""); a.status != 200 || !decided.Load() {
		t.Errorf("not skipped: %d, decided %v", a.status, decided.Load())
	}
}

// Every header in which a client could claim another address.
var forwarding = []string{"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "Forwarded", "X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP"}

func TestForwardingHeadersAreNeverRead(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok))
	admitted := 0
	for i := range 50 {
		h := http.Header{}
		for _, name := range forwarding {
			h.Set(name, fmt.Sprintf("203.0.113.%d", i))
		}
		h.Set("Forwarded", fmt.Sprintf("for=203.0.113.%d", i))
		if do(t, http.MethodGet, srv.URL+"/anon.five", h).status == 200 {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d of 50 admitted, want 5", admitted)
	}
}

func TestWithTrustedPeer(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok, sentinelhttp.WithTrustedPeer(func(r *http.Request) string {
		return r.Header.Get("X-Real-IP") // this test's proxy overwrites it
	})))
	request := func(peer string) int {
		return do(t, http.MethodGet, srv.URL+"/anon.one", http.Header{"X-Real-Ip": {peer}}).status
	}
	for _, s := range []struct {
		peer   string
		status int
	}{
		{"192.0.2.1", 200},
		{"192.0.2.1", 429},
		{"192.0.2.1:4711", 429},
		{"::ffff:192.0.2.1", 429},
		{"192.0.2.2", 200},
		{"2001:db8::1", 200},
		{"2001:db8::2", 429}, // the same /64
		{"2001:db8:0:1::1", 200},
		{"", 200}, // all that are no address are one client, and not the proxy
		{"unknown", 429},
		{"127.0.0.1", 200},
	} {
		if got := request(s.peer); got != s.status {
			t.Errorf("peer %q: %d, want %d", s.peer, got, s.status)
		}
	}
}

func TestRateLimitHeadersOff(t *testing.T) {
	l := open(t, config(t, "memory://", `, "ratelimit_headers": false`))
	srv := serve(t, guarded(l, ok))
	a := get(t, srv.URL+"/anon.one", "")
	wantHeaders(t, a, map[string]string{"RateLimit": "", "RateLimit-Policy": ""})
	a = get(t, srv.URL+"/anon.one", "")
	wantProblem(t, a, 429, "rate limit exceeded")
	wantHeaders(t, a, with(none, "Retry-After", "1000"))
}

// A client that waits for exactly the Retry-After it was told is admitted,
// however often it asked meanwhile; and the header is a whole number, at least
// 1, and no second longer than it must be.
func TestRetryAfterIsKept(t *testing.T) {
	for _, tt := range []struct {
		rate   int64 // microtokens a second
		refill time.Duration
		header int
	}{
		{3_000_000, 333_334 * time.Microsecond, 1},
		{1_000_000, time.Second, 1},
		{999_999, 1_000_002 * time.Microsecond, 2},
		{333_333, 3_000_004 * time.Microsecond, 4},
		{142_857, 7_000_008 * time.Microsecond, 8},
		{277, 3_610_108_304 * time.Microsecond, 3611},
	} {
		t.Run(fmt.Sprint(tt.rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := sentinelhttp.Middleware(refilling(t, tt.rate))(sentinelhttp.Guard("a")(ok))
				for range 3 {
					begin := time.Now()
					if retry := ask(h); retry != 0 {
						t.Fatalf("after a full wait: denied, Retry-After %d", retry)
					}
					if retry := ask(h); retry != tt.header {
						t.Fatalf("Retry-After %d, want %d", retry, tt.header)
					}
					for _, at := range []time.Duration{time.Millisecond, tt.refill / 2, tt.refill / 1000 * 999, tt.refill - time.Microsecond} {
						time.Sleep(time.Until(begin.Add(at)))
						rest := int((tt.refill - at + time.Second - 1) / time.Second)
						if retry := ask(h); retry != rest {
							t.Fatalf("after %s: Retry-After %d, want %d", at, retry, rest)
						}
					}
					time.Sleep(time.Until(begin.Add(time.Duration(tt.header) * time.Second)))
				}
			})
		})
	}
}

// refilling is a limiter with one anonymous endpoint, "a", of one token.
func refilling(t *testing.T, rate int64) *sentinel.Limiter {
	t.Helper()
	return open(t, &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret("memory://"),
			JWTSecret:             sentinel.NewSecrets(jwtSecret),
			AnonymousCookieSecret: sentinel.NewSecrets("tests-only-cookie-secret-0123456789abcdef"),
		},
		Policies: map[string]sentinel.Policy{"a": {
			EndpointID: "a", Identity: sentinel.Anonymous, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed,
			Version: 1, FallbackRate: 1, Capacity: sentinel.Token, RefillRate: sentinel.Micro(rate),
		}},
	})
}

// ask returns the Retry-After of a request in seconds, 0 if it was admitted, -1
// if it was denied without.
func ask(h http.Handler) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code == 200 {
		return 0
	}
	var s int
	if _, err := fmt.Sscanf(w.Header().Get("Retry-After"), "%d", &s); err != nil {
		return -1
	}
	return s
}

func TestParallel(t *testing.T) {
	srv := serve(t, guarded(inMemory(t), ok))
	auth := bearer("acme")
	var admitted, denied atomic.Int64
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			switch a := get(t, srv.URL+"/tenant.closed", auth); a.status {
			case 200:
				admitted.Add(1)
			case 429:
				denied.Add(1)
			default:
				t.Errorf("status %d", a.status)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 50 || denied.Load() != 150 {
		t.Errorf("admitted %d, denied %d, want 50 and 150", admitted.Load(), denied.Load())
	}
}

// What a context says of decisions never changes, whatever gates come after it.
func TestContextsKeepTheirDecision(t *testing.T) {
	var contexts []context.Context
	remember := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			contexts = append(contexts, r.Context())
			next.ServeHTTP(w, r)
		})
	}
	two, never := sentinelhttp.Guard("tenant.two"), sentinelhttp.Guard("tenant.never")
	h := sentinelhttp.Middleware(inMemory(t))(remember(two(remember(never(remember(two(remember(ok))))))))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", bearer("acme"))
	h.ServeHTTP(httptest.NewRecorder(), r)
	for i, want := range []string{"", "tenant.two", "tenant.never", "tenant.two"} {
		if d, found := sentinel.FromContext(contexts[i]); d.EndpointID != want || found != (want != "") {
			t.Errorf("context %d: %q, %v, want %q", i, d.EndpointID, found, want)
		}
	}
	if d, found := sentinel.FromContext(r.Context()); found {
		t.Errorf("the server's own: %+v", d)
	}
}

// A context in a log shows nothing of the request that it belongs to.
func TestContextsPrintNoCredentials(t *testing.T) {
	h := sentinelhttp.Middleware(inMemory(t))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before := r.Context()
		sentinelhttp.Guard("tenant.two")(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for _, ctx := range []context.Context{before, r.Context()} {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
					if text := fmt.Sprintf(verb, ctx); len(text) > 200 || strings.Contains(text, "Bearer") || strings.Contains(text, "203.0.113") {
						t.Errorf("%s: %s", verb, text)
					}
				}
			}
		})).ServeHTTP(w, r)
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.1:1"
	r.Header.Set("Authorization", bearer("acme"))
	h.ServeHTTP(httptest.NewRecorder(), r)
}

// Headers that a gate has set belong to the response: whoever adds to one or
// overwrites it changes that one alone.
func TestHeadersOfAGateAreSeparate(t *testing.T) {
	l := inMemory(t)
	for range 2 {
		for name, path := range map[string]string{"allowed": "/tenant.closed", "denied": "/tenant.never"} {
			w := httptest.NewRecorder()
			for range 2 { // the second is denied at the one, allowed at the other
				w = httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Header.Set("Authorization", bearer(name))
				guarded(l, ok).ServeHTTP(w, r)
			}
			before := w.Header().Clone()
			for key := range before {
				w.Header().Add(key, "added")
				w.Header()[key][0] = "changed"
				for other, values := range before {
					if other != key && !slices.Equal(w.Header()[other], values) {
						t.Errorf("%s: after %s, %s is %q, not %q", name, key, other, w.Header()[other], values)
					}
				}
				w.Header()[key] = before[key]
			}
			if before.Get("RateLimit") == "" || before.Get("RateLimit") == "changed" {
				t.Errorf("%s: %v", name, before)
			}
		}
	}
}

// One request whose handler fans out to goroutines is decided once.
func TestOneRequestOnManyGoroutines(t *testing.T) {
	l := inMemory(t)
	inner := sentinelhttp.Guard("tenant.closed")(ok)
	h := sentinelhttp.Middleware(l)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { inner.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context())) })
		}
		wg.Wait()
	}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", bearer("acme"))
	h.ServeHTTP(httptest.NewRecorder(), r)
	d, err := l.Peek(t.Context(), "acme", "tenant.closed")
	if err != nil || d.Remaining != 49 {
		t.Errorf("remaining %d, %v, want 49", d.Remaining, err)
	}
}

// A credential of nothing but size is refused for its size.
func TestHostileAuthorization(t *testing.T) {
	hostile := map[string][]string{
		"dots":         {"Bearer " + strings.Repeat(".", 500_000)},
		"long subject": {bearer(strings.Repeat("a", 700_000))},
		"two tokens":   {bearer("acme"), bearer("acme")},
		"no scheme":    {strings.Repeat("A", 500_000)},
		"empty":        {""},
	}
	h := guarded(inMemory(t), ok)
	srv := httptest.NewUnstartedServer(h)
	srv.Config.MaxHeaderBytes = 2 << 20
	srv.Start()
	t.Cleanup(srv.Close)

	for name, authorization := range hostile {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					a := do(t, http.MethodGet, srv.URL+"/tenant.two", http.Header{"Authorization": authorization})
					wantProblem(t, a, 401, "authentication required")
				})
			}
			wg.Wait()

			r := httptest.NewRequest(http.MethodGet, "/tenant.two", nil)
			r.Header["Authorization"] = authorization
			const n = 50
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range n {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			runtime.ReadMemStats(&after)
			if per := (after.TotalAlloc - before.TotalAlloc) / n; per > 64<<10 {
				t.Errorf("%d bytes a request, want at most 64 KiB on top of the header", per)
			}
		})
	}
}

// A guard whose id no policy has answers 404, which reads like a missing route:
// the log says once what it is.
func TestGuardWithoutPolicySaysSoOnce(t *testing.T) {
	var log bytes.Buffer
	l, err := sentinel.Open(t.Context(), config(t, "memory://", ""), sentinel.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := sentinelhttp.Middleware(l)(sentinelhttp.Guard("not.configured")(http.NotFoundHandler()))
	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", bearer("acme"))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if n := strings.Count(log.String(), "has no policy"); n != 1 || !strings.Contains(log.String(), "endpoint_id=not.configured") {
		t.Errorf("logged %d times: %s", n, &log)
	}
}

// The server removes the files of an upload when the handler is done, which are
// on the disk where they are large.
func TestUploadsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil || files() != 1 {
			t.Errorf("%d files, %v: nothing is tested", files(), err)
		}
	})
	srv := httptest.NewServer(guarded(inMemory(t), handler))
	defer srv.Close()

	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "large")
	if err == nil {
		_, err = part.Write(make([]byte, 1<<20))
	}
	if err = errors.Join(err, form.Close()); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/anon.one", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	srv.Close() // when the last request is done
	if resp.StatusCode != http.StatusOK || files() != 0 {
		t.Errorf("%d, and %d files are left", resp.StatusCode, files())
	}
}
