package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// A flood over quota costs no call to Redis, and each answer is as good as
// Redis's own.
func TestFloodOverQuotaAsksNobody(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	l := open(t, config(srv.URL(), tokens("jobs", sentinel.Token, sentinel.Token/100), window("window", 1, time.Hour)))
	for _, id := range []string{"jobs", "window"} {
		allow(t, l, "acme", id)
		start := time.Now()
		asked := allow(t, l, "acme", id)
		before := redistest.CommandStats(t, c)["evalsha"]
		for time.Since(start) < 500*time.Millisecond {
			d := allow(t, l, "acme", id)
			if d.Allowed || d.Reason != sentinel.ReasonRateLimited || !d.FromStore || d.Remaining != 0 || d.Limit != asked.Limit ||
				d.Window != asked.Window || d.IdentityHash != asked.IdentityHash {
				t.Fatalf("%+v, Redis said %+v", d, asked)
			}
			passed := time.Since(start) + time.Millisecond // at most
			if d.RetryAfter > asked.RetryAfter || d.RetryAfter < asked.RetryAfter-passed || d.NextAfter != d.RetryAfter {
				t.Fatalf("after %v: Retry-After %v, Redis said %v", passed, d.RetryAfter, asked.RetryAfter)
			}
		}
		// A denial is good for a second.
		if n, most := redistest.CommandStats(t, c)["evalsha"]-before, int(time.Since(start).Seconds()); n > most {
			t.Errorf("%s: %d calls in %v", id, n, time.Since(start))
		}
	}
}

// No denial that nobody was asked for lasts longer than Redis's own.
func TestKnownDenialsChangeNoVerdict(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	cfg := config(srv.URL(), tokens("bucket", 3*sentinel.Token, 20*sentinel.Token), window("window", 5, 100*time.Millisecond))
	l, peeker := open(t, cfg), open(t, cfg)
	for _, id := range []string{"bucket", "window"} {
		tenant := fresh(t)
		calls := redistest.CommandStats(t, c)["evalsha"]
		admitted, denied := 0, 0
		var due time.Time // from then on Redis admits; zero: not known
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			start := time.Now()
			if allow(t, l, tenant, id).Allowed {
				admitted, due = admitted+1, time.Time{}
				continue
			}
			denied++
			if !due.IsZero() && start.After(due) {
				t.Errorf("%s: denied %v after Redis would have allowed", id, start.Sub(due))
			}
			own, err := peeker.Peek(t.Context(), tenant, id)
			if err != nil {
				t.Fatal(err)
			}
			due = time.Now().Add(own.RetryAfter) // now, if Redis would allow
		}
		asked := redistest.CommandStats(t, c)["evalsha"] - calls - denied // but for the peeks
		if admitted < 10 || denied < 10 || asked >= admitted+denied {
			t.Errorf("%s: %d admitted, %d denied in %d calls: the test proves nothing", id, admitted, denied, asked)
		}
	}
}

// A client that waits exactly as it was told is admitted, also where it was a
// known denial that told it.
func TestKnownDenialsRetryAfterIsKept(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	l := open(t, config(url, tokens("bucket", sentinel.Token, 8*sentinel.Token), window("window", 2, 150*time.Millisecond)))
	for _, id := range []string{"bucket", "window"} {
		tenant := fresh(t)
		for range 5 {
			d := allow(t, l, tenant, id)
			for known := false; d.Allowed || !known; d = allow(t, l, tenant, id) {
				known = !d.Allowed // from the second denial in a row on
			}
			if d.RetryAfter <= 0 {
				t.Fatalf("%+v", d)
			}
			time.Sleep(d.RetryAfter)
			if d := allow(t, l, tenant, id); !d.Allowed {
				t.Errorf("%s: denied after exactly Retry-After: %+v", id, d)
			}
		}
	}
}

// A reset in this process is felt at once, one elsewhere after a second at most.
func TestKnownDenialsAndResets(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	l, other := open(t, config(url, tokens("jobs", sentinel.Token, 0))), open(t, config(url, tokens("jobs", sentinel.Token, 0)))
	tenant := fresh(t)
	for range 50 {
		allow(t, l, tenant, "jobs")
		if d := allow(t, l, tenant, "jobs"); d.Allowed || d.RetryAfter != 0 {
			t.Fatalf("%+v", d)
		}
		if err := l.Reset(t.Context(), tenant, "jobs"); err != nil {
			t.Fatal(err)
		}
		if d := allow(t, l, tenant, "jobs"); !d.Allowed {
			t.Fatalf("after a reset here: %+v", d)
		}
	}
	allow(t, l, tenant, "jobs")
	denied := time.Now() // or before
	if err := other.Reset(t.Context(), tenant, "jobs"); err != nil {
		t.Fatal(err)
	}
	for {
		asked := time.Now()
		if allow(t, l, tenant, "jobs").Allowed {
			return
		}
		if asked.Sub(denied) > time.Second {
			t.Fatalf("denied %v after a reset elsewhere", asked.Sub(denied))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Resets that race denials leave no denial behind that is older than they.
func TestKnownDenialsRaceResets(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	l := open(t, config(url, tokens("jobs", sentinel.Token, 0)))
	tenant := fresh(t)
	stop := meanwhile(8, func() {
		if _, err := l.Peek(context.Background(), tenant, "jobs"); err != nil {
			t.Error(err)
		}
		allow(t, l, tenant, "jobs")
	})
	for range 200 {
		if err := l.Reset(t.Context(), tenant, "jobs"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := l.Reset(t.Context(), tenant, "jobs"); err != nil {
		t.Fatal(err)
	}
	if d := allow(t, l, tenant, "jobs"); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Only the bucket that denied is remembered: another client behind the same
// peer, or the same client elsewhere, is asked for.
func TestKnownDenialsSpareThePartner(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	l := open(t, config(url, anonymous(tokens("login", 5*sentinel.Token, 0))))
	ctx := context.Background()
	peer, otherPeer := freshPeer(), freshPeer()
	cookie, otherCookie := mintCookie(t, l, "login", freshPeer()), mintCookie(t, l, "login", freshPeer())
	empty := keyOf("v2", "anon:cookie:"+cookie[:32], "login")
	c.Set(ctx, empty, fmt.Sprintf("0:%d", time.Now().UnixMicro()), 0)
	check := func(cookie, peer string) sentinel.Decision {
		t.Helper()
		d, err := l.Check(ctx, sentinel.Request{EndpointID: "login", Peer: peer, Cookies: []string{"sentinel_anon_id=" + cookie}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := check(cookie, peer); d.Allowed {
		t.Fatalf("%+v", d)
	}
	if d := check(cookie, otherPeer); d.Allowed {
		t.Errorf("the empty cookie elsewhere: %+v", d)
	}
	if d := check(otherCookie, peer); !d.Allowed {
		t.Errorf("another cookie behind the same peer: %+v", d)
	}
}

// What is known is known while Redis is away, too.
func TestKnownDenialsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), failOpen(tokens("open", sentinel.Token, 0), 10*sentinel.Token)))
	allow(t, l, "acme", "open")
	if d := allow(t, l, "acme", "open"); d.Reason != sentinel.ReasonRateLimited {
		t.Fatalf("%+v", d)
	}
	p.Refuse()
	if d := allow(t, l, "acme", "open"); d.Reason != sentinel.ReasonRateLimited {
		t.Errorf("known: %+v", d)
	}
	if d := allow(t, l, "globex", "open"); d.Reason != sentinel.ReasonRedisConnectionError || !d.Allowed {
		t.Errorf("not known: %+v", d)
	}
}
