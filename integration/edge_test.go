package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// buildEdge builds the edge's data plane once, for all tests.
var buildEdge = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "edge")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "sentinel")
	out, err := exec.Command("go", "build", "-o", binary, "../edge/cmd/sentinel").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return binary, err
})

// edge runs the data plane before a backend, with the library's policies on a
// Redis, and returns its address.
func edge(t *testing.T, redisURL, backend string) (addr string) {
	t.Helper()
	binary, err := buildEdge()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("sentinel.json", fmt.Sprintf(`{
		"app": {"redis_url": %q, "jwt_secret": %q, "anonymous_cookie_secret": "another-secret-of-this-test-0123456789", "redis_budget_ms": 1000},
		"policies": {
			"billing.export": {"endpoint_id": "billing.export", "algorithm": "token_bucket", "capacity": 3, "refill_per_second": 0.001,
				"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1},
			"login": {"endpoint_id": "login", "algorithm": "sliding_window", "limit": 2, "window": "1h", "identity": "anonymous",
				"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1}
		}
	}`, redisURL, sentinelctlSecret))
	file := write("edge.yaml", fmt.Sprintf(`
server: {listen: "127.0.0.1:0", access_log: "off"}
admin: {listen: "127.0.0.1:0"}
sentinel: sentinel.json
routes:
  - {path: /export, backend: a, rate_limit: {mode: distributed, policy: billing.export}}
  - {path: /login, backend: a, rate_limit: {mode: distributed, policy: login}}
backends:
  - {name: a, url: %q}
`, backend))
	cmd := exec.CommandContext(t.Context(), binary, "run", "-config", file)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var said strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		var at struct{ Msg, Traffic string }
		if json.Unmarshal(lines.Bytes(), &at) == nil && at.Msg == "listening" {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return at.Traffic
		}
	}
	t.Fatalf("the edge does not come up:\n%s", said.String())
	return ""
}

// counting is a backend that counts.
func counting(t *testing.T) (url string, served *atomic.Int64) {
	t.Helper()
	served = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	t.Cleanup(srv.Close)
	return srv.URL, served
}

// ask sends a request to the edge. auth is a whole header, so is cookie;
// both may be empty.
func ask(t *testing.T, addr, path, auth, cookie string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp
}

// The edge and a service that uses the library draw on one bucket.
func TestEdgeSharesTheLibrarysBuckets(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	backend, served := counting(t)
	addr := edge(t, srv.URL(), backend)
	l := open(t, config(srv.URL(), tokens("billing.export", 3_000_000, 1000)))
	acme := token(t, []byte(sentinelctlSecret), jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Hour).Unix()})

	if resp := ask(t, addr, "/export", "", ""); resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %s", resp.Status)
	}
	allow(t, l, "acme", "billing.export")
	for left := 1; left >= 0; left-- {
		resp := ask(t, addr, "/export", acme, "")
		if want := fmt.Sprintf("r=%d;", left); resp.StatusCode != http.StatusOK || !strings.Contains(resp.Header.Get("RateLimit")+";", want) {
			t.Errorf("%s, RateLimit %q, want %s", resp.Status, resp.Header.Get("RateLimit"), want)
		}
	}
	resp := ask(t, addr, "/export", acme, "")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("over quota: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	if d, err := l.Allow(t.Context(), "acme", "billing.export"); err != nil || d.Allowed {
		t.Errorf("the library admits what the edge does not: %+v, %v", d, err)
	}
	if served.Load() != 2 {
		t.Errorf("the backend served %d, want 2", served.Load())
	}
	srv.Kill()
	other := token(t, []byte(sentinelctlSecret), jwt.MapClaims{"sub": "other", "exp": time.Now().Add(time.Hour).Unix()})
	if resp := ask(t, addr, "/export", other, ""); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("with Redis away, fail closed: %s", resp.Status)
	}
	if served.Load() != 2 {
		t.Error("a request that was refused reached the backend")
	}
}

// A visitor is known by a cookie that the edge gives, and by the address.
func TestEdgeKnowsVisitorsByCookieAndPeer(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	backend, served := counting(t)
	addr := edge(t, srv.URL(), backend)
	first := ask(t, addr, "/login", "", "")
	cookies := first.Cookies()
	if first.StatusCode != http.StatusOK || len(cookies) != 1 || !cookies[0].HttpOnly {
		t.Fatalf("%s, cookies %v", first.Status, cookies)
	}
	mine := cookies[0].Name + "=" + cookies[0].Value
	if resp := ask(t, addr, "/login", "", mine); resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 0 {
		t.Errorf("with the cookie: %s, cookies %v", resp.Status, resp.Cookies())
	}
	// The address is at its limit of 2, whoever comes from it.
	for _, cookie := range []string{"", mine} {
		if resp := ask(t, addr, "/login", "", cookie); resp.StatusCode != http.StatusTooManyRequests || len(resp.Cookies()) != 0 {
			t.Errorf("over quota: %s, cookies %v", resp.Status, resp.Cookies())
		}
	}
	if served.Load() != 2 {
		t.Errorf("the backend served %d, want 2", served.Load())
	}
}

// A policy that the library's file lacks is found at the start.
func TestEdgeNamesAPolicyThatIsMissing(t *testing.T) {
	t.Parallel()
	binary, err := buildEdge()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sentinel.json": fmt.Sprintf(`{"app": {"redis_url": "memory://", "jwt_secret": %q}, "policies": {"billing.export": {"endpoint_id": "billing.export",
			"algorithm": "token_bucket", "capacity": 3, "refill_per_second": 1, "fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1}}}`, sentinelctlSecret),
		"edge.yaml": `{server: {listen: "127.0.0.1:0"}, admin: {listen: "127.0.0.1:0"}, sentinel: sentinel.json,
			routes: [{path: /a, backend: a, rate_limit: {mode: distributed, policy: billing.exprot}}], backends: [{name: a, url: "http://127.0.0.1:1"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), binary, "run", "-config", filepath.Join(dir, "edge.yaml")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "billing.exprot") {
		t.Errorf("%v: %s", err, out)
	}
	if strings.Contains(string(out), sentinelctlSecret) {
		t.Errorf("it prints a secret: %s", out)
	}
}
