package proxy

import "sync/atomic"

// Budget counts the requests of a pool that wait for a backend, and how many of
// them have been sent again: where everything fails, retries must not become the
// load that keeps it failing. It outlives configurations. The zero value is that
// of a pool without requests. It is safe for concurrent use.
type Budget struct {
	active, retries atomic.Int64
}

// take reports whether one more retry may be under way, and if so counts it: at
// most percent of the active requests, but least in any case.
func (b *Budget) take(percent, least int) bool {
	for {
		n := b.retries.Load()
		if n >= max(int64(least), b.active.Load()*int64(percent)/100) {
			return false
		}
		if b.retries.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// give ends a retry.
func (b *Budget) give() { b.retries.Add(-1) }

// share is what one request has of a budget. It is for one goroutine.
type share struct {
	budget          *Budget // nil: there is none to keep to
	active, retries bool
}

// begin makes the request an active one.
func (s *share) begin(b *Budget) {
	if b == nil {
		return
	}
	s.budget, s.active = b, true
	b.active.Add(1)
}

// retry reports whether the request may be sent again.
func (s *share) retry(percent, least int) bool {
	if s.budget == nil {
		return true
	}
	s.retries = s.budget.take(percent, least)
	return s.retries
}

// answered ends a retry that is under way.
func (s *share) answered() {
	if s.retries {
		s.retries = false
		s.budget.give()
	}
}

// end gives all of it back. Further calls do nothing.
func (s *share) end() {
	s.answered()
	if s.active {
		s.active = false
		s.budget.active.Add(-1)
	}
}
