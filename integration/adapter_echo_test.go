package integration_test

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

var echoAdapter = conformance.Adapter{Name: "echo", New: newEcho, Errors: true}

func newEcho(l *sentinel.Limiter, app conformance.App) http.Handler {
	e := echo.New()
	if app.Recovery {
		e.Use(middleware.RecoverWithConfig(middleware.RecoverConfig{
			LogErrorFunc: func(_ echo.Context, err error, _ []byte) error { return err },
		}))
	}
	if app.OnError != nil {
		e.HTTPErrorHandler = func(err error, c echo.Context) { app.OnError(c.Response(), c.Request(), err) }
	}
	if app.Before != nil {
		e.Use(echoThen(app.Before))
	}
	if !app.WithoutMiddleware {
		e.Use(sentinelecho.Middleware(l, echoOptions(app)...))
	}
	for _, route := range app.Root.Routes {
		e.Add(route.Method, route.Path, echoHandler(route), echoChain(route.Chain)...)
	}
	for _, group := range app.Root.Groups {
		echoGroup(e.Group(group.Path, echoChain(group.Chain)...), group)
	}
	return e
}

func echoOptions(app conformance.App) []sentinelecho.Option {
	var opts []sentinelecho.Option
	if app.TrustedPeer != nil {
		opts = append(opts, sentinelecho.WithTrustedPeer(func(c echo.Context) string { return app.TrustedPeer(c.Request()) }))
	}
	if app.Skip != nil {
		opts = append(opts, sentinelecho.WithSkip(func(c echo.Context) bool { return app.Skip(c.Request()) }))
	}
	if app.Denial != nil {
		opts = append(opts, sentinelecho.WithDenial(func(c echo.Context, d sentinelhttp.Denial) error {
			app.Denial(c.Response(), c.Request(), d)
			return nil
		}))
	}
	return opts
}

func echoGroup(router *echo.Group, g conformance.Group) {
	for _, route := range g.Routes {
		router.Add(route.Method, route.Path, echoHandler(route), echoChain(route.Chain)...)
	}
	for _, group := range g.Groups {
		echoGroup(router.Group(group.Path, echoChain(group.Chain)...), group)
	}
}

func echoHandler(route conformance.Route) echo.HandlerFunc {
	return func(c echo.Context) error {
		if route.Own != nil {
			route.Own(sentinelecho.Decision(c))
		}
		route.Handler(c.Response(), c.Request())
		return route.Err
	}
}

func echoChain(chain []conformance.Link) []echo.MiddlewareFunc {
	var all []echo.MiddlewareFunc
	for _, link := range chain {
		if link.Guard != "" {
			all = append(all, sentinelecho.Guard(link.Guard, link.Costs()...))
		} else {
			all = append(all, echoThen(link.Then))
		}
	}
	return all
}

func echoThen(f http.HandlerFunc) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			f(c.Response(), c.Request())
			return next(c)
		}
	}
}
