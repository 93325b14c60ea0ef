package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// crowd sends n equal requests at once and counts the answers by status. 0
// stands for no answer, or an allowed one that the handler did not write.
func (s *server) crowd(path string, header http.Header, n int) map[int]int64 {
	s.t.Helper()
	var mu sync.Mutex
	counts := map[int]int64{}
	var wg sync.WaitGroup
	for range n {
		req := s.request(http.MethodGet, path, header.Clone())
		wg.Go(func() {
			a, err := s.send(req)
			if err != nil || a.status == http.StatusOK && a.body != "ok" {
				s.t.Errorf("%d %q, %v", a.status, a.body, err)
				a.status = 0
			}
			mu.Lock()
			counts[a.status]++
			mu.Unlock()
		})
	}
	wg.Wait()
	return counts
}

// What an allowed handler finds and can do.
var handlers = []testCase{
	{name: "the handler finds the decision in the request's context and in the framework's", run: func(t *stage) {
		for id, mode := range map[string]sentinel.IdentityMode{tenantTwo: sentinel.TenantJWT, anonTwo: sentinel.Anonymous} {
			var seen decisions
			var own atomic.Value
			app := App{Root: guarded("/", seen.handler, tenantMany, id)}
			for i := range app.Root.Routes {
				app.Root.Routes[i].Own = func(d sentinel.Decision, found bool) { own.Store([]any{d, found}) }
			}
			s := t.serve(t.limiter(nil), app)
			t.wantOK(s.get("/", as("acme")))
			d := seen.last()
			if !d.Allowed || d.Reason != sentinel.ReasonAllowed || d.EndpointID != id || !d.FromStore ||
				d.Limit != 2 || d.Remaining != 1 || d.IdentityMode != mode || d.IdentityHash == "" {
				t.Errorf("sentinel.FromContext: %+v, want the last guard's decision", d)
			}
			if got, _ := own.Load().([]any); len(got) != 2 || got[0] != d || got[1] != true {
				t.Errorf("the framework's own context: %+v, want %+v", got, d)
			}
		}
	}},
	{name: "a middleware behind a guard finds its decision", run: func(t *stage) {
		var seen decisions
		app := App{Root: Group{Routes: []Route{{Method: http.MethodGet, Path: "/", Handler: ok, Chain: []Link{
			{Guard: tenantTwo},
			{Then: func(_ http.ResponseWriter, r *http.Request) {
				seen.made, seen.found = sentinel.FromContext(r.Context())
			}},
			{Guard: tenantMany},
		}}}}}
		s := t.serve(t.limiter(nil), app)
		t.wantOK(s.get("/", as("acme")))
		if d := seen.last(); !seen.found || d.EndpointID != tenantTwo || d.Remaining != 1 {
			t.Errorf("found %v: %+v", seen.found, d)
		}
	}},
	{name: "no decision leaks into the next request", run: func(t *stage) {
		var free, guardedOne decisions
		var own atomic.Int64
		app := App{Root: guarded("/two", guardedOne.handler, tenantMany)}
		app.Root.Routes = append(app.Root.Routes, guarded("/free", free.handler).Routes...)
		for i := range app.Root.Routes {
			if app.Root.Routes[i].Path == "/free" {
				app.Root.Routes[i].Own = func(_ sentinel.Decision, found bool) {
					if found {
						own.Add(1)
					}
				}
			}
		}
		s := t.serve(t.limiter(nil), app)
		for range 10 { // frameworks reuse their contexts
			t.wantOK(s.get("/two", as("acme")))
			t.wantOK(s.get("/free", as("acme")))
			if free.found || !guardedOne.found {
				t.Errorf("found on the free route: %v, on the guarded one: %v", free.found, guardedOne.found)
			}
			t.wantUntouched(s.get("/free", as("acme")))
		}
		if own.Load() != 0 {
			t.Error("the framework's own context has a decision of another request")
		}
	}},
	{name: "the decision can be answered as JSON", run: func(t *stage) {
		type view struct {
			EndpointID string `json:"endpoint_id"`
			Allowed    bool   `json:"allowed"`
			Reason     string `json:"reason"`
			Remaining  int64  `json:"remaining"`
		}
		s := t.serve(t.limiter(nil), App{Root: guarded("/", func(w http.ResponseWriter, r *http.Request) {
			d, _ := sentinel.FromContext(r.Context())
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(view{d.EndpointID, d.Allowed, string(d.Reason), d.Remaining}); err != nil {
				t.Errorf("encode: %v", err)
			}
		}, anonTwo)})
		a := s.get("/", nil)
		t.wantHeader(a, "Content-Type", "application/json")
		var got view
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || got != (view{anonTwo, true, "allowed", 1}) {
			t.Errorf("%q, %v", a.body, err)
		}
	}},
	{name: "the request reaches the handler whole", run: func(t *stage) {
		type key struct{}
		body := strings.Repeat("sentinel ", 20_000)
		var app App
		app.Root.Groups = []Group{{Path: "/api", Chain: []Link{{Guard: tenantMany}}, Routes: []Route{{
			Method: http.MethodPost, Path: "/x", Chain: []Link{{Guard: anonMany}},
			Handler: func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				if err != nil || string(got) != body {
					t.Errorf("a body of %d bytes, %v, want %d", len(got), err, len(body))
				}
				if r.URL.Path != "/api/x" || r.URL.RawQuery != "q=1" || r.Header.Get("X-Some") != "thing" || r.Method != http.MethodPost {
					t.Errorf("%s %s with %q", r.Method, r.URL, r.Header)
				}
				if r.Context().Value(key{}) != "outer" {
					t.Error("a value of the outer context is lost")
				}
				if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") || r.Header.Get("Cookie") == "" {
					t.Error("the credentials are gone")
				}
				w.WriteHeader(http.StatusCreated)
				ok(w, r)
			},
		}}}}
		s := t.serve(t.limiter(nil), app, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, "outer")))
			})
		})
		header := as("acme")
		header.Set("X-Some", "thing")
		header.Set("Cookie", goodCookie(clientID(1)))
		req := s.request(http.MethodPost, "/api/x?q=1", header)
		req.Body = io.NopCloser(strings.NewReader(body)) // of unknown length: chunked
		a, err := s.send(req)
		if err != nil || a.status != http.StatusCreated || a.body != "ok" {
			t.Errorf("%d %q, %v", a.status, a.body, err)
		}
	}},
	{name: "what a handler answers itself passes unchanged", run: func(t *stage) {
		app := App{Before: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "private") }}
		for _, status := range []int{201, 204, 302, 401, 404, 429, 500, 503} {
			app.Root.Routes = append(app.Root.Routes, guarded("/"+strconv.Itoa(status), func(w http.ResponseWriter, _ *http.Request) {
				http.SetCookie(w, &http.Cookie{Name: "mine", Value: "1"})
				w.Header().Set("Content-Type", "text/mine")
				w.Header().Set("Retry-After", "7")
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
				if status != http.StatusNoContent {
					_, _ = io.WriteString(w, "mine")
				}
			}, tenantMany, anonMany).Routes...)
		}
		s := t.serve(t.limiter(nil), app)
		for i, status := range []int{201, 204, 302, 401, 404, 429, 500, 503} {
			a := s.get("/"+strconv.Itoa(status), as("acme"))
			want := "mine"
			if status == http.StatusNoContent {
				want = ""
			}
			if a.status != status || a.body != want {
				t.Errorf("%d %q, want %d %q", a.status, a.body, status, want)
			}
			t.wantHeader(a, "Content-Type", "text/mine")
			t.wantHeader(a, "Cache-Control", "private")
			t.wantHeader(a, "Retry-After", "7")
			t.wantNone(a, "WWW-Authenticate")
			t.wantQuota(a, quota{anonMany, 50, 500_000, int64(49 - i), 10_000})
			if got := a.header.Values("Set-Cookie"); len(got) != 2 {
				t.Errorf("%d cookies, want ours and the handler's", len(got))
			}
		}
	}},
	{name: "a denied upload is not asked for", run: func(t *stage) {
		app := App{Root: Group{Routes: []Route{{Method: http.MethodPost, Path: "/up", Chain: []Link{{Guard: tenantMany}}, Handler: ok}}}}
		s := t.serve(t.limiter(nil), app)
		// A client that waits for "100 Continue" before it sends a megabyte.
		got := s.exchange("POST /up HTTP/1.1", "Host: conformance", "Content-Length: 1000000", "Expect: 100-continue", "")
		head, body, _ := strings.Cut(got, "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.1 401 ") {
			t.Errorf("%q", head)
		}
		if _, err := oneDocument(body); err != nil {
			t.Errorf("%v: %q", err, body)
		}
	}},
	{name: "a denied upload does not harm the connection's next request", run: func(t *stage) {
		app := App{Root: everything(ok)}
		app.Root.Routes = append(app.Root.Routes, Route{Method: http.MethodPost, Path: "/up", Chain: []Link{{Guard: tenantMany}}, Handler: ok})
		s := t.serve(t.limiter(nil), app)
		for range 3 {
			req := s.request(http.MethodPost, "/up", nil)
			req.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 10_000)))
			a, err := s.send(req)
			if err != nil {
				t.Fatal(err)
			}
			t.wantProblem(a, http.StatusUnauthorized, unauthenticated)
			t.wantOK(s.get("/"+tenantMany, as("acme")))
		}
	}},
	{name: "a stream is flushed through a guard", run: func(t *stage) {
		released := make(chan struct{})
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)
		s := t.serve(t.limiter(nil), App{Root: guarded("/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "one\n")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: %v", err)
				return
			}
			if !t.wait(released, "the client to read the first line while the handler runs") {
				return
			}
			_, _ = io.WriteString(w, "two\n")
			if f, isFlusher := w.(http.Flusher); isFlusher {
				f.Flush()
			} else {
				t.Error("the ResponseWriter is no http.Flusher")
			}
		}, tenantMany, anonMany)})
		resp, err := s.client.Do(s.request(http.MethodGet, "/", as("acme")))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		if line, err := lines.ReadString('\n'); err != nil || line != "one\n" {
			t.Fatalf("%q, %v", line, err)
		}
		release()
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "two\n" {
			t.Errorf("%q, %v", rest, err)
		}
	}},
	{name: "a connection can be upgraded behind a guard", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: guarded("/", func(w http.ResponseWriter, _ *http.Request) {
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Errorf("Hijack: %v", err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.CopyN(conn, buffered, 5)
		}, tenantTwo)})
		for range 2 {
			conn := s.dial()
			lines := []string{"GET / HTTP/1.1", "Host: conformance", "Connection: Upgrade", "Upgrade: echo", "Authorization: " + bearer("acme"), "", "hello"}
			if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")); err != nil {
				t.Fatal(err)
			}
			wire := bufio.NewReader(conn)
			resp, err := http.ReadResponse(wire, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("%+v, %v, want 101", resp, err)
			}
			if echoed, err := io.ReadAll(wire); err != nil || string(echoed) != "hello" {
				t.Errorf("%q, %v", echoed, err)
			}
		}
		// A denied upgrade is an ordinary answer.
		req := s.request(http.MethodGet, "/", as("acme"))
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		a, err := s.send(req)
		if err != nil {
			t.Fatal(err)
		}
		t.wantOver(a, quota{tenantTwo, 2, 20_000, 0, 10_000})
	}},
	{name: "a guard does not wrap the ResponseWriter", run: func(t *stage) {
		var before, inside atomic.Value
		app := App{
			Before: func(w http.ResponseWriter, _ *http.Request) { before.Store(fmt.Sprintf("%T", w)) },
			Root: guarded("/", func(w http.ResponseWriter, r *http.Request) {
				inside.Store(fmt.Sprintf("%T", w))
				ok(w, r)
			}, tenantTwo, anonTwo),
		}
		s := t.serve(t.limiter(nil), app)
		t.wantOK(s.get("/", as("acme")))
		if before.Load() != inside.Load() {
			t.Errorf("a %v in front of the guards, a %v behind them", before.Load(), inside.Load())
		}
	}},
	{name: "a client that is gone before the decision is neither charged nor served", run: func(t *stage) {
		l := t.limiter(nil)
		var ran counter
		waiting, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		app := App{Root: everything(ran.then(ok)), Before: func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Leaves") == "" {
				return
			}
			waiting <- struct{}{}
			t.wait(r.Context().Done(), "the request's context to end with the client")
		}}
		s := t.serve(l, app, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				if r.Header.Get("X-Leaves") != "" {
					gone <- struct{}{}
				}
			})
		})
		for _, path := range []string{"/" + tenantTwo, "/" + anonTwo} {
			conn := s.dial()
			lines := []string{"GET " + path + " HTTP/1.1", "Host: conformance", "X-Leaves: yes", "Authorization: " + bearer("acme"), "", ""}
			if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")); err != nil {
				t.Fatal(err)
			}
			t.wait(waiting, "the request")
			conn.Close()
			t.wait(gone, "the end of the request")
		}
		ran.want(t, 0)
		t.wantLeft(l, "acme", tenantTwo, 2)
		t.wantStatuses(func() answer { return s.get("/"+anonTwo, nil) }, 200, 200, 429)
	}},
	{name: "200 requests at once are admitted up to exactly the quota", run: func(t *stage) {
		var ran counter
		var app App
		app.Root.Routes = append(guarded("/tenant", ran.then(ok), tenantMany).Routes, guarded("/anon", ran.then(ok), anonMany).Routes...)
		s := t.serve(t.limiter(nil), app)
		var admitted int64
		for _, path := range []string{"/tenant", "/anon"} {
			counts := s.crowd(path, as("acme"), 200)
			admitted += counts[http.StatusOK]
			// On a machine so busy that a decision takes a second there are 503,
			// each of which may have been charged.
			late := counts[http.StatusServiceUnavailable]
			if n := counts[http.StatusOK]; n > 50 || n < 50-late || n == 0 || n+counts[http.StatusTooManyRequests]+late != 200 {
				t.Errorf("%s: requests by status: %v, want 50 times 200 and 150 times 429", path, counts)
			}
		}
		ran.want(t, admitted)
	}},
	{name: "requests at once never see each other's decision", run: func(t *stage) {
		var other atomic.Int64
		handler := func(w http.ResponseWriter, r *http.Request) {
			d, found := sentinel.FromContext(r.Context())
			if !found || d.IdentityHash != hashOf(r.Header.Get("X-Me")) {
				other.Add(1)
			}
			ok(w, r)
		}
		app := App{Root: guarded("/", handler, tenantMany, tenantTwo)}
		for i := range app.Root.Routes {
			app.Root.Routes[i].Own = func(d sentinel.Decision, found bool) {
				if !found || d.EndpointID != tenantTwo {
					other.Add(1)
				}
			}
		}
		s := t.serve(t.limiter(nil), app)
		var wg sync.WaitGroup
		for i := range 16 {
			tenant := fmt.Sprintf("tenant%d", i)
			wg.Go(func() {
				header := as(tenant)
				header.Set("X-Me", tenant)
				for _, status := range []int{200, 200, 429} {
					a, err := s.send(s.request(http.MethodGet, "/", header.Clone()))
					if err != nil || a.status != status {
						t.Errorf("%s: %d %q, %v, want %d", tenant, a.status, a.body, err, status)
					}
				}
			})
		}
		wg.Wait()
		if other.Load() != 0 {
			t.Errorf("%d handlers ran with the decision of another request", other.Load())
		}
	}},
	{name: "two limiters on one metrics registry count together", run: func(t *stage) {
		registry := prometheus.NewRegistry()
		for range 2 {
			l := t.limiter(nil, sentinel.WithRegisterer(registry))
			s := t.serve(l, App{Root: everything(ok)})
			t.wantStatuses(func() answer { return s.get("/"+tenantNever, as("acme")) }, 200, 429)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "sentinel_decisions_total" {
				continue
			}
			for _, m := range family.GetMetric() {
				var labels []string // sorted by name: decision_reason, endpoint_id
				for _, pair := range m.GetLabel() {
					labels = append(labels, pair.GetValue())
				}
				counts[strings.Join(labels, " ")] = m.GetCounter().GetValue()
			}
		}
		if len(counts) != 2 || counts["allowed "+tenantNever] != 2 || counts["rate_limited "+tenantNever] != 2 {
			t.Errorf("sentinel_decisions_total: %v", counts)
		}
	}},
	{name: "nothing that a client wrote reaches a metric or a log", run: func(t *stage) {
		const mark = "MaRk"
		registry := prometheus.NewRegistry()
		logged := &buffer{}
		logger := slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := t.limiter(nil, sentinel.WithRegisterer(registry), sentinel.WithLogger(logger), sentinel.WithEveryDenialLogged())
		s := t.serve(l, App{Root: everything(ok)})
		tenant := mark + "tenant"
		header := as(tenant)
		header.Set("Cookie", cookieName+"="+mark+"; "+goodCookie(clientID(1)))
		header.Set("User-Agent", mark)
		header.Set("X-Forwarded-For", mark)
		credential := header.Get("Authorization")
		for _, id := range []string{tenantNever, anonNever, unknown} {
			for range 3 {
				s.get("/"+id+"?"+mark+"="+mark, header)
				s.get("/"+id, with("Authorization", "Bearer "+mark, "Cookie", cookieName+"="+mark))
				s.get("/"+mark, header)
				s.do(http.MethodPost, "/"+id, header)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, family := range families {
			text.WriteString(family.String())
		}
		if metrics := text.String(); !strings.Contains(metrics, "sentinel_decisions_total") || !strings.Contains(metrics, "sentinel_auth_failures_total") {
			t.Errorf("metrics:\n%s", metrics)
		}
		if !strings.Contains(logged.String(), hashOf(tenant)) {
			t.Errorf("no denial was logged:\n%s", logged.String())
		}
		for what, text := range map[string]string{"metrics": text.String(), "log": logged.String()} {
			for _, secret := range []string{mark, strings.ToLower(mark), credential[7:], clientID(1), "127.0.0.1", cookieSecret, jwtSecret} {
				if strings.Contains(text, secret) {
					t.Errorf("the %s hold %q:\n%s", what, secret, text)
				}
			}
		}
	}},
	{name: "a request whose deadline has passed is neither decided nor served", run: func(t *stage) {
		var ran counter
		s := t.serve(t.without(failureKinds[1]), App{Root: guarded("/", ran.then(ok), tenantMany)}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithDeadline(r.Context(), time.Now().Add(-time.Second))
				defer cancel()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		})
		a := s.get("/", as("acme"))
		t.wantProblem(a, http.StatusServiceUnavailable, unavailable)
		t.wantNone(a, ours...)
		ran.want(t, 0)
	}},
}
