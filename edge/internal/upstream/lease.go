package upstream

import (
	"sync/atomic"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// Lease is one request's use of a backend. It is never used for another request,
// so that a late call cannot touch one. It is safe for concurrent use.
type Lease struct {
	backend  *Backend
	pass     breaker.Pass // the zero Pass where the breaker was not asked
	reported atomic.Bool
	done     atomic.Bool
}

// Backend is whose it is.
func (l *Lease) Backend() *Backend { return l.backend }

// Probe reports whether the request is the one by which the breaker tries if
// the backend is back.
func (l *Lease) Probe() bool { return l.pass.Probe() }

// Passes reports whether the same request may go to the backend once more: it is
// still up, and nobody else has found so much amiss that its breaker opened.
func (l *Lease) Passes() bool {
	if !standing(l.backend.standing.Load()).eligible() {
		return false
	}
	if l.pass == (breaker.Pass{}) {
		return true
	}
	switch l.backend.breaker.State() {
	case breaker.Closed:
		return true
	case breaker.HalfOpen:
		return l.pass.Probe()
	default:
		return false
	}
}

// Report tells the breaker how the request ended. The first report counts,
// further ones do nothing, and so does one after Done. A stream reports when
// its headers are there: a breaker's probe is not to last as long as it does.
func (l *Lease) Report(o breaker.Outcome) {
	if !l.reported.Swap(true) {
		l.backend.breaker.Report(l.backend.registry.now(), l.pass, o)
	}
}

// Failed remembers why the request failed by the backend's fault, for whoever asks what is
// wrong with it: before Report, which may open the breaker and log that. The
// breaker is told nothing by it.
func (l *Lease) Failed(err error) { l.backend.failed(err) }

// Done ends the request: it is no longer in flight, and if nothing was reported,
// that is neutral. Further calls do nothing.
func (l *Lease) Done() {
	if l.done.Swap(true) {
		return
	}
	l.Report(breaker.Neutral)
	l.backend.ended()
}
