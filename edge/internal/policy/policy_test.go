package policy

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/observe"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

const secret = "tests-only-secret-0123456789abcdefghij"

// policies have small quotas, and refills that do not fall due while a test runs.
const policies = `{
	"two":  {"endpoint_id": "two", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
	         "capacity": 2, "refill_per_second": 0.001, "fallback_per_second": 1},
	"shut": {"endpoint_id": "shut", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1,
	         "limit": 50, "window": "1h", "fallback_per_second": 1},
	"anon": {"endpoint_id": "anon", "identity": "anonymous", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
	         "capacity": 1, "refill_per_second": 0.001, "fallback_per_second": 1}
}`

// file writes a configuration on a store and returns its path.
func file(t *testing.T, redisURL, policies string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sentinel.json")
	write(t, path, redisURL, policies)
	return path
}

func write(t *testing.T, path, redisURL, policies string) {
	t.Helper()
	text := fmt.Sprintf(`{"app": {"redis_url": %q, "jwt_secret": %q, "jwt_algorithm_allowlist": ["HS256"],
		"anonymous_cookie_secret": "tests-only-cookie-secret-0123456789abcdef"}, "policies": %s}`, redisURL, secret, policies)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, path string, ids ...string) *Limiter {
	t.Helper()
	l, err := Open(t.Context(), path, uses(ids...), Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func uses(ids ...string) (all []Use) {
	for _, id := range ids {
		all = append(all, Use{Route: "/" + id, Policy: id})
	}
	return all
}

// token is a bearer token of a tenant's.
func token(tenant string) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	text := part(`{"alg":"HS256"}`) + "." + part(fmt.Sprintf(`{"sub":%q,"exp":%d}`, tenant, time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// from is a request of a tenant's; "": of nobody.
func from(tenant string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if tenant != "" {
		r.Header.Set("Authorization", token(tenant))
	}
	return r
}

var client = netip.MustParseAddr("192.0.2.7")

// ask returns the response, and what Allow says.
func ask(p *Policy, r *http.Request) (*http.Response, bool, proxy.Reason) {
	w := httptest.NewRecorder()
	ok, reason := p.Allow(w, r, client)
	return w.Result(), ok, reason
}

func TestDecisionsAndReasons(t *testing.T) {
	t.Parallel()
	two := open(t, file(t, "memory://", policies), "two").Policy("two")
	for _, c := range []struct {
		tenant string
		status int
		reason proxy.Reason
	}{
		{"acme", 200, proxy.OK},
		{"acme", 200, proxy.OK},
		{"acme", 429, proxy.RateLimited},
		{"other", 200, proxy.OK},
		{"", 401, proxy.Unauthenticated},
	} {
		r := from(c.tenant)
		resp, ok, reason := ask(two, r)
		if ok != (c.status == 200) || reason != c.reason || resp.StatusCode != c.status {
			t.Errorf("%q: %d, %t, %s, want %d, %s", c.tenant, resp.StatusCode, ok, reason, c.status, c.reason)
		}
		if c.tenant != "" && r.Header.Get("Authorization") == "" {
			t.Error("the token does not go on to the backend")
		}
	}
}

func TestAStoreThatFails(t *testing.T) {
	t.Parallel()
	l := open(t, file(t, "memory://", policies), "two", "shut")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if resp, ok, reason := ask(l.Policy("shut"), from("acme")); ok || reason != proxy.LimiterUnavailable || resp.StatusCode != 503 {
		t.Errorf("%d, %t, %s", resp.StatusCode, ok, reason)
	}
	if resp, ok, reason := ask(l.Policy("two"), from("acme")); !ok || reason != proxy.OK {
		t.Errorf("%d, %t, %s: it fails open", resp.StatusCode, ok, reason)
	}
	if resp, ok, reason := ask(l.Policy("two"), from("acme")); ok || reason != proxy.RateLimited || resp.StatusCode != 429 {
		t.Errorf("%d, %t, %s: its emergency bucket is empty", resp.StatusCode, ok, reason)
	}
	if !l.Status().Degraded {
		t.Errorf("%+v", l.Status())
	}
}

func TestAClientThatHasGone(t *testing.T) {
	t.Parallel()
	l := open(t, file(t, "memory://", policies), "two")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	if ok, reason := l.Policy("two").Allow(w, from("acme").WithContext(ctx), client); ok || reason != proxy.ClientClosed || w.Body.Len() > 0 {
		t.Errorf("%t, %s, %s", ok, reason, w.Body)
	}
}

// The anonymous are told apart by cookie and by the address that the proxy trusts,
// not by the socket's. A cookie goes out with what is allowed, and only with that.
func TestAnonymous(t *testing.T) {
	t.Parallel()
	anon := open(t, file(t, "memory://", policies), "anon").Policy("anon")
	resp, ok, _ := ask(anon, from(""))
	if cookies := resp.Cookies(); !ok || len(cookies) != 1 || cookies[0].Name != "sentinel_anon_id" {
		t.Errorf("%t, %v", ok, resp.Header)
	}
	if resp, ok, reason := ask(anon, from("")); ok || reason != proxy.RateLimited || len(resp.Cookies()) != 0 {
		t.Errorf("%t, %s, %v", ok, reason, resp.Header)
	}
	w := httptest.NewRecorder()
	if ok, _ := anon.Allow(w, from(""), netip.MustParseAddr("192.0.2.8")); !ok {
		t.Error("another address shares its quota")
	}
	for i, want := range []bool{true, false} { // no address is one, too
		if ok, _ := anon.Allow(httptest.NewRecorder(), from(""), netip.Addr{}); ok != want {
			t.Errorf("%d: %t", i, ok)
		}
	}
}

// Status, body and headers are those of a service that uses the library itself.
func TestResponsesAreTheLibrarys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // where no second goes by between the two
		path := file(t, "memory://", policies)
		cfg, err := sentinel.LoadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		library, err := sentinel.Open(t.Context(), cfg, sentinel.WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		defer library.Close()
		edge := open(t, path, "two", "anon")
		requests := []*http.Request{from("acme"), from("acme"), from("acme"), from(""), from("")}
		for _, id := range []string{"two", "anon"} {
			p := edge.Policy(id)
			guarded := sentinelhttp.Middleware(library)(sentinelhttp.Guard(id)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
			for i, r := range requests {
				for _, method := range []string{http.MethodGet, http.MethodHead} {
					r = r.Clone(r.Context())
					r.Method, r.RemoteAddr = method, client.String()+":1234"
					want, got := httptest.NewRecorder(), httptest.NewRecorder()
					guarded.ServeHTTP(want, r)
					p.Allow(got, r, client)
					if got.Code != want.Code || got.Body.String() != want.Body.String() || headers(got) != headers(want) {
						t.Errorf("%s, request %d, %s:\n%d %s %s\nwant\n%d %s %s", id, i, method, got.Code, headers(got), got.Body, want.Code, headers(want), want.Body)
					}
				}
			}
		}
	})
}

// headers are a response's, without what differs from one decision to the next.
func headers(w *httptest.ResponseRecorder) string {
	var lines []string
	for name, values := range w.Header() {
		if name == "Set-Cookie" || name == "Sentinel-Decision-Id" {
			values = []string{"..."}
		}
		lines = append(lines, fmt.Sprint(name, values))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

func TestOpenNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	path := file(t, "memory://", policies)
	_, err := Open(t.Context(), path, uses("nope", "two", "neither"), Options{Logger: quiet})
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	want := path + `: route /nope uses policy "nope", which is not there; add it under "policies"`
	if len(lines) != 2 || lines[0] != want || !strings.Contains(lines[1], "neither") {
		t.Errorf("%s", err)
	}
	for name, path := range map[string]string{
		"no such file": filepath.Join(t.TempDir(), "x.json"),
		"faulty":       file(t, "memory://", `{"two": {}}`),
		"bad address":  file(t, "redis://:0:0", policies),
	} {
		if _, err := Open(t.Context(), path, nil, Options{Logger: quiet}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A change of the file keeps what was counted; what cannot be changed, or lacks a
// policy that is used, changes nothing.
func TestUpdate(t *testing.T) {
	t.Parallel()
	path := file(t, "memory://", policies)
	l := open(t, path, "two")
	two := l.Policy("two")
	ask(two, from("acme"))
	if err := l.Update(path, uses("two")); err != nil {
		t.Fatal(err)
	}
	if resp, ok, _ := ask(two, from("acme")); !ok || !strings.Contains(resp.Header.Get("RateLimit"), "r=0") {
		t.Errorf("%t, %v: the same file begins anew", ok, resp.Header)
	}
	write(t, path, "memory://", strings.ReplaceAll(policies, `"capacity": 2`, `"capacity": 20`))
	if err := l.Update(path, uses("two")); err != nil {
		t.Fatal(err)
	}
	if resp, _, _ := ask(two, from("fresh")); !strings.Contains(resp.Header.Get("RateLimit"), "r=19") {
		t.Errorf("%v", resp.Header)
	}
	if _, ok, _ := ask(two, from("acme")); ok {
		t.Error("what was used up is there again")
	}
	for name, c := range map[string]struct{ url, policies, id string }{
		"a policy that is not there": {"memory://", policies, "nope"},
		"another store":              {"redis://127.0.0.1:1", policies, "two"},
		"another algorithm":          {"memory://", strings.ReplaceAll(policies, "1h", "2h"), "two"},
		"a faulty file":              {"memory://", "[]", "two"},
	} {
		write(t, path, c.url, c.policies)
		err := l.Update(path, uses(c.id))
		if err == nil || !strings.Contains(err.Error(), path) && name != "a faulty file" {
			t.Errorf("%s: %v", name, err)
		}
		if resp, _, _ := ask(two, from("fresh")); !strings.Contains(resp.Header.Get("RateLimit-Policy"), "q=20") {
			t.Errorf("%s: %v", name, resp.Header)
		}
	}
}

// A policy that the file has lost is unknown, until its route is gone as well.
func TestAPolicyThatIsGone(t *testing.T) {
	t.Parallel()
	path := file(t, "memory://", policies)
	l := open(t, path, "two", "shut")
	shut := l.Policy("shut")
	write(t, path, "memory://", `{"two": {"endpoint_id": "two", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
		"capacity": 2, "refill_per_second": 0.001, "fallback_per_second": 1}}`)
	if err := l.Update(path, uses("two")); err != nil {
		t.Fatal(err)
	}
	if resp, ok, reason := ask(shut, from("acme")); ok || reason != proxy.NotConfigured || resp.StatusCode != 404 {
		t.Errorf("%d, %t, %s", resp.StatusCode, ok, reason)
	}
}

// The library's metrics and the edge's are scraped together.
func TestMetrics(t *testing.T) {
	t.Parallel()
	library, edge := prometheus.NewRegistry(), prometheus.NewRegistry()
	path := file(t, "memory://", policies)
	for range 2 { // a second one on the same registry is no fault
		l, err := Open(t.Context(), path, uses("two"), Options{Logger: quiet, Registerer: library})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ask(l.Policy("two"), from("acme"))
	}
	own, err := observe.NewMetrics(edge, func() observe.View { return observe.View{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	own.BreakerChanged("pool", "backend", breaker.Closed, breaker.Open)
	families, err := prometheus.Gatherers{library, edge}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, name := range []string{"sentinel_decisions_total", "sentinel_breaker_transitions_total"} {
		if !slices.Contains(names, name) {
			t.Errorf("no %s among %q", name, names)
		}
	}
}
