package observe

import (
	_ "embed"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sentinelgo/sentinel/edge/internal/explain"
	"github.com/sentinelgo/sentinel/edge/internal/operator"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

// View is how the data plane is at one moment.
type View struct {
	Build   string    // the program's version
	Started time.Time // of the process

	Version  int64     // of the configuration in force; 0: none
	Hash     string    // of its content
	Source   string    // where it came from: "file", "control" or "disk"
	Applied  time.Time // when it came into force
	Rejected int64     // how many were refused since the start
	LastFail string    // why the last of these was
	Control  string    // of the control plane: "none" if the file is all there is

	Following bool // there is a control plane
	Connected bool // to it

	Backends []upstream.Status
	Tunnels  int

	LimiterClients  int
	LimiterMost     int
	LimiterOverflow int64
}

// Condition is one thing that must hold before traffic may come.
type Condition struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why,omitempty"` // if not, or what is good to know
}

// Admin is what the admin listener answers from.
type Admin struct {
	Hosts    []string // by which it may be asked besides localhost and addresses
	Gatherer prometheus.Gatherer
	Now      func() View
	Ready    func() []Condition
	Routes   func() []explain.Route // in the order of precedence; thousands, perhaps
	// Config is the configuration in force as YAML, with nothing secret.
	Config func() []byte
	// Explain says what becomes of a request, as a value for JSON, or what is wrong
	// with the question.
	Explain func(method, url string) (any, error)
}

//go:embed status.html
var statusText string

var statusPage = operator.NewPage(statusText, template.FuncMap{
	"join": func(s []string) string { return strings.Join(s, " ") },
})

// Handler answers /healthz, /readyz, /metrics, /status and /v1/.
func (a *Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		operator.Answer(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", a.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", a.status)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/status", http.StatusFound)
	})
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(a.Config()) // the client is gone
	})
	mux.HandleFunc("GET /v1/backends", func(w http.ResponseWriter, _ *http.Request) {
		operator.Answer(w, http.StatusOK, backends(a.Now().Backends))
	})
	mux.HandleFunc("GET /v1/routes", func(w http.ResponseWriter, _ *http.Request) {
		operator.Answer(w, http.StatusOK, a.Routes())
	})
	mux.HandleFunc("GET /v1/explain", a.explain)
	return operator.Guard(mux, a.Hosts, "admin.hosts in the file")
}

// ready is 200 only if all conditions hold; the body names each.
func (a *Admin) ready(w http.ResponseWriter, _ *http.Request) {
	conditions := a.Ready()
	status := http.StatusOK
	for _, c := range conditions {
		if !c.OK {
			status = http.StatusServiceUnavailable
		}
	}
	v := a.Now()
	operator.Answer(w, status, struct {
		Ready      bool        `json:"ready"`
		Source     string      `json:"source"`
		Version    int64       `json:"config_version"`
		Conditions []Condition `json:"conditions"`
	}{status == http.StatusOK, v.Source, v.Version, conditions})
}

func (a *Admin) status(w http.ResponseWriter, _ *http.Request) {
	statusPage.Answer(w, struct {
		View
		Conditions []Condition
		Routes     []explain.Route
	}{a.Now(), a.Ready(), a.Routes()})
}

func (a *Admin) explain(w http.ResponseWriter, r *http.Request) {
	method := r.FormValue("method")
	if method == "" {
		method = http.MethodGet
	}
	said, err := a.Explain(method, r.FormValue("url"))
	if err != nil {
		operator.Answer(w, http.StatusBadRequest, map[string]string{"detail": err.Error(), "example": "/v1/explain?method=GET&url=/users/1"})
		return
	}
	operator.Answer(w, http.StatusOK, said)
}

// backend is an upstream.Status as JSON.
type backend struct {
	Pool      string `json:"pool"`
	Backend   string `json:"backend"`
	Health    string `json:"health"`
	LastError string `json:"last_error,omitempty"` // of its last check
	Breaker   string `json:"breaker"`
	Failure   string `json:"last_failure,omitempty"` // of a request
	FailedAt  string `json:"last_failure_at,omitempty"`
	InFlight  int64  `json:"in_flight"`
	Most      int64  `json:"max_in_flight,omitempty"`
	Weight    int    `json:"weight"`
}

func backends(all []upstream.Status) []backend {
	out := make([]backend, 0, len(all))
	for _, s := range all {
		failed := ""
		if s.LastFailure != "" {
			failed = s.LastFailureAt.UTC().Format(time.RFC3339)
		}
		out = append(out, backend{s.Pool, s.Backend, s.Health, s.LastError, s.Breaker.String(), s.LastFailure, failed, s.InFlight, s.MaxInFlight, s.Weight})
	}
	return out
}
