// Package sentinelgrpc guards gRPC methods with a [sentinel.Limiter].
//
// Name the endpoint of each method once, and put the two interceptors first:
//
//	guards := sentinelgrpc.New(limiter, sentinelgrpc.Methods{
//		billingpb.Billing_Export_FullMethodName: "billing.export",
//	})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(guards.Unary()),
//		grpc.ChainStreamInterceptor(guards.Stream()),
//	)
//
// A method that is not named is not limited. A stream is one decision, taken
// when it opens; its messages are not counted.
//
// A guarded handler runs only when the limiter said yes, and reads the decision
// with sentinel.FromContext(ctx). A denial is a status, whose message is the
// detail that package sentinelhttp gives the same outcome:
//
//	no or bad token                      Unauthenticated
//	endpoint not configured              NotFound
//	rate_limited, emergency_local_limit  ResourceExhausted
//	the store failed, fail closed        Unavailable
//
// Where a time is known, the status carries it as a google.rpc.RetryInfo and the
// trailer as grpc-retry-pushback-ms, which clients with a retry policy obey;
// where a retry can never succeed, the pushback tells them not to try. The
// headers ratelimit and ratelimit-policy are those of HTTP, and so is
// sentinel-decision-id on a denial.
//
// The tenant's token is the metadata "authorization: Bearer ...". At anonymous
// endpoints the peer's address counts alone: a gRPC client has no cookie jar, so
// none is read and none is sent. Behind a proxy, say with [WithTrustedPeer]
// which address you trust; metadata is never read for it.
package sentinelgrpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// Methods are the guarded methods: their full names, as in the generated
// constants ("/billing.v1.Billing/Export"), with the endpoint's id of each.
// "/billing.v1.Billing/*" stands for all methods of a service that are not
// named themselves.
type Methods map[string]string

// Option changes how [New] works. One that is nil is ignored.
type Option interface {
	apply(*Guards)
}

type optionFunc func(*Guards)

func (f optionFunc) apply(g *Guards) { f(g) }

// WithTrustedPeer says which address counts at anonymous endpoints, as "ip" or
// "ip:port". The default is that of peer.FromContext. Only a server behind a
// proxy needs it: an address that the client can write gives every request a
// bucket of its own. All addresses that are no IP, "" among them, share one.
//
// It is called once for every call of a guarded method.
func WithTrustedPeer(peer func(context.Context) string) Option {
	if peer == nil {
		panic("sentinelgrpc: WithTrustedPeer: the function is nil")
	}
	return optionFunc(func(g *Guards) { g.peer = peer })
}

// WithSkip lets the calls for which skip is true pass without a decision:
// nothing is charged, no header is set, [sentinel.FromContext] finds nothing.
// Do not decide by anything that a client could write to escape its quota.
//
// It is called once for every call of a guarded method.
func WithSkip(skip func(ctx context.Context, fullMethod string) bool) Option {
	if skip == nil {
		panic("sentinelgrpc: WithSkip: the function is nil")
	}
	return optionFunc(func(g *Guards) { g.skip = skip })
}

// WithCost says as how many requests a call of one method counts. New panics where
// the method is not among the guarded ones by this name, or no request of that
// cost could ever be admitted.
func WithCost(method string, cost sentinel.Cost) Option {
	return optionFunc(func(g *Guards) { g.costs[method] = cost })
}

// Guards are the guards of a server's methods. Make them with [New]; they may be
// used by several servers at once.
type Guards struct {
	limiter *sentinel.Limiter
	gates   map[string]*sentinelhttp.Gate // by full method, or "/service/*"
	peer    func(context.Context) string
	skip    func(context.Context, string) bool
	costs   map[string]sentinel.Cost
}

// New returns the guards of the given methods. It panics where the limiter is
// nil, a method is not of the form /service/method or an id does not match
// ^[a-z0-9._-]+$. Call [sentinel.Limiter.Require] with the ids, too: one that the
// configuration lacks is answered NotFound.
func New(l *sentinel.Limiter, methods Methods, opts ...Option) *Guards {
	if l == nil {
		panic("sentinelgrpc: New: the limiter is nil")
	}
	g := &Guards{limiter: l, gates: make(map[string]*sentinelhttp.Gate, len(methods)), peer: socketPeer, costs: make(map[string]sentinel.Cost)}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(g)
		}
	}
	for method := range g.costs {
		if _, ok := methods[method]; !ok {
			panic(fmt.Sprintf("sentinelgrpc: WithCost: the method %q is not among the guarded ones", method))
		}
	}
	for method, id := range methods {
		if _, name := split(method); name == "" {
			panic(fmt.Sprintf("sentinelgrpc: New: the method %q is not of the form /service/method or /service/*", method))
		}
		cost, ok := g.costs[method]
		if !ok {
			cost = 1
		}
		g.gates[method] = sentinelhttp.NewGate("sentinelgrpc", id, "sentinelgrpc.New(limiter, methods)", cost)
		if err := l.RequireCost(id, cost); err != nil && cost != 1 {
			panic("sentinelgrpc: WithCost: " + err.Error())
		}
	}
	return g
}

// split cuts a full method into "/service/" and the method's name. Both are ""
// where it is none.
func split(method string) (service, name string) {
	at := strings.LastIndexByte(method, '/')
	if at < 2 || method[0] != '/' || strings.IndexByte(method[1:at], '/') >= 0 {
		return "", ""
	}
	return method[:at+1], method[at+1:]
}

func socketPeer(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	return p.Addr.String()
}

// Unary returns the interceptor for unary methods.
func (g *Guards) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := g.decide(ctx, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// Stream returns the interceptor for streams, of either side or both.
func (g *Guards) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := g.decide(stream.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		return handler(srv, &decidedStream{stream, ctx})
	}
}

// decidedStream is a stream whose context carries the decision; there is no
// other way to hand a context to the handler of a stream.
type decidedStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // it is what this is for
}

// Context implements grpc.ServerStream.
func (s *decidedStream) Context() context.Context { return s.ctx }

// decide asks the limiter. Its error is the status of the denial; else the
// context carries the decision.
func (g *Guards) decide(ctx context.Context, method string) (context.Context, error) {
	gate := g.gates[method]
	if gate == nil {
		service, _ := split(method)
		if gate = g.gates[service+"*"]; gate == nil {
			return ctx, nil
		}
	}
	if g.skip != nil && g.skip(ctx, method) {
		return ctx, nil
	}
	// The outcome of a decision is mapped in sentinelhttp, once for all; a gate
	// looks at no more of a request than this.
	r := (&http.Request{Header: http.Header{"Authorization": metadata.ValueFromIncomingContext(ctx, "authorization")}}).WithContext(ctx)
	w := answer{header: http.Header{}}
	r, denial := gate.Decide(w, sentinelhttp.Attach(r, sentinelhttp.Attachment{Limiter: g.limiter, Peer: g.peer(ctx)}))
	w.send(ctx)
	if denial != nil {
		return nil, denied(ctx, denial)
	}
	return r.Context(), nil
}

// answer takes the headers of a gate.
type answer struct{ header http.Header }

// Header implements http.ResponseWriter.
func (a answer) Header() http.Header { return a.header }

// Write implements http.ResponseWriter; a gate writes nothing.
func (a answer) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter; a gate writes nothing.
func (a answer) WriteHeader(int) {}

// send sets the RateLimit headers and the decision's id. The others of a gate are
// HTTP's own.
func (a answer) send(ctx context.Context) {
	md := metadata.MD{}
	for _, name := range []string{"Ratelimit-Policy", "Ratelimit", "Sentinel-Decision-Id"} {
		if values := a.header[name]; len(values) > 0 {
			md[strings.ToLower(name)] = values
		}
	}
	if len(md) == 0 {
		return
	}
	// The error is that of a context without a stream, or of headers that are
	// on their way: then there is nobody to tell.
	_ = grpc.SetHeader(ctx, md)
}

// denied is the status of a denial.
func denied(ctx context.Context, d *sentinelhttp.Denial) error {
	if d.Err != nil && (errors.Is(d.Err, context.Canceled) || errors.Is(d.Err, context.DeadlineExceeded)) {
		return status.FromContextError(d.Err).Err()
	}
	s := status.New(codeOf(d.Status), d.Detail)
	wait := d.Decision.RetryAfter
	switch {
	case wait > 0:
		pushback(ctx, wait)
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
			s = with
		}
	case d.Status == http.StatusTooManyRequests:
		pushback(ctx, -1) // its bucket never refills
	}
	return s.Err()
}

// pushback tells clients that retry by themselves when to, a negative wait that
// they must not, https://github.com/grpc/proposal/blob/master/A6-client-retries.md.
func pushback(ctx context.Context, wait time.Duration) {
	ms := int64(-1)
	if wait >= 0 {
		ms = min(int64((wait-1)/time.Millisecond)+1, 1<<31-1) // rounded up; grpc reads an int32
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(ms, 10))) // as in send
}

func codeOf(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	default:
		return codes.Unavailable
	}
}
