package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
)

const (
	jwtSecret    = "benchmarks-only-jwt-0123456789abcdef"
	cookieSecret = "benchmarks-only-cookie-0123456789abcdef"
	cookieName   = "sentinel_anon_id"
)

// The endpoints of the limiters under test.
const (
	endpoint  = "bench.bucket" // a token bucket
	window    = "bench.window" // a sliding window
	anonymous = "bench.anonymous"
	failOpen  = "bench.open" // the others fail closed
)

// settings is a configuration with each kind of endpoint, all of one quota.
func settings(url string, q quota) *sentinel.Config {
	cfg := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(url),
			JWTSecret:             sentinel.NewSecrets(jwtSecret),
			AnonymousCookieSecret: sentinel.NewSecrets(cookieSecret),
		},
		Policies: map[string]sentinel.Policy{},
	}
	add(cfg, bucketPolicy(endpoint, q))
	add(cfg, windowPolicy(window, q))
	p := bucketPolicy(anonymous, q)
	p.Identity = sentinel.Anonymous
	add(cfg, p)
	p = bucketPolicy(failOpen, q)
	p.FailMode = sentinel.FailOpen
	add(cfg, p)
	return cfg
}

func add(cfg *sentinel.Config, p sentinel.Policy) { cfg.Policies[p.EndpointID] = p }

// bucketPolicy has a version of its own for each quota, so that limiters of two
// quotas never meet in one bucket.
func bucketPolicy(id string, q quota) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed, Version: q.burst,
		Capacity: sentinel.Micro(q.microCapacity()), RefillRate: sentinel.Micro(q.microRate()),
		FallbackRate: 1_000_000_000 * sentinel.Token,
	}
}

// windowPolicy has a window of a minute: with one of an hour the greatest limit
// is too small for plenty.
func windowPolicy(id string, q quota) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.SlidingWindow, FailMode: sentinel.FailClosed, Version: q.burst,
		Limit: min(q.burst, 50_000_000), Window: time.Minute, FallbackRate: sentinel.Token,
	}
}

// openWith opens a limiter as a service would, with its metrics kept, but its
// log written nowhere.
func openWith(ctx context.Context, cfg *sentinel.Config, opts ...sentinel.Option) (*sentinel.Limiter, error) {
	quiet := []sentinel.Option{sentinel.WithRegisterer(prometheus.NewRegistry()), sentinel.WithLogger(slog.New(slog.DiscardHandler))}
	return sentinel.Open(ctx, cfg, append(quiet, opts...)...)
}

// withoutMetrics is for rows that show what the metrics cost.
func withoutMetrics() sentinel.Option { return sentinel.WithRegisterer(nil) }

// openLimiter opens a limiter on the benchmark's Redis. Its budget is the
// longest there is: the peers wait for seconds, and a machine that stalls must
// not look like a Redis that is away. The failure path is measured with the
// budget that is the default.
func openLimiter(l *lab, q quota, opts ...sentinel.Option) (*sentinel.Limiter, error) {
	cfg := settings("redis://"+l.redis.addr, q)
	cfg.App.RedisBudget = time.Second
	return openWith(l.ctx, cfg, append(opts, sentinel.WithStrictStart())...)
}

func openMemory(l *lab, q quota) (*sentinel.Limiter, error) {
	return openWith(l.ctx, settings("memory://", q))
}

func openOurs(l *lab, q quota) (limit, func(), error) {
	limiter, err := openLimiter(l, q)
	if err != nil {
		return nil, nil, err
	}
	return allow(limiter), closing(limiter), nil
}

// allow asks for a tenant at the token bucket, and takes only the store's own word.
func allow(limiter *sentinel.Limiter) limit {
	return func(ctx context.Context, tenant string) (bool, error) {
		return genuine(limiter.Allow(ctx, tenant, endpoint))
	}
}

// genuine refuses answers that were not counted on the store. A known denial
// was counted: it is rate_limited.
func genuine(d sentinel.Decision, err error) (bool, error) {
	switch {
	case err != nil:
		return false, err
	case d.Reason != sentinel.ReasonAllowed && d.Reason != sentinel.ReasonRateLimited:
		return false, fmt.Errorf("not decided by the store: %s", d.Reason)
	default:
		return d.Allowed, nil
	}
}

// bearer is the Authorization header of a tenant.
func bearer(tenant string) string {
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": tenant, "exp": time.Now().Add(24 * time.Hour).Unix(),
	}).SignedString([]byte(jwtSecret))
	if err != nil {
		panic(err) // an HMAC does not fail
	}
	return "Bearer " + token
}

// cookie is the Cookie header of the n-th anonymous client.
func cookie(n int) string {
	id := fmt.Sprintf("%032x", n)
	exp := strconv.FormatInt(time.Now().Add(24*time.Hour).Unix(), 10)
	mac := hmac.New(sha256.New, []byte(cookieSecret))
	fmt.Fprintf(mac, "sentinel-anon:v1:%s:%s", id, exp)
	return cookieName + "=" + id + "." + exp + "." + hex.EncodeToString(mac.Sum(nil))
}

// address is the socket of the n-th anonymous client.
func address(n int) string { return fmt.Sprintf("10.%d.%d.%d:40000", n>>16&255, n>>8&255, n&255) }

// names are n keys, as long as a tenant's id may be.
func names(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%08d", prefix, i)
	}
	return keys
}
