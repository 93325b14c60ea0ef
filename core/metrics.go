package sentinel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// metrics are the Prometheus series of a limiter. A nil *metrics keeps none.
// No label ever holds a tenant, an identity, a path or any text of a client.
type metrics struct {
	decisions    *decisionSeries
	breakerState *breakerGauge
	transitions  *prometheus.CounterVec
	storeErrors  *prometheus.CounterVec
	authFailures *prometheus.CounterVec
	unknownPlans *prometheus.CounterVec
	shadow       *prometheus.CounterVec
	candidates   *prometheus.CounterVec
	config       *configGauge
	rejected     *prometheus.CounterVec
}

// The breaker's own labels: the edge has breakers of other scopes.
const (
	breakerScope = "limiter"
	breakerName  = "redis"
)

// newMetrics registers the series on r, or takes those that are already there:
// a second limiter counts into the same ones. Only a real conflict, the same
// name with other labels, is an error.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	m := &metrics{
		decisions: &decisionSeries{
			total: prometheus.NewDesc(
				"sentinel_decisions_total",
				"Decisions, by endpoint and reason.",
				[]string{"endpoint_id", "decision_reason"}, nil,
			),
			latency: prometheus.NewDesc(
				"sentinel_evaluate_latency_microseconds",
				"Time from the start of a check to its decision, in microseconds.",
				[]string{"endpoint_id", "decision_reason"}, nil,
			),
			of: make(map[seriesName]*series),
		},
		breakerState: &breakerGauge{desc: prometheus.NewDesc(
			"sentinel_breaker_state",
			"State of the circuit breaker: 0 closed, 1 half-open, 2 open; of several limiters the greatest.",
			[]string{"scope", "name"}, nil,
		)},
		config: &configGauge{desc: prometheus.NewDesc(
			"sentinel_config_loaded_timestamp_seconds",
			"When the configuration came into force that has this hash, in seconds since 1970; of several limiters the latest.",
			[]string{"hash"}, nil,
		)},
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_config_rejected_total",
			Help: "Contents of the watched configuration file that were refused, so that the last good ones stay.",
		}, nil),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_breaker_transitions_total",
			Help: "Transitions of the circuit breaker, by the state it went to.",
		}, []string{"scope", "name", "to"}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_store_errors_total",
			Help: "Checks that the store failed, and stored states that were unreadable, by kind.",
		}, []string{"kind"}),
		authFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_auth_failures_total",
			Help: "Requests without a valid bearer token, by kind.",
		}, []string{"kind"}),
		unknownPlans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_unknown_plans_total",
			Help: "Decisions by the policy as it is, because no policy has the tenant's plan, by endpoint.",
		}, []string{"endpoint_id"}),
		shadow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_shadow_denials_total",
			Help: "Denials that were let through, because the policy is not enforced, by endpoint and reason.",
		}, []string{"endpoint_id", "decision_reason"}),
		candidates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sentinel_candidate_decisions_total",
			Help: "Decisions of an endpoint's candidate, by what the live limits said and what it said.",
		}, []string{"endpoint_id", "live", "candidate"}),
	}
	err := errors.Join(
		register(r, &m.decisions),
		register(r, &m.breakerState),
		register(r, &m.config),
		register(r, &m.rejected),
		register(r, &m.transitions),
		register(r, &m.storeErrors),
		register(r, &m.authFailures),
		register(r, &m.unknownPlans),
		register(r, &m.shadow),
		register(r, &m.candidates),
	)
	if err != nil {
		return nil, fmt.Errorf("sentinel: register metrics: %w", err)
	}
	return m, nil
}

// register registers *c, or replaces it by the equal collector that is there.
func register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	var already prometheus.AlreadyRegisteredError
	if !errors.As(err, &already) {
		return err
	}
	existing, ok := already.ExistingCollector.(C)
	if !ok {
		return err
	}
	*c = existing
	return nil
}

// decided counts a decision, and returns a number that no other of this process
// has at the same time.
func (m *metrics) decided(at *seen, d *Decision, stripe uint64, latency time.Duration) (unique uint64) {
	if m == nil {
		return rand.Uint64()
	}
	t := at.tally.Load()
	if t == nil { // made when it is first needed, not all at the start
		t = m.decisions.tally(seriesName{d.EndpointID, d.Reason})
		at.tally.Store(t)
	}
	return t.add(stripe, latency)
}

// floodOf is where denials are counted that are not logged and took no time: in a
// flood there is time for one count. The metrics add them to their lowest bucket.
// It is nil once the limiter is closed.
func (m *metrics) floodOf(at *seen, d *Decision) *counter {
	if c := at.lines.flood.Load(); c != nil {
		return c
	}
	at.lines.mu.Lock()
	defer at.lines.mu.Unlock()
	c := at.lines.flood.Load()
	switch {
	case c != nil || at.lines.over: // others were first, or it is closed
		return c
	case m == nil:
		c = new(counter)
	default:
		c = m.decisions.flood(seriesName{d.EndpointID, d.Reason})
		at.lines.told += c.read() // by others before
	}
	at.lines.flood.Store(c)
	return c
}

// counterRest is how long a counter that is given back is not lent again: a check
// that was under way may still count there, and is none of the next limiter's.
const counterRest = time.Minute

// release takes back what a limiter has counted its floods with, for another.
func (m *metrics) release(all map[string]*[reasons]seen) {
	if m == nil {
		return
	}
	for id, seen := range all {
		for _, reason := range denials {
			if c := seen[reason.number()].lines.end(); c != nil {
				time.AfterFunc(counterRest, func() { m.decisions.free(seriesName{id, reason}, c) })
			}
		}
	}
}

func (m *metrics) storeError(kind failureKind) {
	if m != nil {
		m.storeErrors.WithLabelValues(string(kind)).Inc()
	}
}

func (m *metrics) authFailure(kind string) {
	if m != nil {
		m.authFailures.WithLabelValues(kind).Inc()
	}
}

func (m *metrics) unknownPlan(endpointID string) {
	if m != nil {
		m.unknownPlans.WithLabelValues(endpointID).Inc()
	}
}

func (m *metrics) letThrough(d *Decision) {
	if m != nil {
		m.shadow.WithLabelValues(d.EndpointID, string(d.Reason)).Inc()
	}
}

func (m *metrics) compared(endpointID string, live, candidate bool) {
	if m != nil {
		m.candidates.WithLabelValues(endpointID, saying(live), saying(candidate)).Inc()
	}
}

// saying is a verdict as a label.
func saying(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

func (m *metrics) breakerChanged(to breaker.State) {
	if m != nil {
		m.transitions.WithLabelValues(breakerScope, breakerName, to.String()).Inc()
	}
}

// watch has the breaker's state shown until forget.
func (m *metrics) watch(b *breaker.Breaker) {
	if m != nil {
		m.breakerState.breakers.Store(b, nil)
	}
}

func (m *metrics) forget(b *breaker.Breaker) {
	if m != nil {
		m.breakerState.breakers.Delete(b)
	}
}

// configured has it shown what a limiter decides by, until unconfigured.
func (m *metrics) configured(l *Limiter, s *setup) {
	if m != nil {
		m.config.of.Store(l, s)
	}
}

func (m *metrics) unconfigured(l *Limiter) {
	if m != nil {
		m.config.of.Delete(l)
	}
}

func (m *metrics) configRejected() {
	if m != nil {
		m.rejected.WithLabelValues().Inc()
	}
}

// decisionSeries are the counter and the histogram of decisions, which say the
// same: each decision is in both. Limiters that share a registry share these.
type decisionSeries struct {
	total, latency *prometheus.Desc

	mu sync.Mutex
	of map[seriesName]*series
}

type seriesName struct {
	endpoint string
	reason   Reason
}

type series struct {
	tally   *tally
	created time.Time
	// floods are of denials that are in no bucket of the tally, but belong in the
	// lowest: one counter for each limiter. What those have counted that are free
	// again, because their limiter was closed, stays.
	floods, unused []*counter
}

// series returns the series of a name; the caller holds the lock.
func (s *decisionSeries) series(name seriesName) *series {
	one := s.of[name]
	if one == nil {
		one = &series{tally: new(tally), created: time.Now()}
		s.of[name] = one
	}
	return one
}

func (s *decisionSeries) tally(name seriesName) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.series(name).tally
}

// flood returns a counter that no other limiter has.
func (s *decisionSeries) flood(name seriesName) *counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.series(name)
	if last := len(one.unused) - 1; last >= 0 {
		c := one.unused[last]
		one.unused = one.unused[:last]
		return c
	}
	c := new(counter)
	one.floods = append(one.floods, c)
	return c
}

func (s *decisionSeries) free(name seriesName, c *counter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.series(name)
	one.unused = append(one.unused, c)
}

// Describe implements prometheus.Collector.
func (s *decisionSeries) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.total
	ch <- s.latency
}

// Collect implements prometheus.Collector.
func (s *decisionSeries) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	all := make(map[seriesName]series, len(s.of))
	for name, one := range s.of {
		all[name] = *one // the counters of floods are never taken out
	}
	s.mu.Unlock()
	for name, one := range all {
		labels := []string{name.endpoint, string(name.reason)}
		count, sum, upTo := one.tally.read()
		for _, c := range one.floods {
			n := uint64(c.read())
			count += n
			for bound := range upTo {
				upTo[bound] += n
			}
		}
		ch <- prometheus.MustNewConstMetricWithCreatedTimestamp(s.total, prometheus.CounterValue, float64(count), one.created, labels...)
		ch <- prometheus.MustNewConstHistogramWithCreatedTimestamp(s.latency, count, sum, upTo, one.created, labels...)
	}
}

// breakerGauge shows the state of all limiters that share a registry. It is
// read when it is asked for, so that none overwrites another's.
type breakerGauge struct {
	desc     *prometheus.Desc
	breakers sync.Map // of *breaker.Breaker
}

// Describe implements prometheus.Collector.
func (g *breakerGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g *breakerGauge) Collect(ch chan<- prometheus.Metric) {
	worst := breaker.Closed
	for b := range g.breakers.Range {
		worst = max(worst, b.(*breaker.Breaker).State())
	}
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(worst), breakerScope, breakerName)
}

// configGauge shows what all limiters that share a registry decide by: one series,
// unless they differ.
type configGauge struct {
	desc *prometheus.Desc
	of   sync.Map // of *Limiter to *setup
}

// Describe implements prometheus.Collector.
func (g *configGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g *configGauge) Collect(ch chan<- prometheus.Metric) {
	latest := make(map[string]time.Time)
	for _, v := range g.of.Range {
		if s := v.(*setup); s.since.After(latest[s.hash]) {
			latest[s.hash] = s.since
		}
	}
	for hash, since := range latest {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(since.UnixMilli())/1000, hash)
	}
}
