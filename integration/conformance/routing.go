package conformance

import (
	"fmt"
	"net/http"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// never is how many requests a case sends that must not be charged: more than
// any quota would bear.
const never = 5

// wantLeft checks what remains to a tenant.
func (t *stage) wantLeft(l *sentinel.Limiter, tenant, id string, left int64) {
	t.Helper()
	d, err := l.Peek(t.Context(), tenant, id)
	if err != nil {
		t.Fatalf("Limiter.Peek: %v", err)
	}
	if d.Remaining != left {
		t.Errorf("%s has %d left at %s, want %d", tenant, d.Remaining, id, left)
	}
}

// wantNoRoute checks that the framework, and not Sentinel, says that there is
// no such path. Some redirect one without a trailing slash first.
func (t *stage) wantNoRoute(a answer, path string) {
	t.Helper()
	if a.status != http.StatusNotFound && (a.status < 300 || a.status > 399) {
		t.Errorf("%s: status %d %q, want the framework's 404", path, a.status, a.body)
	}
	t.wantUntouched(a)
}

// What is decided once, twice and never, wherever the guards stand.
var routing = []testCase{
	{name: "a path without a route costs nothing", run: func(t *stage) {
		l := t.limiter(nil)
		app := App{Root: guarded("/two", ok, tenantTwo)}
		app.Root.Groups = []Group{{Path: "/api", Routes: guarded("/two", ok, tenantTwo).Routes}}
		s := t.serve(l, app)
		for range never {
			for _, path := range []string{"/", "/nothing", "/two/nothing", "/api", "/api/nothing", "/api/two/nothing", "/twofold", "/two/", "/TWO"} {
				a := s.get(path, as("acme"))
				t.wantNoRoute(a, path)
			}
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
	}},
	{name: "a path without a route in a guarded group costs nothing", run: func(t *stage) {
		l := t.limiter(nil)
		guard := []Link{{Guard: tenantTwo}}
		inner := Group{Path: "/v1", Chain: []Link{{Guard: tenantMany}}, Routes: guarded("/x", ok).Routes}
		app := App{Root: Group{Groups: []Group{{Path: "/api", Chain: guard, Routes: guarded("/x", ok).Routes, Groups: []Group{inner}}}}}
		s := t.serve(l, app)
		for range never {
			for _, path := range []string{"/api", "/api/nothing", "/api/x/nothing", "/api/v1", "/api/v1/nothing", "/api/v1/x/nothing"} {
				for _, header := range []http.Header{nil, as("acme")} {
					a := s.get(path, header)
					t.wantNoRoute(a, path)
				}
			}
			for _, path := range []string{"/api/x", "/api/v1/x"} {
				a := s.do(http.MethodDelete, path, as("acme"))
				if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
					t.Errorf("DELETE %s: status %d, want 404 or 405", path, a.status)
				}
				t.wantUntouched(a)
			}
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
		t.wantLeft(l, "acme", tenantMany, 50)
		t.wantOK(s.get("/api/v1/x", as("acme")))
		t.wantLeft(l, "acme", tenantTwo, 1)
		t.wantLeft(l, "acme", tenantMany, 49)
	}},
	{name: "a method without a route costs nothing", run: func(t *stage) {
		l := t.limiter(nil)
		app := App{Root: guarded("/two", ok, tenantTwo)}
		app.Root.Groups = []Group{{Path: "/api", Routes: guarded("/two", ok, tenantTwo).Routes}}
		s := t.serve(l, app)
		for range never {
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch} {
				for _, path := range []string{"/two", "/api/two"} {
					a := s.do(method, path, as("acme"))
					// Some frameworks answer 404, and some OPTIONS by themselves.
					if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed && method != http.MethodOptions {
						t.Errorf("%s %s: status %d, want 404 or 405", method, path, a.status)
					}
					t.wantUntouched(a)
				}
			}
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
	}},
	{name: "a skipped preflight costs nothing and needs no credential", run: func(t *stage) {
		l := t.limiter(nil)
		var seen decisions
		preflight := func(r *http.Request) bool {
			return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
		}
		app := App{Skip: preflight}
		for path, id := range map[string]string{"/two": tenantTwo, "/anon": anonTwo, "/unknown": unknown} {
			for _, method := range []string{http.MethodOptions, http.MethodGet} {
				app.Root.Routes = append(app.Root.Routes, Route{Method: method, Path: path, Chain: []Link{{Guard: id}}, Handler: seen.handler})
			}
		}
		s := t.serve(l, app)
		for range never {
			for _, path := range []string{"/two", "/anon", "/unknown"} {
				a := s.do(http.MethodOptions, path, with("Access-Control-Request-Method", "GET", "Origin", "https://example.com"))
				t.wantOK(a)
				t.wantUntouched(a)
				if seen.found {
					t.Errorf("the handler found the decision %+v", seen.last())
				}
			}
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
		t.wantProblem(s.do(http.MethodOptions, "/two", nil), http.StatusUnauthorized, unauthenticated) // no preflight
		t.wantStatuses(func() answer { return s.get("/anon", nil) }, 200, 200, 429)
	}},
	{name: "a preflight that a middleware outside answers costs nothing", run: func(t *stage) {
		l := t.limiter(nil)
		s := t.serve(l, App{Root: everything(ok)}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodOptions {
					next.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Access-Control-Allow-Origin", "*")
				w.WriteHeader(http.StatusNoContent)
			})
		})
		for range never {
			a := s.do(http.MethodOptions, "/"+anonTwo, nil)
			if a.status != http.StatusNoContent {
				t.Errorf("status %d", a.status)
			}
			t.wantUntouched(a)
		}
		t.wantStatuses(func() answer { return s.get("/"+anonTwo, nil) }, 200, 200, 429)
	}},
	{name: "a route without a guard is never limited", run: func(t *stage) {
		l := t.limiter(nil)
		var seen decisions
		app := App{Root: guarded("/two", ok, tenantTwo)}
		app.Root.Routes = append(app.Root.Routes, guarded("/free", seen.handler).Routes...)
		s := t.serve(l, app)
		for range never {
			a := s.get("/free", as("acme"))
			t.wantOK(a)
			t.wantUntouched(a)
			t.wantOK(s.get("/free", nil))
		}
		if seen.found || seen.run != 2*never {
			t.Errorf("ran %d times, found a decision: %v", seen.run, seen.found)
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
	}},
	{name: "the same id twice on a route is decided once", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: guarded("/", ok, tenantTwo, tenantTwo, tenantTwo)})
		for left := range int64(2) {
			a := s.get("/", as("acme"))
			t.wantOK(a)
			t.wantQuota(a, quota{tenantTwo, 2, 20_000, 1 - left, 10_000})
		}
		t.wantOver(s.get("/", as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000})
	}},
	{name: "the same id on a group and on its routes is decided once", run: func(t *stage) {
		guard := []Link{{Guard: tenantTwo}}
		inner := Group{Path: "/v1", Chain: guard, Routes: guarded("/two", ok, tenantTwo).Routes}
		app := App{Root: Group{Groups: []Group{{Path: "/api", Chain: guard, Groups: []Group{inner}}}}}
		s := t.serve(t.limiter(nil), app)
		t.wantStatuses(func() answer { return s.get("/api/v1/two", as("acme")) }, 200, 200, 429)
	}},
	{name: "the same id with another between is decided once", run: func(t *stage) {
		l := t.limiter(nil)
		s := t.serve(l, App{Root: guarded("/", ok, tenantTwo, tenantMany, tenantTwo)})
		a := s.get("/", as("acme"))
		t.wantOK(a)
		t.wantQuota(a, quota{tenantTwo, 2, 20_000, 1, 10_000}) // the last guard's numbers
		t.wantLeft(l, "acme", tenantTwo, 1)
		t.wantLeft(l, "acme", tenantMany, 49)
	}},
	{name: "two ids on a route are two decisions in order and the first stays charged", run: func(t *stage) {
		l := t.limiter(nil)
		var ran counter
		s := t.serve(l, App{Root: guarded("/", ran.then(ok), tenantMany, tenantTwo)})
		for left := range int64(2) {
			a := s.get("/", as("acme"))
			t.wantOK(a)
			t.wantQuota(a, quota{tenantTwo, 2, 20_000, 1 - left, 10_000})
		}
		t.wantOver(s.get("/", as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000})
		t.wantLeft(l, "acme", tenantMany, 47)
		ran.want(t, 2)
	}},
	{name: "behind a guard that denies no other guard is charged", run: func(t *stage) {
		l := t.limiter(nil)
		s := t.serve(l, App{Root: guarded("/", ok, tenantNever, tenantTwo)})
		t.wantStatuses(func() answer { return s.get("/", as("acme")) }, 200, 429, 429, 429)
		t.wantLeft(l, "acme", tenantTwo, 1)
		t.wantNone(s.get("/", nil), "RateLimit", "RateLimit-Policy", "Retry-After")
	}},
	{name: "guards of nested groups decide from the outside in", run: func(t *stage) {
		l := t.limiter(nil)
		inner := Group{Path: "/v1", Chain: []Link{{Guard: tenantTwo}}, Routes: guarded("/x", ok, tenantNever).Routes}
		outer := Group{Path: "/api", Chain: []Link{{Guard: tenantMany}}, Groups: []Group{inner}}
		s := t.serve(l, App{Root: Group{Groups: []Group{outer}}})
		t.wantQuota(s.get("/api/v1/x", as("acme")), quota{tenantNever, 1, -1, 0, -1})
		t.wantOver(s.get("/api/v1/x", as("acme")), quota{tenantNever, 1, -1, 0, -1})       // by the innermost
		t.wantOver(s.get("/api/v1/x", as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000}) // by the one around it
		t.wantLeft(l, "acme", tenantMany, 47)
	}},
	{name: "a guard of a group is none of its neighbours'", run: func(t *stage) {
		l := t.limiter(nil)
		app := App{Root: guarded("/free", ok)}
		app.Root.Groups = []Group{
			{Path: "/api", Chain: []Link{{Guard: tenantTwo}}, Routes: guarded("/x", ok).Routes},
			{Path: "/open", Routes: guarded("/x", ok).Routes},
			{Path: "/many", Chain: []Link{{Guard: tenantMany}}, Routes: guarded("/x", ok).Routes},
		}
		s := t.serve(l, app)
		for range never {
			for _, path := range []string{"/free", "/open/x"} {
				a := s.get(path, as("acme"))
				t.wantOK(a)
				t.wantUntouched(a)
			}
			t.wantUntouched(s.get("/nothing", as("acme")))
			t.wantOK(s.get("/many/x", as("acme")))
		}
		t.wantLeft(l, "acme", tenantTwo, 2)
		t.wantStatuses(func() answer { return s.get("/api/x", as("acme")) }, 200, 200, 429)
	}},
	{name: "routes with the same id share its quota", run: func(t *stage) {
		var app App
		for i := range 4 {
			app.Root.Routes = append(app.Root.Routes, guarded(fmt.Sprintf("/%d", i), ok, tenantTwo).Routes...)
		}
		s := t.serve(t.limiter(nil), app)
		i := -1
		t.wantStatuses(func() answer {
			i++
			return s.get(fmt.Sprintf("/%d", i), as("acme"))
		}, 200, 200, 429, 429)
	}},
	{name: "every method of a path has the guard that it was given", run: func(t *stage) {
		l := t.limiter(nil)
		var app App
		for method, id := range map[string]string{
			http.MethodGet: tenantTwo, http.MethodPost: tenantNever, http.MethodPut: tenantMany, http.MethodDelete: unknown,
		} {
			app.Root.Routes = append(app.Root.Routes, Route{Method: method, Path: "/x", Chain: []Link{{Guard: id}}, Handler: ok})
		}
		s := t.serve(l, app)
		t.wantQuota(s.do(http.MethodPost, "/x", as("acme")), quota{tenantNever, 1, -1, 0, -1})
		t.wantProblem(s.do(http.MethodDelete, "/x", as("acme")), http.StatusNotFound, unknownEndpoint)
		t.wantOK(s.do(http.MethodPut, "/x", as("acme")))
		t.wantLeft(l, "acme", tenantTwo, 2)
		t.wantLeft(l, "acme", tenantMany, 49)
	}},
}
