package sentinel

import (
	"context"
	"sync/atomic"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// memoryStore is memory://: the buckets of one process, on its monotonic
// clock. It has no connection to lose, so it fails only once it is closed.
type memoryStore struct {
	health
	table  *bucket.Table
	beside *bucket.Table // of candidates, so that they take no room from the others
	closed atomic.Bool
}

func newMemoryStore(maxKeys int, m *metrics) *memoryStore {
	return &memoryStore{health: health{metrics: m}, table: bucket.NewTable(maxKeys), beside: bucket.NewTable(maxKeys)}
}

// decide implements store. It answers at once, whatever the caller's deadline is.
func (s *memoryStore) decide(ctx context.Context, q question) (verdict, *storeFailure, error) {
	if failure := s.ready(); failure != nil {
		s.note(nil, failure)
		return verdict{}, failure, ctx.Err()
	}
	now := q.start.Microseconds()
	v := newVerdict(q.group.n)
	decideIn(s.table, now, q.mode, &q.group, &v)
	if b := q.beside; b != nil {
		b.verdict, b.answered = newVerdict(b.group.n), true
		decideIn(s.beside, now, q.mode, &b.group, &b.verdict)
	}
	s.note(&v, nil)
	return v, nil, ctx.Err()
}

// decideIn decides on a group in a table, and fills its verdict, which has the room.
func decideIn(t *bucket.Table, now int64, m mode, g *group, v *verdict) {
	var two [2]bucket.Item
	items := two[:0]
	for _, of := range g.of[:g.n] {
		items = append(items, bucket.Item{Key: of.key, Previous: of.previous, Overflow: of.rule.overflow, Place: &of.place, Cost: int64(g.cost)})
	}
	answers := v.buckets()
	switch m {
	case modeDecide:
		v.allowed = t.Decide(now, items, answers)
	case modeReset:
		v.allowed = t.Reset(now, items, answers)
	case modePeek:
		v.allowed = t.Peek(now, items, answers)
	}
}

func (s *memoryStore) ready() *storeFailure {
	if s.closed.Load() {
		return &storeFailure{kind: kindClosed, detail: "the limiter is closed"}
	}
	return nil
}

func (s *memoryStore) status() Status {
	st := Status{Store: "memory", Ready: true, LastError: s.lastError()}
	if failure := s.ready(); failure != nil {
		st.Ready, st.Degraded, st.Detail, st.LastError = false, true, failure.detail, string(failure.kind)
	}
	return st
}

func (s *memoryStore) breakerState() string { return "" }

func (s *memoryStore) close() error {
	s.closed.Store(true)
	return nil
}
