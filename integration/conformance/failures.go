package conformance

import (
	"net/http"
	"slices"
	"strconv"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// emergencies are the reasons of requests that the emergency bucket admitted.
var emergencies = []sentinel.Reason{
	sentinel.ReasonRedisTimeout, sentinel.ReasonRedisConnectionError, sentinel.ReasonRedisNoScriptRetry, sentinel.ReasonCircuitOpen,
}

// What the outcomes look like while the store is away. These limiters have a
// store of their own, which is broken.
var failures = []testCase{
	{name: "while Redis is away an endpoint that fails open admits without quota headers", run: func(t *stage) {
		for _, f := range failureKinds {
			for _, id := range []string{tenantTwo, anonTwo} {
				var seen decisions
				s := t.serve(t.without(f), App{Root: guarded("/", seen.handler, id)})
				a := s.get("/", as("acme"))
				t.wantOK(a)
				t.wantNone(a, "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate")
				if d := seen.last(); !d.Allowed || d.FromStore || !slices.Contains(emergencies, d.Reason) {
					t.Errorf("%s, Redis %s: the handler ran with %+v", id, f.name, d)
				}
				if id == anonTwo {
					t.newCookie(a)
				}
			}
		}
	}},
	{name: "an empty emergency bucket is answered 429 without quota headers", run: func(t *stage) {
		s := t.serve(t.without(failureKinds[0]), App{Root: everything(ok)})
		var answers []answer
		for _, id := range []string{tenantTwo, anonTwo} {
			t.wantOK(s.get("/"+id, as("acme")))
			a := s.get("/"+id, as("acme"))
			t.wantProblem(a, http.StatusTooManyRequests, overQuota)
			if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 500-slow || n > 500 {
				t.Errorf("Retry-After %q, want 500", a.header.Get("Retry-After"))
			}
			a.header.Del("Retry-After")
			t.wantNone(a, ours...)
			answers = append(answers, a)
		}
		t.wantSame(answers[0], answers[1])
	}},
	{name: "while Redis is away an endpoint that fails closed answers 503", run: func(t *stage) {
		for _, f := range failureKinds {
			var ran counter
			app := App{}
			app.Root.Routes = append(guarded("/tenant", ran.then(ok), tenantMany).Routes, guarded("/anon", ran.then(ok), anonMany).Routes...)
			s := t.serve(t.without(f), app)
			for range 4 { // fewer and more than the breaker bears
				tenant, anon := s.get("/tenant", as("acme")), s.get("/anon", nil)
				t.wantProblem(tenant, http.StatusServiceUnavailable, unavailable)
				t.wantNone(tenant, "RateLimit", "RateLimit-Policy", "WWW-Authenticate", "Set-Cookie")
				if id := tenant.header.Get("Sentinel-Decision-Id"); !decisionForm.MatchString(id) || id == anon.header.Get("Sentinel-Decision-Id") {
					t.Errorf("Sentinel-Decision-Id %q, want one of its own", id)
				}
				tenant.header.Del("Retry-After") // only if it is known
				anon.header.Del("Retry-After")
				t.wantSame(tenant, anon)
			}
			ran.want(t, 0)
		}
	}},
	{name: "while Redis is away an endpoint that is not enforced runs the handler", run: func(t *stage) {
		for _, f := range failureKinds {
			var seen decisions
			s := t.serve(t.without(f, unenforced), App{Root: everything(seen.handler)})
			for range 4 {
				for _, id := range []string{tenantMany, anonMany, tenantTwo} { // the last one fails open
					a := s.get("/"+id, as("acme"))
					t.wantOK(a)
					t.wantNone(a, "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "Sentinel-Decision-Id")
					if d := seen.last(); !d.Allowed || !d.Unenforced || d.FromStore || id != tenantTwo && !d.WouldDeny {
						t.Errorf("%s, Redis %s: the handler ran with %+v", id, f.name, d)
					}
				}
			}
			t.wantProblem(s.get("/"+tenantMany, nil), http.StatusUnauthorized, unauthenticated)
		}
	}},
	{name: "while Redis is away strangers and unknown endpoints are answered as ever", run: func(t *stage) {
		up, down := t.serve(t.limiter(nil), App{Root: everything(ok)}), t.serve(t.without(failureKinds[0]), App{Root: everything(ok)})
		for range 7 { // also when the breaker is open
			t.wantSame(up.get("/"+tenantMany, nil), down.get("/"+tenantMany, nil))
			t.wantSame(up.get("/"+unknown, nil), down.get("/"+unknown, nil))
			t.wantSame(up.get("/"+unknown, as("acme")), down.get("/"+unknown, as("acme")))
			t.wantProblem(down.get("/"+tenantMany, as("acme")), http.StatusServiceUnavailable, unavailable)
		}
	}},
	{name: "a limiter that was closed answers as one without Redis", run: func(t *stage) {
		l := t.limiter(nil)
		s := t.serve(l, App{Root: everything(ok)})
		t.wantOK(s.get("/"+tenantMany, as("acme")))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		a := s.get("/"+tenantMany, as("acme"))
		t.wantProblem(a, http.StatusServiceUnavailable, unavailable)
		t.wantNone(a, ours...)
		a = s.get("/"+tenantTwo, as("acme"))
		t.wantOK(a)
		t.wantNone(a, "RateLimit", "RateLimit-Policy")
	}},
}
