package sentinelotel_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/sentinelotel"
)

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// recorder holds what the observer of a test has sent.
type recorder struct {
	spans   *tracetest.SpanRecorder
	tracers *sdktrace.TracerProvider
	reader  *sdkmetric.ManualReader
	meters  *sdkmetric.MeterProvider
}

func newRecorder(opts ...sdktrace.TracerProviderOption) recorder {
	r := recorder{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	r.tracers = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(r.spans))...)
	r.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	return r
}

func (r recorder) observer(opts ...sentinelotel.Option) sentinel.Option {
	return sentinel.WithObserver(sentinelotel.New(append(opts,
		sentinelotel.WithTracerProvider(r.tracers), sentinelotel.WithMeterProvider(r.meters))...))
}

// collect returns the metrics by name.
func (r recorder) collect(t *testing.T) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	found := map[string]metricdata.Metrics{}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// policy admits one request, ever.
func policy(id string, mode sentinel.FailMode) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: mode,
		FallbackRate: sentinel.Token, Version: 1, Capacity: sentinel.Token,
	}
}

// open opens a limiter on the store of url.
func open(t *testing.T, url string, opts ...sentinel.Option) *sentinel.Limiter {
	t.Helper()
	trial := policy("trial", sentinel.FailClosed)
	trial.Unenforced = true
	cfg := &sentinel.Config{
		App: sentinel.App{RedisURL: sentinel.NewSecret(url), JWTSecret: sentinel.NewSecrets("unit-jwt-key-0123456789-abcdefghij")},
		Policies: map[string]sentinel.Policy{
			"jobs": policy("jobs", sentinel.FailClosed), "mail": policy("mail", sentinel.FailOpen), "trial": trial,
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // waits for no Redis
	l, err := sentinel.Open(ctx, cfg, append(opts, sentinel.WithLogger(silent))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func allow(t *testing.T, ctx context.Context, l *sentinel.Limiter, id string) sentinel.Decision { //nolint:revive // t is first, as in all tests
	t.Helper()
	d, err := l.Allow(ctx, "acme", id)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// attributes are those of a span, as text.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, a := range s.Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

func expect(t *testing.T, s sdktrace.ReadOnlySpan, status sdktrace.Status, want map[string]string) {
	t.Helper()
	if got := attributes(s); !maps.Equal(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	if s.Name() != "sentinel.check" || s.Status() != status {
		t.Errorf("span %q with the status %+v, want %+v", s.Name(), s.Status(), status)
	}
}

// A span for each decision, a child of the caller's, with no tenant on it.
func TestSpans(t *testing.T) {
	r := newRecorder()
	l := open(t, "memory://", r.observer())
	ctx, parent := r.tracers.Tracer("test").Start(t.Context(), "request")
	allow(t, ctx, l, "jobs")
	denied := allow(t, ctx, l, "jobs")
	parent.End()

	spans := r.spans.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	expect(t, spans[0], sdktrace.Status{}, map[string]string{
		"sentinel.endpoint.id": "jobs", "sentinel.decision.allowed": "true", "sentinel.decision.reason": "allowed",
		"sentinel.decision.remaining": "0", "sentinel.identity.mode": "tenant_jwt",
	})
	expect(t, spans[1], sdktrace.Status{}, map[string]string{
		"sentinel.endpoint.id": "jobs", "sentinel.decision.allowed": "false", "sentinel.decision.reason": "rate_limited",
		"sentinel.decision.remaining": "0", "sentinel.identity.mode": "tenant_jwt", "sentinel.decision.id": denied.ID(),
	})
	for _, s := range spans[:2] {
		if s.Parent().SpanID() != parent.SpanContext().SpanID() || s.SpanContext().TraceID() != parent.SpanContext().TraceID() {
			t.Errorf("the parent is %v", s.Parent())
		}
		if s.StartTime().Before(spans[2].StartTime()) || s.EndTime().Before(s.StartTime()) || s.EndTime().After(spans[2].EndTime()) {
			t.Errorf("from %v to %v, of a request from %v to %v", s.StartTime(), s.EndTime(), spans[2].StartTime(), spans[2].EndTime())
		}
		if s.InstrumentationScope().Name != "github.com/sentinelgo/sentinel/sentinelotel" {
			t.Errorf("scope %+v", s.InstrumentationScope())
		}
	}
}

// A store that fails is an error, whatever the endpoint then does.
func TestSpansOfFailures(t *testing.T) {
	r := newRecorder()
	l := open(t, "redis://127.0.0.1:1", r.observer())
	closed := allow(t, t.Context(), l, "jobs")
	byEmergency := allow(t, t.Context(), l, "mail")
	emptied := allow(t, t.Context(), l, "mail")
	if closed.Allowed || !byEmergency.Allowed || emptied.Allowed {
		t.Fatalf("%+v, %+v, %+v", closed, byEmergency, emptied)
	}
	for i, d := range []sentinel.Decision{closed, byEmergency, emptied} {
		allowed := map[bool]string{true: "true", false: "false"}[d.Allowed]
		expect(t, r.spans.Ended()[i], sdktrace.Status{Code: codes.Error, Description: string(d.Reason)}, map[string]string{
			"sentinel.endpoint.id": d.EndpointID, "sentinel.decision.allowed": allowed, "sentinel.decision.reason": string(d.Reason),
			"sentinel.identity.mode": "tenant_jwt", "sentinel.decision.id": d.ID(), "error.type": string(d.Reason),
		})
	}
}

// What a policy that is not enforced would deny is allowed, and says so.
func TestSpansOfWhatIsNotEnforced(t *testing.T) {
	r := newRecorder()
	l := open(t, "memory://", r.observer())
	allow(t, t.Context(), l, "trial")
	d := allow(t, t.Context(), l, "trial")
	expect(t, r.spans.Ended()[1], sdktrace.Status{}, map[string]string{
		"sentinel.endpoint.id": "trial", "sentinel.decision.allowed": "true", "sentinel.decision.reason": "rate_limited",
		"sentinel.decision.would_deny": "true", "sentinel.decision.remaining": "0", "sentinel.identity.mode": "tenant_jwt",
		"sentinel.decision.id": d.ID(),
	})
}

func TestIdentityHash(t *testing.T) {
	r := newRecorder()
	l := open(t, "memory://", r.observer(sentinelotel.WithIdentityHash()))
	d := allow(t, t.Context(), l, "jobs")
	if got := attributes(r.spans.Ended()[0])["sentinel.identity.hash"]; got != d.IdentityHash || len(got) != 64 {
		t.Errorf("hash %q, want %q", got, d.IdentityHash)
	}
}

// Both metrics count every decision, in seconds, by labels that no client writes.
func TestMetrics(t *testing.T) {
	r := newRecorder(sdktrace.WithSampler(sdktrace.NeverSample())) // what is not sampled counts
	observe := sentinelotel.New(sentinelotel.WithTracerProvider(r.tracers), sentinelotel.WithMeterProvider(r.meters))
	d := sentinel.Decision{EndpointID: "jobs", Reason: sentinel.ReasonRateLimited, IdentityHash: "hash", FromStore: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // of a client that has just gone
	for range 3 {
		observe(ctx, d, time.Now(), 4*time.Millisecond)
	}
	d.Allowed, d.Reason = true, sentinel.ReasonAllowed
	observe(ctx, d, time.Now(), 2*time.Second)

	if n := len(r.spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
	labels := func(allowed bool, reason string) attribute.Set {
		return attribute.NewSet(attribute.String("sentinel.endpoint.id", "jobs"),
			attribute.Bool("sentinel.decision.allowed", allowed), attribute.String("sentinel.decision.reason", reason))
	}
	denied, allowed := labels(false, "rate_limited"), labels(true, "allowed")
	all := r.collect(t)
	counter, histogram := all["sentinel.decisions"], all["sentinel.check.duration"]
	if len(all) != 2 || counter.Unit != "{decision}" || histogram.Unit != "s" || counter.Description == "" || histogram.Description == "" {
		t.Errorf("metrics %+v", all)
	}
	counts := map[attribute.Distinct]int64{}
	sum := counter.Data.(metricdata.Sum[int64])
	for _, p := range sum.DataPoints {
		counts[p.Attributes.Equivalent()] = p.Value
	}
	if len(counts) != 2 || counts[denied.Equivalent()] != 3 || counts[allowed.Equivalent()] != 1 || !sum.IsMonotonic {
		t.Errorf("counter %+v", sum)
	}
	for _, p := range histogram.Data.(metricdata.Histogram[float64]).DataPoints {
		want, at := 0.012, slices.Index(p.Bounds, 0.005) // 2.5 to 5 ms
		if p.Attributes.Equivalent() == allowed.Equivalent() {
			want, at = 2, len(p.Bounds)
		}
		if diff := p.Sum - want; diff > 1e-9 || diff < -1e-9 || p.BucketCounts[at] != p.Count {
			t.Errorf("histogram %+v, want the sum %v in bucket %d", p, want, at)
		}
	}
}

// The example of a slow decision leads to the span of that decision.
func TestExemplars(t *testing.T) {
	r := newRecorder()
	l := open(t, "memory://", r.observer())
	allow(t, t.Context(), l, "jobs")
	span := r.spans.Ended()[0].SpanContext().SpanID()
	points := r.collect(t)["sentinel.check.duration"].Data.(metricdata.Histogram[float64]).DataPoints
	if len(points) != 1 || len(points[0].Exemplars) != 1 || !slices.Equal(points[0].Exemplars[0].SpanID, span[:]) {
		t.Errorf("points %+v, want an exemplar of span %v", points, span)
	}
}

// Without providers, and with a nil option, the global ones are used, which do
// nothing unless the application has set some.
func TestGlobalProviders(t *testing.T) {
	r := newRecorder()
	tracers, meters := otel.GetTracerProvider(), otel.GetMeterProvider()
	otel.SetTracerProvider(r.tracers)
	otel.SetMeterProvider(r.meters)
	defer otel.SetTracerProvider(tracers)
	defer otel.SetMeterProvider(meters)
	l := open(t, "memory://", sentinel.WithObserver(sentinelotel.New(nil, sentinelotel.WithTracerProvider(nil))))
	allow(t, t.Context(), l, "jobs")
	if len(r.spans.Ended()) != 1 || len(r.collect(t)) != 2 {
		t.Errorf("%d spans, metrics %+v", len(r.spans.Ended()), r.collect(t))
	}
}

// badMeters make no instrument.
type badMeters struct{ noop.MeterProvider }

func (badMeters) Meter(string, ...metric.MeterOption) metric.Meter { return badMeter{} }

type badMeter struct{ noop.Meter }

func (badMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return noop.Int64Counter{}, errors.New("no counter")
}

// A metric that cannot be made is reported, and disturbs nothing.
func TestBadInstrument(t *testing.T) {
	var got error
	handler := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { got = err }))
	defer otel.SetErrorHandler(handler)
	l := open(t, "memory://", sentinel.WithObserver(sentinelotel.New(sentinelotel.WithMeterProvider(badMeters{}))))
	if d := allow(t, t.Context(), l, "jobs"); !d.Allowed || got == nil || got.Error() != "no counter" {
		t.Errorf("%+v, %v", d, got)
	}
}

// Many at once, for the race detector, and none is lost.
func TestConcurrent(t *testing.T) {
	r := newRecorder()
	l := open(t, "memory://", r.observer())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				allow(t, t.Context(), l, "jobs")
			}
		})
	}
	wg.Wait()
	var n int64
	for _, p := range r.collect(t)["sentinel.decisions"].Data.(metricdata.Sum[int64]).DataPoints {
		n += p.Value
	}
	if n != 400 || len(r.spans.Ended()) != 400 {
		t.Errorf("%d counted, %d spans", n, len(r.spans.Ended()))
	}
}
