package sentinel_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// A limit is lowered while the service runs: what acme has used stays used, and
// a configuration with a fault changes nothing.
func ExampleLimiter_Update() {
	policy := func(capacity sentinel.Micro) *sentinel.Config {
		return &sentinel.Config{
			App: sentinel.App{
				RedisURL:  sentinel.NewSecret("memory://"),
				JWTSecret: sentinel.NewSecrets("an-example-secret-of-32-bytes-or-more"),
			},
			Policies: map[string]sentinel.Policy{"jobs.ocr": {
				EndpointID: "jobs.ocr", Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed,
				FallbackRate: sentinel.Token, Version: 1, Capacity: capacity,
			}},
		}
	}
	ctx := context.Background()
	limiter, err := sentinel.Open(ctx, policy(10*sentinel.Token), sentinel.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()
	ask := func() {
		d, err := limiter.Allow(ctx, "acme", "jobs.ocr")
		fmt.Println(d.Allowed, d.Remaining, d.Limit, err)
	}
	ask()
	fmt.Println(limiter.Update(policy(3 * sentinel.Token)))
	ask()
	fmt.Println(limiter.Update(policy(1)))
	ask()
	// Output:
	// true 9 10 <nil>
	// <nil>
	// true 2 3 <nil>
	// policies["jobs.ocr"].capacity_micro: must be 1000000 to 4503599627370496 microtokens (1 to 4503599627.370496 tokens); a request costs one token
	// true 1 3 <nil>
}
