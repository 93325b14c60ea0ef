package integration_test

import (
	"net/http"
	"slices"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

var nethttp = conformance.Adapter{Name: "nethttp", New: newNetHTTP}

// newNetHTTP builds app from http.ServeMux and plain middlewares.
func newNetHTTP(l *sentinel.Limiter, app conformance.App) http.Handler {
	mux := http.NewServeMux()
	netHTTPGroup(mux, "", app.Root, nil)
	var handler http.Handler = mux
	if !app.WithoutMiddleware {
		var opts []sentinelhttp.Option
		if app.TrustedPeer != nil {
			opts = append(opts, sentinelhttp.WithTrustedPeer(app.TrustedPeer))
		}
		if app.Skip != nil {
			opts = append(opts, sentinelhttp.WithSkip(app.Skip))
		}
		if app.Denial != nil {
			opts = append(opts, sentinelhttp.WithDenial(app.Denial))
		}
		handler = sentinelhttp.Middleware(l, opts...)(handler)
	}
	if app.Before != nil {
		handler = netHTTPThen(app.Before)(handler)
	}
	if app.Recovery {
		handler = netHTTPRecovery(handler)
	}
	return handler
}

// netHTTPGroup adds a group to mux as a mux of its own. Its chain stands before
// each route and not before that mux, where it would run for what is not found,
// too.
func netHTTPGroup(mux *http.ServeMux, prefix string, g conformance.Group, outer []conformance.Link) {
	prefix += g.Path
	inner := http.NewServeMux()
	mux.Handle(prefix+"/", inner)
	chain := slices.Concat(outer, g.Chain)
	for _, route := range g.Routes {
		path := prefix + route.Path
		if path == "/" {
			path = "/{$}" // not all paths
		}
		inner.Handle(route.Method+" "+path, netHTTPChain(slices.Concat(chain, route.Chain), netHTTPHandler(route)))
	}
	for _, group := range g.Groups {
		netHTTPGroup(inner, prefix, group, chain)
	}
}

func netHTTPHandler(route conformance.Route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if route.Own != nil {
			route.Own(sentinel.FromContext(r.Context()))
		}
		route.Handler(w, r)
	})
}

func netHTTPChain(chain []conformance.Link, handler http.Handler) http.Handler {
	for _, link := range slices.Backward(chain) {
		if link.Guard != "" {
			handler = sentinelhttp.Guard(link.Guard, link.Costs()...)(handler)
		} else {
			handler = netHTTPThen(link.Then)(handler)
		}
	}
	return handler
}

func netHTTPThen(f http.HandlerFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f(w, r)
			next.ServeHTTP(w, r)
		})
	}
}

func netHTTPRecovery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
