package conformance

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// denying is a server all of whose answers are denials.
type denying struct {
	*server
	paths map[string]int // what is asked for, and the status that it gets
}

// denials serves two servers that together give every denial: one on a working
// store and one whose Redis is away. alter changes both, outer is around both;
// chain and handler are what stands behind each guard.
func (t *stage) denials(alter func(*App), chain []Link, handler http.HandlerFunc, outer ...func(http.Handler) http.Handler) []denying {
	t.Helper()
	build := func(ids ...string) App {
		var app App
		for _, id := range ids {
			app.Root.Routes = append(app.Root.Routes, Route{
				Method: http.MethodGet, Path: "/" + id, Chain: append([]Link{{Guard: id}}, chain...), Handler: handler,
			})
		}
		alter(&app)
		return app
	}
	l := t.limiter(nil)
	if d, err := l.Allow(t.Context(), "acme", tenantNever); err != nil || !d.Allowed { // used up
		t.Fatalf("Limiter.Allow: %+v, %v", d, err)
	}
	return []denying{
		{t.serve(l, build(tenantNever, unknown), outer...), map[string]int{
			"/" + tenantNever: http.StatusTooManyRequests, "/" + unknown: http.StatusNotFound, "/" + tenantNever + "?stranger": http.StatusUnauthorized,
		}},
		{t.serve(t.without(failureKinds[0]), build(tenantMany), outer...), map[string]int{"/" + tenantMany: http.StatusServiceUnavailable}},
	}
}

// get asks for one of the paths.
func (d denying) get(path string) answer {
	d.t.Helper()
	if strings.HasSuffix(path, "?stranger") {
		return d.server.get(path, nil)
	}
	return d.server.get(path, as("acme"))
}

// details are the words of each status.
var details = map[int]string{
	http.StatusUnauthorized: unauthenticated, http.StatusNotFound: unknownEndpoint,
	http.StatusTooManyRequests: overQuota, http.StatusServiceUnavailable: unavailable,
}

// writes counts what is written to the responses of one client, one after the
// other.
type writes struct{ statuses, bodies int }

type countingWriter struct {
	http.ResponseWriter
	writes *writes
}

func (w *countingWriter) WriteHeader(status int) {
	w.writes.statuses++
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes.bodies++
	return w.ResponseWriter.Write(p)
}

// What a guard does to the middlewares and handlers around it.
var middleware = []testCase{
	{name: "behind a denial no middleware and no handler runs", run: func(t *stage) {
		var behind, handler, before counter
		servers := t.denials(func(app *App) { app.Before = before.then(func(http.ResponseWriter, *http.Request) {}) },
			[]Link{behind.link(), {Guard: anonMany}, behind.link()}, handler.then(ok))
		for _, s := range servers {
			for path, status := range s.paths {
				t.wantProblem(s.get(path), status, details[status])
			}
		}
		before.want(t, 4)
		behind.want(t, 0)
		handler.want(t, 0)
	}},
	{name: "behind a group's denial no middleware of the group and no handler runs", run: func(t *stage) {
		var first, behind, handler counter
		guard := Group{Path: "/api", Chain: []Link{first.link(), {Guard: tenantNever}, behind.link()}}
		guard.Routes = []Route{{Method: http.MethodGet, Path: "/x", Chain: []Link{behind.link()}, Handler: handler.then(ok)}}
		s := t.serve(t.limiter(nil), App{Root: Group{Groups: []Group{guard}}})
		t.wantStatuses(func() answer { return s.get("/api/x", as("acme")) }, 200, 429, 429)
		t.wantProblem(s.get("/api/x", nil), http.StatusUnauthorized, unauthenticated)
		first.want(t, 4)
		behind.want(t, 2)
		handler.want(t, 1)
	}},
	{name: "a middleware between two guards runs when the first one allows", run: func(t *stage) {
		var between, handler counter
		app := App{Root: Group{Routes: []Route{{
			Method: http.MethodGet, Path: "/", Handler: handler.then(ok),
			Chain: []Link{{Guard: tenantTwo}, between.link(), {Guard: tenantNever}},
		}}}}
		s := t.serve(t.limiter(nil), app)
		t.wantStatuses(func() answer { return s.get("/", as("acme")) }, 200, 429, 429)
		between.want(t, 2)
		handler.want(t, 1)
	}},
	{name: "headers of other middleware survive an allowed request and every denial", run: func(t *stage) {
		before := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Request-Id", "42")
			w.Header().Add("Vary", "Accept")
			w.Header().Add("Set-Cookie", "session=1; Path=/")
			w.Header().Set("Content-Security-Policy", "default-src 'none'")
		}
		outer := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Access-Control-Allow-Origin", "https://example.com")
				w.Header().Set("Access-Control-Expose-Headers", "RateLimit, Retry-After")
				w.Header().Add("Vary", "Origin")
				w.Header().Add("Set-Cookie", "sentinel=1; Path=/")
				next.ServeHTTP(w, r)
			})
		}
		check := func(a answer) {
			t.Helper()
			t.wantHeader(a, "Access-Control-Allow-Origin", "https://example.com")
			t.wantHeader(a, "Access-Control-Expose-Headers", "RateLimit, Retry-After")
			t.wantHeader(a, "X-Request-Id", "42")
			t.wantHeader(a, "Vary", "Origin", "Accept")
			t.wantHeader(a, "Content-Security-Policy", "default-src 'none'")
			t.wantHeader(a, "Set-Cookie", "sentinel=1; Path=/", "session=1; Path=/")
		}
		up := t.serve(t.limiter(nil), App{Root: everything(ok), Before: before}, outer)
		down := t.serve(t.without(failureKinds[0]), App{Root: everything(ok), Before: before}, outer)
		a := up.get("/"+tenantNever, as("acme"))
		t.wantOK(a)
		check(a)
		for _, step := range []struct {
			a      answer
			status int
		}{
			{up.get("/"+tenantNever, as("acme")), http.StatusTooManyRequests},
			{up.get("/"+tenantNever, nil), http.StatusUnauthorized},
			{up.get("/"+unknown, as("acme")), http.StatusNotFound},
			{down.get("/"+tenantMany, as("acme")), http.StatusServiceUnavailable},
			{down.get("/"+anonMany, nil), http.StatusServiceUnavailable},
		} {
			t.wantProblem(step.a, step.status, details[step.status])
			check(step.a)
		}
		// An allowed anonymous answer has ours behind the others.
		a = up.get("/"+anonTwo, nil)
		if got := a.header.Values("Set-Cookie"); len(got) != 3 || !strings.HasPrefix(got[2], cookieName+"=") {
			t.Errorf("%d cookies, want the two of the application and then ours", len(got))
		}
	}},
	{name: "a denial has one status and one body for whoever counts them", run: func(t *stage) {
		var sent writes
		chain := []Link{{Guard: tenantMany}}
		count := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(&countingWriter{ResponseWriter: w, writes: &sent}, r)
			})
		}
		for _, s := range t.denials(func(*App) {}, chain, ok, count) {
			for path, status := range s.paths {
				sent.statuses, sent.bodies = 0, 0
				t.wantProblem(s.get(path), status, details[status])
				if sent.statuses != 1 || sent.bodies != 1 {
					t.Errorf("%s: the status was written %d times and the body in %d pieces, want one of each", path, sent.statuses, sent.bodies)
				}
			}
		}
	}},
	{name: "what a handler would have sent does not mark a denial", run: func(t *stage) {
		// A middleware that knows the length and type of what follows is wrong
		// about a denial.
		s := t.serve(t.limiter(nil), App{Root: everything(ok), Before: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Cache-Control", "public, max-age=3600")
			w.Header().Set("Retry-After", "1")
		}})
		t.wantOK(s.get("/"+tenantNever, as("acme")))
		a := s.get("/"+tenantNever, as("acme"))
		t.wantProblem(a, http.StatusTooManyRequests, overQuota)
		t.wantNone(a, "Retry-After")
	}},
	{name: "a custom denial is the one answer, with the headers set", run: func(t *stage) {
		var ran counter
		denial := func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(d.Status)
			fmt.Fprintf(w, "no %s: %s, %s, %v", r.URL.Path, d.Detail, d.Decision.Reason, d.Err != nil)
		}
		for _, s := range t.denials(func(app *App) { app.Denial = denial }, nil, ran.then(ok)) {
			for path, status := range s.paths {
				a := s.get(path)
				reason, failed := sentinel.Reason(""), true
				switch status {
				case http.StatusTooManyRequests:
					reason, failed = sentinel.ReasonRateLimited, false
					t.wantQuota(a, quota{tenantNever, 1, -1, 0, -1})
				case http.StatusServiceUnavailable:
					reason, failed = sentinel.ReasonFailClosed, false
				case http.StatusUnauthorized:
					t.wantHeader(a, "WWW-Authenticate", "Bearer")
				}
				plain, _, _ := strings.Cut(path, "?")
				if want := fmt.Sprintf("no %s: %s, %s, %v", plain, details[status], reason, failed); a.status != status || a.body != want {
					t.Errorf("%s: %d %q, want %d %q", path, a.status, a.body, status, want)
				}
				t.wantHeader(a, "Content-Type", "text/plain")
				t.wantHeader(a, "Cache-Control", "no-store")
			}
		}
		ran.want(t, 0)
	}},
	{name: "a custom denial may send another status", run: func(t *stage) {
		var ran counter
		denial := func(w http.ResponseWriter, _ *http.Request, _ sentinelhttp.Denial) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "teapot")
		}
		s := t.serve(t.limiter(nil), App{Root: guarded("/", ran.then(ok), tenantNever), Denial: denial})
		t.wantOK(s.get("/", as("acme")))
		a := s.get("/", as("acme"))
		if a.status != http.StatusTeapot || a.body != "teapot" {
			t.Errorf("%d %q", a.status, a.body)
		}
		ran.want(t, 1)
	}},
	{name: "a custom denial's body without a status has the denial's", run: func(t *stage) {
		denial := func(w http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) {
			_, _ = io.WriteString(w, "no: ")
			_, _ = io.WriteString(w, d.Detail)
		}
		for _, s := range t.denials(func(app *App) { app.Denial = denial }, nil, ok) {
			for path, status := range s.paths {
				if a := s.get(path); a.status != status || a.body != "no: "+details[status] {
					t.Errorf("%s: %d %q, want %d", path, a.status, a.body, status)
				}
			}
		}
	}},
	{name: "a custom denial that writes nothing leaves the default answer", run: func(t *stage) {
		var ran counter
		denial := func(http.ResponseWriter, *http.Request, sentinelhttp.Denial) {}
		for _, s := range t.denials(func(app *App) { app.Denial = denial }, nil, ran.then(ok)) {
			for path, status := range s.paths {
				t.wantProblem(s.get(path), status, details[status])
			}
		}
		ran.want(t, 0)
	}},
	{name: "an announcement does not stand for a denial's answer", run: func(t *stage) {
		hint := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
		}
		for what, alter := range map[string]func(*App){
			"before it": func(app *App) { app.Before = hint },
			"by a custom denial": func(app *App) {
				app.Denial = func(w http.ResponseWriter, r *http.Request, _ sentinelhttp.Denial) { hint(w, r) }
			},
		} {
			var ran counter
			for _, s := range t.denials(alter, nil, ran.then(ok)) {
				for path, status := range s.paths {
					a := s.get(path)
					if a.status != status {
						t.Errorf("announced %s:", what)
					}
					t.wantProblem(a, status, details[status])
				}
			}
			ran.want(t, 0)
		}
	}},
	{name: "a custom denial may write the default answer", run: func(t *stage) {
		denial := func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
			w.Header().Set("X-Denied", "yes")
			d.ServeHTTP(w, r)
		}
		for _, s := range t.denials(func(app *App) { app.Denial = denial }, nil, ok) {
			for path, status := range s.paths {
				a := s.get(path)
				t.wantProblem(a, status, details[status])
				t.wantHeader(a, "X-Denied", "yes")
			}
		}
	}},
	{name: "an error handler never adds a second body to a denial", errors: true, run: func(t *stage) {
		var called, handler counter
		onError := func(w http.ResponseWriter, _ *http.Request, _ error) {
			called.n.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":"custom"}`)
		}
		for _, s := range t.denials(func(app *App) { app.OnError = onError }, nil, handler.then(ok)) {
			for path, status := range s.paths {
				called.n.Store(0)
				a := s.get(path)
				t.wantProblem(a, status, details[status])
				if status == http.StatusUnauthorized {
					t.wantHeader(a, "WWW-Authenticate", "Bearer")
				}
				if n := called.n.Load(); n > 1 {
					t.Errorf("%s: the error handler was called %d times", path, n)
				}
			}
		}
		handler.want(t, 0)
	}},
	{name: "an error of an allowed handler reaches the error handler once", errors: true, run: func(t *stage) {
		var called counter
		var seen atomic.Value
		boom := errors.New("the handler's own")
		app := App{Root: guarded("/", func(http.ResponseWriter, *http.Request) {}, tenantTwo, tenantMany)}
		for i := range app.Root.Routes {
			app.Root.Routes[i].Err = boom
		}
		app.OnError = func(w http.ResponseWriter, _ *http.Request, err error) {
			called.n.Add(1)
			seen.Store(err)
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"error":"custom"}`)
		}
		s := t.serve(t.limiter(nil), app)
		a := s.get("/", as("acme"))
		if a.status != http.StatusInternalServerError || a.body != `{"error":"custom"}` {
			t.Errorf("%d %q, want the error handler's answer", a.status, a.body)
		}
		t.wantQuota(a, quota{tenantMany, 50, 500_000, 49, 10_000})
		called.want(t, 1)
		if err, _ := seen.Load().(error); !errors.Is(err, boom) {
			t.Errorf("the error handler got %v", err)
		}
	}},
	{name: "a panic of a handler reaches the server as it is", run: func(t *stage) {
		app := App{Root: everything(ok)}
		boom := errors.New("boom")
		for path, value := range map[string]any{"/error": boom, "/text": "boom", "/abort": http.ErrAbortHandler} {
			app.Root.Routes = append(app.Root.Routes, guarded(path, func(http.ResponseWriter, *http.Request) { panic(value) }, tenantMany).Routes...)
		}
		var seen atomic.Value
		l := t.limiter(nil)
		s := t.serve(l, app, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if v := recover(); v != nil {
						seen.Store([]any{v})
						panic(v)
					}
				}()
				next.ServeHTTP(w, r)
			})
		})
		for path, value := range map[string]any{"/error": boom, "/text": "boom", "/abort": http.ErrAbortHandler} {
			// Through a socket, for net/http's client asks again where a
			// connection dies.
			if got := s.exchange("GET "+path+" HTTP/1.1", "Host: conformance", "Connection: close", "Authorization: "+bearer("acme"), ""); got != "" {
				t.Errorf("%s: answered %q, want a broken connection", path, got)
			}
			if got, _ := seen.Load().([]any); len(got) != 1 || got[0] != value {
				t.Errorf("%s: recovered %v, want %v", path, got, value)
			}
			t.wantOK(s.get("/"+tenantMany, as("acme")))
		}
		if log := s.log.String(); strings.Count(log, "http: panic serving") != 2 {
			t.Errorf("the server reported:\n%s", log)
		}
		t.wantLeft(l, "acme", tenantMany, 44) // three that panicked stay charged
	}},
	{name: "the framework's recovery turns a handler's panic into a 500", run: func(t *stage) {
		l := t.limiter(nil)
		app := App{Recovery: true, Root: everything(ok)}
		app.Root.Routes = append(app.Root.Routes, guarded("/panic", func(http.ResponseWriter, *http.Request) { panic("boom") }, tenantMany, anonMany).Routes...)
		s := t.serve(l, app)
		for range 3 {
			if a := s.get("/panic", as("acme")); a.status != http.StatusInternalServerError {
				t.Errorf("status %d %q, want 500", a.status, a.body)
			}
			t.wantOK(s.get("/"+tenantMany, as("acme")))
		}
		t.wantProblem(s.get("/panic", nil), http.StatusUnauthorized, unauthenticated)
		t.wantLeft(l, "acme", tenantMany, 44)
		if log := s.log.String(); strings.Contains(log, "panic serving") {
			t.Errorf("the server reported:\n%s", log)
		}
	}},
	{name: "a panic of the application's own options reaches the server", run: func(t *stage) {
		asks := func(r *http.Request, name string) {
			if r.Header.Get("X-Panic") == name {
				panic(name)
			}
		}
		app := App{
			Root:        everything(ok),
			TrustedPeer: func(r *http.Request) string { asks(r, "peer"); return r.RemoteAddr },
			Skip:        func(r *http.Request) bool { asks(r, "skip"); return false },
			Denial: func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
				asks(r, "denial")
				d.ServeHTTP(w, r)
			},
		}
		s := t.serve(t.limiter(nil), app)
		for _, name := range []string{"peer", "skip", "denial"} {
			got := s.exchange("GET /"+tenantMany+" HTTP/1.1", "Host: conformance", "Connection: close", "X-Panic: "+name, "")
			if got != "" || !strings.Contains(s.log.String(), ": "+name+"\n") {
				t.Errorf("%s: answered %q, reported:\n%s", name, got, s.log.String())
			}
			t.wantOK(s.get("/"+anonMany, nil))
			t.wantProblem(s.get("/"+tenantMany, nil), http.StatusUnauthorized, unauthenticated)
		}
	}},
	{name: "a guard without the Middleware refuses everything", run: func(t *stage) {
		l := t.limiter(nil)
		var ran counter
		s := t.serve(l, App{WithoutMiddleware: true, Root: everything(ran.then(ok))})
		for _, id := range []string{tenantTwo, anonTwo, unknown} {
			for _, header := range []http.Header{nil, as("acme")} {
				a := s.get("/"+id, header)
				t.wantProblem(a, http.StatusServiceUnavailable, unavailable)
				t.wantNone(a, ours...)
			}
		}
		ran.want(t, 0)
		t.wantLeft(l, "acme", tenantTwo, 2)
	}},
	{name: "mistakes in the wiring panic", run: func(t *stage) {
		l := t.limiter(nil)
		panics := func(what string, l *sentinel.Limiter, app App) {
			t.Helper()
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			t.adapter.New(l, app)
		}
		panics("a nil limiter", nil, App{Root: everything(ok)})
		for _, id := range []string{"Billing", "a b", "a/b", "a:b", "ä", "a\n", "{id}", "a%20b"} {
			panics(fmt.Sprintf("the id %q", id), l, App{Root: guarded("/", ok, id)})
		}
		for _, cost := range []sentinel.Cost{-1, 1 << 40} {
			panics(fmt.Sprintf("the cost %d", cost), l, App{Root: priced(tenantTwo, cost)})
		}
		t.adapter.New(l, App{Root: guarded("/", ok, "a-z_0.9")})
	}},
}
