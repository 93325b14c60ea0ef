package integration_test

import (
	"io"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

var ginAdapter = conformance.Adapter{Name: "gin", New: newGin, Errors: true}

// gin's mode is a global, and one that is not safe to set later.
func init() { gin.SetMode(gin.TestMode) }

func newGin(l *sentinel.Limiter, app conformance.App) http.Handler {
	engine := gin.New()
	engine.HandleMethodNotAllowed = true
	if app.Recovery {
		engine.Use(gin.RecoveryWithWriter(io.Discard))
	}
	if app.OnError != nil {
		engine.Use(func(c *gin.Context) {
			c.Next()
			for _, err := range c.Errors {
				app.OnError(c.Writer, c.Request, err)
			}
		})
	}
	if app.Before != nil {
		engine.Use(ginThen(app.Before))
	}
	if !app.WithoutMiddleware {
		engine.Use(sentinelgin.Middleware(l, ginOptions(app)...))
	}
	ginGroup(&engine.RouterGroup, app.Root)
	return engine
}

func ginOptions(app conformance.App) []sentinelgin.Option {
	var opts []sentinelgin.Option
	if app.TrustedPeer != nil {
		opts = append(opts, sentinelgin.WithTrustedPeer(func(c *gin.Context) string { return app.TrustedPeer(c.Request) }))
	}
	if app.Skip != nil {
		opts = append(opts, sentinelgin.WithSkip(func(c *gin.Context) bool { return app.Skip(c.Request) }))
	}
	if app.Denial != nil {
		opts = append(opts, sentinelgin.WithDenial(func(c *gin.Context, d sentinelhttp.Denial) { app.Denial(c.Writer, c.Request, d) }))
	}
	return opts
}

func ginGroup(router *gin.RouterGroup, g conformance.Group) {
	router = router.Group(g.Path, ginChain(g.Chain)...)
	for _, route := range g.Routes {
		router.Handle(route.Method, route.Path, append(ginChain(route.Chain), ginHandler(route))...)
	}
	for _, group := range g.Groups {
		ginGroup(router, group)
	}
}

func ginHandler(route conformance.Route) gin.HandlerFunc {
	return func(c *gin.Context) {
		if route.Own != nil {
			route.Own(sentinelgin.Decision(c))
		}
		route.Handler(c.Writer, c.Request)
		if route.Err != nil {
			_ = c.Error(route.Err) // returns what it is given
		}
	}
}

func ginChain(chain []conformance.Link) []gin.HandlerFunc {
	var all []gin.HandlerFunc
	for _, link := range chain {
		if link.Guard != "" {
			all = append(all, sentinelgin.Guard(link.Guard, link.Costs()...))
		} else {
			all = append(all, ginThen(link.Then))
		}
	}
	return all
}

func ginThen(f http.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) { f(c.Writer, c.Request) }
}
