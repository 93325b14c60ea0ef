package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// raised is p as version 2, which begins with the buckets of version 1.
func raised(p sentinel.Policy) sentinel.Policy {
	p.Version, p.CarryOver = 2, 1
	return p
}

// second is the key of version 2 for a key of version 1.
func second(key string) string { return strings.TrimSuffix(key, ":1") + ":2" }

// spend has a tenant admitted n times.
func spend(t *testing.T, l *sentinel.Limiter, tenant string, n int) {
	t.Helper()
	for range n {
		if d := allow(t, l, tenant, "jobs"); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
}

// The new version begins with what the old one has left, in each of its limits, cut
// to its own capacity, and leaves the old keys as they are.
func TestCarryOver(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	tenant := fresh(t)
	key := tenantKey(tenant, "jobs")
	spend(t, open(t, config(url, also(tokens("jobs", 10*sentinel.Token, 0), hourly(9)))), tenant, 4)
	dump, _ := fixture(t, c, key)

	l := open(t, config(url, raised(also(tokens("jobs", 8*sentinel.Token, 0), hourly(7)))))
	if d, err := l.Peek(t.Context(), tenant, "jobs"); err != nil || d.Remaining != 3 || c.Exists(t.Context(), second(key)).Val() != 0 {
		t.Errorf("%+v, %v: a look must write nothing", d, err)
	}
	spend(t, l, tenant, 3) // 6 tokens are left, and 7 - 4 in the window
	if d := allow(t, l, tenant, "jobs"); d.Allowed {
		t.Errorf("%+v", d)
	}
	if got := tokensOf(stateOf(t, c, second(key))); got != 3_000_000 {
		t.Errorf("the new bucket holds %d", got)
	}
	if got := tokensOf(stateOf(t, c, furtherKey(second(key), 2))); got != 7 {
		t.Errorf("the new window holds %d", got)
	}
	if now, _ := fixture(t, c, key); now != dump {
		t.Error("the old bucket was written to")
	}
	if d := allow(t, l, fresh(t), "jobs"); d.Remaining != 6 {
		t.Errorf("%+v: who is new begins with a fresh bucket", d)
	}
}

// A denial by the old bucket writes nothing, and is remembered like any other.
func TestCarryOverDenies(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	spend(t, open(t, config(srv.URL(), tokens("jobs", 2*sentinel.Token, 1))), "acme", 2)
	key := tenantKey("acme", "jobs")
	dump, expires := fixture(t, c, key)
	l := open(t, config(srv.URL(), raised(tokens("jobs", 3*sentinel.Token, 1))))
	before := redistest.CommandStats(t, c)["evalsha"]
	for range 20 {
		if d := allow(t, l, "acme", "jobs"); d.Reason != sentinel.ReasonRateLimited || d.RetryAfter < 100*time.Hour {
			t.Errorf("%+v", d)
		}
	}
	if n := redistest.CommandStats(t, c)["evalsha"] - before; n > 15 {
		t.Errorf("%d calls for 20 denials", n)
	}
	now, until := fixture(t, c, key)
	if now != dump || until.Sub(expires).Abs() > 10*time.Millisecond || c.Exists(t.Context(), second(key)).Val() != 0 {
		t.Error("a denial has written")
	}
}

// Many at once are admitted for exactly what is left, in calls that they share.
func TestCarryOverIsExact(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	tenant := fresh(t)
	spend(t, open(t, config(url, tokens("jobs", 100*sentinel.Token, 0))), tenant, 30)
	one, other := open(t, config(url, raised(tokens("jobs", 100*sentinel.Token, 0)))), open(t, config(url, raised(tokens("jobs", 100*sentinel.Token, 0))))
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		l := one
		if i%2 == 0 {
			l = other
		}
		wg.Go(func() {
			for range 20 {
				if allow(t, l, tenant, "jobs").Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 70 {
		t.Errorf("%d admitted, want 70", admitted.Load())
	}
}

// The cookie's bucket and the address's are carried over together.
func TestCarryOverOfTheAnonymous(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	p := anonymous(tokens("login", 5*sentinel.Token, 0))
	peer := freshPeer()
	old := open(t, config(url, p))
	cookie := mintCookie(t, old, "login", peer+":1") // costs the address one
	check := func(l *sentinel.Limiter) sentinel.Decision {
		d, err := l.Check(context.Background(), sentinel.Request{EndpointID: "login", Peer: peer + ":1", Cookies: []string{"sentinel_anon_id=" + cookie}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	check(old)
	if d := check(open(t, config(url, raised(p)))); !d.Allowed || d.Remaining != 2 {
		t.Errorf("%+v", d)
	}
	for identity, want := range map[string]int64{"anon:cookie:" + cookie[:32]: 3_000_000, "anon:ip:" + peer: 2_000_000} {
		if got := tokensOf(stateOf(t, c, second(keyOf("v2", identity, "login")))); got != want {
			t.Errorf("%s holds %d, want %d", identity, got, want)
		}
	}
}

// What is no state of this algorithm is a fresh bucket, and counted.
func TestCarryOverOfCorruptState(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	registry := prometheus.NewRegistry()
	l := open(t, config(url, raised(tokens("jobs", 2*sentinel.Token, 0))), sentinel.WithRegisterer(registry))
	for name, plant := range map[string]func(key string) error{
		"text":     func(key string) error { return c.Set(t.Context(), key, "certainly no bucket", time.Hour).Err() },
		"a window": func(key string) error { return c.Set(t.Context(), key, "1:2:3", time.Hour).Err() },
		"a list":   func(key string) error { return c.RPush(t.Context(), key, "x").Err() },
	} {
		tenant := fresh(t)
		if err := plant(tenantKey(tenant, "jobs")); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if d := allow(t, l, tenant, "jobs"); d.Allowed != (i < 2) || !d.FromStore {
				t.Errorf("%s, %d: %+v", name, i, d)
			}
		}
	}
	if got := counted(t, registry, "sentinel_store_errors_total"); fmt.Sprint(got) != "map[kind=corrupt_state :3]" {
		t.Errorf("%v", got)
	}
}

// A reset is of both: a fresh bucket expires in a second where it refills, and what
// came before must not come back then.
func TestCarryOverReset(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	tenant := fresh(t)
	p := also(tokens("jobs", 2*sentinel.Token, 0), hourly(3))
	spend(t, open(t, config(url, p)), tenant, 2)
	l := open(t, config(url, raised(p)))
	if d := allow(t, l, tenant, "jobs"); d.Allowed {
		t.Errorf("%+v", d)
	}
	if err := l.Reset(t.Context(), tenant, "jobs"); err != nil {
		t.Fatal(err)
	}
	key := tenantKey(tenant, "jobs")
	for _, key := range []string{key, second(key)} {
		if got := tokensOf(stateOf(t, c, key)); got != 2_000_000 {
			t.Errorf("%s holds %d", key, got)
		}
		if got := tokensOf(stateOf(t, c, furtherKey(key, 2))); got != 0 {
			t.Errorf("the window of %s holds %d", key, got)
		}
	}
	spend(t, l, tenant, 2)
}
