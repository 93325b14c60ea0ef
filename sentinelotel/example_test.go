package sentinelotel_test

import (
	"context"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/sentinelotel"
)

func ExampleNew() {
	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "example-key-0123456789-abcdefghijkl"},
		"policies": {"jobs": {
			"endpoint_id": "jobs", "algorithm": "token_bucket", "fail_mode": "fail_closed", "policy_version": 1,
			"capacity": 1, "refill_per_second": 0.1, "fallback_per_second": 1
		}}
	}`))
	if err != nil {
		panic(err)
	}
	// A service would export to its collector; without WithTracerProvider the
	// global provider is used.
	spans := tracetest.NewInMemoryExporter()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))

	limiter, err := sentinel.Open(context.Background(), cfg, sentinel.WithLogger(silent),
		sentinel.WithObserver(sentinelotel.New(sentinelotel.WithTracerProvider(tracers))))
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	for range 2 {
		if _, err := limiter.Allow(context.Background(), "acme", "jobs"); err != nil {
			panic(err)
		}
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name, s.Status.Code)
		for _, a := range s.Attributes {
			if a.Key != "sentinel.decision.id" { // different each time
				fmt.Println("  ", a.Key, a.Value.String())
			}
		}
	}
	// Output:
	// sentinel.check Unset
	//    sentinel.endpoint.id jobs
	//    sentinel.decision.allowed true
	//    sentinel.decision.reason allowed
	//    sentinel.identity.mode tenant_jwt
	//    sentinel.decision.remaining 0
	// sentinel.check Unset
	//    sentinel.endpoint.id jobs
	//    sentinel.decision.allowed false
	//    sentinel.decision.reason rate_limited
	//    sentinel.identity.mode tenant_jwt
	//    sentinel.decision.remaining 0
}
