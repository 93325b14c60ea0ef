// Package sentineltest is for the tests of services that use Sentinel.
//
// [Open] is a limiter without a Redis, on the clock of testing/synctest: inside
// a bubble a test waits out a quota of a day in no time.
//
//	synctest.Test(t, func(t *testing.T) {
//		limiter := sentineltest.Open(t, policy)
//		...
//		time.Sleep(24 * time.Hour)
//	})
//
// [NewRedis] is a stand-in for Redis on a real socket. It runs Sentinel's own
// script, on a clock that the test moves, and plays the faults that the test
// asks for: late, lost, hung up, NOSCRIPT, LOADING, READONLY, OOM. With it a
// service tests its own fail modes in milliseconds. It is no Redis: what a
// server does under load, or when it dies, only a server shows.
//
// [Bearer] makes the tokens of tenants. All secrets here are public; nothing of
// this package is for production.
package sentineltest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// The secrets of [Config]. Everybody knows them.
const (
	JWTSecret    = "sentineltest-public-jwt-secret-0123456789"
	CookieSecret = "sentineltest-public-cookie-secret-0123456789"
)

const budget = 200 * time.Millisecond

// Config returns a configuration with this package's secrets for the given
// policies. url is "memory://", [Redis.URL] or that of a real Redis.
//
// A decision may take 200 ms and not the usual 20, because a test machine may be
// busy. Known denials are off: they are remembered on the clock of the process, and a
// test that moves the clock of its Redis would be denied up to a second longer.
func Config(url string, policies ...sentinel.Policy) *sentinel.Config {
	cfg := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(url),
			JWTSecret:             sentinel.NewSecrets(JWTSecret),
			AnonymousCookieSecret: sentinel.NewSecrets(CookieSecret),
			DisableKnownDenials:   true,
			RedisBudget:           budget,
		},
		Policies: make(map[string]sentinel.Policy, len(policies)),
	}
	for _, p := range policies {
		cfg.Policies[p.EndpointID] = p
	}
	return cfg
}

// Open opens a limiter on memory:// that logs nothing and is closed when the
// test ends. It fails the test where a policy is not valid. In a bubble of
// testing/synctest it lives on the bubble's clock.
func Open(t testing.TB, policies ...sentinel.Policy) *sentinel.Limiter {
	t.Helper()
	return OpenConfig(t, Config("memory://", policies...))
}

// OpenConfig is Open for a configuration of the test's own, such as
// Config(redis.URL(), policies...) or the service's own file.
func OpenConfig(t testing.TB, cfg *sentinel.Config, opts ...sentinel.Option) *sentinel.Limiter {
	t.Helper()
	quiet := sentinel.WithLogger(slog.New(slog.DiscardHandler))
	l, err := sentinel.Open(context.Background(), cfg, append([]sentinel.Option{quiet}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Bearer returns the Authorization header of a tenant, valid for an hour and
// signed with [JWTSecret].
func Bearer(t testing.TB, tenant string) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.RegisteredClaims{
		Subject:   tenant,
		ExpiresAt: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).SignedString([]byte(JWTSecret))
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + token
}
