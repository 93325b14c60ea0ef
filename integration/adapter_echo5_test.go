package integration_test

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho5"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

var echo5Adapter = conformance.Adapter{Name: "echo5", New: newEcho5, Errors: true}

func newEcho5(l *sentinel.Limiter, app conformance.App) http.Handler {
	e := echo.New()
	if app.Recovery {
		e.Use(middleware.Recover())
	}
	if app.OnError != nil {
		e.HTTPErrorHandler = func(c *echo.Context, err error) { app.OnError(c.Response(), c.Request(), err) }
	}
	if app.Before != nil {
		e.Use(echo5Then(app.Before))
	}
	if !app.WithoutMiddleware {
		e.Use(sentinelecho5.Middleware(l, echo5Options(app)...))
	}
	for _, route := range app.Root.Routes {
		e.Add(route.Method, route.Path, echo5Handler(route), echo5Chain(route.Chain)...)
	}
	for _, group := range app.Root.Groups {
		echo5Group(e.Group(group.Path, echo5Chain(group.Chain)...), group)
	}
	return e
}

func echo5Options(app conformance.App) []sentinelecho5.Option {
	var opts []sentinelecho5.Option
	if app.TrustedPeer != nil {
		opts = append(opts, sentinelecho5.WithTrustedPeer(func(c *echo.Context) string { return app.TrustedPeer(c.Request()) }))
	}
	if app.Skip != nil {
		opts = append(opts, sentinelecho5.WithSkip(func(c *echo.Context) bool { return app.Skip(c.Request()) }))
	}
	if app.Denial != nil {
		opts = append(opts, sentinelecho5.WithDenial(func(c *echo.Context, d sentinelhttp.Denial) error {
			app.Denial(c.Response(), c.Request(), d)
			return nil
		}))
	}
	return opts
}

func echo5Group(router *echo.Group, g conformance.Group) {
	for _, route := range g.Routes {
		router.Add(route.Method, route.Path, echo5Handler(route), echo5Chain(route.Chain)...)
	}
	for _, group := range g.Groups {
		echo5Group(router.Group(group.Path, echo5Chain(group.Chain)...), group)
	}
}

func echo5Handler(route conformance.Route) echo.HandlerFunc {
	return func(c *echo.Context) error {
		if route.Own != nil {
			route.Own(sentinelecho5.Decision(c))
		}
		route.Handler(c.Response(), c.Request())
		return route.Err
	}
}

func echo5Chain(chain []conformance.Link) []echo.MiddlewareFunc {
	var all []echo.MiddlewareFunc
	for _, link := range chain {
		if link.Guard != "" {
			all = append(all, sentinelecho5.Guard(link.Guard, link.Costs()...))
		} else {
			all = append(all, echo5Then(link.Then))
		}
	}
	return all
}

func echo5Then(f http.HandlerFunc) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			f(c.Response(), c.Request())
			return next(c)
		}
	}
}
