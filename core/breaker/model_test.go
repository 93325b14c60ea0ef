package breaker_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

const (
	failures = 3
	openFor  = 100 * time.Second
	lease    = 60 * time.Second // of a probe
)

// model is what the breaker promises, one operation after the other. It is
// comparable. Passes are bits: those that count are the ones that were handed
// out since the last transition and the last probe.
type model struct {
	state   breaker.State
	row     int           // failures in a row
	until   time.Duration // open: when a probe may go; half-open: when its slot is free
	probing bool
	counts  uint64 // the passes whose results count
}

// acquire hands out pass, or does not.
func (m *model) acquire(now time.Duration, pass uint64) (ok, probe bool) {
	switch {
	case m.state == breaker.Closed:
		m.counts |= pass
		return true, false
	case m.wait(now) == 0:
		m.state, m.probing, m.until, m.counts = breaker.HalfOpen, true, now+lease, pass
		return true, true
	default:
		return false, false
	}
}

// wait is how long until the next may pass, if nobody reports.
func (m *model) wait(now time.Duration) time.Duration {
	if m.state == breaker.Closed || m.state == breaker.HalfOpen && !m.probing {
		return 0
	}
	return max(m.until-now, 0)
}

func (m *model) report(now time.Duration, pass uint64, o breaker.Outcome) {
	if m.counts&pass == 0 {
		return
	}
	m.counts &^= pass
	switch {
	case o == breaker.Neutral && m.state == breaker.HalfOpen:
		m.probing = false
	case o == breaker.Neutral:
	case o == breaker.Success && m.state == breaker.HalfOpen:
		*m = model{}
	case o == breaker.Success:
		m.row = 0
	default:
		if m.row++; m.row == failures || m.state == breaker.HalfOpen {
			*m = model{state: breaker.Open, until: now + openFor}
		}
	}
}

// reset closes. In the closed state only the row of failures ends: the calls
// that are out go on to count.
func (m *model) reset() {
	if m.state == breaker.Closed {
		m.row = 0
		return
	}
	*m = model{}
}

// op is one operation: what was asked, what was answered, and when it began and
// ended, by a common counter.
type op struct {
	kind    opKind
	now     time.Duration
	outcome breaker.Outcome
	of      int // report: the acquire whose pass it is

	ok, probe bool
	state     breaker.State
	wait      time.Duration
	pass      breaker.Pass

	began, ended int64
}

type opKind int

const (
	acquire opKind = iota
	report
	reset
	look
	wait
)

func run(b *breaker.Breaker, o *op, pass breaker.Pass) {
	switch o.kind {
	case acquire:
		o.pass, o.ok = b.Acquire(o.now)
		o.probe = o.pass.Probe()
	case report:
		b.Report(o.now, pass, o.outcome)
	case reset:
		b.Reset()
	case look:
		o.state = b.State()
	case wait:
		o.wait = b.Wait(o.now)
	}
}

// explains reports whether the model, in this state, answers o as the breaker
// did, and returns the state thereafter. i is o's number.
func (m model) explains(o *op, i int) (model, bool) {
	switch o.kind {
	case acquire:
		ok, probe := m.acquire(o.now, 1<<i)
		return m, ok == o.ok && probe == o.probe
	case report:
		m.report(o.now, 1<<o.of, o.outcome)
	case reset:
		m.reset()
	case look:
		return m, m.state == o.state
	case wait:
		return m, m.wait(o.now) == o.wait
	}
	return m, true
}

func randomOutcome(r *rand.Rand) breaker.Outcome {
	return []breaker.Outcome{breaker.Failure, breaker.Failure, breaker.Failure, breaker.Success, breaker.Neutral}[r.IntN(5)]
}

func randomPause(r *rand.Rand) time.Duration {
	return []time.Duration{0, 0, 0, time.Second, lease - 1, lease, openFor - 1, openFor, openFor + 1}[r.IntN(9)]
}

// Operations one after the other, with up to 40 calls out at a time whose
// results come in any order, late and never.
func TestAgainstTheModel(t *testing.T) {
	t.Parallel()
	seen := map[breaker.State]int{}
	late := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(31, seed))
		b := breaker.New(breaker.Settings{Failures: failures, OpenFor: openFor, ProbeLease: lease})
		var m model
		type call struct {
			pass breaker.Pass
			bit  uint64
		}
		var out []call
		free := ^uint64(0)
		now := time.Duration(0)
		for step := range 200 {
			now += randomPause(r)
			switch k := r.IntN(20); {
			case k < 9 && len(out) < 40:
				bit := free & -free
				pass, ok := b.Acquire(now)
				wantOK, wantProbe := m.acquire(now, bit)
				if ok != wantOK || pass.Probe() != wantProbe {
					t.Fatalf("seed %d, step %d: passes %t, probe %t; the model: %t, %t", seed, step, ok, pass.Probe(), wantOK, wantProbe)
				}
				if ok {
					free &^= bit
					out = append(out, call{pass, bit})
				}
			case k < 18 && len(out) > 0:
				i, o := r.IntN(len(out)), randomOutcome(r)
				if m.counts&out[i].bit == 0 {
					late++
				}
				b.Report(now, out[i].pass, o)
				m.report(now, out[i].bit, o)
				free |= out[i].bit
				out = slices.Delete(out, i, i+1)
			case k == 18 && r.IntN(5) == 0:
				b.Reset()
				m.reset()
			case k == 19 && len(out) > 0: // a call that never reports; its bit is given up
				out = out[1:]
			}
			if got := b.State(); got != m.state {
				t.Fatalf("seed %d, step %d: %v, the model: %v", seed, step, got, m.state)
			}
			if got, want := b.Wait(now), m.wait(now); got != want || b.Ready(now) != (want == 0) {
				t.Fatalf("seed %d, step %d: waits %v, ready %t; the model waits %v", seed, step, got, b.Ready(now), want)
			}
			seen[m.state]++
		}
	}
	if seen[breaker.Closed] < 1000 || seen[breaker.Open] < 1000 || seen[breaker.HalfOpen] < 1000 || late < 1000 {
		t.Errorf("states %v, %d late results: the walk misses its aim", seen, late)
	}
}

// Operations at once are as if they had come one after the other, in an order
// that keeps to the clock on the wall: for each history there is such an order
// that the model explains, answer by answer.
func TestOperationsAtOnceHaveAnOrder(t *testing.T) {
	t.Parallel()
	const least, enough = 300, 4000
	overlaps, seed := 0, uint64(0)
	for since := time.Now(); seed < least || overlaps < enough && time.Since(since) < 2*time.Second; seed++ {
		ops, changes, final := history(seed)
		slices.SortFunc(ops, func(a, b op) int { return int(a.began - b.began) })
		number(ops)
		for i := 1; i < len(ops); i++ {
			if ops[i].began < ops[i-1].ended {
				overlaps++
			}
		}
		s := search{ops: ops, dead: map[position]bool{}}
		if !s.from(0, model{}) {
			t.Fatalf("seed %d: no order of these explains them:\n%+v", seed, ops)
		}
		checkChanges(t, seed, changes, final)
	}
	// How many there are depends on the cores that the machine has to spare.
	t.Logf("%d histories, %d operations overlapped one before them", seed, overlaps)
}

// callers and rounds: in each round each caller does one operation, all at once.
const callers, rounds = 3, 8

// history has some callers at one breaker at once. A report's of is, until
// number, the began of its acquire.
func history(seed uint64) (ops []op, changes [][2]breaker.State, final breaker.State) {
	var mu sync.Mutex
	b := breaker.New(breaker.Settings{Failures: failures, OpenFor: openFor, ProbeLease: lease, OnChange: func(from, to breaker.State) {
		mu.Lock()
		changes = append(changes, [2]breaker.State{from, to})
		mu.Unlock()
	}})
	var clock, wall, arrived atomic.Int64
	do := func(o op, pass breaker.Pass) op {
		o.began = clock.Add(1)
		run(b, &o, pass)
		o.ended = clock.Add(1)
		return o
	}
	if seed%2 == 0 { // begin in the middle: open, and its period over or nearly
		for range failures {
			a := do(op{kind: acquire}, breaker.Pass{})
			ops = append(ops, a, do(op{kind: report, of: int(a.began), outcome: breaker.Failure}, a.pass))
		}
		wall.Store(int64(openFor) - 1 + int64(seed/2%3))
	}
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), seed))
			var mine, out []op
			for round := range rounds {
				o, pass := op{now: time.Duration(wall.Add(int64(randomPause(r)) / callers))}, breaker.Pass{}
				switch k := r.IntN(12); {
				case k == 0:
					o.kind = look
				case k == 1:
					o.kind = reset
				case k == 11:
					o.kind = wait
				case k < 7 && len(out) > 0:
					i := r.IntN(len(out))
					o.kind, o.of, o.outcome, pass = report, int(out[i].began), randomOutcome(r), out[i].pass
					out = slices.Delete(out, i, i+1)
				}
				arrived.Add(1)
				// Awake, or all would run one after the other on one core.
				for since := time.Now(); arrived.Load() < int64((round+1)*callers); {
					if time.Since(since) > 20*time.Microsecond {
						runtime.Gosched() // there are fewer cores than callers
					}
				}
				if o = do(o, pass); o.kind == acquire && o.ok {
					out = append(out, o)
				}
				mine = append(mine, o)
			}
			mu.Lock()
			ops = append(ops, mine...)
			mu.Unlock()
		})
	}
	all.Wait()
	return ops, changes, b.State()
}

func number(ops []op) {
	for i := range ops {
		if ops[i].kind == report {
			ops[i].of = slices.IndexFunc(ops, func(o op) bool { return o.kind == acquire && o.began == int64(ops[i].of) })
		}
	}
}

// search looks for an order. position is where it has been without success.
type search struct {
	ops  []op
	dead map[position]bool
}

type position struct {
	done uint64
	at   model
}

func (s *search) from(done uint64, m model) bool {
	if done == 1<<len(s.ops)-1 {
		return true
	}
	here := position{done, m}
	if s.dead[here] {
		return false
	}
	// Next is any operation that began before every other one that is left has
	// ended.
	first := int64(1 << 62)
	for i := range s.ops {
		if done>>i&1 == 0 {
			first = min(first, s.ops[i].ended)
		}
	}
	for i := range s.ops {
		if done>>i&1 == 1 || s.ops[i].began > first {
			continue
		}
		if next, ok := m.explains(&s.ops[i], i); ok && s.from(done|1<<i, next) {
			return true
		}
	}
	s.dead[here] = true
	return false
}

// checkChanges holds the transitions that were told to a path from closed to
// where the breaker has come, in whatever order they were told.
func checkChanges(t *testing.T, seed uint64, changes [][2]breaker.State, final breaker.State) {
	t.Helper()
	balance := map[breaker.State]int{breaker.Closed: 1}
	for _, c := range changes {
		balance[c[0]]--
		balance[c[1]]++
		if c[0] == c[1] || c == [2]breaker.State{breaker.Open, breaker.Open} || c == [2]breaker.State{breaker.Closed, breaker.HalfOpen} {
			t.Fatalf("seed %d: %v to %v is no transition", seed, c[0], c[1])
		}
	}
	balance[final]--
	for state, n := range balance {
		if n != 0 {
			t.Fatalf("seed %d: transitions %v do not lead from closed to %v: %v is off by %d", seed, changes, final, state, n)
		}
	}
}
