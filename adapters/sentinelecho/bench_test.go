//go:build !race

// The race detector makes allocations of its own.

package sentinelecho_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// app is a free and a guarded route, or, without a limiter, the free one alone in
// the bare framework.
func app(l *sentinel.Limiter) http.Handler {
	e := echo.New()
	none := func(echo.Context) error { return nil }
	if l != nil {
		e.Use(sentinelecho.Middleware(l, sentinelecho.WithSkip(func(c echo.Context) bool { return c.Request().URL.RawQuery != "" })))
		e.GET("/guarded", none, sentinelecho.Guard("tenant.big"))
	}
	e.GET("/free", none)
	return e
}

// plenty opens a limiter that denies nothing, with RateLimit headers or without.
func plenty(tb testing.TB, headers bool) *sentinel.Limiter {
	tb.Helper()
	l, err := sentinel.Open(tb.Context(), &sentinel.Config{
		App: sentinel.App{
			RedisURL:                sentinel.NewSecret("memory://"),
			JWTSecret:               sentinel.NewSecrets(jwtSecret),
			DisableRateLimitHeaders: !headers,
		},
		Policies: map[string]sentinel.Policy{"tenant.big": {
			EndpointID: "tenant.big", Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed, FallbackRate: 1, Version: 1,
			Capacity: 1 << 52, RefillRate: 1 << 52,
		}},
	}, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// discard is a response that allocates nothing by itself.
type discard struct{ header http.Header }

func (w discard) Header() http.Header         { return w.header }
func (w discard) Write(p []byte) (int, error) { return len(p), nil }
func (w discard) WriteHeader(int)             {}

// request returns a function that has h serve the same request again.
func request(h http.Handler, path string) func() {
	w := discard{http.Header{}}
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", bearer("acme"))
	return func() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
}

type measured struct {
	name string
	run  func()
}

// compared is the bare framework, the Middleware on a route without guard, a
// guard that is skipped, and one that decides, with and without its headers.
// Beside them are the decision that the last two contain, and such a guard in
// net/http.
func compared(tb testing.TB) []measured {
	tb.Helper()
	l := plenty(tb, false)
	req := sentinel.Request{EndpointID: "tenant.big", Authorization: []string{bearer("acme")}}
	plain := sentinelhttp.Guard("tenant.big")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return []measured{
		{"bare", request(app(nil), "/free")},
		{"middleware", request(app(l), "/free")},
		{"skipped", request(app(l), "/guarded?skip")},
		{"guarded", request(app(l), "/guarded")},
		{"guarded-with-headers", request(app(plenty(tb, true)), "/guarded")},
		{"decision-alone", func() {
			if d, err := l.Check(tb.Context(), req); err != nil || !d.Allowed {
				tb.Fatalf("%+v, %v", d, err)
			}
		}},
		{"guarded-in-nethttp", request(sentinelhttp.Middleware(l)(plain), "/")},
	}
}

func BenchmarkGuard(b *testing.B) {
	for _, m := range compared(b) {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.run()
			}
		})
	}
}

// echo forces four allocations on top of what the same guard costs in net/http:
// it builds the chain of middlewares anew for each request, which makes one
// function for the Middleware and one for the Guard, and c.Set makes a map, and
// room in it.
func TestAllocations(t *testing.T) {
	const forced = 4
	allocs := map[string]float64{}
	for _, m := range compared(t) {
		allocs[m.name] = testing.AllocsPerRun(200, m.run)
	}
	if got := allocs["guarded"] - allocs["bare"] - allocs["guarded-in-nethttp"]; got > forced {
		t.Errorf("%v more than in net/http, want %d: %v", got, forced, allocs)
	}
	if allocs["skipped"] > allocs["middleware"]+1 { // the function for the Guard
		t.Errorf("a guard that is skipped allocates: %v", allocs)
	}
}
