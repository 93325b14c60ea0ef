package observe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/explain"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

func view() View {
	return View{
		Version: 3, Applied: time.Now(), Rejected: 2, Tunnels: 4, LimiterClients: 5, LimiterOverflow: 6,
		Backends: []upstream.Status{
			{Pool: "web", Backend: "10.0.0.1:80", Health: "healthy", InFlight: 7, MaxInFlight: 200},
			{Pool: "web", Backend: "10.0.0.2:80", Health: "unhealthy", Breaker: breaker.Open, LastError: "<script>refused"},
		},
	}
}

func TestEachEndedRequestIsCountedByItsKind(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry, view, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := record()
	for range 2 {
		m.Ended(r)
	}
	r.Method, r.Route, r.Status, r.Reason, r.Backend, r.Attempts = "BREW", "", 404, proxy.NoRoute, "", 0
	m.Ended(r)
	const want = `
# HELP sentinel_edge_requests_total Requests that have ended, by the route's pattern, the method and the status; 499: the client went away.
# TYPE sentinel_edge_requests_total counter
sentinel_edge_requests_total{code="200",method="GET",route="/users/:id"} 2
sentinel_edge_requests_total{code="404",method="OTHER",route="none"} 1
# HELP sentinel_edge_upstream_attempts_total Requests that were given to a backend, by how that ended: the request's reason, or a status after which it was sent again. What http.Transport sends twice by itself, because a kept connection turns out to be closed, is counted twice.
# TYPE sentinel_edge_upstream_attempts_total counter
sentinel_edge_upstream_attempts_total{backend="10.0.0.1:80",result="ok"} 2
# HELP sentinel_edge_backend_up 1 if the backend may be chosen by its health, 0 if its checks have failed.
# TYPE sentinel_edge_backend_up gauge
sentinel_edge_backend_up{backend="10.0.0.1:80",pool="web"} 1
sentinel_edge_backend_up{backend="10.0.0.2:80",pool="web"} 0
# HELP sentinel_breaker_state State of the circuit breaker: 0 closed, 1 half-open, 2 open; of several limiters the greatest.
# TYPE sentinel_breaker_state gauge
sentinel_breaker_state{name="web/10.0.0.1:80",scope="backend"} 0
sentinel_breaker_state{name="web/10.0.0.2:80",scope="backend"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_edge_requests_total",
		"sentinel_edge_upstream_attempts_total", "sentinel_edge_backend_up", "sentinel_breaker_state"); err != nil {
		t.Error(err)
	}
}

func TestEachAttemptIsCountedByItsOwnEnd(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry, view, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := record()
	r.Attempts = 4
	r.Retried = []proxy.Retried{{Backend: "10.0.0.2:80", Reason: "503", Wires: 1}, {Backend: "10.0.0.3:80", Reason: "upstream_reset", Wires: 2}}
	m.Ended(r)
	r.Attempts, r.Retried, r.BudgetSpent = 1, nil, true
	m.Ended(r)
	const want = `
# HELP sentinel_edge_retries_total Attempts that followed on another, by how that one failed: a reason, or the status. What http.Transport sends again by itself is not among them.
# TYPE sentinel_edge_retries_total counter
sentinel_edge_retries_total{reason="503"} 1
sentinel_edge_retries_total{reason="upstream_reset"} 1
# HELP sentinel_edge_retry_budget_exhausted_total Requests that were not sent again because the pool had as many retries under way as it may have.
# TYPE sentinel_edge_retry_budget_exhausted_total counter
sentinel_edge_retry_budget_exhausted_total 1
# HELP sentinel_edge_upstream_attempts_total Requests that were given to a backend, by how that ended: the request's reason, or a status after which it was sent again. What http.Transport sends twice by itself, because a kept connection turns out to be closed, is counted twice.
# TYPE sentinel_edge_upstream_attempts_total counter
sentinel_edge_upstream_attempts_total{backend="10.0.0.1:80",result="ok"} 2
sentinel_edge_upstream_attempts_total{backend="10.0.0.2:80",result="503"} 1
sentinel_edge_upstream_attempts_total{backend="10.0.0.3:80",result="upstream_reset"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_edge_retries_total",
		"sentinel_edge_retry_budget_exhausted_total", "sentinel_edge_upstream_attempts_total"); err != nil {
		t.Error(err)
	}
}

// A client can choose methods and paths; neither may make a series.
func TestSeriesDoNotGrowWithWhatClientsSend(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry, view, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := record()
	r.Route, r.Backend, r.Attempts = "", "", 0
	for i := range 1000 {
		r.Method, r.Path, r.Host = "M"+strings.Repeat("X", i), strings.Repeat("/y", i), strings.Repeat("z", i)
		m.Ended(r)
	}
	if n := testutil.CollectAndCount(m.requests); n != 1 {
		t.Errorf("%d series", n)
	}
}

// Backends and routes come and go; their series do, too.
func TestSeriesOfWhatIsGoneAreDropped(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry, func() View { return View{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	use := func(route, backend string) {
		r := record()
		r.Route, r.Backend, r.Attempts = route, backend, 2
		r.Retried = []proxy.Retried{{Backend: backend, Reason: "503", Wires: 1}}
		m.Ended(r)
		m.BreakerChanged("web", backend, breaker.Closed, breaker.Open)
		m.Counted("GET "+route, fixed(true)).Allow(nil, nil, netip.Addr{})
	}
	count := func() int {
		n, err := testutil.GatherAndCount(registry, "sentinel_edge_requests_total", "sentinel_edge_request_seconds",
			"sentinel_edge_upstream_attempts_total", "sentinel_breaker_transitions_total", "sentinel_decisions_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	keep := func(route, backend string) {
		m.Keep(Names{Routes: map[string]bool{route: true}, Limits: map[string]bool{"GET " + route: true}, Backends: map[string]bool{backend: true}, Breakers: map[string]bool{"web/" + backend: true}})
	}
	use("/kept", "10.0.0.1:80")
	use("", "10.0.0.1:80")
	keep("/kept", "10.0.0.1:80")
	want := count()
	for i := range 100 {
		use(fmt.Sprint("/r", i), fmt.Sprintf("10.0.1.%d:80", i))
		use("/kept", fmt.Sprintf("10.0.1.%d:80", i))
	}
	keep("/kept", "10.0.0.1:80")
	if got, known := count(), len(*m.known.Load()); got != want || known != 2 {
		t.Errorf("%d series are left and %d known, of %d and 2", got, known, want)
	}
	use("/kept", "10.0.0.1:80") // what is kept goes on
	if got := testutil.ToFloat64(m.requests.WithLabelValues("/kept", "GET", "200")); got != 102 {
		t.Errorf("%v requests are counted", got)
	}
}

// The library's metrics and these are scraped from one address.
func TestSeriesThatTheLibraryHasToo(t *testing.T) {
	own, library := prometheus.NewRegistry(), prometheus.NewRegistry()
	m, err := NewMetrics(own, view, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs := newDecisions()
	library.MustRegister(theirs)
	theirs.WithLabelValues("default", "allowed").Inc()
	l := m.Counted("default", fixed(true))
	l.Allow(nil, nil, netip.Addr{})
	m.Counted("default", fixed(false)).Allow(nil, nil, netip.Addr{})
	families, err := prometheus.Gatherers{own, library}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sentinel_decisions_total" && len(f.GetMetric()) != 3 {
			t.Errorf("%v", f)
		}
	}
}

type fixed bool

func (f fixed) Allow(http.ResponseWriter, *http.Request, netip.Addr) (bool, proxy.Reason) {
	return bool(f), proxy.RateLimited
}

func admin() *Admin {
	return &Admin{
		Gatherer: prometheus.NewRegistry(), Now: view, Hosts: []string{"example.com"}, // which httptest has
		Routes: func() []explain.Route {
			return []explain.Route{{Path: "/users/:id", Backend: "web", Limit: "none", Retry: "3 attempts"}}
		},
		Ready: func() []Condition {
			return []Condition{{Name: "listeners open", OK: true}, {Name: "not draining", Why: "SIGTERM"}}
		},
		Config:  func() []byte { return []byte("routes: []\n") },
		Explain: func(method, url string) (any, error) { return method + " " + url, nil },
	}
}

func TestThePageEscapesWhatBackendsSay(t *testing.T) {
	w := httptest.NewRecorder()
	admin().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status", http.NoBody))
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "<script>") || !strings.Contains(w.Body.String(), "&lt;script&gt;refused") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

func TestThePageHasRoutesAndBackends(t *testing.T) {
	w := httptest.NewRecorder()
	admin().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/status", http.NoBody))
	for _, want := range []string{"<code>/users/:id</code>", "3 attempts", "7 of 200", "10.0.0.2:80"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q is not in %s", want, w.Body)
		}
	}
}

func TestAnotherNameIsNotAnswered(t *testing.T) {
	for _, path := range []string{"/status", "/metrics", "/v1/config", "/healthz", "/nothing"} {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Host = "evil.example:9901"
		w := httptest.NewRecorder()
		admin().Handler().ServeHTTP(w, r)
		if w.Code != http.StatusMisdirectedRequest || !strings.Contains(w.Body.String(), "admin.hosts in the file") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestReadinessNamesEachCondition(t *testing.T) {
	w := httptest.NewRecorder()
	admin().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody))
	const want = `{"ready":false,"source":"","config_version":3,"conditions":[{"name":"listeners open","ok":true},{"name":"not draining","ok":false,"why":"SIGTERM"}]}` + "\n"
	if w.Code != http.StatusServiceUnavailable || w.Body.String() != want {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

func TestTheAdminListenerTakesOnlyQuestions(t *testing.T) {
	for path, want := range map[string]int{"/status": http.StatusMethodNotAllowed, "/nothing": http.StatusNotFound} {
		w := httptest.NewRecorder()
		admin().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, http.NoBody))
		if w.Code != want {
			t.Errorf("POST %s: %d, want %d", path, w.Code, want)
		}
	}
}

func BenchmarkMetrics(b *testing.B) {
	m, err := NewMetrics(prometheus.NewRegistry(), view, nil)
	if err != nil {
		b.Fatal(err)
	}
	r := record()
	b.ReportAllocs()
	for b.Loop() {
		m.Ended(r)
	}
}
