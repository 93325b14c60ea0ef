package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// versioned is the configuration of a version: its limit and its pool tell which
// one it is.
func versioned(t *testing.T, version int64, backends [2]string) *config.Config {
	t.Helper()
	text := fmt.Sprintf(`
server: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
routes: [{path: /x, backend: pool%[1]d, rate_limit: {capacity: %[2]d, refill_rate: 1000000}}]
backends: [{name: pool%[1]d, url: %[3]q, health: {type: off}}]
`, version%2, 1_000_000+version, backends[version%2])
	cfg, err := config.Parse("test.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running is a node with its listeners, in this process.
func running(t *testing.T, cfg *config.Config, out io.Writer) *node {
	t.Helper()
	n := newNode(Options{Stdout: out, Stderr: io.Discard})
	if err := n.build(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	n.serve()
	return n
}

// safe is a buffer that a log writes to while nobody reads.
type safe struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func TestNoRequestSeesTwoConfigurations(t *testing.T) {
	swaps := int64(10_000)
	if testing.Short() {
		swaps = 1000
	}
	start := runtime.NumGoroutine()
	var servers []*httptest.Server
	var backends [2]string
	for i := range backends {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Pool", strconv.Itoa(i))
		}))
		servers = append(servers, srv)
		backends[i] = srv.URL
	}
	log := &safe{}
	n := running(t, versioned(t, 1, backends), log)

	seen := make(map[string]int64) // by request id: the version of limit and pool
	var mu sync.Mutex
	var stop atomic.Bool
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := 0; !stop.Load(); i++ {
				id := fmt.Sprintf("%d-%d", worker, i)
				r := httptest.NewRequest(http.MethodGet, "http://edge/x", http.NoBody)
				r.Header.Set("X-Request-Id", id)
				w := httptest.NewRecorder()
				n.handler.ServeHTTP(w, r)
				version := limitOf(w.Header().Get("RateLimit-Policy")) - 1_000_000
				if w.Code != http.StatusOK || w.Header().Get("X-Pool") != strconv.FormatInt(version%2, 10) {
					t.Errorf("%d: limit of version %d, pool %s: %s", w.Code, version, w.Header().Get("X-Pool"), w.Body)
					return
				}
				mu.Lock()
				seen[id] = version
				mu.Unlock()
			}
		})
	}
	for version := int64(2); version <= swaps; version++ {
		if err := n.apply(t.Context(), versioned(t, version, backends)); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	all.Wait()
	if err := n.access.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	versions := map[int64]bool{}
	for line := range strings.Lines(log.text.String()) {
		var a struct {
			ID      string
			Version int64 `json:"config_version"`
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if seen[a.ID] != a.Version {
			t.Fatalf("the router saw version %d, limit and pool %d", a.Version, seen[a.ID])
		}
		versions[a.Version] = true
	}
	t.Logf("%d requests, %d swaps, of which %d versions were seen", len(seen), swaps, len(versions))
	if len(versions) < 10 {
		t.Errorf("only %d versions were seen: nothing was shown", len(versions))
	}
	n.close(t.Context())
	for _, srv := range servers {
		srv.Close()
	}
	edgetest.Soon(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= start })
}

// A fleet's backends and routes come and go for as long as a node runs: what is gone is not
// scraped for ever.
func TestTheMetricsOfWhatIsGoneAreDropped(t *testing.T) {
	var backends [2]string
	for i := range backends {
		srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer srv.Close()
		backends[i] = srv.URL
	}
	n := running(t, versioned(t, 1, backends), io.Discard)
	defer n.close(t.Context())
	ask := func() {
		w := httptest.NewRecorder()
		n.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://edge/x", http.NoBody))
		if w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body)
		}
	}
	scraped := func() string {
		resp, err := http.Get("http://" + n.open[1].listener.Addr().String() + "/metrics") //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	attempts := func(i int) string {
		return `sentinel_edge_upstream_attempts_total{backend="` + strings.TrimPrefix(backends[i], "http://") + `",result="ok"} `
	}
	ask()
	if text := scraped(); !strings.Contains(text, attempts(1)) {
		t.Fatalf("no %s in\n%s", attempts(1), text)
	}
	if err := n.apply(t.Context(), versioned(t, 2, backends)); err != nil {
		t.Fatal(err)
	}
	ask()
	edgetest.Soon(t, "what is gone is no longer scraped", func() bool { return !strings.Contains(scraped(), attempts(1)) })
	if text := scraped(); !strings.Contains(text, attempts(0)+"1\n") || !strings.Contains(text, `decision_reason="allowed",endpoint_id="local:/x"} 2`+"\n") {
		t.Errorf("what there is was dropped, too:\n%s", text)
	}
	http.DefaultClient.CloseIdleConnections()
}

// limitOf is q of RateLimit-Policy.
func limitOf(header string) int64 {
	_, after, _ := strings.Cut(header, ";q=")
	digits, _, _ := strings.Cut(after, ";")
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}
