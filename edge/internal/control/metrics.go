package control

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// metrics are the series of a control plane. No label holds what a node or a client has
// sent: however many there are, the series are as many.
type metrics struct {
	registry *prometheus.Registry
	streams  prometheus.Counter
	sent     prometheus.Counter
	answers  *prometheus.CounterVec
	answered prometheus.Histogram
	edits    *prometheus.CounterVec
	commits  prometheus.Histogram
	failures *prometheus.CounterVec
}

var (
	nodesDesc = prometheus.NewDesc("sentinel_control_nodes",
		"Nodes that are connected, by what they have; gone: that were, and are remembered.", []string{"state"}, nil)
	versionDesc = prometheus.NewDesc("sentinel_control_version",
		"Newest version; 0: there is none.", nil, nil)
	readyDesc = prometheus.NewDesc("sentinel_control_ready",
		"1 if the store works, 0 if it has failed since it last did.", nil, nil)
)

// newMetrics registers the series; s is what is asked for how things are.
func newMetrics(s *Server) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		streams:  prometheus.NewCounter(prometheus.CounterOpts{Name: "sentinel_control_streams_total", Help: "Streams that nodes have begun."}),
		sent:     prometheus.NewCounter(prometheus.CounterOpts{Name: "sentinel_control_versions_sent_total", Help: "Versions that were sent, to each node."}),
		answers:  counter("sentinel_control_answers_total", "Answers of nodes to versions: ack: applied; nack: refused.", "answer"),
		answered: histogram("sentinel_control_answer_seconds", "Time from a version's sending to a node's answer.", .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		edits:    counter("sentinel_control_edits_total", "Edits by what came of them. Dry runs are none.", "result"),
		commits:  histogram("sentinel_control_commit_seconds", "Time from an edit's beginning to its version on the disk; the wait for other edits is in it.", .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5),
		failures: counter("sentinel_control_store_failures_total", "Failures of the store, by what is wrong.", "kind"),
	}
	for _, result := range []string{"version", "unchanged", "refused", "stale", "unauthorized", "failed"} {
		m.edits.WithLabelValues(result)
	}
	for _, answer := range []string{"ack", "nack"} {
		m.answers.WithLabelValues(answer)
	}
	for _, kind := range []string{"busy", "full", "damaged", "other"} {
		m.failures.WithLabelValues(kind)
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.streams, m.sent, m.answers, m.answered, m.edits, m.commits, m.failures, state{s})
	return m
}

// edited counts an edit that began then.
func (m *metrics) edited(begun time.Time, appended bool, err error) {
	result := "unchanged"
	p, refused := errors.AsType[*problem](err)
	switch {
	case refused && p.Status == http.StatusPreconditionFailed:
		result = "stale"
	case refused:
		result = "refused"
	case err != nil:
		result = "failed"
	case appended:
		result = "version"
		m.commits.Observe(time.Since(begun).Seconds())
	}
	m.edits.WithLabelValues(result).Inc()
}

// failed counts a failure of the store.
func (m *metrics) failed(err error) {
	kind := "other"
	switch {
	case errors.Is(err, store.ErrBusy):
		kind = "busy"
	case errors.Is(err, store.ErrFull):
		kind = "full"
	case errors.Is(err, store.ErrCorrupt):
		kind = "damaged"
	}
	m.failures.WithLabelValues(kind).Inc()
}

// state is read when somebody asks for it.
type state struct{ *Server }

// Describe says what there is.
func (s state) Describe(c chan<- *prometheus.Desc) {
	c <- nodesDesc
	c <- versionDesc
	c <- readyDesc
}

// Collect says how things are.
func (s state) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	newest := s.newest()
	counts := map[nodeState]int{nodeCurrent: 0, nodeBehind: 0, nodeRefusing: 0, nodeAhead: 0, nodeGone: 0}
	for _, n := range s.Nodes() {
		counts[n.state(newest)]++
	}
	for what, n := range counts {
		gauge(nodesDesc, float64(n), string(what))
	}
	gauge(versionDesc, float64(newest))
	ready := 1.0
	if s.trouble.Load() != nil {
		ready = 0
	}
	gauge(readyDesc, ready)
}
