package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

func TestDecisionOverRedis(t *testing.T) {
	c, url := shared(t)
	l := open(t, config(url, tokens("jobs.ocr", 2*sentinel.Token, 0)))
	tenant := fresh(t)

	first := allow(t, l, tenant, "jobs.ocr")
	if !first.Allowed || first.Reason != sentinel.ReasonAllowed || first.Remaining != 1 || first.Limit != 2 || !first.FromStore {
		t.Fatalf("first: %+v", first)
	}
	second := allow(t, l, tenant, "jobs.ocr")
	if !second.Allowed || second.Remaining != 0 {
		t.Fatalf("second: %+v", second)
	}
	third := allow(t, l, tenant, "jobs.ocr")
	if third.Allowed || third.Reason != sentinel.ReasonRateLimited || third.RetryAfter != 0 {
		t.Fatalf("third, of a bucket that never refills: %+v", third)
	}
	if ttl := c.TTL(t.Context(), tenantKey(tenant, "jobs.ocr")).Val(); ttl != -1 {
		t.Errorf("rate 0: TTL %v, want none", ttl)
	}
}

func TestRetryAfterIsTheFirstInstantThatAdmits(t *testing.T) {
	_, url := shared(t)
	l := open(t, config(url,
		tokens("bucket", sentinel.Token, 5*sentinel.Token),
		window("window", 3, 300*time.Millisecond)))
	for _, id := range []string{"bucket", "window"} {
		tenant := fresh(t)
		var d sentinel.Decision
		for d = allow(t, l, tenant, id); d.Allowed; d = allow(t, l, tenant, id) {
		}
		if d.RetryAfter <= 0 || d.NextAfter != d.RetryAfter {
			t.Fatalf("%s: %+v", id, d)
		}
		time.Sleep(d.RetryAfter)
		if d := allow(t, l, tenant, id); !d.Allowed {
			t.Errorf("%s: denied after exactly Retry-After: %+v", id, d)
		}
	}
}

func TestPeekAndReset(t *testing.T) {
	c, url := shared(t)
	l := open(t, config(url, tokens("jobs.ocr", 2*sentinel.Token, 0), anonymous(tokens("login", sentinel.Token, 0))))
	tenant, key := fresh(t), ""
	key = tenantKey(tenant, "jobs.ocr")

	peek := func() sentinel.Decision {
		t.Helper()
		d, err := l.Peek(t.Context(), tenant, "jobs.ocr")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := peek(); !d.Allowed || d.Remaining != 2 {
		t.Fatalf("peek at a fresh bucket: %+v", d)
	}
	if s := stateOf(t, c, key); s != "" {
		t.Fatalf("a peek wrote %q", s)
	}
	allow(t, l, tenant, "jobs.ocr")
	allow(t, l, tenant, "jobs.ocr")
	before := stateOf(t, c, key)
	if d := peek(); d.Allowed || d.Reason != sentinel.ReasonRateLimited {
		t.Fatalf("peek at an empty bucket: %+v", d)
	}
	if after := stateOf(t, c, key); after != before {
		t.Fatalf("a peek changed %q to %q", before, after)
	}
	if err := l.Reset(t.Context(), tenant, "jobs.ocr"); err != nil {
		t.Fatal(err)
	}
	if d := allow(t, l, tenant, "jobs.ocr"); !d.Allowed || d.Remaining != 1 {
		t.Fatalf("after a reset: %+v", d)
	}

	for _, id := range []string{"login", "nowhere"} {
		if _, err := l.Peek(t.Context(), tenant, id); err == nil {
			t.Errorf("Peek(%s): no error", id)
		}
		if err := l.Reset(t.Context(), tenant, id); err == nil {
			t.Errorf("Reset(%s): no error", id)
		}
	}
}

func TestErrorsSayWhoAndWhere(t *testing.T) {
	_, url := shared(t)
	l := open(t, config(url, tokens("jobs.ocr", sentinel.Token, 0), anonymous(tokens("login", sentinel.Token, 0))))
	valid := token(t, []byte(jwtKey), jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Minute).Unix()})
	for _, tc := range []struct {
		name string
		req  sentinel.Request
		want error
	}{
		{"no token", sentinel.Request{EndpointID: "jobs.ocr"}, sentinel.ErrUnauthenticated},
		{"unknown endpoint, no token", sentinel.Request{EndpointID: "nowhere"}, sentinel.ErrUnauthenticated},
		{"signed with an empty key", sentinel.Request{EndpointID: "jobs.ocr", Authorization: []string{
			token(t, []byte{}, jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Minute).Unix()}),
		}}, sentinel.ErrUnauthenticated},
		{"unknown endpoint, token", sentinel.Request{EndpointID: "nowhere", Authorization: []string{valid}}, sentinel.ErrUnknownEndpoint},
	} {
		d, err := l.Check(t.Context(), tc.req)
		if !errors.Is(err, tc.want) || d != (sentinel.Decision{}) {
			t.Errorf("%s: %+v, %v; want %v", tc.name, d, err, tc.want)
		}
	}
	for _, tc := range []struct {
		tenant, id string
		want       error
	}{
		{" ", "jobs.ocr", sentinel.ErrUnauthenticated},
		{"acme", "nowhere", sentinel.ErrUnknownEndpoint},
		{"acme", "login", sentinel.ErrAnonymousEndpoint},
	} {
		if _, err := l.Allow(t.Context(), tc.tenant, tc.id); !errors.Is(err, tc.want) {
			t.Errorf("Allow(%q, %q): %v, want %v", tc.tenant, tc.id, err, tc.want)
		}
	}
}

// Fifty goroutines on one bucket that never refills admit exactly its
// capacity; on a sliding window never more than one after the other would.
func TestRace(t *testing.T) {
	_, url := shared(t)
	const capacity = 40
	l := open(t, config(url,
		tokens("bucket", capacity*sentinel.Token, 0),
		window("window", capacity, time.Hour)))
	for _, id := range []string{"bucket", "window"} {
		tenant := fresh(t)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 4 {
					if allow(t, l, tenant, id).Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := admitted.Load(); n != capacity {
			t.Errorf("%s: %d admitted, want %d", id, n, capacity)
		}
	}
}

// Over a window that slides for real, racing callers are never admitted more
// often than the formula allows in any window: limit per window, and the
// previous one's share.
func TestSlidingWindowRaceUnderTime(t *testing.T) {
	_, url := shared(t)
	const limit, length = 30, 250 * time.Millisecond
	l := open(t, config(url, window("window", limit, length)))
	tenant := fresh(t)
	var mu sync.Mutex
	var admitted []time.Time
	end := time.Now().Add(6 * length)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for time.Now().Before(end) {
				before := time.Now()
				if allow(t, l, tenant, "window").Allowed {
					mu.Lock()
					admitted = append(admitted, before)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	// The sequential reference admits at most limit in each fixed window of
	// the anchor, so at most limit * (whole windows + 1) in all.
	most := limit * (int(time.Since(end.Add(-6*length))/length) + 1)
	if len(admitted) > most || len(admitted) < limit {
		t.Errorf("%d admitted in %v, want %d to %d", len(admitted), 6*length, limit, most)
	}
}

// A cookie's and a peer's bucket of different fill under mixed calls: each
// allow charges both exactly once, a denial neither. One after the other, each
// decision is one EVALSHA, and a SET only for an allow; at once they share.
func TestPairIsChargedOnceOrNotAtAll(t *testing.T) {
	for _, callers := range []int{1, 10} {
		t.Run(fmt.Sprint(callers, " callers"), func(t *testing.T) { pairIsChargedOnce(t, callers) })
	}
}

func pairIsChargedOnce(t *testing.T, callers int) {
	srv := redistest.Start(t)
	c := srv.Client(t)
	cfg := config(srv.URL(), anonymous(tokens("login", 20*sentinel.Token, 0)))
	cfg.App.DisableKnownDenials = true // each decision asks
	l := open(t, cfg)

	cookie := mintCookie(t, l, "login", "192.0.2.1:1")
	cookieKeyName := keyOf("v2", "anon:cookie:"+cookie[:32], "login")
	peerKeyName := keyOf("v2", "anon:ip:192.0.2.2", "login")
	ctx := context.Background()
	now := time.Now().UnixMicro()
	if err := c.Set(ctx, cookieKeyName, fmt.Sprintf("12000000:%d", now), 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Set(ctx, peerKeyName, fmt.Sprintf("7500000:%d", now), 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := redistest.CommandStats(t, c)

	const calls = 200
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls / callers {
				d, err := l.Check(ctx, sentinel.Request{
					EndpointID: "login", Peer: "192.0.2.2:7",
					Cookies: []string{"sentinel_anon_id=" + cookie},
				})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()

	if n := admitted.Load(); n != 7 {
		t.Errorf("%d admitted, want 7", n)
	}
	if s := stateOf(t, c, cookieKeyName); tokensOf(s) != 5_000_000 {
		t.Errorf("cookie bucket %q, want 5000000 microtokens", s)
	}
	if s := stateOf(t, c, peerKeyName); tokensOf(s) != 500_000 {
		t.Errorf("peer bucket %q, want 500000 microtokens", s)
	}
	after := redistest.CommandStats(t, c)
	if n := after["evalsha"] - before["evalsha"]; n > calls || callers == 1 && n != calls {
		t.Errorf("%d EVALSHA for %d decisions", n, calls)
	}
	if n := after["set"] - before["set"]; n != 2*7 {
		t.Errorf("%d SET for 7 allows of two buckets", n)
	}
	for _, name := range []string{"del", "expire", "pexpire", "eval", "keys", "scan"} {
		if n := after[name] - before[name]; n != 0 {
			t.Errorf("%d calls of %s", n, name)
		}
	}
	if t.Failed() {
		t.Log(after)
	}
}

func tokensOf(state string) (n int64) {
	_, _ = fmt.Sscanf(state, "%d:", &n)
	return n
}

// mintCookie gets a cookie the way a browser does: by an allowed request.
func mintCookie(t testing.TB, l *sentinel.Limiter, id, peer string) string {
	t.Helper()
	d, err := l.Check(context.Background(), sentinel.Request{EndpointID: id, Peer: peer})
	if err != nil || d.Cookie == nil {
		t.Fatalf("no cookie: %+v, %v", d, err)
	}
	return d.Cookie.Value
}

// A denial writes nothing: state, type and expiry stay as they were, of the
// bucket that denied and of its innocent partner.
func TestDenialWritesNothing(t *testing.T) {
	c, url := shared(t)
	l := open(t, config(url,
		anonymous(tokens("login", 10*sentinel.Token, 1)),
		tokens("bucket", sentinel.Token, 1),
		window("window", 1, time.Hour)))
	ctx := context.Background()

	for _, id := range []string{"bucket", "window"} {
		tenant := fresh(t)
		allow(t, l, tenant, id)
		unchanged(t, c, tenantKey(tenant, id), func() {
			for range 3 {
				if d := allow(t, l, tenant, id); d.Allowed {
					t.Errorf("%s: allowed", id)
				}
			}
		})
	}

	peer := freshPeer()
	cookie := mintCookie(t, l, "login", freshPeer())
	cookieKeyName, peerKeyName := keyOf("v2", "anon:cookie:"+cookie[:32], "login"), keyOf("v2", "anon:ip:"+peer, "login")
	now := time.Now().UnixMicro()
	for full, empty := range map[string]string{cookieKeyName: peerKeyName, peerKeyName: cookieKeyName} {
		c.Set(ctx, full, fmt.Sprintf("9000000:%d", now), time.Hour)
		c.Set(ctx, empty, fmt.Sprintf("0:%d", now), time.Hour)
		unchanged(t, c, full, func() {
			unchanged(t, c, empty, func() {
				for range 5 {
					d, err := l.Check(ctx, sentinel.Request{
						EndpointID: "login", Peer: peer + ":9", Cookies: []string{"a=b; sentinel_anon_id=" + cookie},
					})
					if err != nil || d.Allowed || d.Cookie != nil || d.Reason != sentinel.ReasonRateLimited {
						t.Errorf("%+v, %v", d, err)
					}
				}
			})
		})
	}
}

func unchanged(t *testing.T, c *redis.Client, key string, during func()) {
	t.Helper()
	dump, expires := fixture(t, c, key)
	time.Sleep(10 * time.Millisecond) // a write would move the expiry by that
	during()
	dumpAfter, expiresAfter := fixture(t, c, key)
	if dump != dumpAfter || expiresAfter.Sub(expires).Abs() > 5*time.Millisecond {
		t.Errorf("%s changed: %q, %v -> %q, %v", key, dump, expires, dumpAfter, expiresAfter)
	}
}

// A state from the future of a master whose clock was ahead: no time has
// elapsed, and the stored time never moves back, so that no second is credited
// twice. Farther ahead than the horizon it is corrupt, and a fresh bucket.
func TestStoredTimeAheadOfTheClock(t *testing.T) {
	c, url := shared(t)
	l := open(t, config(url, tokens("bucket", 10*sentinel.Token, sentinel.Token)))
	ctx := context.Background()
	tenant := fresh(t)
	ahead := time.Now().Add(50 * time.Second).UnixMicro()
	c.Set(ctx, tenantKey(tenant, "bucket"), fmt.Sprintf("5000000:%d", ahead), 0)
	if d := allow(t, l, tenant, "bucket"); !d.Allowed || d.Remaining != 4 {
		t.Fatalf("%+v", d)
	}
	if s, want := stateOf(t, c, tenantKey(tenant, "bucket")), fmt.Sprintf("4000000:%d", ahead); s != want {
		t.Errorf("stored %q, want %q", s, want)
	}
	// Full again 6 s after the stored time, and a second on top.
	if ttl := c.TTL(ctx, tenantKey(tenant, "bucket")).Val(); ttl < 30*time.Second || ttl > 58*time.Second {
		t.Errorf("TTL %v, want 57s, not 7s: the expiry counts from the stored time", ttl)
	}
	c.Set(ctx, tenantKey(tenant, "bucket"), fmt.Sprintf("0:%d", time.Now().Add(2*time.Hour).UnixMicro()), 0)
	if d := allow(t, l, tenant, "bucket"); !d.Allowed || d.Remaining != 9 {
		t.Errorf("two hours ahead: %+v, want a fresh bucket", d)
	}
}

// Corrupt state of every sort is a fresh bucket, and spoils nothing else.
func TestCorruptState(t *testing.T) {
	c, url := shared(t)
	l := open(t, config(url, tokens("bucket", 3*sentinel.Token, 0), window("window", 3, time.Minute)))
	ctx := context.Background()
	texts := []string{
		"", ":", "1", "1:", ":1", "1:2:3:4", "x:y", "0x5:7", " 1:2", "1 :2", "1:2\n", "1e3:5", "inf:5", "nan:nan",
		"-1:5", "+1:5", "1.5:5", "99999999999999999999:1", "1:99999999999999999999", "1:9007199254740993", "٣:1",
	}
	for _, id := range []string{"bucket", "window"} {
		for _, text := range texts {
			tenant := fresh(t)
			c.Set(ctx, tenantKey(tenant, id), text, 0)
			if d := allow(t, l, tenant, id); !d.Allowed || d.Remaining != 2 {
				t.Errorf("%s with state %q: %+v", id, text, d)
			}
		}
		tenant := fresh(t)
		c.LPush(ctx, tenantKey(tenant, id), "a list")
		if d := allow(t, l, tenant, id); !d.Allowed || d.Remaining != 2 {
			t.Errorf("%s with a list: %+v", id, d)
		}
		if typ := c.Type(ctx, tenantKey(tenant, id)).Val(); typ != "string" {
			t.Errorf("%s: the allow left a %s", id, typ)
		}
	}
}

// The largest quotas that the configuration admits are exact in what Redis
// stores.
func TestLargeNumbersAreExact(t *testing.T) {
	c, url := shared(t)
	const most = sentinel.Micro(1 << 52)
	l := open(t, config(url, tokens("bucket", most, 0)))
	tenant := fresh(t)
	d := allow(t, l, tenant, "bucket")
	if !d.Allowed || d.Remaining != int64((most-sentinel.Token)/sentinel.Token) {
		t.Fatalf("%+v", d)
	}
	if s := stateOf(t, c, tenantKey(tenant, "bucket")); tokensOf(s) != int64(most-sentinel.Token) {
		t.Errorf("stored %q, want %d microtokens", s, most-sentinel.Token)
	}
	if d.ResetAfter != 0 || d.NextAfter != 0 || d.Window != 0 {
		t.Errorf("rate 0: %+v", d)
	}
	slow := open(t, config(url, tokens("slow", most, 1)))
	if d := allow(t, slow, fresh(t), "slow"); d.Window != math.MaxInt64 {
		t.Errorf("a bucket that fills in 142 million years: Window %v", d.Window)
	}
}

// One IPv6 customer owns a /64.
func TestPeerIsMasked(t *testing.T) {
	_, url := shared(t)
	l := open(t, config(url, anonymous(tokens("login", 5*sentinel.Token, 0))))
	prefix := fmt.Sprintf("2001:db8:%x:%x", rand.IntN(65536), rand.IntN(65536))
	admitted := 0
	for i := range 100 {
		d, err := l.Check(t.Context(), sentinel.Request{EndpointID: "login", Peer: fmt.Sprintf("[%s::%x]:%d", prefix, i+1, 1000+i)})
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d of one /64 admitted, want 5", admitted)
	}
}
