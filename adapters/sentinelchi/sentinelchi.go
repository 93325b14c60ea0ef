// Package sentinelchi guards chi routes with a [sentinel.Limiter].
//
// Use [Middleware] on the root router once, and put a [Guard] with the
// endpoint's id before each route, or on a group of them:
//
//	r := chi.NewRouter()
//	r.Use(sentinelchi.Middleware(limiter))
//	r.With(sentinelchi.Guard("billing.export")).Post("/export", export)
//
// chi's handlers are those of net/http, so everything is as in package
// sentinelhttp: the responses, the options, and sentinel.FromContext(r.Context())
// for the decision. chi keeps no values beside the request's context. This
// package adds what it knows of chi: the line to add where a Middleware is
// missing, and a warning of middleware.RealIP.
//
// Use a guard with r.With or in an r.Group. What r.Use puts on a router of its
// own, r.Route's too, chi runs before it looks for a route, so that paths that
// do not exist would be charged.
//
// The client's address, which counts at anonymous endpoints, is r.RemoteAddr.
// chi's deprecated middleware.RealIP puts there what the client writes. Behind a
// proxy, use one of middleware.ClientIPFrom..., and hand its answer over:
//
//	r.Use(middleware.ClientIPFromXFF("10.0.0.0/8"))
//	r.Use(sentinelchi.Middleware(limiter, sentinelchi.WithTrustedPeer(func(r *http.Request) string {
//		return middleware.GetClientIP(r.Context())
//	})))
package sentinelchi

import (
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/go-chi/chi/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// Option changes how [Middleware] works. It is sentinelhttp's.
type Option = sentinelhttp.Option

// trustedPeer is sentinelhttp's option, told apart from others.
type trustedPeer struct{ Option }

// WithTrustedPeer says which address counts at anonymous endpoints, as "ip" or
// "ip:port". The default is r.RemoteAddr. Only an application behind a proxy
// needs it; it is middleware.GetClientIP(r.Context()) behind one of
// middleware.ClientIPFrom..., which has to run before the Middleware. An address
// that the client can write gives every request a bucket of its own. All
// addresses that are no IP, "" among them, share one.
//
// It is called once for every request that passes the Middleware.
func WithTrustedPeer(peer func(*http.Request) string) Option {
	return trustedPeer{sentinelhttp.WithTrustedPeer(peer)}
}

// WithDenial replaces the body of denials, as [sentinelhttp.WithDenial] does.
func WithDenial(write func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial)) Option {
	return sentinelhttp.WithDenial(write)
}

// WithSkip lets the requests for which skip is true pass every guard without a
// decision, as [sentinelhttp.WithSkip] does.
func WithSkip(skip func(*http.Request) bool) Option {
	return sentinelhttp.WithSkip(skip)
}

// Middleware hands the limiter to the guards behind it. Use it on the root
// router, once; it decides nothing by itself, so routes without a [Guard] are
// not limited. Where it is nested, the inner one's limiter and options count.
// It panics if the limiter is nil.
//
// On the first request, the log warns if middleware.RealIP is in use before it
// and r.RemoteAddr is what counts.
func Middleware(l *sentinel.Limiter, opts ...Option) func(http.Handler) http.Handler {
	if l == nil {
		panic("sentinelchi: Middleware: the limiter is nil")
	}
	attach := sentinelhttp.Middleware(l, opts...)
	if slices.ContainsFunc(opts, func(o Option) bool { _, ok := o.(trustedPeer); return ok }) {
		return attach
	}
	var first sync.Once
	var self func(http.Handler) http.Handler
	self = func(next http.Handler) http.Handler {
		next = attach(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A middleware is not told its router before a request comes.
			first.Do(func() {
				if afterRealIP(r, self) {
					l.Logger().Warn("sentinelchi: middleware.RealIP runs before the Middleware, so r.RemoteAddr is what the client writes: each request can claim a bucket of its own; replace it",
						"line", `r.Use(middleware.ClientIPFromXFF("the proxies' networks")), with WithTrustedPeer and middleware.GetClientIP`)
				}
			})
			next.ServeHTTP(w, r)
		})
	}
	return self
}

// Guard lets a request through to the handler only if the limiter admits it at
// the endpoint with this id. The id is one of the configuration's, written
// down, never a piece of a URL; Guard panics if it does not match
// ^[a-z0-9._-]+$. A Guard without a [Middleware] before it answers 503 and logs
// once what is missing.
//
// A cost says as how many requests one counts here, as in
// Guard("billing.export", sentinel.Cost(5)); call [sentinel.Limiter.RequireCost]
// with it at the start.
func Guard(id string, cost ...sentinel.Cost) func(http.Handler) http.Handler {
	return sentinelhttp.NewGate("sentinelchi", id, "r.Use(sentinelchi.Middleware(limiter))", cost...).Handler
}

// afterRealIP reports whether chi's RealIP has run on r when self does: it is
// one of the root router's middlewares, and self, where it is another of them,
// comes later. RealIP shows nowhere if it is not in use on the root router.
func afterRealIP(r *http.Request, self func(http.Handler) http.Handler) bool {
	route := chi.RouteContext(r.Context())
	if route == nil || route.Routes == nil {
		return false
	}
	for _, mw := range route.Routes.Middlewares() {
		code := reflect.ValueOf(mw).Pointer()
		if code == reflect.ValueOf(self).Pointer() {
			return false
		}
		if runtime.FuncForPC(code).Name() == "github.com/go-chi/chi/v5/middleware.RealIP" {
			return true
		}
	}
	return false
}
