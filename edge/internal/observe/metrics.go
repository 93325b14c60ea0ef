package observe

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// Metrics are the series of the data plane. No label holds a client, a tenant or
// a path as it came: a route is its pattern, and a method that HTTP does not
// define is OTHER. It is safe for concurrent use.
type Metrics struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	attempts    *prometheus.CounterVec
	retries     *prometheus.CounterVec
	exhausted   prometheus.Counter
	transitions *prometheus.CounterVec
	decisions   *prometheus.CounterVec

	mu    sync.Mutex
	known atomic.Pointer[map[request]*series] // replaced, never changed
}

// request is what the series of one kind of requests have in common. There are
// as many as routes, methods, statuses and backends that met.
type request struct {
	route, method   string
	code            int
	backend, result string
}

// series are its children, looked up once.
type series struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
	attempts prometheus.Counter // nil without a backend
}

// The library has series of these names too, for its own breaker: with equal
// help both can be scraped from one address.
const (
	stateHelp      = "State of the circuit breaker: 0 closed, 1 half-open, 2 open; of several limiters the greatest."
	transitionHelp = "Transitions of the circuit breaker, by the state it went to."
	breakerScope   = "backend"
)

// NewMetrics registers the series on r. now says what is read when somebody
// asks.
func NewMetrics(r prometheus.Registerer, now func() View, log *AccessLog) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_edge_requests_total",
			Help: "Requests that have ended, by the route's pattern, the method and the status; 499: the client went away.",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sentinel_edge_request_seconds",
			Help:    "Time from a request's head to the end of its response, by the route's pattern.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_edge_upstream_attempts_total",
			Help: "Requests that were given to a backend, by how that ended: the request's reason, or a status after which it was sent again. What http.Transport sends twice by itself, because a kept connection turns out to be closed, is counted twice.",
		}, []string{"backend", "result"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_edge_retries_total",
			Help: "Attempts that followed on another, by how that one failed: a reason, or the status. What http.Transport sends again by itself is not among them.",
		}, []string{"reason"}),
		exhausted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sentinel_edge_retry_budget_exhausted_total",
			Help: "Requests that were not sent again because the pool had as many retries under way as it may have.",
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_breaker_transitions_total",
			Help: transitionHelp,
		}, []string{"scope", "name", "to"}),
	}
	m.decisions = newDecisions()
	m.known.Store(&map[request]*series{})
	return m, errors.Join(r.Register(m.requests), r.Register(m.seconds), r.Register(m.attempts), r.Register(m.retries), r.Register(m.exhausted),
		r.Register(m.transitions), r.Register(m.decisions), r.Register(&gauges{now, log}))
}

// Ended counts a request.
func (m *Metrics) Ended(r *proxy.Record) {
	key := request{route: r.Route, method: method(r.Method), code: r.Status, backend: r.Backend}
	if r.Attempts > 0 {
		key.result = string(r.Reason)
	}
	s := (*m.known.Load())[key]
	if s == nil {
		s = m.learn(key)
	}
	s.requests.Inc()
	s.seconds.Observe(r.Duration.Seconds())
	if s.attempts != nil {
		s.attempts.Add(float64(r.Attempts - m.retried(r)))
	}
	if r.BudgetSpent {
		m.exhausted.Inc()
	}
}

// retried counts the attempts on which others followed, and returns how often
// they were sent.
func (m *Metrics) retried(r *proxy.Record) int {
	wires := 0
	for _, t := range r.Retried {
		m.retries.WithLabelValues(t.Reason).Inc()
		m.attempts.WithLabelValues(t.Backend, t.Reason).Add(float64(t.Wires))
		wires += t.Wires
	}
	return wires
}

func (m *Metrics) learn(key request) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.known.Load()
	if s := old[key]; s != nil { // since a moment ago
		return s
	}
	route := key.route
	if route == "" {
		route = "none"
	}
	s := &series{
		requests: m.requests.WithLabelValues(route, key.method, strconv.Itoa(key.code)),
		seconds:  m.seconds.WithLabelValues(route),
	}
	if key.result != "" && key.backend != "" {
		s.attempts = m.attempts.WithLabelValues(key.backend, key.result)
	}
	known := maps.Clone(old)
	known[key] = s
	m.known.Store(&known)
	return s
}

// Names are what labels hold of a configuration.
type Names struct {
	Routes   map[string]bool // patterns
	Limits   map[string]bool // ids of those that are counted in this process
	Backends map[string]bool // by host and port
	Breakers map[string]bool // pool and backend, as pool/backend
}

// Keep drops the series of all that is not among names. Backends and routes come and go for
// as long as the process runs, and what is gone is not to be scraped for ever. A request
// that is still under way may bring a series back, until the next time. The limiters of a
// configuration whose names are not kept must not be used any more.
func (m *Metrics) Keep(names Names) {
	route := func(r string) bool { return r == "none" || names.Routes[r] }
	m.mu.Lock()
	defer m.mu.Unlock()
	known := maps.Clone(*m.known.Load())
	maps.DeleteFunc(known, func(k request, _ *series) bool {
		return k.route != "" && !names.Routes[k.route] || k.backend != "" && !names.Backends[k.backend]
	})
	m.known.Store(&known)
	prune(m.requests.MetricVec, "route", route)
	prune(m.seconds.MetricVec, "route", route)
	prune(m.attempts.MetricVec, "backend", func(b string) bool { return names.Backends[b] })
	prune(m.transitions.MetricVec, "name", func(b string) bool { return names.Breakers[b] })
	prune(m.decisions.MetricVec, "endpoint_id", func(id string) bool { return names.Limits[strings.TrimPrefix(id, localPrefix)] })
}

// prune drops the series whose label holds what is not to be kept.
func prune(v *prometheus.MetricVec, label string, keep func(value string) bool) {
	all := make(chan prometheus.Metric)
	go func() { v.Collect(all); close(all) }()
	gone := make(map[string]bool)
	for one := range all {
		var d dto.Metric
		_ = one.Write(&d) // of a series that was checked when it was made
		for _, l := range d.GetLabel() {
			if l.GetName() == label && !keep(l.GetValue()) {
				gone[l.GetValue()] = true
			}
		}
	}
	for value := range gone {
		v.DeletePartialMatch(prometheus.Labels{label: value})
	}
}

// BreakerChanged counts a transition.
func (m *Metrics) BreakerChanged(pool, backend string, _, to breaker.State) {
	m.transitions.WithLabelValues(breakerScope, pool+"/"+backend, to.String()).Inc()
}

func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return m
	default:
		return "OTHER"
	}
}

// gauges are read when somebody asks for them.
type gauges struct {
	now func() View
	log *AccessLog
}

var (
	inFlight = prometheus.NewDesc("sentinel_edge_inflight",
		"Requests in flight on a backend, streams and tunnels included.", []string{"pool", "backend"}, nil)
	up = prometheus.NewDesc("sentinel_edge_backend_up",
		"1 if the backend may be chosen by its health, 0 if its checks have failed.", []string{"pool", "backend"}, nil)
	breakerState = prometheus.NewDesc("sentinel_breaker_state", stateHelp, []string{"scope", "name"}, nil)
	clients      = prometheus.NewDesc("sentinel_edge_limiter_clients",
		"Clients that the local rate limits remember.", nil, nil)
	overflow = prometheus.NewDesc("sentinel_edge_limiter_overflow_total",
		"Requests of clients that found no room among those and shared one quota.", nil, nil)
	configVersion = prometheus.NewDesc("sentinel_edge_config_version",
		"Version of the configuration in force, counted by the control plane, or without one by this process.", nil, nil)
	configAge = prometheus.NewDesc("sentinel_edge_config_age_seconds",
		"Time since the configuration in force was applied.", nil, nil)
	configRejected = prometheus.NewDesc("sentinel_edge_config_rejected_total",
		"Configurations that were refused, so that the last good one stays.", nil, nil)
	controlConnected = prometheus.NewDesc("sentinel_edge_control_connected",
		"1 if there is a stream to the control plane, 0 if not; absent where the file is all there is.", nil, nil)
	connections = prometheus.NewDesc("sentinel_edge_tunnels",
		"Connections that were switched to another protocol and are open.", nil, nil)
	dropped = prometheus.NewDesc("sentinel_edge_access_log_dropped_total",
		"Lines of the access log that found no room to wait in.", nil, nil)
)

// Describe says what there may be.
func (g *gauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{inFlight, up, breakerState, clients, overflow, configVersion, configAge, configRejected, controlConnected, connections, dropped} {
		c <- d
	}
}

// Collect says how things are.
func (g *gauges) Collect(c chan<- prometheus.Metric) {
	v := g.now()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value int64) {
		c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value))
	}
	for _, b := range v.Backends {
		gauge(inFlight, float64(b.InFlight), b.Pool, b.Backend)
		well := 1.0
		if b.Health == "unhealthy" {
			well = 0
		}
		gauge(up, well, b.Pool, b.Backend)
		gauge(breakerState, float64(b.Breaker), breakerScope, b.Pool+"/"+b.Backend)
	}
	gauge(clients, float64(v.LimiterClients))
	counter(overflow, v.LimiterOverflow)
	gauge(configVersion, float64(v.Version))
	if !v.Applied.IsZero() {
		gauge(configAge, time.Since(v.Applied).Seconds())
	}
	counter(configRejected, v.Rejected)
	if v.Following {
		connected := 0.0
		if v.Connected {
			connected = 1
		}
		gauge(controlConnected, connected)
	}
	gauge(connections, float64(v.Tunnels))
	if g.log != nil {
		counter(dropped, g.log.Dropped())
	}
}
