package sentinel_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	sentinel "github.com/sentinelgo/sentinel/core"
)

func Example() {
	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {
			"redis_url": "memory://",
			"jwt_secret": "an-example-key-of-at-least-32-bytes"
		},
		"policies": {
			"jobs.ocr": {
				"endpoint_id": "jobs.ocr", "policy_version": 1,
				"algorithm": "token_bucket", "capacity": 2, "refill_per_second": 0.1,
				"fail_mode": "fail_closed", "fallback_per_second": 1
			}
		}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	limiter, err := sentinel.Open(ctx, cfg, sentinel.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	for range 3 {
		d, err := limiter.Allow(ctx, "acme", "jobs.ocr")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Reason, d.Remaining)
	}
	// Output:
	// true allowed 1
	// true allowed 0
	// false rate_limited 0
}

// Two at once, and three in an hour: one decision over both limits.
func ExamplePolicy_also() {
	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "an-example-secret-of-at-least-32-bytes"},
		"policies": {"search.query": {
			"endpoint_id": "search.query", "policy_version": 1,
			"algorithm": "token_bucket", "capacity": 10, "refill_per_second": 10,
			"also": [{"algorithm": "sliding_window", "limit": 3, "window": "1h"}],
			"fail_mode": "fail_closed", "fallback_per_second": 1
		}}
	}`))
	if err != nil {
		panic(err)
	}
	limiter, err := sentinel.Open(context.Background(), cfg, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()
	for range 4 {
		d, _ := limiter.Allow(context.Background(), "acme", "search.query")
		_, tightest := d.Limits()
		fmt.Println(d.Allowed, d.Remaining, tightest)
	}
	// Output:
	// true 2 search.query:2
	// true 1 search.query:2
	// true 0 search.query:2
	// false 0 search.query:2
}

// The application has its own sessions; its middleware puts the tenant into the
// request's context, and Sentinel reads no token.
func ExampleWithTenant() {
	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "authentication": "application"},
		"policies": {"jobs": {
			"endpoint_id": "jobs", "algorithm": "sliding_window", "limit": 1, "window": "1h",
			"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1
		}}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	type tenantKey struct{}
	limiter, err := sentinel.Open(context.Background(), cfg,
		sentinel.WithLogger(slog.New(slog.DiscardHandler)),
		sentinel.WithTenant(func(ctx context.Context) (string, error) {
			tenant, _ := ctx.Value(tenantKey{}).(string)
			return tenant, nil // "" is nobody
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()

	signedIn := context.WithValue(context.Background(), tenantKey{}, "acme")
	for _, ctx := range []context.Context{signedIn, signedIn, context.Background()} {
		d, err := limiter.Check(ctx, sentinel.Request{EndpointID: "jobs"}) // as an adapter's guard does
		fmt.Println(d.Allowed, d.Reason, err)
	}
	// Output:
	// true allowed <nil>
	// false rate_limited <nil>
	// false  sentinel: authentication required (tenant)
}
