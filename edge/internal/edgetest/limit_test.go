package edgetest

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// admitted sends n requests, and returns how many were not refused.
func (e *edge) admitted(method, path, client string, n int) (count int) {
	e.t.Helper()
	for range n {
		r, err := http.NewRequestWithContext(e.t.Context(), method, e.url(path), http.NoBody)
		if err != nil {
			e.t.Fatal(err)
		}
		if client != "" {
			r.Header.Set("X-Forwarded-For", client)
		}
		switch resp := do(e.t, r); resp.StatusCode {
		case http.StatusOK:
			count++
		case http.StatusTooManyRequests:
			if resp.Header.Get("Retry-After") == "" {
				e.t.Error("a 429 has no Retry-After")
			}
		default:
			e.t.Fatalf("%s %s: %s", method, path, resp.Status)
		}
	}
	return count
}

// A route's own limit is that of its methods and path; who has none shares the
// file's. No request that is refused gets to a backend.
func TestWhoSharesALimit(t *testing.T) {
	b := startBackend(t, "a", "")
	e := startEdge(t, `
rate_limit: {capacity: 3, refill_rate: 0.001}
routes:
  - {path: /a, methods: [GET], backend: a, rate_limit: {capacity: 2, refill_rate: 0.001}}
  - {path: /a, methods: [POST], backend: a, rate_limit: {capacity: 4, refill_rate: 0.001}}
  - {path: /b, backend: a}
  - {path: /c, backend: a}
  - {path: /free, backend: a, rate_limit: {enabled: false}}
backends:
`+pool("a", "", b))
	for _, c := range []struct {
		method, path string
		n, want      int
	}{
		{http.MethodGet, "/a", 10, 2},
		{http.MethodPost, "/a", 10, 4},
		{http.MethodHead, "/a", 10, 0}, // it is the GET route's
		{http.MethodGet, "/b", 2, 2},
		{http.MethodGet, "/c", 10, 1},
		{http.MethodGet, "/free", 10, 10},
	} {
		if got := e.admitted(c.method, c.path, "", c.n); got != c.want {
			t.Errorf("%s %s: %d admitted, want %d", c.method, c.path, got, c.want)
		}
	}
	if got := len(b.journal()); got != 2+4+2+1+10 {
		t.Errorf("the backend received %d", got)
	}
}

// What a client has used up stays so over a change of the file, also of the limit.
func TestAReloadForgivesNothing(t *testing.T) {
	b := startBackend(t, "a", "")
	config := func(capacity int, more string) string {
		return fmt.Sprintf("routes:\n  - {path: /a, backend: a, rate_limit: {capacity: %d, refill_rate: 0.001}}\n%sbackends:\n%s", capacity, more, pool("a", "", b))
	}
	e := startEdge(t, config(2, ""))
	if got := e.admitted(http.MethodGet, "/a", "", 3); got != 2 {
		t.Fatalf("%d admitted", got)
	}
	for version, text := range []string{config(2, "  - {path: /b, backend: a}\n"), config(20, "")} {
		e.write(t, text)
		e.signal(syscall.SIGHUP)
		Soon(t, "it is applied", func() bool { return e.metric("sentinel_edge_config_version") == float64(version+2) })
		if got := e.admitted(http.MethodGet, "/a", "", 3); got != 0 {
			t.Errorf("%d admitted after change %d", got, version+1)
		}
	}
	if policy := get(t, e.url("/a")).Header.Get("RateLimit-Policy"); !strings.Contains(policy, ";q=20;") {
		t.Errorf("the limit is %s", policy)
	}
}

// More clients than are remembered: those who do not fit share one quota.
func TestMoreClientsThanAreRemembered(t *testing.T) {
	b := startBackend(t, "a", "")
	e := startEdge(t, `
server: {listen: "127.0.0.1:0", trusted_proxies: [127.0.0.1]}
rate_limit: {capacity: 2, refill_rate: 0.001, max_clients: 50}
routes: [{path: /a, backend: a}]
backends:
`+pool("a", "", b))
	count := 0
	for i := range 200 {
		count += e.admitted(http.MethodGet, "/a", fmt.Sprintf("10.0.0.%d", i), 1)
	}
	clients, overflow := e.metric("sentinel_edge_limiter_clients"), e.metric("sentinel_edge_limiter_overflow_total")
	if count != 50+2 || clients != 50 || overflow != 150 {
		t.Errorf("%d admitted, %v clients are remembered, %v requests found no room", count, clients, overflow)
	}
	if got := e.admitted(http.MethodGet, "/a", "10.0.0.0", 5); got != 1 {
		t.Errorf("%d admitted of one who is remembered", got)
	}
}
