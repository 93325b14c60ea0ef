//go:build !race

// The race detector makes allocations of its own.

package sentinelhttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// discard is a response that allocates nothing by itself.
type discard struct{ header http.Header }

func (w discard) Header() http.Header         { return w.header }
func (w discard) Write(p []byte) (int, error) { return len(p), nil }
func (w discard) WriteHeader(int)             {}

// request returns a function that has h serve the same request again.
func request(h http.Handler, path, authorization string) func() {
	w := discard{http.Header{}}
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", authorization)
	return func() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
}

type measured struct {
	name string
	run  func()
}

// plenty opens a limiter whose tenant.two denies nothing, with RateLimit headers
// or without.
func plenty(tb testing.TB, headers bool) *sentinel.Limiter {
	tb.Helper()
	cfg := config(tb, "memory://", "")
	cfg.App.DisableRateLimitHeaders = !headers
	two := cfg.Policies["tenant.two"]
	two.Capacity, two.RefillRate = 1<<52, 1<<52
	cfg.Policies["tenant.two"] = two
	return open(tb, cfg)
}

// compared is a bare handler, the Middleware around it, a guard that admits and
// one that denies, with and without headers, and the decisions in these guards.
func compared(tb testing.TB) []measured {
	tb.Helper()
	none := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	silent, talking, auth := plenty(tb, false), plenty(tb, true), bearer("acme")
	decision := func(id string) func() {
		req := sentinel.Request{EndpointID: id, Authorization: []string{auth}}
		return func() {
			if _, err := silent.Check(tb.Context(), req); err != nil {
				tb.Fatal(err)
			}
		}
	}
	guarded := func(l *sentinel.Limiter, id string) func() {
		return request(sentinelhttp.Middleware(l)(sentinelhttp.Guard(id)(none)), "/", auth)
	}
	return []measured{
		{"bare", request(none, "/", auth)},
		{"middleware", request(sentinelhttp.Middleware(silent)(none), "/", auth)},
		{"allowed-decision", decision("tenant.two")},
		{"allowed", guarded(silent, "tenant.two")},
		{"allowed-with-headers", guarded(talking, "tenant.two")},
		{"denied-decision", decision("tenant.never")},
		{"denied", guarded(silent, "tenant.never")},
		{"denied-with-headers", guarded(talking, "tenant.never")},
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

// What a guard allocates beside the decision.
func TestAllocations(t *testing.T) {
	allocs := map[string]float64{}
	for _, m := range compared(t) {
		for range 20 { // the log of denials has had its lines
			m.run()
		}
		allocs[m.name] = testing.AllocsPerRun(200, m.run)
	}
	for _, tt := range []struct {
		name, without string
		want          float64
	}{
		{"middleware", "bare", 1},              // context, request and room for one gate
		{"allowed", "allowed-decision", 1},     // the same: the gate adds nothing
		{"allowed-with-headers", "allowed", 1}, // the text of both
		{"denied", "denied-decision", 4},       // the same, the Denial, Content-Type, the id
		{"denied-with-headers", "denied", 1},   // the text
	} {
		if got := allocs[tt.name] - allocs[tt.without]; got > tt.want {
			t.Errorf("%s allocates %v more than %s, want %v: %v", tt.name, got, tt.without, tt.want, allocs)
		}
	}
}
