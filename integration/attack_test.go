package integration_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/conformance"
)

// The tests named TestAttack do what an attacker would; those in core do it
// without HTTP, these to every adapter. docs/security.md lists which claim each
// of them holds.

// mark is in all that an attacker writes.
const mark = "MaRk"

// target is an adapter's server with a route for tenants, one for the anonymous
// and one that fails closed because its Redis is away.
type target struct {
	t        *testing.T
	handler  http.Handler
	registry *prometheus.Registry
}

func eachTarget(t *testing.T, run func(t *testing.T, s *target)) {
	for _, a := range adapters {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			cfg := config("memory://", tokens("export", 2*sentinel.Token, 0), anonymous(tokens("login", 2*sentinel.Token, 0)))
			l := open(t, cfg, sentinel.WithRegisterer(registry))
			handler := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }
			var root conformance.Group
			for _, id := range []string{"export", "login", "unknown"} {
				for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
					root.Routes = append(root.Routes, conformance.Route{
						Method: method, Path: "/" + id, Chain: []conformance.Link{{Guard: id}}, Handler: handler,
					})
				}
			}
			run(t, &target{t, a.New(l, conformance.App{Root: root}), registry})
		})
	}
}

// ask sends one request, from the peer 192.0.2.1 unless change says otherwise.
func (s *target) ask(method, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func attackToken(t testing.TB, tenant string) string {
	return token(t, []byte(jwtKey), jwt.MapClaims{"sub": tenant, "exp": time.Now().Add(time.Hour).Unix()})
}

// spoofed are headers in which a client can claim to be somebody else, somewhere
// else, or to ask for something else.
var spoofed = []string{
	"X-Forwarded-For", "X-Forwarded", "Forwarded", "Forwarded-For", "X-Real-IP", "X-Real-Ip", "True-Client-IP", "CF-Connecting-IP", "CF-Connecting-IPv6",
	"CF-Pseudo-IPv4", "X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP", "Fly-Client-IP", "X-Appengine-Remote-Addr", "X-Azure-ClientIP",
	"X-Azure-SocketIP", "X-Envoy-External-Address", "X-Original-Forwarded-For", "X-ProxyUser-Ip", "WL-Proxy-Client-IP", "Proxy-Client-IP", "Client-IP",
	"Remote-Addr", "X-Remote-IP", "X-Remote-Addr", "X-Host", "X-Forwarded-Host", "X-Forwarded-Server", "X-Forwarded-Proto", "X-Forwarded-By", "Via",
	"X-Original-URL", "X-Rewrite-URL", "X-Original-Host", "X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-HTTP-Path-Override",
	"X-Tenant", "X-Tenant-ID", "X-Tenant-Id", "X-User", "X-User-ID", "X-Org-ID", "X-Account", "X-Api-Key", "X-Auth-Request-User", "X-Remote-User", "Remote-User",
	"X-Forwarded-User", "X-Forwarded-Email", "X-Authenticated-User", "X-Consumer-ID", "X-JWT-Assertion", "X-Authorization", "Proxy-Authorization",
	"X-Amzn-Oidc-Data", "X-Goog-Authenticated-User-Email", "X-MS-Client-Principal", "X-Sentinel-Tenant", "X-Sentinel-Endpoint", "X-RateLimit-Bypass",
	"RateLimit", "RateLimit-Policy", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-Limit", "X-Cost", "X-Priority", "X-Bypass", "X-Internal",
	"Connection", "Upgrade-Insecure-Requests", "Date", "X-Request-Start", "X-Timestamp", "Age", "User-Agent", "Origin", "Referer", "Host", "From", "Cache-Control",
}

// No header makes another client, another tenant, another endpoint or another
// quota of a request: who has used his up is denied with each of them, alone and
// all at once, and who has not signed in stays out.
func TestAttackSpoofedHeaders(t *testing.T) {
	t.Parallel()
	eachTarget(t, func(t *testing.T, s *target) {
		acme := attackToken(t, "acme")
		signed := func(r *http.Request) { r.Header.Set("Authorization", acme) }
		for range 2 {
			for path, change := range map[string]func(*http.Request){"/export": signed, "/login": nil} {
				if got := s.ask(http.MethodGet, path, change).Code; got != http.StatusOK {
					t.Fatalf("%s: %d, want 200", path, got)
				}
			}
		}
		values := []string{"203.0.113.9", "127.0.0.1", "::1", "203.0.113.9, 127.0.0.1", "for=203.0.113.9", "globex", attackToken(t, "globex"), "/unknown", "POST", "0", "1000000", "Authorization, Cookie", ""}
		tries := 0
		try := func(set func(http.Header, string)) {
			for _, value := range values {
				for _, each := range []struct {
					path   string
					change func(*http.Request)
					want   int
				}{
					{"/export", signed, http.StatusTooManyRequests},
					{"/export", nil, http.StatusUnauthorized},
					{"/unknown", nil, http.StatusUnauthorized},
					{"/login", nil, http.StatusTooManyRequests},
				} {
					tries++
					resp := s.ask(http.MethodGet, each.path, func(r *http.Request) {
						set(r.Header, value)
						if each.change != nil {
							each.change(r)
						}
					})
					if resp.Code != each.want {
						t.Errorf("%s with %q: %d, want %d", each.path, value, resp.Code, each.want)
					}
				}
			}
		}
		for _, name := range spoofed {
			try(func(h http.Header, value string) { h.Set(name, value) })
			try(func(h http.Header, value string) { h[name] = []string{value, "198.51.100.1"} }) // as it is written, and twice
		}
		try(func(h http.Header, value string) {
			for _, name := range spoofed {
				h.Add(name, value)
			}
		})
		t.Logf("%d requests", tries)
	})
}

// assault is a request that has mark, and a random number, everywhere that a
// client writes.
func assault(t testing.TB, r *rand.Rand, s *target) *httptest.ResponseRecorder {
	x := fmt.Sprintf("%s%d", mark, r.Uint64())
	paths := []string{
		"/export", "/login", "/unknown", "/" + x, "/export/" + x, "/login/../" + x, "/export%2f" + x, "//" + x, "/export?" + x + "=" + x, "/login;" + x,
		"/%00" + x, "/%0d%0a" + x, "/export/%2e%2e/" + x, "/" + strings.Repeat(x, 50), "/EXPORT", "/login/",
	}
	methods := []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodHead, http.MethodTrace, mark}
	return s.ask(methods[r.IntN(len(methods))], paths[r.IntN(len(paths))], func(q *http.Request) {
		q.RemoteAddr = fmt.Sprintf("198.51.%d.%d:%d", r.IntN(256), r.IntN(256), r.IntN(65536))
		q.Host = x + ".example"
		for _, name := range append([]string{"Accept", "Content-Type", "X-" + x}, spoofed...) {
			q.Header.Set(name, x)
		}
		q.Header.Set("Cookie", "sentinel_anon_id="+x+"; "+x+"="+x)
		switch r.IntN(4) {
		case 0:
			q.Header.Set("Authorization", "Bearer "+x)
		case 1:
			q.Header.Set("Authorization", attackToken(t, x))
		case 2:
			q.Header["Authorization"] = []string{attackToken(t, "acme"), x}
		}
	})
}

// Random paths, methods, hosts, names, cookies and addresses make no series.
func TestAttackRandomPaths(t *testing.T) {
	t.Parallel()
	eachTarget(t, func(t *testing.T, s *target) {
		r := rand.New(rand.NewPCG(61, 62))
		series := func() (n int) {
			families, err := s.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				n += len(f.GetMetric())
				if strings.Contains(strings.ToLower(f.String()), strings.ToLower(mark)) {
					t.Fatalf("a client's text in %s", f)
				}
			}
			return n
		}
		for range 500 {
			assault(t, r, s)
		}
		before := series()
		for range 3000 {
			assault(t, r, s)
		}
		if after := series(); after != before {
			t.Errorf("%d series, then %d", before, after)
		}
	})
}

// No answer of Sentinel's repeats anything that the client wrote: nothing of a
// request can be reflected into a header or a document.
func TestAttackReflection(t *testing.T) {
	t.Parallel()
	eachTarget(t, func(t *testing.T, s *target) {
		r := rand.New(rand.NewPCG(63, 64))
		seen := map[int]int{}
		for range 3000 {
			resp := assault(t, r, s)
			body := resp.Body.String()
			if resp.Header().Get("Content-Type") != "application/problem+json" && body != "served" {
				continue // the framework's own answer for a path or a method that is not there
			}
			seen[resp.Code]++
			text := fmt.Sprint(resp.Header(), body)
			if strings.Contains(strings.ToLower(text), strings.ToLower(mark)) {
				t.Fatalf("%d repeats what the client wrote: %s", resp.Code, text)
			}
			for name, values := range resp.Header() {
				if strings.ContainsAny(name+strings.Join(values, ""), "\r\n\x00") {
					t.Fatalf("%d: header %q: %q", resp.Code, name, values)
				}
			}
		}
		for _, status := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusNotFound} {
			if seen[status] == 0 {
				t.Errorf("no answer with %d among %v", status, seen)
			}
		}
	})
}
