package integration_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// trying gives p a candidate.
func trying(p sentinel.Policy, limits ...sentinel.Quota) sentinel.Policy {
	p.Candidate = &sentinel.Candidate{Quota: limits[0], Also: limits[1:]}
	return p
}

// once is a quota of so many requests that never come back.
func once(n int64) sentinel.Quota {
	return sentinel.Quota{Algorithm: sentinel.TokenBucket, Capacity: sentinel.Micro(n) * sentinel.Token}
}

// candidateKey is the key of a candidate's limit, as docs/shadow.md gives it.
func candidateKey(first, limit string) string { return fmt.Sprintf("sentinel:{%s}:c%s", first, limit) }

// counted are the counts of a metric by the values of its labels, in the order of
// their names, but for the endpoint.
func counted(t testing.TB, g prometheus.Gatherer, name string) map[string]int {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			by := ""
			for _, l := range m.GetLabel() {
				if l.GetName() != "endpoint_id" {
					by += l.GetName() + "=" + l.GetValue() + " "
				}
			}
			counts[by] += int(m.GetCounter().GetValue())
		}
	}
	return counts
}

// Many at once: live and candidate, each with several limits and for tenants and
// the anonymous alike, are charged exactly for what each admits, in one call, and
// the live buckets hold what they hold without a candidate.
func TestCandidateIsChargedExactly(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	registry := prometheus.NewRegistry()
	cfg := config(srv.URL(),
		trying(also(tokens("jobs", 100*sentinel.Token, 0), hourly(37)), once(300), hourly(91)),
		trying(anonymous(tokens("login", 150*sentinel.Token, 0)), hourly(41)),
		tokens("plain", 1<<52, 0))
	l := open(t, cfg, sentinel.WithRegisterer(registry))
	cookie := mintCookie(t, l, "login", "192.0.2.1:1") // costs the other peer one
	before := redistest.CommandStats(t, c)["evalsha"]

	var jobs, logins, refused atomic.Int64
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 20 {
				d := allow(t, l, "acme", "jobs")
				if d.Allowed {
					jobs.Add(1)
				}
				if d.CandidateDenies {
					refused.Add(1)
				}
				d, err := l.Check(context.Background(), sentinel.Request{EndpointID: "login", Peer: "192.0.2.2:7", Cookies: []string{"sentinel_anon_id=" + cookie}})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					logins.Add(1)
				}
				if d := allow(t, l, "other", "plain"); !d.Allowed || d.CandidateDenies {
					t.Errorf("%+v", d)
				}
			}
		})
	}
	wg.Wait()
	if jobs.Load() != 37 || logins.Load() != 150 || refused.Load() != 200-91 {
		t.Errorf("%d and %d admitted, %d refused by the candidate", jobs.Load(), logins.Load(), refused.Load())
	}
	if n := redistest.CommandStats(t, c)["evalsha"] - before; n > 600 {
		t.Errorf("%d calls for 600 decisions", n)
	}
	want := map[string]int{ // 200 and 201 in all
		"candidate=allowed live=allowed ": 37 + 42, "candidate=allowed live=denied ": 91 - 37,
		"candidate=denied live=allowed ": 150 - 41, "candidate=denied live=denied ": 200 - 91 + 200 - 150,
	}
	if got := counted(t, registry, "sentinel_candidate_decisions_total"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	key := tenantKey("acme", "jobs")
	cookieKey, peerKey := keyOf("v2", "anon:cookie:"+cookie[:32], "login"), keyOf("v2", "anon:ip:192.0.2.2", "login")
	for key, want := range map[string]int64{
		key: 63_000_000, furtherKey(key, 2): 37,
		candidateKey(key, "1b"): 209_000_000, candidateKey(key, "2w3600000000"): 91,
		cookieKey: 0, candidateKey(cookieKey, "1w3600000000"): 41,
		peerKey: 0, candidateKey(peerKey, "1w3600000000"): 41,
	} {
		if got := tokensOf(stateOf(t, c, key)); got != want {
			t.Errorf("%s holds %d, want %d", key, got, want)
		}
	}
	if ttl := c.TTL(t.Context(), candidateKey(key, "2w3600000000")).Val(); ttl < time.Hour || ttl > 2*time.Hour+time.Second {
		t.Errorf("the candidate's window expires in %v", ttl)
	}
	if n := c.DBSize(t.Context()).Val(); n != 8+2+1+1 { // and the peer who minted, plain, the start check
		t.Errorf("%d keys: %v", n, c.Keys(t.Context(), "*").Val())
	}
}

// Whatever is in a candidate's key, the live decision is what it is without one.
func TestCandidateOfCorruptState(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	registry := prometheus.NewRegistry()
	l := open(t, config(url, trying(tokens("jobs", 2*sentinel.Token, 0), once(1))), sentinel.WithRegisterer(registry))
	for name, plant := range map[string]func(key string) error{
		"text":     func(key string) error { return c.Set(t.Context(), key, "certainly no bucket", time.Hour).Err() },
		"a window": func(key string) error { return c.Set(t.Context(), key, "1:2:3", time.Hour).Err() },
		"a list":   func(key string) error { return c.RPush(t.Context(), key, "x").Err() },
		"huge":     func(key string) error { return c.Set(t.Context(), key, make([]byte, 1<<20), time.Hour).Err() },
	} {
		tenant := fresh(t)
		key := tenantKey(tenant, "jobs")
		if err := plant(candidateKey(key, "1b")); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if d := allow(t, l, tenant, "jobs"); d.Allowed != (i < 2) || !d.FromStore || d.CandidateDenies != (i > 0) {
				t.Errorf("%s, %d: %+v", name, i, d)
			}
		}
	}
	if got := counted(t, registry, "sentinel_store_errors_total"); fmt.Sprint(got) != "map[kind=corrupt_state :4]" {
		t.Errorf("%v", got)
	}
	if s := l.Status(); s.Degraded || s.LastError != "" {
		t.Errorf("%+v", s)
	}
}

// A Redis that takes no more writes answers a denial, which needs none, also where
// the candidate would write.
func TestCandidateThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	l := open(t, config(srv.URL(), trying(tokens("jobs", sentinel.Token, 0), once(9))))
	allow(t, l, "acme", "jobs")
	if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if d := allow(t, l, "acme", "jobs"); d.Reason != sentinel.ReasonRateLimited || d.CandidateDenies {
			t.Errorf("%+v", d)
		}
	}
	if got := tokensOf(stateOf(t, c, candidateKey(tenantKey("acme", "jobs"), "1b"))); got != 8_000_000 {
		t.Errorf("the candidate holds %d", got)
	}
	if d := allow(t, l, "acme2", "jobs"); d.Reason != sentinel.ReasonFailClosed {
		t.Errorf("%+v", d)
	}
}

// A candidate that comes and goes, or counts in another way than before, leaves the
// live bucket where and as it is, and itself begins afresh.
func TestCandidateOnAnEndpointInUse(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	tenant := fresh(t)
	key := tenantKey(tenant, "jobs")
	plain := tokens("jobs", 9*sentinel.Token, 0)
	left := int64(9)
	for _, p := range []sentinel.Policy{plain, trying(plain, once(1)), trying(plain, hourly(1)), plain, trying(plain, sentinel.Quota{Algorithm: sentinel.SlidingWindow, Limit: 1})} {
		d := allow(t, open(t, config(url, p)), tenant, "jobs")
		left--
		if !d.Allowed || d.Remaining != left || d.CandidateDenies {
			t.Errorf("%+v", d)
		}
		if got := tokensOf(stateOf(t, c, key)); got != left*1_000_000 {
			t.Errorf("%d left, the bucket holds %d", left, got)
		}
	}
}

// What is not enforced never answers 503, and is charged as always.
func TestUnenforcedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	registry := prometheus.NewRegistry()
	p := tokens("jobs", sentinel.Token, 0)
	p.Unenforced = true
	l := open(t, config(srv.URL(), p), sentinel.WithRegisterer(registry))
	for i := range 3 {
		if d := allow(t, l, "acme", "jobs"); !d.Allowed || !d.Unenforced || d.WouldDeny != (i > 0) {
			t.Errorf("%d: %+v", i, d)
		}
	}
	if got := tokensOf(stateOf(t, c, tenantKey("acme", "jobs"))); got != 0 {
		t.Errorf("the bucket holds %d", got)
	}
	srv.Kill()
	for range 20 { // until the breaker is open, and then
		if d := allow(t, l, fresh(t), "jobs"); !d.Allowed || !d.WouldDeny || d.FromStore || d.Reason != sentinel.ReasonFailClosed && d.Reason != sentinel.ReasonCircuitOpen {
			t.Errorf("%+v", d)
		}
	}
	got := counted(t, registry, "sentinel_shadow_denials_total")
	if got["decision_reason=rate_limited "] != 2 || got["decision_reason=fail_closed "]+got["decision_reason=circuit_open "] != 20 {
		t.Errorf("%v", got)
	}
}
