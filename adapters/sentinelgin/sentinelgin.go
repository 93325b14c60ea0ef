// Package sentinelgin guards gin routes with a [sentinel.Limiter].
//
// Use [Middleware] on the engine once, and put a [Guard] with the endpoint's id
// on each route, or on a group of them:
//
//	r := gin.New()
//	r.Use(sentinelgin.Middleware(limiter))
//	r.POST("/export", sentinelgin.Guard("billing.export"), export)
//
// A guarded handler runs only when the limiter said yes. It reads the decision
// with [Decision], or, where it has no *gin.Context, with
// sentinel.FromContext(c.Request.Context()). gin's writer is never wrapped, so
// streams and upgrades work behind a guard. A denial is answered here, with the
// responses of package sentinelhttp, and aborts the chain: neither the handler
// nor a middleware after the guard runs. It is no entry of c.Errors, for a
// middleware that renders those would write a second body.
//
// Do not use a guard on the engine itself: gin runs the engine's middleware also
// for paths that do not exist, which would be charged.
//
// The client's address, which counts at anonymous endpoints, is the socket's,
// c.Request.RemoteAddr, and not c.ClientIP(): gin trusts the forwarding headers
// of everybody until engine.SetTrustedProxies says otherwise. Behind a proxy,
// say first which one gin may trust, then hand its answer over:
//
//	r.RemoteIPHeaders = []string{"X-Forwarded-For"}
//	if err := r.SetTrustedProxies([]string{"127.0.0.1/32"}); err != nil { ... }
//	r.Use(sentinelgin.Middleware(limiter, sentinelgin.WithTrustedPeer((*gin.Context).ClientIP)))
package sentinelgin

import (
	"context"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// config is what the options fill. A nil function means the default.
type config struct {
	peer   func(*gin.Context) string
	denial func(*gin.Context, sentinelhttp.Denial)
	skip   func(*gin.Context) bool
}

// Option changes how [Middleware] works. One that is nil is ignored.
type Option interface {
	apply(*config)
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithTrustedPeer says which address counts at anonymous endpoints, as "ip" or
// "ip:port". The default is c.Request.RemoteAddr. Only an application behind a
// proxy needs it; it is (*gin.Context).ClientIP where engine.SetTrustedProxies
// names the proxies. An address that the client can write gives every request a
// bucket of its own. All addresses that are no IP, "" among them, share one.
//
// It is called once for every request that passes the Middleware. On the first,
// the log warns if the engine trusts every proxy.
func WithTrustedPeer(peer func(*gin.Context) string) Option {
	if peer == nil {
		panic("sentinelgin: WithTrustedPeer: the function is nil")
	}
	return optionFunc(func(c *config) { c.peer = peer })
}

// WithDenial replaces the body of denials. When write is called, the chain is
// aborted, d.Status is set, and so are the headers that the denial asks for:
// Retry-After, WWW-Authenticate, RateLimit and Cache-Control. write sends a body
// with c.JSON or the like, or none with c.AbortWithStatus. If it has sent
// nothing and left the status when it returns, the client gets the default
// response: a denial never turns into an empty 200.
func WithDenial(write func(c *gin.Context, d sentinelhttp.Denial)) Option {
	if write == nil {
		panic("sentinelgin: WithDenial: the function is nil")
	}
	return optionFunc(func(c *config) { c.denial = write })
}

// WithSkip lets the requests for which skip is true pass every guard without a
// decision: nothing is charged, no header is set, [Decision] finds nothing. It
// is for health checks and CORS preflights. Do not decide by anything that a
// client could write to escape its quota.
//
// It is called once for every request that passes the Middleware.
func WithSkip(skip func(*gin.Context) bool) Option {
	if skip == nil {
		panic("sentinelgin: WithSkip: the function is nil")
	}
	return optionFunc(func(c *config) { c.skip = skip })
}

// Middleware hands the limiter to the guards behind it. Use it on the engine,
// once; it decides nothing by itself, so routes without a [Guard] are not
// limited. Where it is nested, the inner one's limiter and options count. It
// panics if the limiter is nil.
func Middleware(l *sentinel.Limiter, opts ...Option) gin.HandlerFunc {
	if l == nil {
		panic("sentinelgin: Middleware: the limiter is nil")
	}
	cfg := &config{}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(cfg)
		}
	}
	var first sync.Once
	return func(c *gin.Context) {
		a := sentinelhttp.Attachment{Limiter: l, Peer: c.Request.RemoteAddr, Options: cfg}
		if cfg.peer != nil {
			// A middleware is not told its engine before a request comes.
			first.Do(func() { warnIfAllTrusted(c, l) })
			a.Peer = cfg.peer(c)
		}
		a.Skip = cfg.skip != nil && cfg.skip(c)
		r := c.Request
		c.Request = sentinelhttp.Attach(r, a)
		c.Next()
		sentinelhttp.HandBack(r, c.Request)
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
func Guard(id string, cost ...sentinel.Cost) gin.HandlerFunc {
	gate := sentinelhttp.NewGate("sentinelgin", id, "engine.Use(sentinelgin.Middleware(limiter))", cost...)
	return func(c *gin.Context) {
		r, denial := gate.Decide(c.Writer, c.Request)
		if denial != nil {
			deny(c, *denial)
			return
		}
		if r != c.Request { // else it is skipped
			c.Request = r
			c.Set(decisionKey{}, r.Context())
		}
	}
}

func deny(c *gin.Context, d sentinelhttp.Denial) {
	c.Abort()
	if d.Err == nil {
		c.Set(decisionKey{}, sentinel.NewContext(c.Request.Context(), d.Decision))
	}
	if cfg, ok := sentinelhttp.Options(c.Request).(*config); ok && cfg.denial != nil {
		c.Status(d.Status)
		cfg.denial(c, d)
		// A status without a body is sent; 1xx is an announcement and no answer.
		if status := c.Writer.Status(); status != d.Status && status >= http.StatusOK {
			c.Writer.WriteHeaderNow()
		}
	}
	if !c.Writer.Written() {
		d.ServeHTTP(c.Writer, c.Request)
	}
}

// decisionKey is the gin context's key for a context.Context that carries the
// decision: one that exists already costs no second copy of it.
type decisionKey struct{}

// Decision returns the decision of the latest guard on this request and whether
// there was one. Unlike sentinel.FromContext it also finds a denial, and works
// in a middleware that waits in c.Next(), such as an access log.
func Decision(c *gin.Context) (sentinel.Decision, bool) {
	v, _ := c.Get(decisionKey{})
	ctx, ok := v.(context.Context)
	if !ok {
		return sentinel.Decision{}, false
	}
	return sentinel.FromContext(ctx)
}

// warnIfAllTrusted looks whether c.ClientIP() believes a peer that nobody can
// have for a proxy: addresses of RFC 5737, which are in no network.
func warnIfAllTrusted(c *gin.Context, l *sentinel.Limiter) {
	const stranger, claim = "203.0.113.1:1", "198.51.100.1"
	probe := c.Copy()
	probe.Request = &http.Request{RemoteAddr: stranger, Header: http.Header{"X-Forwarded-For": {claim}, "X-Real-Ip": {claim}}}
	if probe.ClientIP() == claim {
		l.Logger().Warn("sentinelgin: this engine trusts every proxy, so c.ClientIP() is what the client writes, and WithTrustedPeer must not use it",
			"line", `engine.SetTrustedProxies([]string{"the proxies' addresses"})`)
	}
}
