package sentinelgrpc_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sentinelgo/sentinel/adapters/sentinelgrpc"
	sentinel "github.com/sentinelgo/sentinel/core"
)

const (
	jwtKey    = "grpc-test-jwt-key-0123456789abcdef"
	cookieKey = "grpc-test-cookie-key-0123456789abcdef"

	check = grpc_health_v1.Health_Check_FullMethodName
	watch = grpc_health_v1.Health_Watch_FullMethodName
	list  = grpc_health_v1.Health_List_FullMethodName
)

// service answers with what its context says of the decision.
type service struct {
	grpc_health_v1.UnimplementedHealthServer
	seen chan sentinel.Decision // zero where there was none
}

func (s *service) note(ctx context.Context) {
	d, _ := sentinel.FromContext(ctx)
	s.seen <- d
}

func (s *service) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s.note(ctx)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (s *service) List(ctx context.Context, _ *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	s.note(ctx)
	return &grpc_health_v1.HealthListResponse{}, nil
}

func (s *service) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	s.note(stream.Context())
	for range 3 {
		if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
			return err
		}
	}
	return nil
}

func policy(id string, capacity, rate sentinel.Micro) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Capacity: capacity, RefillRate: rate,
	}
}

func unenforced(p sentinel.Policy) sentinel.Policy {
	p.Unenforced = true
	return p
}

func open(t *testing.T, url string) *sentinel.Limiter {
	t.Helper()
	anonymous := policy("anonymous", 2*sentinel.Token, 1)
	anonymous.Identity = sentinel.Anonymous
	l, err := sentinel.Open(t.Context(), &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret(url),
			JWTSecret:             sentinel.NewSecrets(jwtKey),
			AnonymousCookieSecret: sentinel.NewSecrets(cookieKey),
		},
		Policies: map[string]sentinel.Policy{
			"two":       policy("two", 2*sentinel.Token, sentinel.Token/100),
			"five":      policy("five", 5*sentinel.Token, sentinel.Token/100),
			"never":     policy("never", sentinel.Token, 0),
			"anonymous": anonymous,
			"shadow":    unenforced(policy("shadow", sentinel.Token, 0)),
		},
	}, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serve runs a real server on a socket with the guards, and returns a client.
func serve(t *testing.T, g *sentinelgrpc.Guards, opts ...grpc.DialOption) (grpc_health_v1.HealthClient, *service) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{seen: make(chan sentinel.Decision, 100)}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(g.Unary()), grpc.ChainStreamInterceptor(g.Stream()))
	grpc_health_v1.RegisterHealthServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn), s
}

func as(t *testing.T, tenant string) context.Context {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": tenant, "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(jwtKey))
	if err != nil {
		t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
}

// call is one unary call: its error, headers and trailers.
func call(ctx context.Context, c grpc_health_v1.HealthClient) (header, trailer metadata.MD, err error) {
	_, err = c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return header, trailer, err
}

func first(md metadata.MD, key string) string { return strings.Join(md.Get(key), ",") }

func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func wantStatus(t *testing.T, err error, code codes.Code, message string) {
	t.Helper()
	if s := status.Convert(err); s.Code() != code || s.Message() != message {
		t.Errorf("%v %q, want %v %q", s.Code(), s.Message(), code, message)
	}
}

func TestTenant(t *testing.T) {
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "two"}))
	for want := int64(1); want >= 0; want-- {
		header, _, err := call(as(t, "acme"), c)
		if err != nil {
			t.Fatal(err)
		}
		if d := <-s.seen; !d.Allowed || d.EndpointID != "two" || d.Remaining != want {
			t.Errorf("the handler saw %+v", d)
		}
		if first(header, "ratelimit-policy") != `"two";q=2;w=200` || !strings.HasPrefix(first(header, "ratelimit"), `"two";r=`) {
			t.Errorf("headers %v", header)
		}
	}
	header, trailer, err := call(as(t, "acme"), c)
	wantStatus(t, err, codes.ResourceExhausted, "rate limit exceeded")
	if d := retryDelay(err); d <= 90*time.Second || d > 100*time.Second {
		t.Errorf("RetryInfo says %v", d)
	}
	if p := first(trailer, "grpc-retry-pushback-ms"); len(p) != 5 && p != "100000" {
		t.Errorf("pushback %q", p)
	}
	if id := first(header, "sentinel-decision-id") + first(trailer, "sentinel-decision-id"); len(id) != 36 {
		t.Errorf("sentinel-decision-id %q: %v, %v", id, header, trailer)
	}
	if first(header, "ratelimit")+first(trailer, "ratelimit") == "" {
		t.Errorf("no RateLimit on a denial: %v, %v", header, trailer)
	}
	if _, _, err := call(as(t, "other"), c); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if len(s.seen) != 1 {
		t.Errorf("the handler ran %d times for a denial and another tenant", len(s.seen))
	}
}

// A call counts as many as its method costs, unary or stream, and one by one where
// nothing is said of it.
func TestWithCost(t *testing.T) {
	g := sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "five", watch: "five", "/grpc.health.v1.Health/*": "five"},
		sentinelgrpc.WithCost(check, 3), sentinelgrpc.WithCost(watch, 2), nil) // a nil Option is ignored
	c, s := serve(t, g)
	watches := func(tenant string) error {
		stream, err := c.Watch(as(t, tenant), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	checks := func(tenant string) error { _, _, err := call(as(t, tenant), c); return err }
	lists := func(tenant string) error {
		_, err := c.List(as(t, tenant), &grpc_health_v1.HealthListRequest{})
		return err
	}

	if err := checks("a"); err != nil { // 5 - 3
		t.Fatal(err)
	}
	if d := <-s.seen; d.Remaining != 2 {
		t.Errorf("after a check %d remain, want 2", d.Remaining)
	}
	err := checks("a")
	wantStatus(t, err, codes.ResourceExhausted, "rate limit exceeded")
	if d := retryDelay(err); d <= 90*time.Second || d > 100*time.Second { // for the third token, of one in 100 s
		t.Errorf("RetryInfo says %v", d)
	}
	if err := watches("a"); err != nil { // what is left, to the last
		t.Fatal(err)
	}
	if d := <-s.seen; d.Remaining != 0 {
		t.Errorf("after a watch %d remain, want 0", d.Remaining)
	}
	wantStatus(t, lists("a"), codes.ResourceExhausted, "rate limit exceeded")

	for want := int64(4); want >= 0; want-- {
		if err := lists("b"); err != nil {
			t.Fatal(err)
		}
		if d := <-s.seen; d.Remaining != want {
			t.Errorf("after a list %d remain, want %d", d.Remaining, want)
		}
	}
	wantStatus(t, watches("b"), codes.ResourceExhausted, "rate limit exceeded")
}

// The application's own interceptor, which runs first, has verified who calls.
func TestWithTenant(t *testing.T) {
	l, err := sentinel.Open(t.Context(), &sentinel.Config{
		App:      sentinel.App{RedisURL: sentinel.NewSecret("memory://"), Authentication: sentinel.ByApplication},
		Policies: map[string]sentinel.Policy{"never": policy("never", sentinel.Token, 0)},
	}, sentinel.WithLogger(slog.New(slog.DiscardHandler)), sentinel.WithTenant(func(ctx context.Context) (string, error) {
		return first(metadata.MD{"v": metadata.ValueFromIncomingContext(ctx, "verified")}, "v"), nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, _ := serve(t, sentinelgrpc.New(l, sentinelgrpc.Methods{check: "never"}))
	for _, want := range []struct {
		ctx  context.Context
		code codes.Code
	}{
		{metadata.AppendToOutgoingContext(t.Context(), "verified", "acme"), codes.OK},
		{metadata.AppendToOutgoingContext(t.Context(), "verified", "acme"), codes.ResourceExhausted},
		{metadata.AppendToOutgoingContext(t.Context(), "verified", "globex"), codes.OK},
		{as(t, "acme"), codes.Unauthenticated}, // a token is not read
		{t.Context(), codes.Unauthenticated},
	} {
		if _, _, err := call(want.ctx, c); status.Code(err) != want.code {
			t.Errorf("%v, want %v", err, want.code)
		}
	}
}

func TestDenials(t *testing.T) {
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "two"}))
	_, _, err := call(t.Context(), c)
	wantStatus(t, err, codes.Unauthenticated, "authentication required")
	_, _, err = call(metadata.AppendToOutgoingContext(as(t, "a"), "authorization", "Bearer x"), c)
	wantStatus(t, err, codes.Unauthenticated, "authentication required") // two tokens

	c, _ = serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "not.configured"}))
	_, _, err = call(as(t, "a"), c)
	wantStatus(t, err, codes.NotFound, "unknown endpoint")
	_, _, err = call(t.Context(), c)
	wantStatus(t, err, codes.Unauthenticated, "authentication required") // a stranger learns nothing

	l := open(t, "memory://")
	c, _ = serve(t, sentinelgrpc.New(l, sentinelgrpc.Methods{check: "two"}))
	_ = l.Close()
	_, trailer, err := call(as(t, "a"), c)
	wantStatus(t, err, codes.Unavailable, "rate limiter unavailable")
	if first(trailer, "grpc-retry-pushback-ms") != "" || retryDelay(err) != 0 {
		t.Errorf("a wait that nobody knows: %v, %v", trailer, retryDelay(err))
	}
	if len(s.seen) != 0 {
		t.Error("a handler ran")
	}
}

func TestNeverAgain(t *testing.T) {
	c, _ := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "never"}))
	if _, _, err := call(as(t, "a"), c); err != nil {
		t.Fatal(err)
	}
	_, trailer, err := call(as(t, "a"), c)
	wantStatus(t, err, codes.ResourceExhausted, "rate limit exceeded")
	if first(trailer, "grpc-retry-pushback-ms") != "-1" || retryDelay(err) != 0 {
		t.Errorf("trailer %v, delay %v", trailer, retryDelay(err))
	}
}

// A client with a retry policy obeys the pushback: it makes one call, not four.
func TestClientsObeyPushback(t *testing.T) {
	retries := grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`)
	attempts := make(chan struct{}, 10)
	count := sentinelgrpc.WithSkip(func(context.Context, string) bool { attempts <- struct{}{}; return false })
	c, _ := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "never"}, count), retries)
	for range 2 {
		_, _, _ = call(as(t, "a"), c)
	}
	if len(attempts) != 2 {
		t.Errorf("%d attempts for 2 calls", len(attempts))
	}
}

func TestStream(t *testing.T) {
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{watch: "two"}))
	receive := func() (n int, err error) {
		stream, err := c.Watch(as(t, "a"), &grpc_health_v1.HealthCheckRequest{})
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				n++
			}
		}
		return n, err
	}
	for range 2 {
		if n, err := receive(); n != 3 || err != io.EOF { //nolint:errorlint // Recv returns io.EOF itself
			t.Fatalf("%d messages, %v", n, err)
		}
		if d := <-s.seen; !d.Allowed || d.EndpointID != "two" {
			t.Errorf("the handler saw %+v", d)
		}
	}
	n, err := receive()
	if n != 0 || len(s.seen) != 0 {
		t.Errorf("a denied stream: %d messages, the handler ran: %v", n, len(s.seen) > 0)
	}
	wantStatus(t, err, codes.ResourceExhausted, "rate limit exceeded")
}

func TestWhichMethodsAreGuarded(t *testing.T) {
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{"/grpc.health.v1.Health/*": "never", check: "two"}))
	if _, _, err := call(as(t, "a"), c); err != nil {
		t.Fatal(err)
	}
	if d := <-s.seen; d.EndpointID != "two" {
		t.Errorf("Check was decided at %q", d.EndpointID)
	}
	if _, err := c.List(as(t, "a"), &grpc_health_v1.HealthListRequest{}); err != nil {
		t.Fatal(err)
	}
	if d := <-s.seen; d.EndpointID != "never" {
		t.Errorf("List was decided at %q", d.EndpointID)
	}

	c, s = serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{list: "never", "/other/*": "never"}))
	for range 3 {
		if _, _, err := call(t.Context(), c); err != nil {
			t.Fatalf("a method without a guard: %v", err)
		}
		if d := <-s.seen; d.EndpointID != "" {
			t.Errorf("it was decided at %q", d.EndpointID)
		}
	}
}

// What a client writes into its metadata does not change who it is.
func TestAnonymous(t *testing.T) {
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "anonymous"}))
	allowed := 0
	for i := range 20 {
		forged := "192.0.2." + string(rune('0'+i%10))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", forged, "x-real-ip", forged, "forwarded", "for="+forged)
		header, _, err := call(ctx, c)
		if err == nil {
			allowed++
			<-s.seen
		}
		if first(header, "set-cookie") != "" {
			t.Error("a cookie went out")
		}
	}
	if allowed != 2 {
		t.Errorf("one peer was admitted %d times, want 2", allowed)
	}
}

func TestTrustedPeer(t *testing.T) {
	peers := make(chan string, 1)
	trusted := sentinelgrpc.WithTrustedPeer(func(context.Context) string { return <-peers })
	c, _ := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "anonymous"}, trusted))
	for _, peer := range []string{"192.0.2.1", "192.0.2.1:4711", "192.0.2.2"} {
		peers <- peer
		if _, _, err := call(t.Context(), c); err != nil {
			t.Errorf("%s: %v", peer, err)
		}
	}
	peers <- "192.0.2.1"
	_, _, err := call(t.Context(), c)
	wantStatus(t, err, codes.ResourceExhausted, "rate limit exceeded")
}

func TestSkip(t *testing.T) {
	skip := sentinelgrpc.WithSkip(func(_ context.Context, method string) bool { return method == check })
	c, s := serve(t, sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "never"}, skip))
	for range 3 {
		if _, _, err := call(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if d := <-s.seen; d.EndpointID != "" {
			t.Errorf("it was decided: %+v", d)
		}
	}
}

// The interceptor of a call whose client has gone.
func TestClientGone(t *testing.T) {
	g := sentinelgrpc.New(open(t, "memory://"), sentinelgrpc.Methods{check: "two"})
	token := as(t, "a")
	md, _ := metadata.FromOutgoingContext(token)
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), md))
	cancel()
	_, err := g.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: check}, func(context.Context, any) (any, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	if code := status.Code(err); code != codes.Canceled {
		t.Errorf("%v, want Canceled", err)
	}
}

func TestWiring(t *testing.T) {
	l := open(t, "memory://")
	for name, f := range map[string]func(){
		"nil limiter":     func() { sentinelgrpc.New(nil, nil) },
		"an id":           func() { sentinelgrpc.New(l, sentinelgrpc.Methods{check: "Not An Id"}) },
		"no slash":        func() { sentinelgrpc.New(l, sentinelgrpc.Methods{"Check": "two"}) },
		"no method":       func() { sentinelgrpc.New(l, sentinelgrpc.Methods{"/grpc.health.v1.Health/": "two"}) },
		"no service":      func() { sentinelgrpc.New(l, sentinelgrpc.Methods{"//Check": "two"}) },
		"no first slash":  func() { sentinelgrpc.New(l, sentinelgrpc.Methods{"grpc.health.v1.Health/Check": "two"}) },
		"nil peer":        func() { sentinelgrpc.WithTrustedPeer(nil) },
		"nil skip":        func() { sentinelgrpc.WithSkip(nil) },
		"an empty method": func() { sentinelgrpc.New(l, sentinelgrpc.Methods{"": "two"}) },

		"a cost of a method without a guard": func() {
			sentinelgrpc.New(l, sentinelgrpc.Methods{check: "two"}, sentinelgrpc.WithCost(watch, 2))
		},
		"a cost of a method that only its service names": func() {
			sentinelgrpc.New(l, sentinelgrpc.Methods{"/grpc.health.v1.Health/*": "two"}, sentinelgrpc.WithCost(check, 2))
		},
		"a cost above the quota": func() { sentinelgrpc.New(l, sentinelgrpc.Methods{check: "two"}, sentinelgrpc.WithCost(check, 3)) },
		"a cost of 0":            func() { sentinelgrpc.New(l, sentinelgrpc.Methods{check: "two"}, sentinelgrpc.WithCost(check, 0)) },
		"a cost below 0":         func() { sentinelgrpc.New(l, sentinelgrpc.Methods{check: "two"}, sentinelgrpc.WithCost(check, -1)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r := recover(); r == nil || !strings.HasPrefix(r.(string), "sentinelgrpc: ") {
					t.Errorf("recovered %v, want a panic of this package", r)
				}
			}()
			f()
		})
	}
}

// What is not enforced runs the handler over the quota and without Redis, and
// the client cannot tell.
func TestUnenforced(t *testing.T) {
	closed := open(t, "memory://")
	_ = closed.Close()
	for _, l := range []*sentinel.Limiter{open(t, "memory://"), closed} {
		c, s := serve(t, sentinelgrpc.New(l, sentinelgrpc.Methods{check: "shadow"}))
		for i := range 3 {
			header, trailer, err := call(as(t, "acme"), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"ratelimit", "ratelimit-policy", "sentinel-decision-id"} {
				if len(header.Get(name)) > 0 {
					t.Errorf("%s: %q", name, header.Get(name))
				}
			}
			if got := first(trailer, "grpc-retry-pushback-ms"); got != "" {
				t.Errorf("pushback %s", got)
			}
			if d := <-s.seen; !d.Allowed || !d.Unenforced || d.WouldDeny != (i > 0 || l == closed) {
				t.Errorf("%d: %+v", i, d)
			}
		}
		if _, _, err := call(t.Context(), c); status.Code(err) != codes.Unauthenticated {
			t.Errorf("without a token: %v", err)
		}
	}
}
