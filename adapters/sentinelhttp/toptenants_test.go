package sentinelhttp_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

func hashOf(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:])
}

// topLimiter observes for top.
func topLimiter(t testing.TB, redisURL string, top *sentinelhttp.TopTenants) *sentinel.Limiter {
	t.Helper()
	l, err := sentinel.Open(t.Context(), config(t, redisURL, ""), sentinel.WithLogger(slog.New(slog.DiscardHandler)), sentinel.WithObserver(top.Observe))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Requests through a guard are counted by tenant and outcome, and shown without
// the tenants' names.
func TestTopTenants(t *testing.T) {
	top := sentinelhttp.NewTopTenants(10)
	l := topLimiter(t, "memory://", top)
	api := serve(t, sentinelhttp.Middleware(l)(sentinelhttp.Guard("tenant.two")(ok)))
	for tenant, times := range map[string]int{"acme": 5, "globex": 3, "initech": 1} {
		for range times {
			get(t, api.URL, bearer(tenant))
		}
	}
	get(t, api.URL, "") // 401: nobody was found
	debug := serve(t, top)

	a := do(t, http.MethodGet, debug.URL+"?rows=2", http.Header{"Accept": {"application/json"}})
	wantHeaders(t, a, map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
	type list struct {
		Total, Error uint64
		Top          []struct {
			Hash    string `json:"identity_hash"`
			AtLeast uint64 `json:"at_least"`
			AtMost  uint64 `json:"at_most"`
		}
	}
	var page struct {
		Warning, Since string
		Endpoints      []struct {
			ID            string `json:"endpoint_id"`
			Asked, Denied list
		}
	}
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	got := fmt.Sprintf("%+v", page.Endpoints)
	want := fmt.Sprintf("[{ID:tenant.two Asked:{Total:9 Error:0 Top:[{Hash:%s AtLeast:5 AtMost:5} {Hash:%s AtLeast:3 AtMost:3}]} "+
		"Denied:{Total:4 Error:0 Top:[{Hash:%[1]s AtLeast:3 AtMost:3} {Hash:%[2]s AtLeast:1 AtMost:1}]}}]", hashOf("acme"), hashOf("globex"))
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !strings.Contains(page.Warning, "must not face the public") || page.Since == "" {
		t.Errorf("warning %q, since %q", page.Warning, page.Since)
	}

	a = get(t, debug.URL, "")
	wantHeaders(t, a, map[string]string{"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
	text := regexp.MustCompile(`since \S+`).ReplaceAllString(a.body, "since then.")
	wantText := `For operators only. This page must not face the public: it tells which clients call what, and how often.
This process alone, since then.

tenant.two: 9 asked
  5    ` + hashOf("acme") + `
  3    ` + hashOf("globex") + `
  1    ` + hashOf("initech") + `

tenant.two: 4 denied
  3    ` + hashOf("acme") + `
  1    ` + hashOf("globex") + `
`
	if text != wantText {
		t.Errorf("got\n%s\nwant\n%s", text, wantText)
	}
	if strings.Contains(a.body, "acme") {
		t.Error("a tenant's name is shown")
	}
}

// Where there were too many, the text says between which numbers the truth is.
func TestTopTenantsTextWithBounds(t *testing.T) {
	top := sentinelhttp.NewTopTenants(1)
	l := topLimiter(t, "memory://", top)
	for i := range 400 {
		tenant := "acme"
		if i%4 == 0 {
			tenant = fmt.Sprint("tenant-", i)
		}
		if _, err := l.Allow(t.Context(), tenant, "tenant.two"); err != nil {
			t.Fatal(err)
		}
	}
	a := get(t, serve(t, top).URL, "")
	if !regexp.MustCompile(`(?m)^ +\d+  to \d+  ` + hashOf("acme") + `$`).MatchString(a.body) {
		t.Errorf("%s", a.body)
	}
}

// A failure is no fault of the tenant's.
func TestTopTenantsFailures(t *testing.T) {
	top := sentinelhttp.NewTopTenants(10)
	l := topLimiter(t, "redis://127.0.0.1:1", top)
	d, err := l.Allow(t.Context(), "acme", "tenant.closed")
	if err != nil || d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	if a := get(t, serve(t, top).URL, ""); !strings.Contains(a.body, "tenant.closed: 1 asked") || !strings.Contains(a.body, "tenant.closed: 0 denied") {
		t.Errorf("%s", a.body)
	}
}

func TestTopTenantsEmpty(t *testing.T) {
	debug := serve(t, sentinelhttp.NewTopTenants(1000))
	a := do(t, http.MethodGet, debug.URL, http.Header{"Accept": {"application/json"}})
	if a.status != http.StatusOK || !strings.Contains(a.body, `"endpoints":[]`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, rows := range []string{"0", "-1", "1001", "many"} {
		if a := get(t, debug.URL+"?rows="+rows, ""); a.status != http.StatusBadRequest || !strings.Contains(a.body, "rows must be 1 to 1000") {
			t.Errorf("rows=%s: %d %s", rows, a.status, a.body)
		}
	}
}

func TestNewTopTenantsPanics(t *testing.T) {
	for _, k := range []int{-1, 0, 1001} {
		func() {
			defer func() {
				if want := fmt.Sprintf("sentinelhttp: NewTopTenants(%d): it must be 1 to 1000", k); recover() != want {
					t.Errorf("no panic %q", want)
				}
			}()
			sentinelhttp.NewTopTenants(k)
		}()
	}
}
