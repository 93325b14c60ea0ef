package main

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
)

// framework builds the one server in one framework's way.
type framework struct {
	name  string
	build func(app) http.Handler
}

func frameworks() []framework {
	return []framework{
		{"nethttp", netHTTP},
		{"gin", ginEngine},
		{"echo", echoServer},
		{"chi", chiRouter},
	}
}

func findFramework(name string) (framework, bool) {
	all := frameworks()
	i := slices.IndexFunc(all, func(f framework) bool { return f.name == name })
	if i < 0 {
		return framework{}, false
	}
	return all[i], true
}

func frameworkNames() string {
	var names []string
	for _, f := range frameworks() {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

// netHTTP serves with the standard library's mux.
func netHTTP(a app) http.Handler {
	mux := http.NewServeMux()
	for _, id := range a.guarded() {
		mux.Handle("/guarded/"+id, sentinelhttp.Guard(id)(http.HandlerFunc(handle)))
	}
	for path, h := range a.unguarded() {
		mux.Handle("GET "+path, h)
	}
	return sentinelhttp.Middleware(a.limiter)(mux)
}

// ginEngine serves with gin. The handler is net/http's, to show that the
// decision is in the request's context; one of gin's own reads it with
// sentinelgin.Decision(c).
func ginEngine(a app) http.Handler {
	gin.SetMode(gin.ReleaseMode) // gin keeps its mode in a global, and prints every route in another one
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(sentinelgin.Middleware(a.limiter))
	for _, id := range a.guarded() {
		r.Any("/guarded/"+id, sentinelgin.Guard(id), gin.WrapF(handle))
	}
	for path, h := range a.unguarded() {
		r.Match([]string{http.MethodGet, http.MethodHead}, path, gin.WrapH(h))
	}
	return r
}

// echoServer serves with echo; one of echo's own handlers reads the decision
// with sentinelecho.Decision(c).
func echoServer(a app) http.Handler {
	e := echo.New()
	e.Use(sentinelecho.Middleware(a.limiter))
	for _, id := range a.guarded() {
		e.Any("/guarded/"+id, echo.WrapHandler(http.HandlerFunc(handle)), sentinelecho.Guard(id))
	}
	for path, h := range a.unguarded() {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, echo.WrapHandler(h))
	}
	return e
}

// chiRouter serves with chi.
func chiRouter(a app) http.Handler {
	r := chi.NewRouter()
	r.Use(sentinelchi.Middleware(a.limiter))
	for _, id := range a.guarded() {
		r.With(sentinelchi.Guard(id)).HandleFunc("/guarded/"+id, handle)
	}
	for path, h := range a.unguarded() {
		r.Method(http.MethodGet, path, h)
		r.Method(http.MethodHead, path, h)
	}
	return r
}
