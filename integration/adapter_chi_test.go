package integration_test

import (
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

var chiAdapter = conformance.Adapter{Name: "chi", New: newChi}

func newChi(l *sentinel.Limiter, app conformance.App) http.Handler {
	r := chi.NewRouter()
	if app.Recovery {
		r.Use(chiQuietly, middleware.Recoverer)
	}
	if app.Before != nil {
		r.Use(chiThen(app.Before))
	}
	if !app.WithoutMiddleware {
		r.Use(sentinelchi.Middleware(l, chiOptions(app)...))
	}
	chiGroup(r, app.Root, nil)
	return r
}

// chiQuietly keeps Recoverer from printing panics.
func chiQuietly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, middleware.WithLogEntry(r, chiQuiet{}))
	})
}

type chiQuiet struct{}

func (chiQuiet) Write(int, int, http.Header, time.Duration, any) {}
func (chiQuiet) Panic(any, []byte)                               {}

func chiOptions(app conformance.App) []sentinelchi.Option {
	var opts []sentinelchi.Option
	if app.TrustedPeer != nil {
		opts = append(opts, sentinelchi.WithTrustedPeer(app.TrustedPeer))
	}
	if app.Skip != nil {
		opts = append(opts, sentinelchi.WithSkip(app.Skip))
	}
	if app.Denial != nil {
		opts = append(opts, sentinelchi.WithDenial(app.Denial))
	}
	return opts
}

// chiGroup adds a group to r. Its chain is used in an inline group, and not on
// the nested router itself, where chi would run it for what is not found, too.
func chiGroup(r chi.Router, g conformance.Group, outer chi.Middlewares) {
	chain := slices.Concat(outer, chiChain(g.Chain))
	r.Group(func(r chi.Router) {
		r.Use(chain...)
		for _, route := range g.Routes {
			r.With(chiChain(route.Chain)...).Method(route.Method, route.Path, chiHandler(route))
		}
	})
	for _, group := range g.Groups {
		r.Route(group.Path, func(r chi.Router) { chiGroup(r, group, chain) })
	}
}

func chiHandler(route conformance.Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route.Own != nil {
			route.Own(sentinel.FromContext(r.Context()))
		}
		route.Handler(w, r)
	})
}

func chiChain(chain []conformance.Link) chi.Middlewares {
	var all chi.Middlewares
	for _, link := range chain {
		if link.Guard != "" {
			all = append(all, sentinelchi.Guard(link.Guard, link.Costs()...))
		} else {
			all = append(all, chiThen(link.Then))
		}
	}
	return all
}

func chiThen(f http.HandlerFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f(w, r)
			next.ServeHTTP(w, r)
		})
	}
}
