// Package sentinelotel shows the decisions of a [sentinel.Limiter] to
// OpenTelemetry: a span and two metrics for each.
//
//	limiter, err := sentinel.Open(ctx, cfg, sentinel.WithObserver(sentinelotel.New()))
//
// The span sentinel.check is a child of the span in the request's context. It
// lasts from the start of the check to its decision and says why that came out
// as it did:
//
//	sentinel.endpoint.id         the endpoint
//	sentinel.decision.allowed    whether the request may run
//	sentinel.decision.reason     why, as in sentinel_decisions_total
//	sentinel.decision.would_deny  true where only a policy that is not enforced lets it through
//	sentinel.decision.id         as in the log and in Sentinel-Decision-Id; not on what the store admitted
//	sentinel.decision.remaining  how many more requests would be admitted; not where the store failed
//	sentinel.identity.mode       tenant_jwt or anonymous
//	sentinel.identity.hash       who was counted; only with WithIdentityHash
//	error.type                   the reason again, where the store failed
//
// A denial is an answer and no error: the span's status stays unset. It is Error
// where the store failed, also where the emergency bucket then admitted the
// request.
//
// The metrics carry sentinel.endpoint.id, sentinel.decision.allowed and
// sentinel.decision.reason, and nothing that a client wrote:
//
//	sentinel.decisions       counter, {decision}
//	sentinel.check.duration  histogram, s
//
// What is no decision (401, 404, a client that has gone) has no span and is not
// counted. It is a module of its own so that who needs no OpenTelemetry inherits
// none of it.
package sentinelotel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// scope is the name of the instrumentation.
const scope = "github.com/sentinelgo/sentinel/sentinelotel"

// The names of the attributes.
const (
	endpointID        = attribute.Key("sentinel.endpoint.id")
	decisionAllowed   = attribute.Key("sentinel.decision.allowed")
	decisionReason    = attribute.Key("sentinel.decision.reason")
	decisionWouldDeny = attribute.Key("sentinel.decision.would_deny")
	decisionID        = attribute.Key("sentinel.decision.id")
	decisionRemaining = attribute.Key("sentinel.decision.remaining")
	identityMode      = attribute.Key("sentinel.identity.mode")
	identityHash      = attribute.Key("sentinel.identity.hash")
	errorType         = attribute.Key("error.type")
)

type options struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	hash    bool
}

// Option changes what [New] does. One that is nil is ignored.
type Option interface {
	apply(*options)
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithTracerProvider makes the spans with p; without it, or with nil, with the
// global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(o *options) { o.tracers = p })
}

// WithMeterProvider counts with p; without it, or with nil, with the global
// provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(o *options) { o.meters = p })
}

// WithIdentityHash puts the hash of whom a decision is about on its span, the
// one of the log. It finds all spans of a tenant. It also tells whoever stores
// the spans which are of one tenant, and, by trying names or addresses, which
// one: without it, no span says so.
func WithIdentityHash() Option {
	return optionFunc(func(o *options) { o.hash = true })
}

// New returns a function for [sentinel.WithObserver]. It is safe for concurrent
// use, and limiters may share it. Where an instrument cannot be made, OpenTelemetry's
// own error handler hears of it, and that metric is missing.
func New(opts ...Option) func(ctx context.Context, d sentinel.Decision, start time.Time, latency time.Duration) {
	o := options{}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.tracers == nil {
		o.tracers = otel.GetTracerProvider()
	}
	if o.meters == nil {
		o.meters = otel.GetMeterProvider()
	}
	t := telemetry{tracer: o.tracers.Tracer(scope), hash: o.hash}
	t.makeInstruments(o.meters.Meter(scope))
	return t.observe
}

// telemetry is what is observed with.
type telemetry struct {
	tracer    trace.Tracer
	decisions metric.Int64Counter
	duration  metric.Float64Histogram
	hash      bool
	labels    sync.Map // labelled → metric.MeasurementOption: a few for each endpoint
}

// makeInstruments makes the metrics, with the bounds of the Prometheus histogram.
func (t *telemetry) makeInstruments(m metric.Meter) {
	var err, failed error
	t.decisions, err = m.Int64Counter("sentinel.decisions",
		metric.WithUnit("{decision}"), metric.WithDescription("Decisions of the rate limiter."))
	failed = errors.Join(failed, err)
	t.duration, err = m.Float64Histogram("sentinel.check.duration",
		metric.WithUnit("s"), metric.WithDescription("Time from the start of a check to its decision."),
		metric.WithExplicitBucketBoundaries(50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 50e-3))
	if failed = errors.Join(failed, err); failed != nil {
		otel.Handle(failed)
	}
}

func (t *telemetry) observe(ctx context.Context, d sentinel.Decision, start time.Time, latency time.Duration) {
	ctx, span := t.tracer.Start(ctx, "sentinel.check", trace.WithTimestamp(start),
		trace.WithAttributes(endpointID.String(d.EndpointID))) // a sampler sees these alone
	labels := t.labelsOf(&d)
	t.decisions.Add(ctx, 1, labels) // with the span's context: an exemplar leads to it
	t.duration.Record(ctx, latency.Seconds(), labels)
	if span.IsRecording() {
		t.describe(span, &d)
	}
	span.End(trace.WithTimestamp(start.Add(latency)))
}

// labelled is what the labels of a decision are made of.
type labelled struct {
	endpoint string
	reason   sentinel.Reason
	allowed  bool
}

// labelsOf returns the labels, which are the same ones every time.
func (t *telemetry) labelsOf(d *sentinel.Decision) metric.MeasurementOption {
	by := labelled{d.EndpointID, d.Reason, d.Allowed}
	if known, ok := t.labels.Load(by); ok {
		return known.(metric.MeasurementOption)
	}
	made := metric.WithAttributeSet(attribute.NewSet(
		endpointID.String(d.EndpointID), decisionAllowed.Bool(d.Allowed), decisionReason.String(string(d.Reason)),
	))
	t.labels.Store(by, made)
	return made
}

// describe writes onto the span what it does not say yet.
func (t *telemetry) describe(span trace.Span, d *sentinel.Decision) {
	attrs := make([]attribute.KeyValue, 0, 8)
	attrs = append(attrs,
		decisionAllowed.Bool(d.Allowed),
		decisionReason.String(string(d.Reason)),
		identityMode.String(string(d.IdentityMode)),
	)
	if d.WouldDeny {
		attrs = append(attrs, decisionWouldDeny.Bool(true))
	}
	if id := d.ID(); id != "" {
		attrs = append(attrs, decisionID.String(id))
	}
	if t.hash {
		attrs = append(attrs, identityHash.String(d.IdentityHash))
	}
	if d.FromStore {
		attrs = append(attrs, decisionRemaining.Int64(d.Remaining))
	} else {
		attrs = append(attrs, errorType.String(string(d.Reason)))
		span.SetStatus(codes.Error, string(d.Reason))
	}
	span.SetAttributes(attrs...)
}
