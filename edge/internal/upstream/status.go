package upstream

import (
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// Status is how a backend is, at this moment, for a page and for metrics.
type Status struct {
	Pool, Backend string
	Health        string // "unknown", "healthy", "unhealthy", "unchecked", "removed"
	LastError     string // of its last check, if that failed; "" if it passed
	// LastFailure is why the last of the requests that failed by its fault did, and when; "":
	// none has. It stays when others have gone well since.
	LastFailure   string
	LastFailureAt time.Time
	Breaker       breaker.State // closed, too, where the pool has none
	// RetryAfter is when the breaker lets the next request pass at the latest; 0: now.
	RetryAfter  time.Duration
	InFlight    int64
	MaxInFlight int64 // 0: no bound
	Weight      int
}

// Status lists the backends of a generation, in the order of the file.
func (g *Generation) Status() []Status {
	var all []Status
	for _, p := range g.pools {
		for _, m := range p.members {
			all = append(all, p.status(m))
		}
	}
	return all
}

func (p *Pool) status(m member) Status {
	b := m.backend
	s := Status{
		Pool: p.name, Backend: b.name,
		InFlight: b.inFlight.Load(), MaxInFlight: p.maxInFlight, Weight: int(m.weight),
	}
	failed := b.lastFailureOfRequest()
	s.LastFailure, s.LastFailureAt = failed.text, failed.at
	if p.guarded {
		s.Breaker, s.RetryAfter = b.breaker.State(), b.breaker.Wait(p.registry.now())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Health, s.LastError = b.health.standing.String(), b.lastError
	return s
}
