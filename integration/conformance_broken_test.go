package integration_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

// broken is net/http's adapter with one fault, and the case that finds it.
type broken struct {
	fault string
	finds string
	// build breaks app, or the server that is built from it, or both.
	build func(l *sentinel.Limiter, app conformance.App) http.Handler
}

var brokenAdapters = []broken{
	{"runs the handler before the guard", "behind a denial no middleware and no handler runs", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, eachRoute(app, func(r *conformance.Route) {
			r.Chain = append([]conformance.Link{{Then: r.Handler}}, r.Chain...)
		}))
	}},
	{"writes a second body", "a denial has one status and one body for whoever counts them", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return onStatus(newNetHTTP(l, app), func(w http.ResponseWriter, status int) {
			w.Header().Del("Content-Length")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "{}")
		})
	}},
	{"believes X-Forwarded-For", "no forwarding header changes who is counted", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.TrustedPeer = func(r *http.Request) string { return r.Header.Get("X-Forwarded-For") }
		return newNetHTTP(l, app)
	}},
	{"counts the port", "no forwarding header changes who is counted on new connections", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.TrustedPeer = func(r *http.Request) string { // another of 127.0.0.0/8 for each port
			_, port, _ := strings.Cut(r.RemoteAddr, ":")
			return "127.0." + port[:1] + "." + strings.TrimLeft(port[len(port)-2:], "0")
		}
		return newNetHTTP(l, app)
	}},
	{"wraps the ResponseWriter", "a guard does not wrap the ResponseWriter", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, wrapped(app))
	}},
	{"hides Flush", "a stream is flushed through a guard", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, wrapped(app))
	}},
	{"hides Hijack", "a connection can be upgraded behind a guard", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, wrapped(app))
	}},
	{"guards the server and not the routes", "a path without a route costs nothing", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return sentinelhttp.Middleware(l)(sentinelhttp.Guard("tenant.two")(inner))
	}},
	{"guards the group and not its routes", "a path without a route in a guarded group costs nothing", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner, guard := newNetHTTP(l, app), sentinelhttp.Middleware(l)(sentinelhttp.Guard("tenant.two")(http.NotFoundHandler()))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/api/") && strings.HasSuffix(r.URL.Path, "/nothing") {
				guard.ServeHTTP(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		})
	}},
	{"decides every guard anew", "the same id twice on a route is decided once", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, eachRoute(app, func(r *conformance.Route) {
			for range len(r.Chain) - 1 {
				r.Chain = append(r.Chain, conformance.Link{Then: func(_ http.ResponseWriter, r *http.Request) {
					_, _ = l.Allow(r.Context(), "acme", "tenant.two")
				}})
			}
		}))
	}},
	{"begins the answer anew on a denial", "headers of other middleware survive an allowed request and every denial", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return onStatus(newNetHTTP(l, app), func(w http.ResponseWriter, status int) {
			w.Header().Del("X-Request-Id")
			w.WriteHeader(status)
		})
	}},
	{"swallows panics", "a panic of a handler reaches the server as it is", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return netHTTPRecovery(newNetHTTP(l, app))
	}},
	{"goes without the Middleware", "a guard without the Middleware refuses everything", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.WithoutMiddleware = false
		return newNetHTTP(l, app)
	}},
	{"has no WithSkip", "a skipped preflight costs nothing and needs no credential", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.Skip = nil
		return newNetHTTP(l, app)
	}},
	{"has no WithTrustedPeer", "the trusted peer that the application hands over is who is counted", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.TrustedPeer = nil
		return newNetHTTP(l, app)
	}},
	{"has no WithDenial", "a custom denial is the one answer, with the headers set", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.Denial = nil
		return newNetHTTP(l, app)
	}},
	{"turns a custom denial without an answer into a 200", "a custom denial that writes nothing leaves the default answer", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		if denial := app.Denial; denial != nil {
			app.Denial = func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
				denial(w, r, d)
				w.WriteHeader(http.StatusOK)
			}
		}
		return newNetHTTP(l, app)
	}},
	{"reads the body", "the request reaches the handler whole", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.Skip = func(r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body)
			return false
		}
		return newNetHTTP(l, app)
	}},
	{"asks for the body", "a denied upload is not asked for", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		app.Skip = func(r *http.Request) bool {
			if r.Header.Get("Expect") != "" {
				_, _ = r.Body.Read(make([]byte, 0)) // sends 100 Continue
			}
			return false
		}
		return newNetHTTP(l, app)
	}},
	{"sets a cookie on denials", "a denial never sets the cookie", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return onStatus(newNetHTTP(l, app), func(w http.ResponseWriter, status int) {
			w.Header().Add("Set-Cookie", "sentinel_anon_id=x")
			w.WriteHeader(status)
		})
	}},
	{"loses the challenge", "a request without a token is answered 401 with a challenge", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return onStatus(newNetHTTP(l, app), func(w http.ResponseWriter, status int) {
			w.Header().Del("WWW-Authenticate")
			w.WriteHeader(status)
		})
	}},
	{"tells strangers what there is", "a stranger cannot tell an unknown endpoint from a known one", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if l.Require(strings.TrimPrefix(r.URL.Path, "/")) != nil {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			inner.ServeHTTP(w, r)
		})
	}},
	{"hands denials to the error handler", "an error handler never adds a second body to a denial", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		if app.OnError == nil {
			return inner
		}
		return onStatus(inner, func(w http.ResponseWriter, status int) {
			w.WriteHeader(status)
			app.OnError(w, nil, http.ErrNotSupported)
		})
	}},
	{"takes a header for the tenant", "a tenant is the token's and never a header's or a query's", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if other := r.Header.Get("X-Authorization"); other != "" {
				r.Header.Set("Authorization", other)
			}
			inner.ServeHTTP(w, r)
		})
	}},
	{"joins Authorization headers", "two Authorization headers are no credential", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if all := r.Header["Authorization"]; len(all) > 1 {
				r.Header.Set("Authorization", all[0]) // what Header.Get returns
			}
			inner.ServeHTTP(w, r)
		})
	}},
	{"takes the last cookie alone", "of several cookies the first valid one counts", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if all := r.Cookies(); len(all) > 0 {
				r.Header.Set("Cookie", all[len(all)-1].String())
			}
			inner.ServeHTTP(w, r)
		})
	}},
	{"detaches the context", "a client that is gone before the decision is neither charged nor served", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		before := app.Before
		app.Before = nil
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if before != nil {
				before(w, r)
			}
			inner.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
		})
	}},
	{"keeps a decision for the next request", "no decision leaks into the next request", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		var kept sentinel.Decision
		return newNetHTTP(l, eachRoute(app, func(r *conformance.Route) {
			handler := r.Handler
			r.Handler = func(w http.ResponseWriter, r *http.Request) {
				if d, found := sentinel.FromContext(r.Context()); found {
					kept = d
				}
				handler(w, r.WithContext(sentinel.NewContext(r.Context(), kept)))
			}
		}))
	}},
	{"forgets the cost", "a route that costs more is charged its cost at once or nothing", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, eachRoute(app, func(r *conformance.Route) {
			for i := range r.Chain {
				r.Chain[i].Cost = 0
			}
		}))
	}},
	{"charges a cost one by one", "of several limits a denial charges none", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		return newNetHTTP(l, eachRoute(app, func(r *conformance.Route) {
			for range r.Chain[0].Cost - 1 {
				r.Chain = append(r.Chain, conformance.Link{Then: func(_ http.ResponseWriter, r *http.Request) {
					_, _ = l.Allow(r.Context(), "acme", "tenant.two")
				}})
			}
			r.Chain[0].Cost = 0
		}))
	}},
	{"hides the application's context", "a plan by the application's word is found by what it has put into the request's context", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		inner := newNetHTTP(l, app)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inner.ServeHTTP(w, r.WithContext(context.Background())) })
	}},
	{"admits one in a hundred for nothing", "200 requests at once are admitted up to exactly the quota", func(l *sentinel.Limiter, app conformance.App) http.Handler {
		requests := make(chan struct{}, 1000)
		app.Skip = func(*http.Request) bool {
			requests <- struct{}{}
			return len(requests)%100 == 0
		}
		return newNetHTTP(l, app)
	}},
}

// TestSuiteFindsBrokenAdapters runs the cases above on the broken adapters, in
// a process of its own, because they must fail.
func TestSuiteFindsBrokenAdapters(t *testing.T) {
	const inside = "SENTINEL_TEST_BROKEN_ADAPTERS"
	if os.Getenv(inside) != "" {
		for _, b := range brokenAdapters {
			conformance.Run(t, conformance.Adapter{Name: b.fault, New: b.build, Errors: true}, "memory://")
		}
		return
	}
	t.Parallel()
	var tests []string
	for _, b := range brokenAdapters {
		tests = append(tests, fmt.Sprintf("^%s$/^%s$/^%s$", t.Name(), regexp.QuoteMeta(testName(b.fault)), regexp.QuoteMeta(testName(b.finds))))
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", strings.Join(tests, "|"))
	cmd.Env = append(os.Environ(), inside+"=yes")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the suite passes broken adapters")
	}
	for _, b := range brokenAdapters {
		name := t.Name() + "/" + testName(b.fault) + "/" + testName(b.finds)
		if !strings.Contains(string(out), "--- FAIL: "+name+" (") {
			t.Errorf("an adapter that %s passes %q", b.fault, b.finds)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// testName is what the testing package makes of a name.
func testName(name string) string { return strings.ReplaceAll(name, " ", "_") }

// eachRoute returns a copy of app with every route changed.
func eachRoute(app conformance.App, change func(*conformance.Route)) conformance.App {
	app.Root = eachRouteOf(app.Root, change)
	return app
}

func eachRouteOf(g conformance.Group, change func(*conformance.Route)) conformance.Group {
	g.Routes = append([]conformance.Route(nil), g.Routes...)
	for i := range g.Routes {
		g.Routes[i].Chain = append([]conformance.Link(nil), g.Routes[i].Chain...)
		change(&g.Routes[i])
	}
	g.Groups = append([]conformance.Group(nil), g.Groups...)
	for i := range g.Groups {
		g.Groups[i] = eachRouteOf(g.Groups[i], change)
	}
	return g
}

// wrapped gives handlers a ResponseWriter that can do nothing but write.
func wrapped(app conformance.App) conformance.App {
	return eachRoute(app, func(r *conformance.Route) {
		handler := r.Handler
		r.Handler = func(w http.ResponseWriter, r *http.Request) { handler(struct{ http.ResponseWriter }{w}, r) }
	})
}

// onStatus calls write instead of WriteHeader where a denial's is written.
func onStatus(next http.Handler, write func(w http.ResponseWriter, status int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&statusWriter{w, write}, r)
	})
}

type statusWriter struct {
	http.ResponseWriter
	write func(w http.ResponseWriter, status int)
}

func (w *statusWriter) WriteHeader(status int) {
	switch status {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.write(w.ResponseWriter, status)
	default:
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
