package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// The secrets of limiters whose verdicts are counted.
const (
	verdictJWT    = "proof-verdict-jwt-0123456789abcdef"    // #nosec G101 -- of tests
	verdictCookie = "proof-verdict-cookie-0123456789abcdef" // #nosec G101 -- of tests
)

// configure is a configuration with a budget that a busy machine does not miss,
// for what counts verdicts and does not measure time.
func configure(url string, policies ...sentinel.Policy) *sentinel.Config {
	c := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(url),
			JWTSecret:             sentinel.NewSecrets(verdictJWT),
			AnonymousCookieSecret: sentinel.NewSecrets(verdictCookie),
			RedisBudget:           time.Second,
		},
		Policies: map[string]sentinel.Policy{},
	}
	for _, p := range policies {
		c.Policies[p.EndpointID] = p
	}
	return c
}

// tokenBucket fails closed, and so does slidingWindow.
func tokenBucket(id string, capacity, rate sentinel.Micro) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Capacity: capacity, RefillRate: rate,
	}
}

func slidingWindow(id string, limit int64, window time.Duration) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.SlidingWindow, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Limit: limit, Window: window,
	}
}

// openLimiter opens a limiter that is closed with s.
func openLimiter(s *scope, cfg *sentinel.Config, opts ...sentinel.Option) *sentinel.Limiter {
	opts = append([]sentinel.Option{sentinel.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	l, err := sentinel.Open(s.Context(), cfg, opts...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := l.Close(); err != nil {
			s.Error(err)
		}
	})
	return l
}

// allow asks for one request of a tenant.
func allow(s *scope, l *sentinel.Limiter, tenant, id string) sentinel.Decision {
	d, err := l.Allow(s.Context(), tenant, id)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// nobody is a tenant that was never used before.
func nobody() string { return fmt.Sprintf("tenant-%016x", rand.Uint64()) } // #nosec G404 -- no secret

// keyOf is the key of an identity's bucket in a key space, v1 or v2.
func keyOf(space, identity, id string) string {
	sum := sha256.Sum256([]byte(identity))
	return "sentinel:" + space + ":" + hex.EncodeToString(sum[:]) + ":" + id + ":1"
}

// comes polls until ok, for at most limit, and reports whether it came.
func comes(ctx context.Context, limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
	}
	return true
}
