package sentinelgrpc_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sentinelgo/sentinel/adapters/sentinelgrpc"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// One call at once and one every two seconds, for each peer.
const example = `{
	"app": {
		"redis_url": "memory://",
		"jwt_secret": "example-only-secret-0123456789abcdef",
		"jwt_algorithm_allowlist": ["HS256"],
		"anonymous_cookie_secret": "example-only-cookie-secret-0123456789"
	},
	"policies": {
		"health.check": {
			"endpoint_id": "health.check",
			"identity": "anonymous",
			"algorithm": "token_bucket",
			"fail_mode": "fail_open",
			"policy_version": 1,
			"capacity": 1,
			"refill_per_second": 0.5,
			"fallback_per_second": 1
		}
	}
}`

func ExampleNew() {
	cfg, err := sentinel.ParseConfig([]byte(example))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := sentinel.Open(context.Background(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()

	guards := sentinelgrpc.New(limiter, sentinelgrpc.Methods{
		grpc_health_v1.Health_Check_FullMethodName: "health.check",
	})
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(guards.Unary()),
		grpc.ChainStreamInterceptor(guards.Stream()),
	)
	defer server.Stop()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	for range 2 {
		_, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Printf("%v %q\n", status.Code(err), status.Convert(err).Message())
	}
	// Output:
	// OK ""
	// ResourceExhausted "rate limit exceeded"
}
