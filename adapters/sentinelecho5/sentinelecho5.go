// Package sentinelecho5 guards routes of echo v5 with a [sentinel.Limiter].
//
// Use [Middleware] once, and put a [Guard] with the endpoint's id on each
// route:
//
//	e := echo.New()
//	e.Use(sentinelecho5.Middleware(limiter))
//	e.POST("/export", export, sentinelecho5.Guard("billing.export"))
//
// A guarded handler runs only when the limiter said yes. It reads the decision
// with [Decision], or, where it has no echo.Context, with
// sentinel.FromContext(c.Request().Context()). echo's response is never
// wrapped, so streams and upgrades work behind a guard.
//
// A denial is answered here, with the responses of package sentinelhttp, and
// returns no error: echo's HTTPErrorHandler is not called, so there is one body
// whatever that handler does. Who wants it to write denials returns an error
// from [WithDenial]. What the guarded handler returns passes unchanged.
//
// Make a guard on a group the last of its middlewares: echo runs those also for
// paths under the group that do not exist, and a guard passes, uncharged, only
// what comes right before echo's own answer.
//
// The client's address, which counts at anonymous endpoints, is the socket's,
// c.Request().RemoteAddr. Forwarding headers are never read, not even where
// Echo.IPExtractor does. Behind a proxy, say first which one echo may trust,
// then hand its answer over:
//
//	e.IPExtractor = echo.ExtractIPFromXFFHeader(echo.TrustIPRange(proxies))
//	e.Use(sentinelecho5.Middleware(limiter, sentinelecho5.WithTrustedPeer((*echo.Context).RealIP)))
package sentinelecho5

import (
	"context"
	"net/http"
	"reflect"

	"github.com/labstack/echo/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// config is what the options fill. A nil function means the default.
type config struct {
	peer   func(*echo.Context) string
	denial func(*echo.Context, sentinelhttp.Denial) error
	skip   func(*echo.Context) bool
}

// Option changes how [Middleware] works. One that is nil is ignored.
type Option interface {
	apply(*config)
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithTrustedPeer says which address counts at anonymous endpoints, as "ip" or
// "ip:port". The default is c.Request().RemoteAddr. Only an application behind
// a proxy needs it; it is (*echo.Context).RealIP where Echo.IPExtractor trusts the
// proxies and nobody else. An address that the client can write gives every
// request a bucket of its own. All addresses that are no IP, "" among them,
// share one.
//
// It is called once for every request that passes the Middleware.
func WithTrustedPeer(peer func(*echo.Context) string) Option {
	if peer == nil {
		panic("sentinelecho5: WithTrustedPeer: the function is nil")
	}
	return optionFunc(func(c *config) { c.peer = peer })
}

// WithDenial replaces the body of denials. When write is called, the headers
// that the denial asks for are set: Retry-After, WWW-Authenticate, RateLimit
// and Cache-Control. write either sends a response, whose status is d.Status
// unless it says otherwise, or returns an error, such as
//
//	echo.NewHTTPError(d.Status, d.Detail)
//
// which goes to echo's HTTPErrorHandler, once, and no further up the chain, as
// that of echo's own RateLimiter. An error after a response is dropped. If both
// have sent nothing, the client gets the default response: a denial never turns
// into an empty 200.
func WithDenial(write func(c *echo.Context, d sentinelhttp.Denial) error) Option {
	if write == nil {
		panic("sentinelecho5: WithDenial: the function is nil")
	}
	return optionFunc(func(c *config) { c.denial = write })
}

// WithSkip lets the requests for which skip is true pass every guard without a
// decision: nothing is charged, no header is set, [Decision] finds nothing. It
// is for health checks and CORS preflights, and takes a middleware.Skipper. Do
// not decide by anything that a client could write to escape its quota.
//
// It is called once for every request that passes the Middleware.
func WithSkip(skip func(*echo.Context) bool) Option {
	if skip == nil {
		panic("sentinelecho5: WithSkip: the function is nil")
	}
	return optionFunc(func(c *config) { c.skip = skip })
}

// Middleware hands the limiter to the guards behind it. Use it once, for all of
// echo; it decides nothing by itself, so routes without a [Guard] are not
// limited. Where it is nested, the inner one's limiter and options count. It
// panics if the limiter is nil.
func Middleware(l *sentinel.Limiter, opts ...Option) echo.MiddlewareFunc {
	if l == nil {
		panic("sentinelecho5: Middleware: the limiter is nil")
	}
	cfg := &config{}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(cfg)
		}
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			a := sentinelhttp.Attachment{Limiter: l, Peer: c.Request().RemoteAddr, Options: cfg}
			if cfg.peer != nil {
				a.Peer = cfg.peer(c)
			}
			a.Skip = cfg.skip != nil && cfg.skip(c)
			r := c.Request()
			c.SetRequest(sentinelhttp.Attach(r, a))
			err := next(c)
			sentinelhttp.HandBack(r, c.Request())
			return err
		}
	}
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
func Guard(id string, cost ...sentinel.Cost) echo.MiddlewareFunc {
	gate := sentinelhttp.NewGate("sentinelecho5", id, "e.Use(sentinelecho5.Middleware(limiter))", cost...)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		if reflect.ValueOf(next).Pointer() == notFound {
			return next
		}
		return func(c *echo.Context) error {
			if name := c.RouteInfo().Name; name == echo.NotFoundRouteName || name == echo.MethodNotAllowedRouteName {
				return next(c)
			}
			r, denial := gate.Decide(c.Response(), c.Request())
			if denial != nil {
				deny(c, *denial)
				return nil
			}
			if r != c.Request() { // else it is skipped
				c.SetRequest(r)
				c.Set(decisionKey, r.Context())
			}
			return next(c)
		}
	}
}

// notFound is the code of echo's own answer to a path without a route, with
// which a group answers those below it. A RouteNotFound of the application's own
// is guarded like any handler.
var notFound = func() (code uintptr) {
	see := func(next echo.HandlerFunc) echo.HandlerFunc {
		code = reflect.ValueOf(next).Pointer()
		return next
	}
	echo.New().Group("/", see)
	return code
}()

// deny answers exactly once: by the application's function, by the error
// handler for what that returned, or by default.
func deny(c *echo.Context, d sentinelhttp.Denial) {
	if d.Err == nil {
		c.Set(decisionKey, sentinel.NewContext(c.Request().Context(), d.Decision))
	}
	cfg, ok := sentinelhttp.Options(c.Request()).(*config)
	custom := ok && cfg.denial != nil && !answered(c, false)
	if custom {
		if r, err := echo.UnwrapResponse(c.Response()); err == nil {
			r.Status = d.Status // of a body without one
		}
		if err := cfg.denial(c, d); err != nil && !answered(c, false) {
			c.Echo().HTTPErrorHandler(c, err)
		}
	}
	if !answered(c, custom) {
		d.ServeHTTP(c.Response(), c.Request())
	}
}

// answered reports whether a response has gone out. echo takes a 1xx for one,
// which is only an announcement, and would drop what follows: the client would
// get an empty 200. Of a ResponseWriter that does not unwrap to echo's nothing is
// known: then it is as the caller assumes.
func answered(c *echo.Context, assumed bool) bool {
	r, err := echo.UnwrapResponse(c.Response())
	if err != nil {
		return assumed
	}
	if r.Status < http.StatusOK && r.Status != http.StatusSwitchingProtocols {
		r.Committed = false
	}
	return r.Committed
}

// decisionKey is echo's key for a context.Context that carries the decision:
// one that exists already costs no second copy of it.
const decisionKey = "sentinelecho5.decision"

// Decision returns the decision of the latest guard on this request and whether
// there was one. Unlike sentinel.FromContext it also finds a denial, and works
// in a middleware once next has returned, such as an access log.
func Decision(c *echo.Context) (sentinel.Decision, bool) {
	ctx, ok := c.Get(decisionKey).(context.Context)
	if !ok {
		return sentinel.Decision{}, false
	}
	return sentinel.FromContext(ctx)
}
