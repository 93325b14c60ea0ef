package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

const (
	jwtKey    = "integration-jwt-key-0123456789abcdef"
	cookieKey = "integration-cookie-key-0123456789abcdef"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// config is a valid configuration for url with the given policies, and with a
// budget that a busy machine does not exceed. What holds within 20 ms is tested
// with onBudget.
func config(url string, policies ...sentinel.Policy) *sentinel.Config {
	c := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(url),
			JWTSecret:             sentinel.NewSecrets(jwtKey),
			AnonymousCookieSecret: sentinel.NewSecrets(cookieKey),
			RedisBudget:           time.Second,
		},
		Policies: map[string]sentinel.Policy{},
	}
	for _, p := range policies {
		c.Policies[p.EndpointID] = p
	}
	return c
}

// onBudget is config with the default budget, for tests that run under onTime.
func onBudget(url string, policies ...sentinel.Policy) *sentinel.Config {
	c := config(url, policies...)
	c.App.RedisBudget = 0
	return c
}

// tokens is a token bucket that fails closed.
func tokens(id string, capacity, rate sentinel.Micro) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Capacity: capacity, RefillRate: rate,
	}
}

// failOpen makes p fail open under an emergency bucket of the given rate.
func failOpen(p sentinel.Policy, rate sentinel.Micro) sentinel.Policy {
	p.FailMode, p.FallbackRate = sentinel.FailOpen, rate
	return p
}

func anonymous(p sentinel.Policy) sentinel.Policy {
	p.Identity = sentinel.Anonymous
	return p
}

func window(id string, limit int64, length time.Duration) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.SlidingWindow, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Limit: limit, Window: length,
	}
}

// gathering reports whether limiters gather decisions; SENTINEL_TEST_GATHERING=off
// has them send each in a call of its own.
func gathering() bool { return os.Getenv("SENTINEL_TEST_GATHERING") != "off" }

// options are those of every limiter here, and opts.
func options(opts ...sentinel.Option) []sentinel.Option {
	opts = append([]sentinel.Option{sentinel.WithLogger(silent)}, opts...)
	if !gathering() {
		opts = append(opts, sentinel.WithoutGathering())
	}
	return opts
}

// open opens a limiter that is closed when the test ends.
func open(t testing.TB, cfg *sentinel.Config, opts ...sentinel.Option) *sentinel.Limiter {
	t.Helper()
	l, err := sentinel.Open(t.Context(), cfg, options(opts...)...)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// refusal is the error with which a limiter refuses to start, nil if it starts.
// A machine that was too slow for an answer in time has given none.
func refusal(t testing.TB, cfg *sentinel.Config, opts ...sentinel.Option) error {
	t.Helper()
	for end := time.Now().Add(soon); ; {
		l, err := sentinel.Open(t.Context(), cfg, options(opts...)...)
		answered := err != nil && !strings.Contains(err.Error(), "no answer in time")
		if err == nil {
			answered = l.Status().Ready
			_ = l.Close()
		}
		if answered || time.Now().After(end) {
			return err
		}
	}
}

func allow(t testing.TB, l *sentinel.Limiter, tenant, id string) sentinel.Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), tenant, id)
	if err != nil {
		t.Fatalf("Allow(%q): %v", id, err)
	}
	return d
}

// fresh returns a tenant that no other test uses.
func fresh(t testing.TB) string {
	return fmt.Sprintf("%s-%d", t.Name(), rand.Uint64())
}

// freshPeer returns an address that no other test uses, for a server that may
// have seen them all before.
func freshPeer() string {
	return fmt.Sprintf("10.%d.%d.%d", rand.IntN(256), rand.IntN(256), 1+rand.IntN(254))
}

func keyOf(space, identity, id string) string {
	sum := sha256.Sum256([]byte(identity))
	return "sentinel:" + space + ":" + hex.EncodeToString(sum[:]) + ":" + id + ":1"
}

func tenantKey(tenant, id string) string { return keyOf("v1", tenant, id) }

func token(t testing.TB, key any, claims jwt.MapClaims) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + text
}

// stateOf returns the text of a key, "" if it is missing.
func stateOf(t testing.TB, c *redis.Client, key string) string {
	t.Helper()
	text, err := c.Get(context.Background(), key).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns Nil itself
		t.Fatal(err)
	}
	return text
}

// fixture is DUMP and the instant of expiry, to a millisecond (PEXPIRETIME is
// not in Redis 6): what a denial must leave as it was.
func fixture(t testing.TB, c *redis.Client, key string) (dump string, expires time.Time) {
	t.Helper()
	ctx := context.Background()
	dump, err := c.Dump(ctx, key).Result()
	if err != nil {
		t.Fatalf("DUMP %s: %v", key, err)
	}
	for {
		pipe := c.TxPipeline()
		before, left, after := pipe.Time(ctx), pipe.PTTL(ctx, key), pipe.Time(ctx)
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatalf("TIME, PTTL %s: %v", key, err)
		}
		if after.Val().Sub(before.Val()) < time.Millisecond { // else the server was not running meanwhile
			return dump, before.Val().Add(left.Val())
		}
	}
}

// eventually polls until ok, for at most limit.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(start)
}

// soon is the limit of what takes a moment, on a machine that has no other work.
const soon = 15 * time.Second

func shared(t testing.TB) (*redis.Client, string) {
	return redistest.Client(t), redistest.URL(t)
}

// meanwhile has n goroutines call f again and again until stop is called, which
// returns when all have ended.
func meanwhile(n int, f func()) (stop func()) {
	var ended atomic.Bool
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for !ended.Load() {
				f()
			}
		})
	}
	return func() {
		ended.Store(true)
		all.Wait()
	}
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
