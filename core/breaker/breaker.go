// Package breaker is a circuit breaker with three states and one probe.
//
// It starts closed. A number of consecutive failures opens it; while it is
// open nobody passes. When the open period is over ONE caller passes as the
// probe, and everybody else is still turned away: its success closes the
// breaker, its failure opens it for a full period again.
//
// A result belongs to the state in which its call began. One that arrives
// after a transition changes nothing: calls that began before the breaker
// opened say nothing about the probe.
//
// Times are a parameter, counted from any one origin, which must be the same
// for all calls, by a monotonic clock: time.Since(origin). They are not a
// time.Time, because one that has lost its monotonic reading looks the same and
// makes a step of the wall clock hold a breaker open.
//
// Callers who are turned away, and those who pass while all is well, take no
// lock and write nothing that they share.
//
// It is not for rate limiting, and it does not retry.
package breaker

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// State is what the breaker does with callers.
type State uint8

// The states. Their numbers are the values of a state gauge.
const (
	Closed   State = 0 // everybody passes
	HalfOpen State = 1 // one probe is out, or may go
	Open     State = 2 // nobody passes
)

// String returns closed, half_open or open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half_open"
	default:
		return "open"
	}
}

// Outcome is how a call that had passed ended.
type Outcome uint8

const (
	// Neutral says nothing about the backend: the caller went away, the call
	// was never made. A neutral probe frees its slot for the next caller. It is
	// the zero value, so that a forgotten outcome neither opens nor closes.
	Neutral Outcome = iota
	// Success is a genuine answer of the backend, and nothing less.
	Success
	// Failure is everything else.
	Failure
)

// Settings of a breaker. All but OnChange can be changed while it works, see
// Adjust.
type Settings struct {
	// Failures is how many consecutive failures open the breaker; at least 1.
	Failures int
	// OpenFor is how long it stays open; more than 0.
	OpenFor time.Duration
	// ProbeLease is how long a probe that never reports may hold its slot. It
	// should be longer than a call can take: a probe that outlives its lease no
	// longer counts. Zero is OpenFor; not negative.
	ProbeLease time.Duration
	// OnChange is called after each transition, outside the breaker's lock and
	// on the goroutine that caused it. Two transitions in quick succession may
	// be reported out of order: read State where the latest one matters. May be
	// nil.
	OnChange func(from, to State)
}

// Breaker is safe for concurrent use. Make one with New; the zero value is not
// usable.
type Breaker struct {
	settings Settings // OnChange never changes, the rest is for who holds mu

	// Written under mu, read without. Whoever reads both reads era first.
	era atomic.Uint64
	// until is when the next probe may go, unless the breaker is closed.
	until atomic.Int64
	// failures are consecutive, while closed.
	failures atomic.Int64

	mu sync.Mutex
}

// An era is a state together with its generation, which is raised with every
// transition and every probe.
const (
	stateBits = 2
	stateMask = 1<<stateBits - 1
)

func stateOf(era uint64) State { return State(era & stateMask) }

// Pass is the right to make one call. Report its outcome exactly once. The
// zero Pass belongs to no state: reporting it changes nothing.
type Pass struct {
	era uint64 // of no breaker is it 0
}

// Probe reports whether this is the one call that a breaker which was open lets
// through. Whoever makes calls for several callers at once sends it alone: it
// may fail.
func (p Pass) Probe() bool { return stateOf(p.era) == HalfOpen }

// New returns a closed breaker. It panics on settings that could never open or
// never close it.
func New(s Settings) *Breaker {
	b := &Breaker{settings: s.checked()}
	b.era.Store(1<<stateBits | uint64(Closed))
	return b
}

// checked returns the settings with a lease, and panics if they cannot work.
func (s Settings) checked() Settings {
	if s.Failures < 1 || s.OpenFor <= 0 || s.ProbeLease < 0 {
		panic("breaker: Settings need Failures >= 1, OpenFor > 0 and ProbeLease >= 0")
	}
	if s.ProbeLease == 0 {
		s.ProbeLease = s.OpenFor
	}
	return s
}

// Adjust changes the settings of a breaker at work; OnChange stays what it was.
// What has been decided stays: the state and the failures that were counted, and
// a period or a lease that has begun ends when it would have. So a count that is
// at or beyond a lower Failures opens the breaker with the next failure. It
// panics as New does.
func (b *Breaker) Adjust(s Settings) {
	s = s.checked()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settings.Failures, b.settings.OpenFor, b.settings.ProbeLease = s.Failures, s.OpenFor, s.ProbeLease
}

// Ready reports whether Acquire would let a call pass at now, and takes nothing.
// By the time of an Acquire another caller may have been faster. An open breaker
// whose period is over is ready: who chooses among several backends must not
// leave it out, for without a caller it never closes.
func (b *Breaker) Ready(now time.Duration) bool { return b.Wait(now) == 0 }

// Wait is how long after now the next call may pass at the latest: 0 if one may
// at once, else what is left of the open period, or of the lease of the probe
// that is out. The probe's success lets everybody pass before.
func (b *Breaker) Wait(now time.Duration) time.Duration {
	if stateOf(b.era.Load()) == Closed {
		return 0
	}
	until := b.until.Load()
	if int64(now) >= until {
		return 0
	}
	if until > math.MaxInt64+min(int64(now), 0) { // the difference is beyond what can be told
		return math.MaxInt64
	}
	return time.Duration(until - int64(now))
}

// Acquire asks whether a call may be made at now. Where it returns false the
// call must not be made.
func (b *Breaker) Acquire(now time.Duration) (Pass, bool) {
	switch era := b.era.Load(); {
	case stateOf(era) == Closed:
		return Pass{era}, true
	case int64(now) < b.until.Load():
		return Pass{}, false
	}
	return b.acquireProbe(now)
}

// acquireProbe is Acquire for whoever may be the probe.
func (b *Breaker) acquireProbe(now time.Duration) (Pass, bool) {
	b.mu.Lock()
	era := b.era.Load()
	from := stateOf(era)
	switch {
	case from == Closed: // since a moment ago
		b.mu.Unlock()
		return Pass{era}, true
	case int64(now) < b.until.Load(): // another was faster
		b.mu.Unlock()
		return Pass{}, false
	}
	// A new generation even where the state stays: the late result of a lost
	// probe must not speak for the one that took its slot.
	b.until.Store(after(now, b.settings.ProbeLease))
	p := Pass{b.enter(HalfOpen)}
	b.mu.Unlock()
	b.changed(from, HalfOpen)
	return p, true
}

// Report tells how the call of p ended. A pass of an earlier state is ignored.
func (b *Breaker) Report(now time.Duration, p Pass, o Outcome) {
	if p.era != b.era.Load() || stateOf(p.era) == Closed && (o == Neutral || o == Success && b.failures.Load() == 0) {
		return // as nearly always: nothing changes
	}
	b.mu.Lock()
	if p.era != b.era.Load() {
		b.mu.Unlock()
		return
	}
	from := stateOf(p.era)
	to := from
	switch {
	case o == Neutral: // the probe's
		b.until.Store(math.MinInt64) // the next caller may probe at once
	case o == Success:
		to = Closed
		b.failures.Store(0)
	case from == HalfOpen || b.failures.Add(1) >= int64(b.settings.Failures):
		to = Open
		b.failures.Store(0)
		b.until.Store(after(now, b.settings.OpenFor))
	}
	if from != to {
		b.enter(to)
	}
	b.mu.Unlock()
	b.changed(from, to)
}

// Reset closes the breaker, for an owner who knows by other means that the
// backend is well. Results of calls that are still out change nothing, unless
// the breaker was closed.
func (b *Breaker) Reset() {
	b.mu.Lock()
	from := stateOf(b.era.Load())
	b.failures.Store(0)
	if from != Closed {
		b.enter(Closed)
	}
	b.mu.Unlock()
	b.changed(from, Closed)
}

// State returns the state at this moment. An open breaker whose period is over
// stays open until a caller asks to pass.
func (b *Breaker) State() State { return stateOf(b.era.Load()) }

// enter begins a new era and returns it; the caller holds the lock and has set
// until, for whoever sees the era may look at it.
func (b *Breaker) enter(s State) uint64 {
	era := (b.era.Load()>>stateBits+1)<<stateBits | uint64(s)
	b.era.Store(era)
	return era
}

// after is now + d, or the end of time.
func after(now, d time.Duration) int64 {
	if now > math.MaxInt64-d {
		return math.MaxInt64
	}
	return int64(now + d)
}

func (b *Breaker) changed(from, to State) {
	if from != to && b.settings.OnChange != nil {
		b.settings.OnChange(from, to)
	}
}
