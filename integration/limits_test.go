package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// also adds further limits to p.
func also(p sentinel.Policy, limits ...sentinel.Quota) sentinel.Policy {
	p.Also = limits
	return p
}

func hourly(limit int64) sentinel.Quota {
	return sentinel.Quota{Algorithm: sentinel.SlidingWindow, Limit: limit, Window: time.Hour}
}

// furtherKey is the key of a further limit, as docs/plans.md gives it.
func furtherKey(first string, number int) string {
	return fmt.Sprintf("sentinel:{%s}:%d", first, number)
}

// A second limit on an endpoint that is in use leaves the first's bucket where
// and as it is, and each decision charges both or neither.
func TestSecondLimitOnAnEndpointInUse(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	one := tokens("jobs", 10*sentinel.Token, 1) // a microtoken a second
	tenant := fresh(t)
	key := tenantKey(tenant, "jobs")
	allow(t, open(t, config(url, one)), tenant, "jobs")
	allow(t, open(t, config(url, one)), tenant, "jobs")

	l := open(t, config(url, also(one, hourly(3))))
	for want := int64(2); want >= 0; want-- {
		if d := allow(t, l, tenant, "jobs"); !d.Allowed || d.Limit != 3 || d.Remaining != want {
			t.Fatalf("%+v", d)
		}
	}
	if got := tokensOf(stateOf(t, c, key)); got/100 != 50_000 {
		t.Errorf("the first limit's bucket holds %d", got)
	}
	if got := tokensOf(stateOf(t, c, furtherKey(key, 2))); got != 3 {
		t.Errorf("the second limit has counted %d", got)
	}
	unchanged(t, c, key, func() {
		unchanged(t, c, furtherKey(key, 2), func() {
			for range 3 { // the first asks Redis, the others know
				d := allow(t, l, tenant, "jobs")
				if _, name := d.Limits(); d.Allowed || d.RetryAfter < 59*time.Minute || d.RetryAfter > 2*time.Hour || name != "jobs:2" || d.Limit != 3 {
					t.Errorf("%+v, by %s", d, name)
				}
			}
		})
	})
	if ttl := c.TTL(t.Context(), furtherKey(key, 2)).Val(); ttl < time.Hour || ttl > 2*time.Hour+time.Second {
		t.Errorf("the second limit's key expires in %v", ttl)
	}
	if err := l.Reset(t.Context(), tenant, "jobs"); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Peek(t.Context(), tenant, "jobs"); err != nil || !d.Allowed || d.Remaining != 3 {
		t.Errorf("after a reset: %+v, %v", d, err)
	}
}

// Many at once, of whom the second limit admits fewer: as many as it has, and
// the first is charged for no more.
func TestSeveralLimitsAtOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	cfg := config(srv.URL(),
		also(tokens("jobs", 100*sentinel.Token, 0), hourly(37)),
		also(anonymous(tokens("login", 100*sentinel.Token, 0)), hourly(41)))
	cfg.App.DisableKnownDenials = true
	l := open(t, cfg)
	ctx := context.Background()
	cookie := mintCookie(t, l, "login", "192.0.2.1:1")

	var jobs, logins atomic.Int64
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 20 {
				if allow(t, l, "acme", "jobs").Allowed {
					jobs.Add(1)
				}
				d, err := l.Check(ctx, sentinel.Request{EndpointID: "login", Peer: "192.0.2.2:7", Cookies: []string{"sentinel_anon_id=" + cookie}})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					logins.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if jobs.Load() != 37 || logins.Load() != 41 {
		t.Errorf("%d and %d admitted, want 37 and 41", jobs.Load(), logins.Load())
	}
	jobsKey := tenantKey("acme", "jobs")
	cookieKey, peerKey := keyOf("v2", "anon:cookie:"+cookie[:32], "login"), keyOf("v2", "anon:ip:192.0.2.2", "login")
	for key, want := range map[string]int64{
		jobsKey: 63_000_000, furtherKey(jobsKey, 2): 37,
		cookieKey: 59_000_000, furtherKey(cookieKey, 2): 41,
		peerKey: 59_000_000, furtherKey(peerKey, 2): 41,
	} {
		if got := tokensOf(stateOf(t, c, key)); got != want {
			t.Errorf("%s holds %d, want %d", key, got, want)
		}
	}
	stats := redistest.CommandStats(t, c)
	for _, name := range []string{"del", "expire", "eval", "keys", "scan"} {
		if stats[name] != 0 {
			t.Errorf("%d calls of %s", stats[name], name)
		}
	}
}

// While Redis is away several limits are one emergency bucket, as one limit is.
func TestSeveralLimitsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := redistest.NewProxy(t, srv.Addr())
	l := open(t, config(p.URL(), failOpen(also(tokens("jobs", sentinel.Token, 0), hourly(100)), 3*sentinel.Token)))
	tenant := fresh(t)
	allow(t, l, tenant, "jobs")
	if d := allow(t, l, tenant, "jobs"); d.Allowed {
		t.Fatalf("%+v", d)
	}
	p.Refuse()
	p.DropConns()
	// A denial that is known stays one.
	if d := allow(t, l, tenant, "jobs"); d.Allowed || d.Reason != sentinel.ReasonRateLimited {
		t.Errorf("%+v", d)
	}
	admitted := 0
	for range 20 {
		if d := allow(t, l, fresh(t), "jobs"); d.Allowed {
			admitted++
		}
	}
	if admitted < 3 || admitted > 6 {
		t.Errorf("%d admitted without Redis, want the emergency bucket's 3 a second", admitted)
	}
}

// On Redis, too, a tenant whose plan changes keeps its bucket, of either
// algorithm, cut to the new numbers.
func TestPlanChangeKeepsTheBucket(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	bucket, search := tokens("jobs", 10*sentinel.Token, 0), window("search", 10, time.Hour)
	bucket.Plans = map[string]sentinel.Plan{"small": {Numbers: sentinel.Numbers{Capacity: 3 * sentinel.Token}}, "large": {Numbers: sentinel.Numbers{Capacity: 50 * sentinel.Token}}}
	search.Plans = map[string]sentinel.Plan{"small": {Numbers: sentinel.Numbers{Limit: 3}}, "large": {Numbers: sentinel.Numbers{Limit: 50}}}
	tenant, plan := fresh(t), ""
	l := open(t, config(url, bucket, search), sentinel.WithPlan(func(context.Context, string) string { return plan }))
	for _, step := range []struct {
		plan                    string
		id                      string
		allowed                 bool
		limit, remaining, state int64
	}{
		{"", "jobs", true, 10, 9, 9_000_000},
		{"small", "jobs", true, 3, 2, 2_000_000},
		{"large", "jobs", true, 50, 1, 1_000_000},
		{"large", "jobs", true, 50, 0, 0},
		{"large", "jobs", false, 50, 0, 0},
		{"", "jobs", false, 10, 0, 0},
		{"", "search", true, 10, 9, 1},
		{"large", "search", true, 50, 48, 2},
		{"large", "search", true, 50, 47, 3},
		{"small", "search", false, 3, 0, 3},
		{"", "search", true, 10, 6, 4}, // what is known of a plan is not believed of another
	} {
		plan = step.plan
		d := allow(t, l, tenant, step.id)
		if d.Allowed != step.allowed || d.Limit != step.limit || d.Remaining != step.remaining {
			t.Errorf("%+v: %+v", step, d)
		}
		if got := tokensOf(stateOf(t, c, tenantKey(tenant, step.id))); got != step.state {
			t.Errorf("%+v: the bucket holds %d", step, got)
		}
	}
}

// Reset sees no token, so it does not know a plan that a claim names. What it
// leaves is fresh under every plan, for good, and what was remembered under one is
// forgotten.
func TestResetWithoutThePlan(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	p := tokens("jobs", 5*sentinel.Token, 0)
	p.Also = []sentinel.Quota{{Algorithm: sentinel.TokenBucket, Capacity: 4 * sentinel.Token}, {Algorithm: sentinel.SlidingWindow, Limit: 50, Window: time.Hour}}
	p.Plans = map[string]sentinel.Plan{
		"pro":  {Numbers: sentinel.Numbers{Capacity: 9 * sentinel.Token}, Also: []sentinel.Numbers{{Capacity: 7 * sentinel.Token}, {Limit: 60}}},
		"free": {Numbers: sentinel.Numbers{Capacity: 2 * sentinel.Token}},
	}
	tenant, other, plan := fresh(t), fresh(t), ""
	p.Tenants = map[string]sentinel.Plan{other: {Numbers: sentinel.Numbers{Capacity: 8 * sentinel.Token}}}
	l := open(t, config(url, p), sentinel.WithPlan(func(context.Context, string) string { return plan }))
	for _, c := range []struct {
		tenant, plan    string
		limit, capacity int64
	}{{tenant, "pro", 7, 7}, {tenant, "free", 2, 2}, {tenant, "", 4, 4}, {other, "", 4, 4}} {
		for plan = c.plan; allow(t, l, c.tenant, "jobs").Allowed; {
		}
		plan = ""
		if err := l.Reset(t.Context(), c.tenant, "jobs"); err != nil {
			t.Fatal(err)
		}
		plan = c.plan
		if d := allow(t, l, c.tenant, "jobs"); !d.Allowed || d.Limit != c.limit || d.Remaining != c.capacity-1 {
			t.Errorf("plan %q after a reset: %+v", c.plan, d)
		}
	}
}

// In a cluster the limits of one identity are decided where its keys are, all or
// nothing; a cookie's and a peer's keys may be apart.
func TestSeveralLimitsInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	l := open(t, config(clusterURL(c),
		also(tokens("jobs", 10*sentinel.Token, 0), hourly(2)),
		also(anonymous(tokens("login", 10*sentinel.Token, 0)), hourly(2))), sentinel.WithStrictStart())
	for i := range 10 { // in every master
		tenant := fresh(t)
		for want := int64(1); want >= -1; want-- {
			if d := allow(t, l, tenant, "jobs"); !d.FromStore || d.Allowed != (want >= 0) || d.Remaining != max(want, 0) || d.Limit != 2 {
				t.Fatalf("%+v", d)
			}
		}
		key := tenantKey(tenant, "jobs")
		for name, want := range map[string]int64{key: 8_000_000, furtherKey(key, 2): 2} {
			if got := tokensOf(stateOf(t, c.Master(name).Client(t), name)); got != want {
				t.Errorf("%s holds %d, want %d", name, got, want)
			}
		}
		r := sentinel.Request{EndpointID: "login", Peer: fmt.Sprintf("192.0.2.%d:1", i)}
		r.Cookies = []string{"sentinel_anon_id=" + mintCookie(t, l, "login", fmt.Sprintf("198.51.100.%d:1", i))}
		// The cookie is new: the request that made it was counted for its peer alone.
		for want := int64(1); want >= -1; want-- {
			d, err := l.Check(context.Background(), r)
			if err != nil || !d.FromStore || d.Allowed != (want >= 0) || d.Remaining != max(want, 0) {
				t.Fatalf("%+v, %v", d, err)
			}
		}
	}
}
