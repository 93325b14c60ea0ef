package conformance

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// priced is a server with one route for each cost of one endpoint, "/" and the
// cost.
func priced(id string, costs ...sentinel.Cost) Group {
	var root Group
	for _, cost := range costs {
		root.Routes = append(root.Routes, Route{
			Method: http.MethodGet, Path: fmt.Sprintf("/%d", cost), Chain: []Link{{Guard: id, Cost: cost}}, Handler: ok,
		})
	}
	return root
}

// many is the quota of the endpoints with that name.
func many(id string, left, next int64) quota { return quota{id, 50, 500_000, left, next} }

// alsoHourly adds a second limit to an endpoint, requests in an hour.
func alsoHourly(id string, limit int64) func(*sentinel.Config) {
	return func(c *sentinel.Config) {
		p := c.Policies[id]
		p.Also = []sentinel.Quota{{Algorithm: sentinel.SlidingWindow, Limit: limit, Window: time.Hour}}
		c.Policies[id] = p
	}
}

// withPro gives the tenants of the plan pro 5 tokens, at tenantTwo.
func withPro(c *sentinel.Config) {
	p := c.Policies[tenantTwo]
	p.Plans = map[string]sentinel.Plan{"pro": {Numbers: sentinel.Numbers{Capacity: 5 * sentinel.Token, RefillRate: 100}}}
	c.Policies[tenantTwo] = p
}

func two(left int64) quota { return quota{tenantTwo, 2, 20_000, left, 10_000} }

func pro(left int64) quota { return quota{tenantTwo, 5, 50_000, left, 10_000} }

// Routes that cost more, plans, and several limits on one endpoint.
var quotas = []testCase{
	{name: "a route that costs more is charged its cost at once or nothing", run: func(t *stage) {
		for _, id := range []string{tenantMany, anonMany} {
			s := t.serve(t.limiter(nil), App{Root: priced(id, 30, 20, 1)})
			header := as("acme")
			header.Set("Cookie", goodCookie(clientID(1)))
			a := s.get("/30?cost=1", header)
			t.wantOK(a)
			t.wantQuota(a, many(id, 20, 10_000))
			for range 2 { // the second is known to be denied
				a = s.get("/30", header)
				t.wantProblem(a, http.StatusTooManyRequests, overQuota)
				if wait := t.quotaOf(a).nxt; wait > 100_000 || wait < 100_000-slow { // for ten tokens
					t.Errorf("t=%d, want the wait for ten tokens", wait)
				}
				t.wantHeader(a, "Retry-After", fmt.Sprint(t.quotaOf(a).nxt))
			}
			a = s.get("/20", header) // all that is left
			t.wantOK(a)
			t.wantQuota(a, many(id, 0, 10_000))
			t.wantOver(s.get("/1", header), many(id, 0, 10_000))
		}
	}},
	{name: "a cost above the quota is answered 429 without a time", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: priced(tenantTwo, 3, 2)})
		for range 2 {
			a := s.get("/3", as("acme"))
			t.wantProblem(a, http.StatusTooManyRequests, overQuota)
			t.wantNone(a, "Retry-After")
		}
		t.wantOK(s.get("/2", as("acme")))
	}},
	{name: "two guards with one id are one decision only where their costs are the same", run: func(t *stage) {
		chain := []Link{{Guard: tenantMany, Cost: 3}, {Guard: tenantMany, Cost: 3}, {Guard: tenantMany, Cost: 2}, {Guard: tenantMany}}
		s := t.serve(t.limiter(nil), App{Root: Group{Routes: []Route{{Method: http.MethodGet, Path: "/", Chain: chain, Handler: ok}}}})
		a := s.get("/", as("acme"))
		t.wantOK(a)
		t.wantQuota(a, many(tenantMany, 50-3-2-1, 10_000))
	}},
	{name: "a plan that the token claims gives its numbers", run: func(t *stage) {
		s := t.serve(t.limiter(func(c *sentinel.Config) {
			withPro(c)
			c.App.JWTPlanClaim = "plan"
		}), App{Root: everything(ok)})
		claims := func(plan string) http.Header {
			return with("Authorization", "Bearer "+token("HS256", jwtSecret, fmt.Sprintf(`{"sub":"acme","exp":%d,"plan":%q}`, inOneHour(), plan)))
		}
		t.wantQuota(s.get("/"+tenantTwo, as("acme")), two(1))
		t.wantQuota(s.get("/"+tenantTwo, claims("none.of.ours")), two(0))
		t.wantStatuses(func() answer { return s.get("/"+tenantTwo, as("acme")) }, 429)
		// What is left of a bucket is left under every plan. A new tenant's is full.
		t.wantOver(s.get("/"+tenantTwo, claims("pro")), pro(0))
		other := with("Authorization", "Bearer "+token("HS256", jwtSecret, fmt.Sprintf(`{"sub":"globex","exp":%d,"plan":"pro"}`, inOneHour())))
		for left := int64(4); left >= 0; left-- {
			t.wantQuota(s.get("/"+tenantTwo, other), pro(left))
		}
		t.wantOver(s.get("/"+tenantTwo, other), pro(0))
	}},
	{name: "a plan by the application's word is found by what it has put into the request's context", run: func(t *stage) {
		type planKey struct{}
		l := t.limiter(withPro, sentinel.WithPlan(func(ctx context.Context, _ string) string {
			plan, _ := ctx.Value(planKey{}).(string)
			return plan
		}))
		lookUp := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), planKey{}, r.Header.Get("Session-Plan"))))
			})
		}
		s := t.serve(l, App{Root: everything(ok)}, lookUp)
		header := as("acme")
		header.Set("Session-Plan", "pro")
		t.wantQuota(s.get("/"+tenantTwo, header), pro(4))
		t.wantQuota(s.get("/"+tenantTwo, as("globex")), two(1))
	}},
	{name: "a tenant's own numbers stand above its plan", run: func(t *stage) {
		s := t.serve(t.limiter(func(c *sentinel.Config) {
			withPro(c)
			p := c.Policies[tenantTwo]
			p.Tenants = map[string]sentinel.Plan{"acme": {Numbers: sentinel.Numbers{Capacity: sentinel.Token}}}
			c.Policies[tenantTwo], c.Tenants = p, map[string]string{"acme": "pro", "globex": "pro"}
		}), App{Root: everything(ok)})
		t.wantQuota(s.get("/"+tenantTwo, as("acme")), quota{tenantTwo, 1, -1, 0, -1})
		t.wantOver(s.get("/"+tenantTwo, as("acme")), quota{tenantTwo, 1, -1, 0, -1})
		t.wantQuota(s.get("/"+tenantTwo, as("globex")), pro(4))
		t.wantQuota(s.get("/"+tenantTwo, as("initech")), two(1))
	}},
	{name: "of several limits all are listed and the tightest is told", run: func(t *stage) {
		for _, id := range []string{tenantMany, anonMany} {
			s := t.serve(t.limiter(alsoHourly(id, 2)), App{Root: everything(ok)})
			header := as("acme")
			header.Set("Cookie", goodCookie(clientID(1)))
			for _, want := range []struct{ status, left int }{{200, 1}, {200, 0}, {429, 0}, {429, 0}} {
				a := s.get("/"+id, header)
				if a.status != want.status {
					t.Errorf("status %d, want %d", a.status, want.status)
				}
				t.wantHeader(a, "RateLimit-Policy", fmt.Sprintf(`"%s";q=50;w=500000, "%[1]s:2";q=2;w=3600`, id))
				if got, prefix := a.header.Get("RateLimit"), fmt.Sprintf(`"%s:2";r=%d;t=`, id, want.left); !strings.HasPrefix(got, prefix) {
					t.Errorf("RateLimit %q, want %s...", got, prefix)
				}
			}
		}
	}},
	{name: "of several limits a denial charges none", run: func(t *stage) {
		s := t.serve(t.limiter(alsoHourly(tenantTwo, 3)), App{Root: priced(tenantTwo, 1, 3)})
		for range 2 { // the window admits it, the bucket of two does not
			a := s.get("/3", as("acme"))
			t.wantProblem(a, http.StatusTooManyRequests, overQuota)
			t.wantNone(a, "Retry-After")
		}
		t.wantStatuses(func() answer { return s.get("/1", as("acme")) }, 200, 200, 429)
		s = t.serve(t.limiter(alsoHourly(tenantMany, 3)), App{Root: priced(tenantMany, 1, 4)})
		for range 2 { // the bucket of fifty admits it, the window does not
			t.wantProblem(s.get("/4", as("acme")), http.StatusTooManyRequests, overQuota)
		}
		t.wantStatuses(func() answer { return s.get("/1", as("acme")) }, 200, 200, 200, 429)
	}},
}
