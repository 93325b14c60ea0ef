package breaker

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	threshold = 5
	openFor   = 30 * time.Second
	// start is when the tests begin. No instant is special to a breaker, 0 and
	// those before it included.
	start = -openFor
)

func newTest(changes *[]State) *Breaker {
	return New(Settings{Failures: threshold, OpenFor: openFor, OnChange: func(_, to State) {
		if changes != nil {
			*changes = append(*changes, to)
		}
	}})
}

// open drives b open at now by consecutive failures.
func open(t *testing.T, b *Breaker, now time.Duration) {
	t.Helper()
	for range threshold {
		report(t, b, now, Failure)
	}
	if b.State() != Open {
		t.Fatalf("after %d failures: %v, want open", threshold, b.State())
	}
}

func report(t *testing.T, b *Breaker, now time.Duration, o Outcome) {
	t.Helper()
	p, ok := b.Acquire(now)
	if !ok {
		t.Fatalf("at %v: turned away in state %v", now, b.State())
	}
	b.Report(now, p, o)
}

func refused(t *testing.T, b *Breaker, now time.Duration) {
	t.Helper()
	if _, ok := b.Acquire(now); ok {
		t.Fatalf("at %v: passed, want turned away", now)
	}
}

func TestOpensOnTheFifthConsecutiveFailure(t *testing.T) {
	b, now := newTest(nil), start
	for range threshold - 1 {
		report(t, b, now, Failure)
	}
	report(t, b, now, Success) // starts the count again
	for range threshold - 1 {
		report(t, b, now, Failure)
		report(t, b, now, Neutral) // neither counts nor resets
	}
	if b.State() != Closed {
		t.Fatalf("four failures after a success: %v, want closed", b.State())
	}
	report(t, b, now, Failure)
	if b.State() != Open {
		t.Fatalf("fifth consecutive failure: %v, want open", b.State())
	}
	refused(t, b, now+openFor-1)
}

func TestOneProbe(t *testing.T) {
	var changes []State
	b, now := newTest(&changes), start
	open(t, b, now)

	now += openFor
	probe, ok := b.Acquire(now)
	if !ok {
		t.Fatal("the open period is over and nobody may probe")
	}
	refused(t, b, now)

	b.Report(now, probe, Failure)
	refused(t, b, now+openFor-1) // a full period again
	report(t, b, now+openFor, Success)
	if b.State() != Closed {
		t.Fatalf("after a good probe: %v, want closed", b.State())
	}
	want := []State{Open, HalfOpen, Open, HalfOpen, Closed}
	if len(changes) != len(want) {
		t.Fatalf("transitions %v, want %v", changes, want)
	}
	for i := range want {
		if changes[i] != want[i] {
			t.Fatalf("transitions %v, want %v", changes, want)
		}
	}
}

func TestNeutralProbeFreesItsSlot(t *testing.T) {
	b, now := newTest(nil), start
	open(t, b, now)
	now += openFor
	report(t, b, now, Neutral)
	if b.State() != HalfOpen {
		t.Fatalf("after a neutral probe: %v, want half_open", b.State())
	}
	report(t, b, now, Success)
	if b.State() != Closed {
		t.Fatalf("after the second probe: %v, want closed", b.State())
	}
}

func TestLostProbeDoesNotHoldTheSlotForEver(t *testing.T) {
	b, now := newTest(nil), start
	open(t, b, now)
	now += openFor
	lost, _ := b.Acquire(now)
	refused(t, b, now+openFor-1)
	now += openFor
	second, ok := b.Acquire(now)
	if !ok {
		t.Fatal("a probe that never reported holds the slot")
	}
	b.Report(now, lost, Success) // late, and no longer its slot
	if b.State() != HalfOpen {
		t.Fatalf("a lost probe's late success: %v, want half_open", b.State())
	}
	b.Report(now, second, Failure)
	if b.State() != Open {
		t.Fatalf("the second probe's failure: %v, want open", b.State())
	}
}

func TestLateResultsChangeNothing(t *testing.T) {
	b, now := newTest(nil), start
	lateSuccess, _ := b.Acquire(now)
	lateFailure, _ := b.Acquire(now)
	open(t, b, now)

	b.Report(now, lateSuccess, Success)
	if b.State() != Open {
		t.Fatalf("a success from before the breaker opened: %v, want open", b.State())
	}
	now += openFor
	probe, _ := b.Acquire(now)
	b.Report(now, lateFailure, Failure)
	if b.State() != HalfOpen {
		t.Fatalf("a failure from before the breaker opened: %v, want half_open", b.State())
	}
	b.Report(now, probe, Success)
	b.Report(now, probe, Failure) // reported twice: the second is of an earlier state
	for range threshold - 1 {
		report(t, b, now, Failure)
	}
	if b.State() != Closed {
		t.Fatalf("four failures in the closed state: %v, want closed", b.State())
	}
	b.Report(now, Pass{}, Failure) // the zero Pass belongs to no state
	if b.State() != Closed {
		t.Fatalf("the zero pass counted: %v, want closed", b.State())
	}
}

func TestReset(t *testing.T) {
	b, now := newTest(nil), start
	open(t, b, now)
	b.Reset()
	if b.State() != Closed {
		t.Fatalf("after Reset: %v, want closed", b.State())
	}
	for range threshold - 1 {
		report(t, b, now, Failure)
	}
	if b.State() != Closed {
		t.Fatal("Reset kept the count of failures")
	}
}

// At the instant the open period ends, 200 callers at once are one probe.
func TestOneProbeAmongManyCallers(t *testing.T) {
	b, now := newTest(nil), start
	for period := range 3 {
		if period == 0 {
			open(t, b, now)
		}
		now += openFor
		var passed atomic.Int64
		var probe Pass
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				<-start
				if p, ok := b.Acquire(now); ok {
					passed.Add(1)
					probe = p
				}
			})
		}
		close(start)
		wg.Wait()
		if n := passed.Load(); n != 1 {
			t.Fatalf("period %d: %d callers passed, want 1", period, n)
		}
		b.Report(now, probe, Failure)
	}
}

// Results from before the breaker opened change nothing, however many arrive at
// once, beside the probe and those who are turned away.
func TestLateResultsOfManyCallers(t *testing.T) {
	for range 100 {
		b, now := newTest(nil), start
		late := make([]Pass, 8)
		for i := range late {
			late[i], _ = b.Acquire(now)
		}
		open(t, b, now)
		var wg sync.WaitGroup
		for i, p := range late {
			wg.Go(func() { b.Report(now, p, []Outcome{Success, Failure}[i%2]) })
		}
		var passed atomic.Int64
		for range 8 {
			wg.Go(func() {
				if p, ok := b.Acquire(now + openFor); ok {
					passed.Add(1)
					b.Report(now+openFor, p, Failure)
				}
			})
		}
		wg.Wait()
		if n := passed.Load(); n != 1 || b.State() != Open {
			t.Fatalf("%d callers passed, state %v", n, b.State())
		}
	}
}

// A lost probe that was still in time when its report began is late once another
// has its slot: what it says is looked at again under the lock.
func TestLateWhileReporting(t *testing.T) {
	for outcome, name := range map[Outcome]string{Success: "success", Failure: "failure", Neutral: "neutral"} {
		b := newTest(nil)
		open(t, b, start)
		lost, ok := b.Acquire(start + openFor)
		if !ok {
			t.Fatal("no probe")
		}
		b.mu.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Report(start+openFor, lost, outcome)
		}()
		time.Sleep(10 * time.Millisecond) // most likely it waits for the lock by now; if not, nothing is tried
		b.until.Store(after(start+2*openFor, openFor))
		b.enter(HalfOpen) // another takes the slot
		b.mu.Unlock()
		<-done
		if b.State() != HalfOpen || b.Ready(start+2*openFor) {
			t.Errorf("%s: state %v, ready %t", name, b.State(), b.Ready(start+2*openFor))
		}
	}
}

// A breaker that is never to probe does not do so at once.
func TestOpenForEver(t *testing.T) {
	b := New(Settings{Failures: 1, OpenFor: math.MaxInt64})
	report(t, b, time.Hour, Failure)
	refused(t, b, time.Hour)
	refused(t, b, 1<<60)
}

// The lease of a probe is its own: it may be longer or shorter than the open period.
func TestAProbeHasItsLease(t *testing.T) {
	for _, lease := range []time.Duration{openFor / 3, 3 * openFor} {
		b := New(Settings{Failures: threshold, OpenFor: openFor, ProbeLease: lease})
		now := start
		open(t, b, now)
		refused(t, b, now+openFor-1)
		now += openFor
		if _, ok := b.Acquire(now); !ok {
			t.Fatal("the open period is over and nobody may probe")
		}
		refused(t, b, now+lease-1)
		report(t, b, now+lease, Success)
		if b.State() != Closed {
			t.Fatalf("lease %v: after the second probe: %v, want closed", lease, b.State())
		}
	}
}

func TestReadyAndWaitTellWhatAcquireWouldDo(t *testing.T) {
	b, now := newTest(nil), start
	ready := func(now, wait time.Duration) {
		t.Helper()
		if got := b.Wait(now); got != wait || b.Ready(now) != (wait == 0) {
			t.Fatalf("%v: waits %v, ready %t; want %v", b.State(), got, b.Ready(now), wait)
		}
	}
	ready(now, 0)
	open(t, b, now)
	ready(now, openFor)
	ready(now+openFor-1, 1)
	ready(now+openFor, 0) // and nothing was taken
	ready(now+openFor, 0)
	if b.State() != Open {
		t.Fatalf("asking made it %v", b.State())
	}
	now += openFor
	probe, _ := b.Acquire(now)
	ready(now+1, openFor-1)
	b.Report(now+1, probe, Neutral)
	ready(now+1, 0)
	report(t, b, now+1, Success)
	ready(now+1, 0)
}

// Differences of instants that are far apart do not overflow.
func TestWaitAtTheEndsOfTime(t *testing.T) {
	b := New(Settings{Failures: 1, OpenFor: math.MaxInt64})
	report(t, b, time.Hour, Failure)
	if got := b.Wait(-time.Hour); got != math.MaxInt64 {
		t.Errorf("waits %v, want for ever", got)
	}
	if got := b.Wait(time.Hour); got != math.MaxInt64-time.Hour {
		t.Errorf("waits %v, want an hour less than for ever", got)
	}
}

func TestAdjustKeepsWhatWasDecided(t *testing.T) {
	var changes []State
	b, now := newTest(&changes), start
	open(t, b, now)
	b.Adjust(Settings{Failures: 2, OpenFor: 3 * openFor, ProbeLease: openFor / 2})
	refused(t, b, now+openFor-1)
	now += openFor // as it was when it opened
	if _, ok := b.Acquire(now); !ok {
		t.Fatal("new settings made a period longer that had begun")
	}
	refused(t, b, now+openFor/2-1)
	now += openFor / 2 // the new lease
	report(t, b, now, Failure)
	refused(t, b, now+3*openFor-1) // the new period
	report(t, b, now+3*openFor, Success)
	if len(changes) != 5 {
		t.Errorf("transitions %v: OnChange went missing", changes)
	}
}

func TestAdjustCountsOn(t *testing.T) {
	b, now := newTest(nil), start
	for range threshold - 1 {
		report(t, b, now, Failure)
	}
	b.Adjust(Settings{Failures: 2, OpenFor: openFor})
	if b.State() != Closed {
		t.Fatalf("Adjust alone made it %v", b.State())
	}
	report(t, b, now, Failure)
	if b.State() != Open {
		t.Fatalf("a failure beyond the new number: %v, want open", b.State())
	}
}

func TestSettingsThatCannotWorkPanic(t *testing.T) {
	for _, s := range []Settings{{}, {Failures: 1}, {OpenFor: time.Second}, {Failures: 1, OpenFor: 1, ProbeLease: -1}} {
		for name, use := range map[string]func(Settings){"New": func(s Settings) { New(s) }, "Adjust": newTest(nil).Adjust} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s(%+v) did not panic", name, s)
					}
				}()
				use(s)
			}()
		}
	}
}
