package main

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"
	"github.com/labstack/echo/v4"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// framework builds a service with one route, /, that answers with an empty 200.
type framework struct {
	name string
	// bare has no middleware.
	bare func() http.Handler
	// idle has two that do nothing, where guarded has Middleware and Guard: what
	// it allocates, the framework takes for anybody's middlewares.
	idle func() http.Handler
	// guarded has the route guarded at the endpoint.
	guarded func(l *sentinel.Limiter, id string) http.Handler
}

var frameworks = []framework{
	{
		"net/http",
		func() http.Handler { return netHTTP(nil, nil) },
		func() http.Handler { return netHTTP(idleHandler, idleHandler) },
		guardedHTTP,
	},
	{
		"gin",
		func() http.Handler { return ginEngine(nil, nil) },
		func() http.Handler { return ginEngine(func(*gin.Context) {}, func(*gin.Context) {}) },
		func(l *sentinel.Limiter, id string) http.Handler {
			return ginEngine(sentinelgin.Middleware(l), sentinelgin.Guard(id))
		},
	},
	{
		"echo",
		func() http.Handler { return echoServer(nil, nil) },
		func() http.Handler { return echoServer(idleEcho, idleEcho) },
		func(l *sentinel.Limiter, id string) http.Handler {
			return echoServer(sentinelecho.Middleware(l), sentinelecho.Guard(id))
		},
	},
	{
		"chi",
		func() http.Handler { return chiRouter(nil, nil) },
		func() http.Handler { return chiRouter(idleHandler, idleHandler) },
		func(l *sentinel.Limiter, id string) http.Handler {
			return chiRouter(sentinelchi.Middleware(l), sentinelchi.Guard(id))
		},
	},
}

func empty(http.ResponseWriter, *http.Request) {}

func idleHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r) })
}

func idleEcho(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error { return next(c) }
}

// all is a middleware of the whole service, route one of the route; both nil
// for a bare one.
func netHTTP(all, route func(http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	if all == nil {
		mux.HandleFunc("GET /", empty)
		return mux
	}
	mux.Handle("GET /", route(http.HandlerFunc(empty)))
	return all(mux)
}

func guardedHTTP(l *sentinel.Limiter, id string) http.Handler {
	return netHTTP(sentinelhttp.Middleware(l), sentinelhttp.Guard(id))
}

func ginEngine(all, route gin.HandlerFunc) http.Handler {
	r := gin.New()
	if all == nil {
		r.GET("/", func(*gin.Context) {})
		return r
	}
	r.Use(all)
	r.GET("/", route, func(*gin.Context) {})
	return r
}

func echoServer(all, route echo.MiddlewareFunc) http.Handler {
	e := echo.New()
	if all == nil {
		e.GET("/", func(echo.Context) error { return nil })
		return e
	}
	e.Use(all)
	e.GET("/", func(echo.Context) error { return nil }, route)
	return e
}

func chiRouter(all, route func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	if all == nil {
		r.Get("/", empty)
		return r
	}
	r.Use(all)
	r.With(route).Get("/", empty)
	return r
}

// chiWithHTTPRate is the peer among middlewares: one window for each value of a
// header, in this process.
func chiWithHTTPRate(q quota) http.Handler {
	r := chi.NewRouter()
	r.Use(httprate.LimitBy(int(q.burst), httprateWindow, func(r *http.Request) (string, error) {
		return r.Header.Get("Authorization"), nil
	}))
	r.Get("/", empty)
	return r
}

// discard is a response that allocates nothing by itself.
type discard struct {
	header http.Header
	status int
}

func (w *discard) Header() http.Header { return w.header }

func (w *discard) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return len(p), nil
}

func (w *discard) WriteHeader(status int) { w.status = status }

// client serves one request again and again, and reports whether it was let in.
func client(h http.Handler, prepare func(*http.Request)) func() bool {
	w := &discard{header: http.Header{}}
	r, err := http.NewRequest(http.MethodGet, "/", nil)
	if err != nil {
		panic(err) // not for this address
	}
	r.RemoteAddr = address(1)
	prepare(r)
	return func() bool {
		clear(w.header)
		w.status = 0
		h.ServeHTTP(w, r)
		return w.status == 0 || w.status == http.StatusOK
	}
}

func with(authorization string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", authorization) }
}
