package sentinel

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// plannedConfig has an endpoint with plans, and one without.
func plannedConfig() *Config {
	p := bucketPolicy("jobs", 10*Token, 0)
	p.Plans = map[string]Plan{
		"trial": {Numbers: Numbers{Capacity: 2 * Token}},
		"pro":   {Numbers: Numbers{Capacity: 100 * Token}},
	}
	p.Tenants = map[string]Plan{"giant": {Numbers: Numbers{Capacity: 5000 * Token}}}
	cfg := memoryConfig(p, bucketPolicy("plain", 7*Token, 0))
	cfg.App.JWTPlanClaim = "plan"
	cfg.Tenants = map[string]string{"listed": "pro", "giant": "trial"}
	return cfg
}

// The tenant's own numbers, its plan in the file, the application's word, the
// token's, in this order; whatever is unknown is the policy as it is.
func TestWhichPlan(t *testing.T) {
	asked := WithPlan(func(_ context.Context, tenant string) string {
		return map[string]string{"listed": "trial", "giant": "pro", "known": "trial", "odd": "no such plan"}[tenant]
	})
	l := openMemory(t, plannedConfig(), asked)
	defer l.Close()
	for _, tc := range []struct {
		tenant   string
		claim    any
		endpoint string
		want     int64
	}{
		{"giant", "trial", "jobs", 5000},
		{"listed", "trial", "jobs", 100},
		{"known", "pro", "jobs", 2},
		{"stranger", "pro", "jobs", 100},
		{"stranger", "trial", "jobs", 2},
		{"stranger", nil, "jobs", 10},
		{"stranger", "", "jobs", 10},
		{"stranger", "gold", "jobs", 10},
		{"stranger", 7, "jobs", 10},
		{"stranger", []string{"pro"}, "jobs", 10},
		{"odd", "pro", "jobs", 10},
		{"giant", "pro", "plain", 7},
	} {
		claims := jwt.MapClaims{"sub": tc.tenant, "exp": time.Now().Add(time.Hour).Unix()}
		if tc.claim != nil {
			claims["plan"] = tc.claim
		}
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("unit-jwt-key-0123456789-abcdefghij"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Check(t.Context(), Request{EndpointID: tc.endpoint, Authorization: []string{"Bearer " + token}})
		if err != nil || d.Limit != tc.want {
			t.Errorf("%s with claim %v: limit %d, want %d (%v)", tc.tenant, tc.claim, d.Limit, tc.want, err)
		}
	}
	if d := mustAllow(t, l, "listed", "jobs"); d.Limit != 100 {
		t.Errorf("Allow: %+v", d)
	}
	if d, err := l.Peek(t.Context(), "known", "jobs"); err != nil || d.Limit != 2 {
		t.Errorf("Peek: %+v, %v", d, err)
	}
}

// A plan that no policy has is counted each time and told once.
func TestUnknownPlan(t *testing.T) {
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	l := openMemory(t, plannedConfig(), WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithRegisterer(registry),
		WithPlan(func(context.Context, string) string { return "gold\n" + strings.Repeat("x", 1000) }))
	defer l.Close()
	for range 3 {
		mustAllow(t, l, "stranger", "jobs")
		mustAllow(t, l, "stranger", "plain") // has no plans, so it does not ask
	}
	want := "# HELP sentinel_unknown_plans_total Decisions by the policy as it is, because no policy has the tenant's plan, by endpoint.\n" +
		"# TYPE sentinel_unknown_plans_total counter\nsentinel_unknown_plans_total{endpoint_id=\"jobs\"} 3\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_unknown_plans_total"); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "a plan that no policy has"); n != 1 || log.Len() > 1000 {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// A tenant keeps its bucket from plan to plan, cut to the capacity, and gains
// nothing by the change. The numbers of the first limit may be left as they are.
func TestPlanChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bucketPolicy("jobs", 10*Token, Token/100)
		p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 1000, Window: time.Hour}}
		p.Plans = map[string]Plan{
			"small": {Numbers: Numbers{Capacity: 3 * Token, RefillRate: Token / 100}},
			"large": {Numbers: Numbers{Capacity: 50 * Token, RefillRate: Token}, Also: []Numbers{{Limit: 5}}},
		}
		plan := ""
		l := openMemory(t, memoryConfig(p), WithPlan(func(context.Context, string) string { return plan }))
		defer l.Close()
		check := func(now string, allowed bool, limit, remaining int64) {
			t.Helper()
			plan = now
			if d := mustAllow(t, l, "acme", "jobs"); d.Allowed != allowed || d.Limit != limit || d.Remaining != remaining {
				t.Fatalf("plan %q: %+v", now, d)
			}
		}
		check("", true, 10, 9)
		check("small", true, 3, 2)  // 9 cut to 3, less one
		check("large", true, 50, 1) // not 49
		check("", true, 10, 0)      // 3 - 1 - 1 - 1
		check("", false, 10, 0)
		check("small", false, 3, 0)
		check("large", false, 50, 0)
		time.Sleep(10 * time.Second) // at one a second
		check("large", true, 5, 0)
		check("small", true, 3, 2) // nine are left, cut to three, less one
		if l.store.(*memoryStore).table.Len() != 2 {
			t.Errorf("%d keys", l.store.(*memoryStore).table.Len())
		}
	})
}
