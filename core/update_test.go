package sentinel

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// changed is a configuration with the policies, made by change from that of
// memoryConfig.
func changed(change func(*Config), policies ...Policy) *Config {
	cfg := memoryConfig(policies...)
	change(cfg)
	return cfg
}

func unchanged(*Config) {}

// An update takes away, adds and changes policies, and what is the same stays as
// it was to the token.
func TestUpdate(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("same", 5*Token, 0), bucketPolicy("lowered", 5*Token, 0), bucketPolicy("gone", 5*Token, 0)))
	for _, id := range []string{"same", "lowered", "gone"} {
		mustAllow(t, l, "acme", id)
	}
	same := l.setup.Load().endpoints["same"]
	if err := l.Update(memoryConfig(bucketPolicy("same", 5*Token, 0), bucketPolicy("lowered", 2*Token, 0), bucketPolicy("new", Token, 0))); err != nil {
		t.Fatal(err)
	}
	if l.setup.Load().endpoints["same"] != same {
		t.Error("an endpoint whose policy is the same was made anew")
	}
	for id, want := range map[string]int64{"same": 3, "lowered": 1, "new": 0} {
		if d := mustAllow(t, l, "acme", id); !d.Allowed || d.Remaining != want {
			t.Errorf("%s: %+v, want %d remaining", id, d, want)
		}
	}
	if _, err := l.Allow(t.Context(), "acme", "gone"); !errors.Is(err, ErrUnknownEndpoint) {
		t.Errorf("an endpoint that is gone: %v", err)
	}
	if err := l.Require("same", "new"); err != nil {
		t.Error(err)
	}
	if err := l.Require("gone"); err == nil {
		t.Error("Require knows an endpoint that is gone")
	}
	if err := l.RequireCost("lowered", 3); err == nil {
		t.Error("RequireCost does not know the new capacity")
	}
	// Back again it is as it was: the bucket has its key, and its life.
	if err := l.Update(memoryConfig(bucketPolicy("gone", 5*Token, 0))); err != nil {
		t.Fatal(err)
	}
	if d := mustAllow(t, l, "acme", "gone"); d.Remaining != 3 {
		t.Errorf("%+v", d)
	}
}

// A refused update names every fault, and changes nothing.
func TestUpdateRefuses(t *testing.T) {
	jobs := bucketPolicy("jobs", 5*Token, 0)
	sliding := Policy{
		EndpointID: "jobs", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: Token, Version: 1,
		Limit: 5, Window: time.Minute,
	}
	several := jobs
	several.Also = []Quota{{Algorithm: SlidingWindow, Limit: 100, Window: time.Hour}}
	longer := jobs
	longer.Also = []Quota{{Algorithm: SlidingWindow, Limit: 100, Window: 2 * time.Hour}}
	anonymous := jobs
	anonymous.Identity = Anonymous
	for name, tc := range map[string]struct {
		was, is *Config
		want    []string
	}{
		"nil":      {memoryConfig(jobs), nil, []string{"the configuration is nil"}},
		"invalid":  {memoryConfig(jobs), memoryConfig(bucketPolicy("jobs", 5, 0), bucketPolicy("b", 5, 0)), []string{`policies["b"].capacity_micro`, `policies["jobs"].capacity_micro`}},
		"no route": {memoryConfig(jobs), memoryConfig(), []string{"at least one policy"}},
		"another Redis": {
			memoryConfig(jobs), changed(func(c *Config) { c.App.RedisURL = NewSecret("redis://:Qz7Xk9VwJ4@127.0.0.1:1") }, jobs),
			[]string{"app.redis_url: cannot be changed while the limiter runs; restart"},
		},
		"all that is fixed": {
			memoryConfig(jobs), changed(func(c *Config) {
				c.App.RedisBudget, c.App.DisableKnownDenials, c.App.UnreadableRedisPolicy = time.Second, true, UnreadableRefuse
			}, jobs),
			[]string{"app.redis_budget_ms: cannot", "app.known_denials: cannot", "app.unreadable_redis_policy: cannot"},
		},
		"who authenticates": {
			memoryConfig(jobs), changed(func(c *Config) {
				c.App.Authentication, c.App.JWTSecret = ByApplication, nil
			}, jobs),
			[]string{"app.authentication: cannot"},
		},
		"another algorithm":      {memoryConfig(jobs), memoryConfig(sliding), []string{`policies["jobs"].policy_version: is 1 as before, and algorithm differs; raise it`}},
		"another further window": {memoryConfig(several), memoryConfig(longer), []string{`policies["jobs"].policy_version: is 1 as before, and window of also[0] differs`}},
		"another identity": {memoryConfig(jobs), changed(func(c *Config) {
			c.App.AnonymousCookieSecret = NewSecrets(strings.Repeat("c", 32))
		}, anonymous), []string{`policies["jobs"].policy_version: is 1 as before, and identity differs`}},
	} {
		t.Run(name, func(t *testing.T) {
			l := openMemory(t, tc.was)
			defer l.Close()
			before := l.setup.Load()
			err := l.Update(tc.is)
			if err == nil || strings.Contains(err.Error(), "Qz7Xk9VwJ4") {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if l.setup.Load() != before {
				t.Error("something has changed")
			}
		})
	}
}

func TestUpdateRaisedVersion(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
	mustAllow(t, l, "acme", "jobs")
	raised := Policy{
		EndpointID: "jobs", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: Token, Version: 2,
		Limit: 5, Window: time.Minute,
	}
	if err := l.Update(memoryConfig(raised)); err != nil {
		t.Fatal(err)
	}
	if d := mustAllow(t, l, "acme", "jobs"); !d.Allowed || d.Remaining != 4 {
		t.Errorf("%+v", d)
	}
}

// A bucket outlives its policy: what is stored under a version is not read under
// other rules either where that version was away meanwhile.
func TestUpdateRefusesOtherRulesOfAnEarlierVersion(t *testing.T) {
	sliding := Policy{
		EndpointID: "jobs", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: Token, Version: 1,
		Limit: 5, Window: time.Minute,
	}
	raised := sliding
	raised.Version = 2
	for name, between := range map[string]Policy{"gone": bucketPolicy("other", Token, 0), "raised": raised} {
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
		mustAllow(t, l, "acme", "jobs")
		if err := l.Update(memoryConfig(between)); err != nil {
			t.Fatal(err)
		}
		if err := l.Update(memoryConfig(sliding)); err == nil || !strings.Contains(err.Error(), `policies["jobs"].policy_version: is 1 as before, and algorithm differs`) {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.Update(memoryConfig(bucketPolicy("jobs", 2*Token, 0))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A further limit that was taken away has left buckets behind, which one in its
// place would read.
func TestUpdateRefusesOtherRulesOfAnEarlierLimit(t *testing.T) {
	with := func(also ...Quota) *Config {
		p := bucketPolicy("jobs", Token, 0)
		p.Also = also
		return memoryConfig(p)
	}
	minute, hour := Quota{Algorithm: SlidingWindow, Limit: 5, Window: time.Minute}, Quota{Algorithm: SlidingWindow, Limit: 5, Window: time.Hour}
	tokens := Quota{Algorithm: TokenBucket, Capacity: Token}
	l := openMemory(t, with(minute, hour))
	defer l.Close()
	for i, step := range []struct {
		cfg  *Config
		want string // "" for no fault
	}{
		{with(minute), ""},
		{with(), ""},
		{with(hour), "is 1 as before, and window of also[0] differs"},
		{with(minute, tokens), "is 1 as before, and algorithm of also[1] differs"},
		{with(minute, hour, tokens), ""},
	} {
		err := l.Update(step.cfg)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("step %d: %v, want %q", i, err, step.want)
		}
	}
}

func TestUpdateAfterClose(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
	_ = l.Close()
	if err := l.Update(memoryConfig(bucketPolicy("jobs", 2*Token, 0))); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Error(err)
	}
}

// What is known to deny is forgotten with the numbers that it was denied by, and
// only then. The emergency bucket stays while its rate does.
func TestUpdateKnownDenials(t *testing.T) {
	l := knownDenial(t)
	defer l.Close()
	denied := func(want bool) {
		t.Helper()
		if d := mustAllow(t, l, "tenant-0", "jobs"); d.Allowed == want {
			t.Fatalf("%+v, want denied %t", d, want)
		}
	}
	denied(true)
	emergency := l.setup.Load().endpoints["jobs"].emergency
	if err := l.Update(memoryConfig(bucketPolicy("jobs", Token, 0), bucketPolicy("other", Token, 0))); err != nil {
		t.Fatal(err)
	}
	denied(true)
	if err := l.Update(memoryConfig(bucketPolicy("jobs", 2*Token, 0))); err != nil {
		t.Fatal(err)
	}
	denied(false)
	if l.setup.Load().endpoints["jobs"].emergency != emergency {
		t.Error("an update filled the emergency bucket")
	}
	faster := bucketPolicy("jobs", 2*Token, 0)
	faster.FallbackRate = 7 * Token
	if err := l.Update(memoryConfig(faster)); err != nil {
		t.Fatal(err)
	}
	if l.setup.Load().endpoints["jobs"].emergency == emergency {
		t.Error("the emergency bucket has the old rate")
	}
}

// A secret is changed without a moment in which a valid token is refused.
func TestUpdateRotatesSecrets(t *testing.T) {
	const one, two = "one-secret-of-thirty-two-bytes-or-more", "two-secret-of-thirty-two-bytes-or-more"
	with := func(secrets ...string) *Config {
		return changed(func(c *Config) { c.App.JWTSecret = NewSecrets(secrets...) }, bucketPolicy("jobs", 9*Token, 0))
	}
	l := openMemory(t, with(one))
	for _, step := range []struct {
		secrets  []string
		old, new bool
	}{{[]string{one}, true, false}, {[]string{two, one}, true, true}, {[]string{two}, false, true}} {
		if err := l.Update(with(step.secrets...)); err != nil {
			t.Fatal(err)
		}
		for secret, want := range map[string]bool{one: step.old, two: step.new} {
			_, err := l.Check(t.Context(), Request{EndpointID: "jobs", Authorization: []string{"Bearer " + tokenOf(t, secret)}})
			if (err == nil) != want {
				t.Errorf("with %d secrets: %v, want accepted %t", len(step.secrets), err, want)
			}
		}
	}
}

func tokenOf(t *testing.T, secret string) string {
	t.Helper()
	claims := jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Hour).Unix()}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// The log names what has changed in one line, and lines and what they held back
// add up over an update.
func TestUpdateIsLogged(t *testing.T) {
	var out bytes.Buffer
	l := openMemory(t, memoryConfig(bucketPolicy("a", Token, 0), bucketPolicy("b", Token, 0), bucketPolicy("c", Token, 0)),
		WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	for range 50 {
		mustAllow(t, l, "acme", "a")
	}
	out.Reset()
	if err := l.Update(memoryConfig(bucketPolicy("a", Token, 0), bucketPolicy("b", Token, 0), bucketPolicy("c", Token, 0))); err != nil || out.Len() > 0 {
		t.Errorf("an update that changes nothing: %v, logs %q", err, out.String())
	}
	if err := l.Update(memoryConfig(bucketPolicy("a", 2*Token, 0), bucketPolicy("b", Token, 0), bucketPolicy("d", Token, 0))); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `added="[\"d\"]" changed="[\"a\"]" removed="[\"c\"]"`) {
		t.Errorf("%q", got)
	}
	out.Reset()
	if err := l.Close(); err != nil || !strings.Contains(out.String(), "endpoint_id=a decision_reason=rate_limited suppressed=39") {
		t.Errorf("%v, %q", err, out.String())
	}
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = fmt.Sprintf("%04d", i)
	}
	if got := someOf(ids); !strings.HasSuffix(got, `"0009"] and 990 more`) {
		t.Error(got)
	}
}

// The hash tells configurations apart by all but their secrets.
func TestConfigHash(t *testing.T) {
	key := func() *ecdsa.PublicKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return &k.PublicKey
	}
	jobs := bucketPolicy("jobs", Token, 0)
	hash := func(change func(*Config), p Policy) string { return hashOf(changed(change, p).withDefaults()) }
	base := hash(unchanged, jobs)
	if again := hash(unchanged, jobs); again != base || len(base) != 12 {
		t.Errorf("%s, then %s", base, again)
	}
	if rotated := hash(func(c *Config) { c.App.JWTSecret = NewSecrets(strings.Repeat("s", 40)) }, jobs); rotated != base {
		t.Error("a secret is in the hash")
	}
	seen := map[string]string{base: "base"}
	for name, other := range map[string]string{
		"capacity":    hash(unchanged, bucketPolicy("jobs", 2*Token, 0)),
		"id":          hash(unchanged, bucketPolicy("job", Token, 0)),
		"tenants":     hash(func(c *Config) { c.Tenants = map[string]string{"acme": "pro"} }, jobs),
		"cookie name": hash(func(c *Config) { c.App.AnonymousCookieName = "other" }, jobs),
		"a key":       hash(func(c *Config) { c.App.JWTKeys = map[string]crypto.PublicKey{"a": key()} }, jobs),
		"another key": hash(func(c *Config) { c.App.JWTKeys = map[string]crypto.PublicKey{"a": key()} }, jobs),
	} {
		if seen[other] != "" {
			t.Errorf("%s has the hash of %s", name, seen[other])
		}
		seen[other] = name
	}
}

// Limiters that share a registry show one series for each configuration, and
// none when they are closed.
func TestConfigMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	series := func() int {
		n, err := testutil.GatherAndCount(reg, "sentinel_config_loaded_timestamp_seconds")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	a := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithRegisterer(reg))
	b := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithRegisterer(reg))
	if n := series(); n != 1 {
		t.Errorf("%d series", n)
	}
	for range 5 {
		for _, capacity := range []Micro{2 * Token, 3 * Token} {
			if err := a.Update(memoryConfig(bucketPolicy("jobs", capacity, 0))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := series(); n != 2 {
		t.Errorf("%d series while two differ", n)
	}
	_ = a.Close()
	_ = b.Close()
	if n := series(); n != 0 {
		t.Errorf("%d series of closed limiters", n)
	}
}

// Under load no check sees parts of two configurations, and none fails: of two
// configurations that take turns, one has the quota 10 for a plan that only it
// gives the tenant, the other 20.
func TestUpdateUnderLoad(t *testing.T) {
	with := func(plan string, capacity Micro) *Config {
		jobs := bucketPolicy("jobs", 1000*Token, 1<<40)
		jobs.Plans = map[string]Plan{plan: {Numbers: Numbers{Capacity: capacity, RefillRate: 1 << 40}}}
		return changed(func(c *Config) { c.Tenants = map[string]string{"acme": plan} }, jobs)
	}
	configs := []*Config{with("ten", 10*Token), with("twenty", 20*Token)}
	l := openMemory(t, configs[0], WithRegisterer(prometheus.NewRegistry()))
	defer l.Close()
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if d, err := l.Allow(t.Context(), "acme", "jobs"); err != nil || !d.FromStore || d.Limit != 10 && d.Limit != 20 {
					t.Errorf("%+v, %v", d, err)
					return
				}
			}
		})
	}
	for i := range 10_000 {
		if err := l.Update(configs[(i+1)%2]); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	asking.Wait()
}
