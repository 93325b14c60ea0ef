package sentinel

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// shard is one Redis that decides, with the breaker in front of it: the only
// one there is, or a master of a cluster.
type shard struct {
	health
	redis   *redisStore
	breaker *breaker.Breaker
	epoch   time.Time // the origin of the limiter's clock
	log     *slog.Logger
	// slots says which slots of a cluster it serves, for the log; nil outside
	// one.
	slots func(*shard) string
	// named is when a cluster has last named it as a master.
	named atomic.Int64
}

// newShard returns a shard whose connector is running its first attempt.
// quiet: whoever waits for that reports what came of it.
func newShard(r *redisStore, m *metrics, epoch time.Time, slots func(*shard) string, quiet bool) *shard {
	s := &shard{health: health{metrics: m}, redis: r, epoch: epoch, log: r.log, slots: slots}
	s.breaker = breaker.New(breaker.Settings{
		Failures: breakerFailures,
		OpenFor:  breakerOpenFor,
		OnChange: s.breakerChanged,
	})
	m.watch(s.breaker)
	r.onReady = s.reconnected
	r.start(quiet)
	return s
}

// decide implements store: through the breaker.
func (s *shard) decide(ctx context.Context, q question) (verdict, *storeFailure, error) {
	pass, ok := s.breaker.Acquire(q.start)
	if !ok {
		return verdict{}, circuitOpen, nil
	}
	outcome := breaker.Neutral // also where the store panics: the slot is freed
	defer func() { s.breaker.Report(time.Since(s.epoch), pass, outcome) }()
	q.asked, q.deadline, q.done = s.epoch.Add(q.start), s.epoch.Add(q.start+q.budget), ctx.Done()
	q.alone = q.alone || pass.Probe()
	// A deadline of the caller's own that is nearer ends no call: a client could
	// choose one that Redis cannot meet, and each would cost others a connection.
	v, failure := s.redis.decide(q)
	if err := contextEnded(ctx); err != nil {
		// Nobody waits for this answer. Whatever it was, it says nothing about
		// Redis: a client who hangs up looks like a timeout.
		return verdict{}, nil, err
	}
	if failure == nil || failure.redirect == nil {
		s.note(&v, failure)
		if q.beside != nil && q.beside.answered {
			s.corrupt(&q.beside.verdict)
		}
	}
	switch {
	case failure == nil || failure.redirect != nil: // it has answered, be it that another must
		outcome = breaker.Success
	case !failure.shared && failure.kind != kindClosed: // Close says nothing about Redis
		outcome = breaker.Failure
	}
	return v, failure, nil
}

// reconnected is called when the first connection of a series is up. Where the
// breaker opened only because there was no connection to send a call on, this
// is the answer it waits for. Where calls were sent and failed, it is not: a
// Redis that takes connections and no work would open and close the breaker
// without end, so there only a probe closes it. They say nothing about another
// master.
func (s *shard) reconnected(another bool) {
	if another {
		s.unproven.Store(0)
	}
	s.mended()
}

// mended closes a breaker that opened for a reason which has passed by what
// Redis itself says, unless calls were sent and failed.
func (s *shard) mended() {
	if s.unproven.Load() == 0 {
		s.breaker.Reset()
	}
}

func (s *shard) breakerChanged(from, to breaker.State) {
	s.metrics.breakerChanged(to)
	attrs := []any{"scope", breakerScope, "name", breakerName, "from", from.String(), "to", to.String()}
	if s.slots != nil {
		attrs = append(attrs, "slots", s.slots(s))
	}
	if f := s.lastFailure.Load(); f != nil && to == breaker.Open {
		attrs = append(attrs, "detail", f.detail)
	}
	s.log.Warn("sentinel: circuit breaker "+to.String(), attrs...)
}

func (s *shard) breakerState() string { return s.breaker.State().String() }

func (s *shard) status() Status {
	st := Status{Store: "redis", LastError: s.lastError()}
	failure := s.redis.ready()
	st.Ready = failure == nil
	if failure != nil {
		st.Detail = failure.detail
		st.LastError = cmp.Or(st.LastError, string(failure.kind))
	}
	state := s.breaker.State()
	st.Breaker = state.String()
	st.Degraded = !st.Ready || state != breaker.Closed
	if state != breaker.Closed {
		st.Detail = cmp.Or(st.Detail, "the circuit breaker is "+st.Breaker+": one call probes 30 s after it opened")
	}
	return st
}

// first waits for the first connection: see redisStore.first.
func (s *shard) first(ctx context.Context) error { return s.redis.first(ctx) }

func (s *shard) close() error {
	err := s.redis.close()
	s.metrics.forget(s.breaker)
	return err
}

// health is what answers and failures say about a store. Its zero value has seen
// none and keeps no metrics.
type health struct {
	metrics *metrics
	// unproven counts the calls that failed after they were sent, since the
	// last genuine answer: see shard.reconnected.
	unproven atomic.Int64
	// lastFailure is the latest, nil once the store has answered since.
	lastFailure atomic.Pointer[storeFailure]
}

// note keeps what an answer, or a failure, says about the store. What is the
// case already is not written again: all cores read it.
func (h *health) note(v *verdict, f *storeFailure) {
	if f != nil {
		h.lastFailure.Store(f)
		h.metrics.storeError(f.kind)
		if f.sent && !f.shared {
			h.unproven.Add(1)
		}
		return
	}
	if h.lastFailure.Load() != nil {
		h.lastFailure.Store(nil)
	}
	if h.unproven.Load() != 0 {
		h.unproven.Store(0)
	}
	h.corrupt(v)
}

// corrupt counts the states that could not be read.
func (h *health) corrupt(v *verdict) {
	for _, b := range v.buckets() {
		if b.Corrupt {
			h.metrics.storeError(kindCorrupt)
		}
	}
}

// lastError is the kind of the latest failure, "" if the store has answered
// since.
func (h *health) lastError() string {
	if f := h.lastFailure.Load(); f != nil {
		return string(f.kind)
	}
	return ""
}
