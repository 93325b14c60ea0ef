package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// What is promised of single mishaps.
const (
	pStall  = "One stall of five quarters of the budget under 64 concurrent checks leaves the breaker closed"
	pFrozen = "One connection that is frozen for 15 times the budget fails only the checks on it, and leaves the breaker closed"
	pOnceUp = "200 concurrent checks on a dead port make one transition"
	pFlood  = "100,000 denials and 100,000 failures: lines and suppressed make up all, with 10 lines a second for each endpoint and reason"
)

// drill is one mishap, tried again and again in each lane.
type drill struct {
	promise string
	lanes   []lane
	tries   int // in each lane
	// try also returns how late the process was, microseconds.
	try func(*arena, lane) (finding, int64)
}

func (l *lab) drills() []drill {
	return []drill{
		{pStall, lanes, pick(l, 20, 2), stallOnce},
		{pFrozen, lanes, pick(l, 20, 2), freezeOnce},
		{pOnceUp, lanes, pick(l, 20, 2), deadCrowd},
		{pFlood, pick(l, lanes, lanes[:2]), 1, logFlood},
	}
}

// proveDrills tries every mishap, one lane after the other: a crowd needs the
// machine for itself. It returns how often one was tried in vain.
func (l *lab) proveDrills(ctx context.Context, book *ledger) (again int) {
	wanted := slices.DeleteFunc(l.drills(), func(d drill) bool { return !l.wants(d.promise, true) })
	if len(wanted) == 0 {
		return 0
	}
	err := within(ctx, func(s *scope) {
		a := &arena{scope: s, lab: l, fault: &fault{name: "drills"}}
		a.serve()
		a.pave()
		a.hire()
		for _, d := range wanted {
			for n := range d.tries {
				for _, lane := range d.lanes {
					again += a.drill(book, d, lane, fmt.Sprintf("%s, try %d", lane, n+1))
				}
			}
			l.logf("%s: tried", d.promise)
		}
	})
	if err != nil {
		book.note(pMet, "single mishaps", finding{tries: 1, broken: []string{err.Error()}})
	}
	return again
}

// drill tries once, and again where it broke, for that may be the machine's doing.
func (a *arena) drill(book *ledger, d drill, l lane, who string) (again int) {
	var vain []note
	for ; ; again++ {
		here := startControl(10)
		f, late := d.try(a, l)
		f = f.lateBy(max(late, here.stop()), a.lab.budget)
		if a.failed() != nil {
			a.Fatal("given up")
		}
		if !f.doubtful() || again+1 == a.lab.attempts() {
			book.note(d.promise, who, f)
			book.passed(vain, []note{{d.promise, who, f}})
			return again
		}
		vain = append(vain, note{d.promise, who, f})
	}
}

// troop deploys limiters for one try and returns how to dismiss them.
func (a *arena) troop(l lane, d Deploy) (dismiss func()) {
	d.Group, d.Gathered, d.URL, d.Budget = l.group(liveGroup), l.gathered, a.roads[seat{l, liveGroup}].URL(), a.lab.budget
	var r Report
	a.call(l, "Deploy", d, &r)
	return func() { a.call(l, "Dismiss", d.Group, nil) }
}

// storm has 64 goroutines check, with a pause after each check, while mishap
// happens in the middle.
func (a *arena) storm(l lane, length, pause time.Duration, mishap func(*redistest.Proxy)) (r Report, states []State) {
	defer a.troop(l, Deploy{Limiters: 1})()
	p := a.roads[seat{l, liveGroup}]
	time.AfterFunc(length/4, func() { mishap(p) })
	a.call(l, "Storm", Storm{Group: l.group(liveGroup), Crowd: 64, Millis: int(length.Milliseconds()), Pause: int(pause.Microseconds())}, &r)
	return r, a.states(l, liveGroup)
}

// stayedClosed finds a breaker that has opened.
func stayedClosed(states []State) finding {
	f := finding{tries: 1}
	for _, st := range states {
		if st.Moves["open"] != 0 || st.Breaker != "closed" {
			f.broken = append(f.broken, fmt.Sprintf("the breaker is %s after %v, failures %v", st.Breaker, st.Moves, st.Failures))
		}
	}
	return f
}

func stallOnce(a *arena, l lane) (finding, int64) {
	// All 64 are inside nearly all the time.
	r, states := a.storm(l, 10*a.lab.budget, time.Millisecond/2, func(p *redistest.Proxy) { p.Stall(a.lab.budget * 5 / 4) })
	f := stayedClosed(states)
	f.worst, f.figure = failedChecks(r.Rows)
	return f, r.Late
}

func failedChecks(rows []Row) (float64, string) {
	failed, all := 0, 0
	for _, row := range rows {
		all += row.N
		if !row.FromStore {
			failed += row.N
		}
	}
	return float64(failed), fmt.Sprintf("%d of %d checks failed", failed, all)
}

func freezeOnce(a *arena, l lane) (finding, int64) {
	var frozen <-chan []byte
	// One by one, 64 who do not pause are more than this machine can send.
	r, states := a.storm(l, 25*a.lab.budget, a.lab.budget, func(p *redistest.Proxy) { frozen = p.FreezeNext("EVALSHA", 15*a.lab.budget) })
	f := stayedClosed(states)
	n, figure := failedChecks(r.Rows)
	select {
	case command := <-frozen:
		on := keysOf(command)
		f.worst, f.figure = n, fmt.Sprintf("%s, %d were on it", figure, on)
		if int(n) > on {
			f.broken = append(f.broken, f.figure)
		}
	default:
		f.broken = append(f.broken, "no connection was frozen")
	}
	return f, r.Late
}

// keysOf is how many keys, and so how many checks of one key each, an EVALSHA
// has: "*5", "$7", "evalsha", "$40", the digest, "$1", the number.
func keysOf(evalsha []byte) int {
	lines := bytes.SplitN(evalsha, []byte("\r\n"), 8)
	if len(lines) < 8 {
		return 0
	}
	n, err := strconv.Atoi(string(lines[6]))
	if err != nil {
		return 0
	}
	return n
}

// deadCrowd has 200 goroutines check at once, on a limiter that was connected
// and on one that never was.
func deadCrowd(a *arena, l lane) (f finding, late int64) {
	p := a.roads[seat{l, liveGroup}]
	for _, cold := range []bool{false, true} {
		if cold {
			p.Refuse()
		}
		dismiss := a.troop(l, Deploy{Limiters: 1, Cold: cold})
		p.Refuse()
		var r Report
		a.call(l, "Volley", Volley{Group: l.group(liveGroup), Crowd: 200, Rounds: 1}, &r)
		for _, st := range a.states(l, liveGroup) {
			f.tries++
			f.figure = fmt.Sprintf("transitions %v", st.Moves)
			if len(st.Moves) != 1 || st.Moves["open"] != 1 {
				f.broken = append(f.broken, fmt.Sprintf("cold %t: %s", cold, f.figure))
			}
		}
		late = max(late, r.Late)
		dismiss()
		p.Pass()
	}
	return f, late
}

// logFlood logs with the default logger: what the limiter denies, and then what it
// cannot ask.
func logFlood(a *arena, l lane) (f finding, late int64) {
	const goroutines, checks = 8, 100_000
	p := a.roads[seat{l, liveGroup}]
	for _, dead := range []bool{false, true} {
		d := Deploy{Limiters: 1, Capacity: 1_000_000}
		group := l.group("denials")
		if dead {
			d.Capacity, group = 0, l.group("failures")
		}
		d.Group, d.Gathered, d.URL, d.Budget = group, l.gathered, p.URL(), a.lab.budget
		var all, r Report
		start := time.Now()
		a.call(l, "Deploy", d, &all)
		if dead {
			p.Refuse()
		}
		a.call(l, "Volley", Volley{Group: group, Crowd: goroutines, Rounds: checks / goroutines}, &r)
		all.merge(&r)
		a.call(l, "Dismiss", group, nil)
		p.Pass()
		seconds := time.Since(start).Seconds()
		time.Sleep(100 * time.Millisecond) // until the last line is here
		g := judgeLog(group, all.Rows, a.books[l.worker])
		f.tries += checks
		f.worst, f.figure = g.worst, fmt.Sprintf("%s in %.1f s", g.figure, seconds)
		f.broken = append(f.broken, g.broken...)
		for _, row := range all.Rows {
			if n := a.books[l.worker].of(row.Endpoint+"."+group, row.Reason).Lines; float64(n) > 10*(seconds+1) {
				f.broken = append(f.broken, fmt.Sprintf("%d lines of %s %s in %.1f s", n, row.Endpoint, row.Reason, seconds))
			}
		}
	}
	return f, 0
}
