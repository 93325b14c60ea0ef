package sentinel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/breaker"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func memoryConfig(policies ...Policy) *Config {
	c := &Config{
		App: App{
			RedisURL:              NewSecret("memory://"),
			JWTSecret:             NewSecrets("unit-jwt-key-0123456789-abcdefghij"),
			AnonymousCookieSecret: NewSecrets("unit-cookie-key-0123456789-abcdefghij"),
		},
		Policies: map[string]Policy{},
	}
	for _, p := range policies {
		c.Policies[p.EndpointID] = p
	}
	return c
}

func bucketPolicy(id string, capacity, rate Micro) Policy {
	return Policy{
		EndpointID: id, Algorithm: TokenBucket, FailMode: FailClosed,
		FallbackRate: Token, Version: 1, Capacity: capacity, RefillRate: rate,
	}
}

func openMemory(t testing.TB, cfg *Config, opts ...Option) *Limiter {
	t.Helper()
	l, err := Open(t.Context(), cfg, append([]Option{WithLogger(silent)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustAllow(t testing.TB, l *Limiter, tenant, id string) Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestZeroDecisionIsADenial(t *testing.T) {
	if (Decision{}).Allowed {
		t.Fatal("the zero Decision allows")
	}
	if _, ok := FromContext(t.Context()); ok {
		t.Fatal("a decision in a context that has none")
	}
	want := Decision{EndpointID: "a", Allowed: true}
	if got, ok := FromContext(NewContext(t.Context(), want)); !ok || got != want {
		t.Fatalf("%+v, %v", got, ok)
	}
}

// The embedded store: a burst, then exactly the rate, on a clock that does not
// have to be waited for.
func TestMemoryStoreOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", 3*Token, Token/2)))
		defer l.Close()
		admitted := 0
		for range 600 { // a minute, ten requests a second
			if mustAllow(t, l, "acme", "jobs").Allowed {
				admitted++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if admitted != 3+29 {
			t.Errorf("%d admitted, want a burst of 3 and 29 of half a request a second", admitted)
		}
		d := mustAllow(t, l, "acme", "jobs")
		for !d.Allowed {
			time.Sleep(d.RetryAfter)
			if d = mustAllow(t, l, "acme", "jobs"); !d.Allowed {
				t.Fatalf("denied after exactly Retry-After: %+v", d)
			}
		}
	})
}

// A fallback rate far below one token a second still admits one request per
// 500 s: the emergency bucket holds at least one token.
func TestEmergencyBucketHoldsAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bucketPolicy("resumint.tailor", 10*Token, 10_000)
		p.FailMode, p.FallbackRate = FailOpen, 2000
		l := openMemory(t, memoryConfig(p))
		l.Close() // the store is away for good
		admitted := 0
		for range 1200 {
			d := mustAllow(t, l, "acme", "resumint.tailor")
			switch {
			case d.Allowed:
				admitted++
				if d.Reason != ReasonRedisConnectionError || d.FromStore {
					t.Fatalf("%+v", d)
				}
			case d.Reason != ReasonEmergencyLocalLimit || d.RetryAfter <= 0 || d.RetryAfter > 500*time.Second:
				t.Fatalf("%+v", d)
			}
			time.Sleep(time.Second)
		}
		if admitted != 3 {
			t.Errorf("%d admitted in 20 minutes, want 3: at 0, 500 and 1000 s", admitted)
		}
	})
}

func TestEmergencyBucketAdmitsNoMoreThanItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bucketPolicy("jobs", 10*Token, 0)
		p.FailMode, p.FallbackRate = FailOpen, 5*Token
		l := openMemory(t, memoryConfig(p))
		l.Close()
		admitted := 0
		for i := range 1000 { // 100 s; a denial must not write, or time is lost
			if mustAllow(t, l, fmt.Sprint("tenant", i), "jobs").Allowed {
				admitted++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if admitted < 5+490 || admitted > 5+500 {
			t.Errorf("%d admitted, want a burst of 5 and 5 a second", admitted)
		}
	})
}

func TestCallerWhoHasGone(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d, err := l.Allow(ctx, "acme", "jobs")
	if !errors.Is(err, context.Canceled) || d != (Decision{}) {
		t.Fatalf("%+v, %v", d, err)
	}
	if !mustAllow(t, l, "acme", "jobs").Allowed {
		t.Error("the caller who had gone was charged")
	}
}

func TestMemoryStoreSaysThatItIsLocal(t *testing.T) {
	var log bytes.Buffer
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	defer l.Close()
	if !strings.Contains(log.String(), "limits this process alone") {
		t.Errorf("log: %s", &log)
	}
}

func TestStatus(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
	if s := l.Status(); s != (Status{Store: "memory", Ready: true}) {
		t.Errorf("%+v", s)
	}
	l.Close()
	l.Close()
	if s := l.Status(); s.Ready || !s.Degraded || s.LastError != "closed" {
		t.Errorf("after Close: %+v", s)
	}
	if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.Reason != ReasonFailClosed {
		t.Errorf("after Close: %+v", d)
	}
}

func TestRequireNamesAllThatAreMissing(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)))
	defer l.Close()
	if err := l.Require("jobs"); err != nil {
		t.Error(err)
	}
	err := l.Require("a.b", "jobs", "c", "a.b")
	if !errors.Is(err, ErrUnknownEndpoint) || !strings.Contains(err.Error(), `"a.b", "c"`) {
		t.Errorf("%v", err)
	}
}

// At most ten lines a second of one endpoint and reason, and nothing is lost:
// lines and suppressed add up.
func TestDenialsAreLoggedBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		log.Reset()
		mustAllow(t, l, "acme", "jobs")
		const denials = 100_000
		for i := range denials {
			mustAllow(t, l, "acme", "jobs")
			if i%10_000 == 0 {
				time.Sleep(time.Second)
			}
		}
		l.Close()
		lines, suppressed := 0, 0
		for line := range strings.SplitSeq(strings.TrimSpace(log.String()), "\n") {
			if strings.Contains(line, `msg="sentinel: denied"`) {
				lines++
			}
			if _, n, ok := strings.Cut(line, "suppressed="); ok {
				var held int
				if _, err := fmt.Sscan(n, &held); err != nil {
					t.Fatal(err)
				}
				suppressed += held
			}
			if strings.Contains(line, "acme") {
				t.Fatalf("a raw tenant in the log: %s", line)
			}
		}
		if lines+suppressed != denials || lines > 110 {
			t.Errorf("%d lines and %d suppressed for %d denials", lines, suppressed, denials)
		}
		for _, field := range []string{"identity_mode=tenant_jwt", "identity_hash=822b33ad", "endpoint_id=jobs", "decision_reason=rate_limited", "decision_id=", "latency_micro=", "breaker_state="} {
			if !strings.Contains(log.String(), field) {
				t.Errorf("no %s in the log", field)
			}
		}
	})
}

func TestEveryDenialLogged(t *testing.T) {
	var log bytes.Buffer
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithEveryDenialLogged())
	defer l.Close()
	for range 101 {
		mustAllow(t, l, "acme", "jobs")
	}
	if n := strings.Count(log.String(), `msg="sentinel: denied"`); n != 100 {
		t.Errorf("%d lines for 100 denials", n)
	}
}

// Limiters that share a registry count into the same series, whenever and
// however often they are built; another metric of the same name is an error.
func TestMetricsAreShared(t *testing.T) {
	registry := prometheus.NewRegistry()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			l, err := Open(t.Context(), memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(silent), WithRegisterer(registry))
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			if _, err := l.Allow(t.Context(), "acme", "jobs"); err != nil {
				t.Error(err)
			}
			if _, err := l.Allow(t.Context(), "acme", "jobs"); err != nil {
				t.Error(err)
			}
			if _, err := l.Check(t.Context(), Request{EndpointID: "jobs"}); err == nil {
				t.Error("no error without a token")
			}
		})
	}
	wg.Wait()
	want := `
		# HELP sentinel_decisions_total Decisions, by endpoint and reason.
		# TYPE sentinel_decisions_total counter
		sentinel_decisions_total{decision_reason="allowed",endpoint_id="jobs"} 4
		sentinel_decisions_total{decision_reason="rate_limited",endpoint_id="jobs"} 4
		# HELP sentinel_auth_failures_total Requests without a valid bearer token, by kind.
		# TYPE sentinel_auth_failures_total counter
		sentinel_auth_failures_total{kind="missing"} 4
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_decisions_total", "sentinel_auth_failures_total"); err != nil {
		t.Error(err)
	}

	other := prometheus.NewRegistry()
	other.MustRegister(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sentinel_decisions_total", Help: "x"}, []string{"tenant"}))
	if _, err := Open(t.Context(), memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(silent), WithRegisterer(other)); err == nil {
		t.Error("a conflict with other labels is no error")
	}
}

func TestNewRefusesAClientThatWouldBreakTheBudget(t *testing.T) {
	bad := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: -2, WriteTimeout: -2})
	defer bad.Close()
	_, err := New(t.Context(), bad, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(silent))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"MaxRetries", "DialerRetries", "ContextTimeoutEnabled", "ReadTimeout", "WriteTimeout"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), ring} {
		if _, err := New(t.Context(), client, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(silent)); err == nil {
			t.Errorf("%T accepted", client)
		}
	}
	one := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, MaxActiveConns: 1,
	})
	defer one.Close()
	if _, err := New(t.Context(), one, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(silent)); err == nil || !strings.Contains(err.Error(), "MaxActiveConns") {
		t.Errorf("a client with one connection: %v", err)
	}
}

// A nil Config is refused like a wrong one.
func TestNilConfig(t *testing.T) {
	_, open := Open(t.Context(), nil)
	_, masters := Masters(t.Context(), nil)
	for name, err := range map[string]error{"Open": open, "Masters": masters, "Validate": (*Config)(nil).Validate()} {
		if err == nil || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found := (*Config)(nil).Warnings(); found != nil {
		t.Errorf("Warnings: %v", found)
	}
}

// An Option that is nil, as a condition may leave it, is ignored.
func TestNilOption(t *testing.T) {
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), nil)
	defer l.Close()
	if d := mustAllow(t, l, "acme", "jobs"); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// At most half of the connections that the application's client may have are
// the limiter's.
func TestHalfOfThePool(t *testing.T) {
	for _, c := range []struct{ size, most, lines int }{
		{100, 0, maxLines},
		{10, 0, 5},
		{2, 0, 1},
		{100, 6, 3},
		{4, 6, 2},
		{100, 100, maxLines},
	} {
		if got := linesOf(&redis.Options{PoolSize: c.size, MaxActiveConns: c.most}); got != c.lines {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// Every failure has its row in the decision table.
func TestFailureRows(t *testing.T) {
	for kind, allowed := range map[failureKind]Reason{
		kindTimeout:    ReasonRedisTimeout,
		kindConnection: ReasonRedisConnectionError,
		kindErrorReply: ReasonRedisConnectionError,
		kindBadReply:   ReasonRedisConnectionError,
		kindRefused:    ReasonRedisConnectionError,
		kindNoScript:   ReasonRedisNoScriptRetry,
		kindCircuit:    ReasonCircuitOpen,
	} {
		p := bucketPolicy("jobs", Token, 0)
		closed, open := newEndpoint(p, 0), newEndpoint(p, 0)
		open.policy.FailMode = FailOpen
		l := &Limiter{epoch: time.Now()}
		denied := ReasonFailClosed
		if kind == kindCircuit {
			denied = ReasonCircuitOpen
		}
		for _, row := range []struct {
			name    string
			e       *endpoint
			allowed bool
			reason  Reason
		}{
			{"fail_closed", closed, false, denied},
			{"fail_open", open, true, allowed},
			{"fail_open, bucket empty", open, false, ReasonEmergencyLocalLimit},
		} {
			var d Decision
			l.failed(row.e, &d, &storeFailure{kind: kind}, 1, l.now())
			if d.Allowed != row.allowed || d.Reason != row.reason || d.FromStore {
				t.Errorf("%s, %s: %+v", kind, row.name, d)
			}
		}
	}
}

// A breaker that opened for want of a connection closes with the connection;
// one that opened on calls that failed waits for its probe.
func TestReconnectedClosesOnlyWhatHadNoConnection(t *testing.T) {
	for _, sent := range []bool{false, true} {
		s := &shard{log: silent, epoch: time.Now()}
		s.breaker = breaker.New(breaker.Settings{Failures: breakerFailures, OpenFor: breakerOpenFor, OnChange: s.breakerChanged})
		now := func() time.Duration { return time.Since(s.epoch) }
		for i := range breakerFailures {
			pass, _ := s.breaker.Acquire(now())
			s.note(nil, &storeFailure{kind: kindTimeout, sent: sent && i == 0})
			s.breaker.Report(now(), pass, breaker.Failure)
		}
		s.reconnected(false)
		want := breaker.Closed
		if sent {
			want = breaker.Open
		}
		if got := s.breaker.State(); got != want {
			t.Errorf("sent %v: %v, want %v", sent, got, want)
		}
	}
}

func TestRequestPrintsNoCredential(t *testing.T) {
	r := Request{EndpointID: "jobs", Authorization: []string{"Bearer tok3n"}, Cookies: []string{"c00kie"}, Peer: "192.0.2.1"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		if out := fmt.Sprintf(verb, r); strings.Contains(out, "tok3n") || strings.Contains(out, "c00kie") || strings.Contains(out, "192.0.2.1") {
			t.Errorf("%s: %s", verb, out)
		}
	}
}
