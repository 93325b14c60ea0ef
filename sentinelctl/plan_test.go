package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The plan that counts is the limiter's: the tenant's own numbers before its plan
// in the file, and that before the plan of its token.
func TestPlans(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sentinel.json")
	if err := os.WriteFile(file, []byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "${SENTINELCTL_TEST_JWT_SECRET}", "jwt_plan_claim": "plan"},
		"tenants": {"acme": "pro", "globex": "pro"},
		"policies": {"a": {"endpoint_id": "a", "algorithm": "token_bucket", "capacity": 1, "refill_per_second": 1, "fail_mode": "fail_closed",
			"fallback_per_second": 1, "policy_version": 1,
			"plans": {"pro": {"capacity": 20, "refill_per_second": 2}, "trial": {"capacity": 3, "refill_per_second": 1}},
			"tenants": {"globex": {"capacity": 500, "refill_per_second": 5}}}}
	}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for claims, want := range map[string]string{
		`{"sub": "acme", "plan": "trial"}`:   "pro, by tenants of the file\nlimit: token bucket: 20 requests",
		`{"sub": "globex", "plan": "trial"}`: "the numbers of this tenant alone, under tenants of the policy\nlimit: token bucket: 500 requests",
		`{"sub": "b", "plan": "trial"}`:      "trial, by the claim plan\nlimit: token bucket: 3 requests",
		`{"sub": "b", "plan": "gold"}`:       "gold, by the claim plan; this endpoint has no such plan, so the policy as it is\nlimit: token bucket: 1 requests",
		`{"sub": "b"}`:                       "none, so the policy as it is\nlimit: token bucket: 1 requests",
	} {
		plan, limit, _ := strings.Cut(want, "\nlimit: ")
		r := runWith("", false, "explain", file, "-endpoint", "a", "-token-claims", claims)
		if !strings.Contains(r.out, "plan             "+plan+"\n") || !strings.Contains(r.out, limit) {
			t.Errorf("%s: want %q in\n%s%s", claims, want, r.out, r.err)
		}
	}
	t.Setenv("SENTINELCTL_TEST_JWT_SECRET", jwtSecret)
	if r := runWith("", false, "peek", file, "-endpoint", "a", "-tenant", "b", "-plan", "gold"); r.code != exitUsage || !strings.Contains(r.err, `-plan: a has no plan "gold"`) {
		t.Errorf("%+v", r)
	}
	in := strings.Repeat(`{"time": 1, "tenant": "acme"}`+"\n", 30) + strings.Repeat(`{"time": 1, "tenant": "b"}`+"\n", 3)
	r := runWith(in, false, "simulate", file, "-log", "-", "-json")
	if !strings.Contains(r.out, `"admitted": 21`) || !strings.Contains(r.out, `"admitted": 20`) {
		t.Errorf("20 of acme and 1 of b: %s%s", r.out, r.err)
	}
}
