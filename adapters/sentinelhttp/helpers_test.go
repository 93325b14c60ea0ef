package sentinelhttp_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

const jwtSecret = "tests-only-secret-0123456789abcdefghij"

// policies are those of every test. Their quotas are small, their refills slow
// enough for none to fall due while a test runs.
const policies = `{
	"tenant.two":   {"endpoint_id": "tenant.two", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
	                 "capacity": 2, "refill_per_second": 0.001, "fallback_per_second": 1},
	"tenant.open":  {"endpoint_id": "tenant.open", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
	                 "capacity": 5, "refill_per_second": 0.001, "fallback_rate_per_process_micro": 2000},
	"tenant.closed":{"endpoint_id": "tenant.closed", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1,
	                 "limit": 50, "window": "1h", "fallback_per_second": 1},
	"tenant.never": {"endpoint_id": "tenant.never", "algorithm": "token_bucket", "fail_mode": "fail_closed", "policy_version": 1,
	                 "capacity": 1, "refill_per_second": 0, "fallback_per_second": 1},
	"anon.one":     {"endpoint_id": "anon.one", "identity": "anonymous", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
	                 "capacity": 1, "refill_per_second": 0.001, "fallback_per_second": 1},
	"anon.five":    {"endpoint_id": "anon.five", "identity": "anonymous", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1,
	                 "limit": 5, "window": "1h", "fallback_per_second": 1}
}`

// config is a configuration on a store, with further fields of "app".
func config(t testing.TB, redisURL, more string) *sentinel.Config {
	t.Helper()
	cfg, err := sentinel.ParseConfig(fmt.Appendf(nil, `{
		"app": {
			"redis_url": %q,
			"jwt_secret": %q,
			"jwt_algorithm_allowlist": ["HS256"],
			"anonymous_cookie_secret": "tests-only-cookie-secret-0123456789abcdef"
			%s
		},
		"policies": %s
	}`, redisURL, jwtSecret, more, policies))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t testing.TB, cfg *sentinel.Config) *sentinel.Limiter {
	t.Helper()
	l, err := sentinel.Open(context.Background(), cfg, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
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

// inMemory is a limiter of this test alone.
func inMemory(t testing.TB) *sentinel.Limiter {
	t.Helper()
	return open(t, config(t, "memory://", ""))
}

// away is a limiter whose Redis does not exist.
func away(t testing.TB) *sentinel.Limiter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, config(t, "redis://"+addr+"/0", ""))
}

// bearer is the Authorization of a tenant, signed as the configuration says.
func bearer(sub string) string {
	enc := base64.RawURLEncoding.EncodeToString
	claims := fmt.Sprintf(`{"sub":%q,"exp":%d}`, sub, time.Now().Add(time.Hour).Unix())
	signed := enc([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc([]byte(claims))
	mac := hmac.New(sha256.New, []byte(jwtSecret))
	mac.Write([]byte(signed))
	return "Bearer " + signed + "." + enc(mac.Sum(nil))
}

// ok is a handler that says so.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
})

// guarded is a server in which every policy's id, and one that is unknown, is
// guarded under its own path.
func guarded(l *sentinel.Limiter, handler http.Handler, opts ...sentinelhttp.Option) http.Handler {
	mux := http.NewServeMux()
	for _, id := range []string{"tenant.two", "tenant.open", "tenant.closed", "tenant.never", "anon.one", "anon.five", "not.configured"} {
		mux.Handle("/"+id, sentinelhttp.Guard(id)(handler))
	}
	return sentinelhttp.Middleware(l, opts...)(mux)
}

func serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

// answer is a response that has been read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

func do(t testing.TB, method, url string, header http.Header) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func get(t testing.TB, url, authorization string) answer {
	t.Helper()
	h := http.Header{}
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	return do(t, http.MethodGet, url, h)
}

// wantProblem checks that an answer is exactly one problem document.
func wantProblem(t testing.TB, a answer, status int, detail string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d", a.status, status)
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control %q", got)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatalf("the body is not one JSON document: %v: %q", err, a.body)
	}
	want := map[string]any{
		"type": "about:blank", "title": http.StatusText(status), "status": float64(status), "detail": detail,
	}
	if len(got) != len(want) {
		t.Errorf("body %v, want %v", got, want)
	}
	for k := range want {
		if got[k] != want[k] {
			t.Errorf("body %q: %v, want %v", k, got[k], want[k])
		}
	}
}

// wantHeaders checks headers by name; "" says that the header is absent.
func wantHeaders(t testing.TB, a answer, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := a.header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}
