package sentinel

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// besideFeatures is a configuration in which the endpoint jobs uses nothing that a
// policy may use, and others use all of it.
func besideFeatures(jobs Policy) *Config {
	all := bucketPolicy("all", 10*Token, Token)
	all.Version, all.CarryOver, all.Unenforced = 2, 1, true
	all.Also = []Quota{{Algorithm: SlidingWindow, Limit: 1000, Window: time.Hour}}
	all.Plans = map[string]Plan{"pro": {Numbers: Numbers{Capacity: 100 * Token, RefillRate: Token}}}
	all.Tenants = map[string]Plan{"tenant-0": {Numbers: Numbers{Capacity: 500 * Token, RefillRate: Token}}}
	all.Candidate = &Candidate{Quota: Quota{Algorithm: TokenBucket, Capacity: Token}}
	cfg := memoryConfig(all, jobs)
	cfg.Tenants = map[string]string{"tenant-0": "pro"}
	cfg.App.JWTPlanClaim = "plan"
	return cfg
}

// besideFeaturesIn opens a limiter of it. No plan is asked for where there is none.
func besideFeaturesIn(tb testing.TB, jobs Policy) *Limiter {
	tb.Helper()
	return openMemory(tb, besideFeatures(jobs), WithRegisterer(prometheus.NewRegistry()),
		WithPlan(func(context.Context, string) string {
			tb.Error("the plan is asked for at an endpoint that has none")
			return ""
		}))
}

// An endpoint that uses no feature asks Redis the same, to the letter, as where
// there is nothing else, and its decisions allocate nothing.
func TestUnusedFeaturesCostNothing(t *testing.T) {
	jobs := bucketPolicy("jobs", 1<<52, 1<<40)
	alone, beside := openMemory(t, memoryConfig(jobs)), besideFeaturesIn(t, jobs)
	defer alone.Close()
	defer beside.Close()
	asks := func(l *Limiter) []any {
		s := l.setup.Load()
		var g group
		g.add(l.subject(t.Context(), &s.plans, s.endpoints["jobs"], "tenant-0", "pro"))
		if g.beside() != nil {
			t.Error("a candidate where there is none")
		}
		return encodeCall(nil, modeDecide, []group{g, g})
	}
	if a, b := asks(alone), asks(beside); !reflect.DeepEqual(a, b) { // it looks behind the pointers to keys
		t.Errorf("alone %v, beside others %v", a, b)
	}
	mustAllow(t, beside, "tenant-0", "jobs")
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if d, err := beside.Allow(ctx, "tenant-0", "jobs"); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}); n >= 1 {
		t.Errorf("%v allocations a decision", n)
	}
}

// Beside BenchmarkMemoryAllow it shows what features cost an endpoint that does not
// use them.
func BenchmarkMemoryAllowBesideFeatures(b *testing.B) {
	l := besideFeaturesIn(b, bucketPolicy("jobs", 1<<52, 1<<40))
	defer l.Close()
	benchmarkAllow(b, l, 1, ReasonAllowed)
}
