package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

// budgetPeriod is over how long the retries of a crowded pool are held to their
// share. It begins anew when the pool has had nothing to do.
const budgetPeriod = 10 * time.Second

// Budget bounds the retries of a pool: where everything fails, they must not
// become the load that keeps it failing. It counts the requests that wait for a
// backend of the pool, and how many of them are retries. So that a share of the
// requests of a moment is one of all requests, too, however quickly retries
// follow on one another, it also counts both over a period.
//
// It outlives configurations. The zero value is that of a pool without requests.
// It is safe for concurrent use.
type Budget struct {
	active atomic.Int64 // requests that wait
	begun  atomic.Int64 // requests of the period

	mu      sync.Mutex
	retries int64 // that are under way
	retried int64 // of the period
	crowded bool  // in the period the share has been more than the least
	since   time.Time
}

// begin counts a request.
func (b *Budget) begin() {
	if b.active.Add(1) == 1 {
		b.mu.Lock()
		b.restart(0)
		b.mu.Unlock()
	}
	b.begun.Add(1)
}

// end takes it away.
func (b *Budget) end() { b.active.Add(-1) }

// restart begins a period with so many requests; the caller holds the lock.
func (b *Budget) restart(begun int64) {
	b.begun.Store(begun)
	b.retried, b.crowded, b.since = b.retries, false, time.Now()
}

// take reports whether one more retry may be under way, and if so counts it: at
// most percent of the active requests, but least in any case.
func (b *Budget) take(percent, least int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	active := b.active.Load()
	if time.Since(b.since) > budgetPeriod {
		b.restart(active)
	}
	share := active * percent / 100
	if share > least {
		b.crowded = true
	}
	if b.retries >= max(least, share) || b.crowded && b.retried >= max(least, b.begun.Load()*percent/100) {
		return false
	}
	b.retries++
	b.retried++
	return true
}

// give ends a retry.
func (b *Budget) give() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retries--
}

// underWay is how many retries are.
func (b *Budget) underWay() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.retries
}

// share is what one request has of a budget. It is for one goroutine.
type share struct {
	budget        *Budget // nil: there is none to keep to
	active, retry bool
}

// begin makes the request an active one.
func (s *share) begin(b *Budget) {
	if b != nil {
		s.budget, s.active = b, true
		b.begin()
	}
}

// again reports whether the request may be sent again.
func (s *share) again(percent, least int) bool {
	if s.budget == nil {
		return true
	}
	s.retry = s.budget.take(int64(percent), int64(least))
	return s.retry
}

// answered ends a retry that is under way.
func (s *share) answered() {
	if s.retry {
		s.retry = false
		s.budget.give()
	}
}

// end gives all of it back. Further calls do nothing.
func (s *share) end() {
	s.answered()
	if s.active {
		s.active = false
		s.budget.end()
	}
}
