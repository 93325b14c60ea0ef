package sentinel

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// sampleCounts returns how many decisions of a reason the two series have, and
// the time that the histogram has for them, in microseconds.
func sampleCounts(t *testing.T, g prometheus.Gatherer, reason Reason) (total float64, count uint64, sum float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "decision_reason" && label.GetValue() == string(reason) {
					total += m.GetCounter().GetValue()
					count += m.GetHistogram().GetSampleCount()
					sum += m.GetHistogram().GetSampleSum()
				}
			}
		}
	}
	return total, count, sum
}

// To the letter what a scrape shows of decisions.
func TestDecisionSeriesAreExposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", 2*Token, 0)), WithRegisterer(registry))
		defer l.Close()
		for range 3 {
			mustAllow(t, l, "acme", "jobs")
		}
		at := &l.setup.Load().endpoints["jobs"].seen[ReasonAllowed.number()]
		for _, latency := range []time.Duration{50 * time.Microsecond, 50*time.Microsecond + 1, 20 * time.Millisecond, time.Minute} {
			l.metrics.decided(at, &Decision{}, 0, latency)
		}
		const want = `
# HELP sentinel_decisions_total Decisions, by endpoint and reason.
# TYPE sentinel_decisions_total counter
sentinel_decisions_total{decision_reason="allowed",endpoint_id="jobs"} 6
sentinel_decisions_total{decision_reason="rate_limited",endpoint_id="jobs"} 1
# HELP sentinel_evaluate_latency_microseconds Time from the start of a check to its decision, in microseconds.
# TYPE sentinel_evaluate_latency_microseconds histogram
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="50"} 3
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="100"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="250"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="500"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="1000"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="2500"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="5000"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="10000"} 4
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="20000"} 5
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="50000"} 5
sentinel_evaluate_latency_microseconds_bucket{decision_reason="allowed",endpoint_id="jobs",le="+Inf"} 6
sentinel_evaluate_latency_microseconds_sum{decision_reason="allowed",endpoint_id="jobs"} 6.0020100001e+07
sentinel_evaluate_latency_microseconds_count{decision_reason="allowed",endpoint_id="jobs"} 6
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="50"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="100"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="250"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="500"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="1000"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="2500"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="5000"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="10000"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="20000"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="50000"} 1
sentinel_evaluate_latency_microseconds_bucket{decision_reason="rate_limited",endpoint_id="jobs",le="+Inf"} 1
sentinel_evaluate_latency_microseconds_sum{decision_reason="rate_limited",endpoint_id="jobs"} 0
sentinel_evaluate_latency_microseconds_count{decision_reason="rate_limited",endpoint_id="jobs"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_decisions_total", "sentinel_evaluate_latency_microseconds"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 1 || len(problems) == 1 && !strings.Contains(problems[0].Text, "base unit") {
			t.Errorf("%v, %v", problems, err) // the unit is the ancestor's
		}
	})
}

// A limiter that was closed leaves its numbers behind, and one that comes later
// goes on with them, also through a registerer that adds labels.
func TestMetricsOutliveTheirLimiter(t *testing.T) {
	registry := prometheus.NewRegistry()
	wrapped := prometheus.WrapRegistererWith(prometheus.Labels{"shard": "a"}, registry)
	for i := range 5 {
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithRegisterer(wrapped))
		for range 10 {
			mustAllow(t, l, "acme", "jobs")
		}
		l.Close()
		total, count, _ := sampleCounts(t, registry, ReasonRateLimited)
		if want := uint64(9 * (i + 1)); total != float64(want) || count != want {
			t.Fatalf("limiter %d: %v in the counter, %d in the histogram, want %d", i, total, count, want)
		}
	}
}

// Without a registerer a limiter keeps no metric, and decides all the same.
func TestWithoutRegistererNoMetrics(t *testing.T) {
	for name, opts := range map[string][]Option{
		"none": nil,
		"nil":  {WithRegisterer(prometheus.NewRegistry()), WithRegisterer(nil)},
	} {
		l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), opts...)
		if l.metrics != nil {
			t.Errorf("%s: metrics are kept", name)
		}
		if !mustAllow(t, l, "acme", "jobs").Allowed || mustAllow(t, l, "acme", "jobs").Allowed {
			t.Errorf("%s: wrong decisions", name)
		}
		l.Close()
	}
}

// heldBack counts the lines of a deny log, and what they say was held back.
type heldBack struct {
	slog.Handler
	lines, suppressed atomic.Int64
}

func (h *heldBack) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "sentinel: denied" {
		h.lines.Add(1)
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "suppressed" {
			h.suppressed.Add(a.Value.Int64())
		}
		return true
	})
	return nil
}

// Many goroutines that are denied at once, by a verdict, as known and by the
// breaker, while others scrape: the counter, the histogram, and the log's lines
// together with what was held back each say how many there were.
func TestFloodIsCountedExactly(t *testing.T) {
	for name, tc := range map[string]struct {
		open   func(testing.TB, ...Option) *Limiter
		reason Reason
	}{
		"a verdict":    {emptyBucket, ReasonRateLimited},
		"known":        {knownDenial, ReasonRateLimited},
		"breaker open": {breakerOpen, ReasonCircuitOpen},
	} {
		registry, log := prometheus.NewRegistry(), &heldBack{Handler: silent.Handler()}
		l := tc.open(t, WithRegisterer(registry), WithLogger(slog.New(log)))
		before, _, _ := sampleCounts(t, registry, tc.reason)
		const workers, each = 8, 5000
		var flood sync.WaitGroup
		for range workers {
			flood.Go(func() {
				for range each {
					if d := mustAllow(t, l, "tenant-0", "jobs"); d.Reason != tc.reason {
						t.Errorf("%s: %+v", name, d)
						return
					}
				}
			})
		}
		for range 20 {
			if total, count, _ := sampleCounts(t, registry, tc.reason); total != float64(count) {
				t.Errorf("%s: %v in the counter, %d in the histogram", name, total, count)
			}
		}
		flood.Wait()
		l.Close()
		total, count, _ := sampleCounts(t, registry, tc.reason)
		if total-before != workers*each || float64(count) != total {
			t.Errorf("%s: %v in the counter, %d in the histogram, want %d", name, total-before, count, workers*each)
		}
		if lines, held := log.lines.Load(), log.suppressed.Load(); lines+held != int64(total) || held == 0 || lines < denialLinesPerSecond {
			t.Errorf("%s: %d lines and %d held back of %v", name, lines, held, total)
		}
	}
}

// Limiters on one registry are in the same series, each says what itself has held
// back, and what one has counted stays when it is closed and another takes over.
func TestFloodsOfSeveralLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		total := 0
		flood := func(l *Limiter, n int) {
			for range n {
				mustAllow(t, l, "tenant-0", "jobs")
			}
			total += n
			if counted, count, _ := sampleCounts(t, registry, ReasonRateLimited); int(counted) != total || int(count) != total {
				t.Errorf("%v in the counter, %d in the histogram, want %d", counted, count, total)
			}
		}
		var logs [3]*heldBack
		open := func(i int) *Limiter {
			logs[i] = &heldBack{Handler: silent.Handler()}
			return knownDenial(t, WithRegisterer(registry), WithLogger(slog.New(logs[i])))
		}
		first, second := open(0), open(1)
		flood(first, 100)
		flood(second, 200)
		first.Close()
		time.Sleep(counterRest + time.Second)
		third := open(2)
		flood(third, 400)
		flood(second, 800)
		second.Close()
		third.Close()
		for i, want := range []int64{100, 1000, 400} {
			if lines, held := logs[i].lines.Load(), logs[i].suppressed.Load(); lines+held != want {
				t.Errorf("limiter %d: %d lines and %d held back of %d", i, lines, held, want)
			}
		}
		if n := len(first.metrics.decisions.of[seriesName{"jobs", ReasonRateLimited}].floods); n != 2 {
			t.Errorf("%d counters of three limiters, of which two were open at once", n)
		}
	})
}

// A check that is under way when its limiter is closed is none of those that the next
// limiter holds back.
func TestFloodUnderWayWhenItsLimiterCloses(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &heldBack{Handler: silent.Handler()}
	first := knownDenial(t, WithRegisterer(registry))
	second := knownDenial(t, WithRegisterer(registry), WithLogger(slog.New(log)))
	for range 20 {
		mustAllow(t, first, "tenant-0", "jobs")
	}
	at := &first.seen["jobs"][ReasonRateLimited.number()]
	underWay := first.metrics.floodOf(at, &Decision{EndpointID: "jobs", Reason: ReasonRateLimited})
	first.Close()
	for range 20 {
		mustAllow(t, second, "tenant-0", "jobs")
	}
	underWay.add(0)
	second.Close()
	if lines, held := log.lines.Load(), log.suppressed.Load(); lines+held != 20 {
		t.Errorf("%d lines and %d held back of 20", lines, held)
	}
	if total, _, _ := sampleCounts(t, registry, ReasonRateLimited); total != 41 {
		t.Errorf("%v counted, want 41", total)
	}
}

// Who asks closed limiters on costs no memory, however many were opened.
func TestClosedLimitersKeepNoCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		var series *decisionSeries
		for range 20 {
			l := breakerOpen(t, WithRegisterer(registry))
			series = l.metrics.decisions
			for range 30 {
				mustAllow(t, l, "tenant-0", "jobs")
			}
			l.Close()
			mustAllow(t, l, "tenant-0", "jobs")
			time.Sleep(counterRest + time.Second)
		}
		if n := len(series.of[seriesName{"jobs", ReasonCircuitOpen}].floods); n != 1 {
			t.Errorf("%d counters, and one limiter was open at a time", n)
		}
	})
}

// Who asks a closed limiter on is counted, and not as what another has held back.
func TestFloodOfAClosedLimiter(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &heldBack{Handler: silent.Handler()}
	closed := breakerOpen(t, WithRegisterer(registry))
	other := breakerOpen(t, WithRegisterer(registry), WithLogger(slog.New(log)))
	before, _, _ := sampleCounts(t, registry, ReasonCircuitOpen)
	ask := func(l *Limiter, n int) {
		for range n {
			if d := mustAllow(t, l, "tenant-0", "jobs"); d.Reason != ReasonCircuitOpen {
				t.Fatalf("%+v", d)
			}
		}
	}
	ask(closed, 100)
	closed.Close()
	ask(other, 200)
	ask(closed, 400)
	other.Close()
	if total, _, _ := sampleCounts(t, registry, ReasonCircuitOpen); total-before != 700 {
		t.Errorf("%v counted, want 700", total-before)
	}
	if lines, held := log.lines.Load(), log.suppressed.Load(); lines+held != 200 {
		t.Errorf("%d lines and %d held back of 200", lines, held)
	}
}

// What needs no store is in the lowest bucket: with the time that it took to
// find out who asks.
func TestLatencyOfWhatNeedsNoStore(t *testing.T) {
	for name, open := range map[Reason]func(testing.TB, ...Option) *Limiter{
		ReasonRateLimited: knownDenial,
		ReasonCircuitOpen: breakerOpen,
	} {
		registry := prometheus.NewRegistry()
		l := open(t, WithRegisterer(registry))
		for range 100 {
			mustAllow(t, l, "tenant-0", "jobs")
		}
		if _, count, sum := sampleCounts(t, registry, name); count != 100 || sum != 0 {
			t.Errorf("%s: %d decisions in %v µs", name, count, sum)
		}
		l.Close()
	}
}
