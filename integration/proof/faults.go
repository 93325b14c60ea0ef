package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// What is promised of every fault.
const (
	pRows      = "Every decision is a row of the table, and every response fits it"
	pFault     = "No check is decided by a Redis that cannot answer, and the reason is the fault's"
	pBudget    = "No check outlasts its budget, what a bare timer was late, and 5 ms; first check, dial and script reload included"
	pOnce      = "No check is charged twice"
	pExact     = "Where no reply is lost, what Redis admitted is what it charged"
	pOpens     = "The fifth failed call in a row opens the breaker"
	pProbe     = "One probe, and no other call, in each open period"
	pRecovers  = "Redis decides again within one open period after the fault, by itself"
	pWell      = "Before the fault, and once it is over, Redis decides every check"
	pHarmless  = "A fault that leaves Redis able to answer in time fails no check"
	pEmergency = "Endpoints that fail open admit no more than their emergency rate"
	pReturns   = "Goroutines, sockets and memory are back after the fault"
	pCloses    = "After Close, in the middle of the fault too, nothing is left"
	pLog       = "Lines and suppressed in the default log make up all denials"
	pQuiet     = "The log has fewer than four other lines for each limiter and fault"
	pMet       = "Each fault is met: the service is well before it, and every process does what it is told"
)

func newFaultLedger() *ledger {
	return newLedger(pRows, pFault, pBudget, pOnce, pExact, pOpens, pProbe, pRecovers, pWell, pHarmless,
		pEmergency, pReturns, pCloses, pLog, pQuiet, pMet, pStall, pFrozen, pOnceUp, pFlood)
}

// sideBySide is how many faults are waited for at the same time. What is
// measured is measured alone, but the services of all have their traffic, so
// that more of them leave two CPUs too little for a budget of 20 ms.
func (l *lab) sideBySide() int { return pick(l, 4, 12) }

// proveFaults has three processes of a guarded service meet every fault.
func proveFaults(ctx context.Context, l *lab) (*section, error) {
	book := newFaultLedger()
	all := slices.DeleteFunc(faults(l.budget), func(f *fault) bool { return !l.wants(f.name, f.core) })
	outcomes := l.meetAll(ctx, all, book)
	again := l.proveDrills(ctx, book)
	t := &table{columns: []string{"fault", "gathered", "checks", "p50 ms", "p99 ms", "longest ms", "timer late ms", "reasons"}}
	for _, o := range outcomes {
		again += o.again
		for _, gathered := range []bool{true, false} {
			t.add(append([]string{o.fault.name, map[bool]string{true: "yes", false: "no"}[gathered]}, o.times[gathered].row()...)...)
		}
	}
	s := &section{
		title: "Faults",
		about: fmt.Sprintf("Three processes of a guarded service, each with gathered calls and without, under live traffic through net/http and through `Limiter.Check`, "+
			"while their Redis, or the road to it, fails. At each fault a lone caller, crowds on limiters that are connected, and crowds on limiters "+
			"that have just been opened check while the breakers are still closed; those are the checks of the first table. The budget of a check is %v. "+
			"Beside the checks, in the same processes, bare timers run: the last time is how late the worst of these was.", l.budget),
		tables: []*table{t},
		notes:  []string{l.metAgain(again)},
	}
	for _, p := range book.promises() {
		if p.tries > 0 || len(p.unjudged) > 0 || l.match == nil { // a few faults need not try all
			s.promise(p)
		}
	}
	return s, nil
}

// wants reports whether the fault or mishap of that name is to be met. The core
// is what the short form meets.
func (l *lab) wants(name string, core bool) bool {
	if l.match != nil {
		return l.match.MatchString(name)
	}
	return core || !l.short
}

// metAgain says what came of that many meetings in vain.
func (l *lab) metAgain(vain int) string {
	return fmt.Sprintf("Where nothing broke but promises that a busy machine breaks, too, the same was tried again, %d times in all at most; "+
		"that was %s. What breaks the last time as well is broken, unless a bare timer was %v late or more: then nothing can be said. "+
		"All of it is listed with the verdict.", l.attempts(), plural(vain, "time", "times"), tooLate(l.budget))
}

// meetAll meets the faults, several at a time.
func (l *lab) meetAll(ctx context.Context, all []*fault, book *ledger) []*outcome {
	var machine, writing sync.Mutex
	var done sync.WaitGroup
	places := make(chan struct{}, l.sideBySide())
	outcomes := make([]*outcome, len(all))
	for i, f := range all {
		outcomes[i] = &outcome{fault: f}
		done.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			l.meet(ctx, outcomes[i], &machine)
			writing.Lock()
			defer writing.Unlock()
			outcomes[i].record(book)
		})
	}
	done.Wait()
	return outcomes
}

// attempts is how often a fault is met at most, where a promise broke that the
// machine may have broken.
func (l *lab) attempts() int { return 3 }

// meet meets one fault.
func (l *lab) meet(ctx context.Context, o *outcome, machine *sync.Mutex) {
	l.judged(ctx, o, func() {
		a := &arena{lab: l, machine: machine, fault: o.fault}
		err := within(ctx, func(s *scope) {
			a.scope = s
			a.run(o)
		})
		o.note(pMet, o.fault.name, judgeMeeting(err).lateBy(a.late(), l.budget))
	})
}

// judged meets a fault, and again where what broke may be the machine's doing.
func (l *lab) judged(ctx context.Context, o *outcome, meet func()) {
	for n := 1; ctx.Err() == nil; n++ {
		o.reset()
		meet()
		again, why := o.undecided()
		if !again || n == l.attempts() {
			return
		}
		o.again++
		o.vain = append(o.vain, o.notes...)
		l.logf("%s: once more: %s", o.fault.name, why)
	}
}

// record writes what was found into the book.
func (o *outcome) record(book *ledger) {
	for _, n := range o.notes {
		book.note(n.text, n.who, n.finding)
	}
	book.passed(o.vain, o.notes)
}

// stay is how long the fault stays after the breakers have opened.
func (l *lab) stay(f *fault) time.Duration {
	switch {
	case f.effect != fails || f.brief || l.short && f.recovers:
		return 0
	case f.endsLate && !l.short:
		return 2*openPeriod - 500*time.Millisecond // just before the second probe
	default:
		return openPeriod + 2*time.Second // after the first
	}
}

// recovers says whether the recovery is waited for. In the short form a fault
// has either its recovery watched or its probe, for each is an open period.
func (l *lab) recovers(f *fault) bool { return !l.short || f.effect != fails || f.recovers }

// judge compares what was seen with what is promised.
func (a *arena) judge(o *outcome) {
	for _, l := range lanes {
		a.judgeLane(o, l, a.seen[l], a.fault.name+", "+l.String())
		a.judgeBooks(o, l, a.seen[l])
	}
	for w, book := range a.books {
		n, some := book.rest()
		f := finding{tries: 1, worst: float64(n), figure: fmt.Sprintf("%d lines", n)}
		// Two modes, each with a limiter that is live, a lone and a closing one, and
		// two crowds of them.
		if n >= 4*2*(3+2*a.lab.crowds()) {
			f.broken = append(f.broken, fmt.Sprintf("%d lines, such as %q", n, some))
		}
		who := fmt.Sprintf("%s, process %d", a.fault.name, w+1)
		o.note(pQuiet, who, f)
		h := a.holds[w]
		if a.lab.recovers(a.fault) {
			o.note(pReturns, who, judgeFootprint(h.before, h.after, spareSockets).lateBy(a.lateness.after, a.lab.budget))
		}
		o.note(pCloses, who, judgeFootprint(h.bare, h.end, 0))
	}
}

// judgeLane judges what was seen at one lane. Of what a busy machine breaks as
// well, it says how late the machine was meanwhile.
func (a *arena) judgeLane(o *outcome, l lane, s *sight, who string) {
	at := a.lateness
	phases := []struct {
		name string
		*Report
		late int64
	}{
		{"traffic before", &s.calm, at.before},
		{"a lone caller", &s.lone, at.met},
		{"crowds", &s.warm, at.met},
		{"crowds, not connected", &s.cold, at.met},
		{"while closing", &s.closing, at.met},
		{"traffic", &s.during, max(at.met, at.stay)},
		{"traffic after", &s.well, at.after},
	}
	for _, p := range phases {
		o.note(pRows, who, judgeRows(p.Rows))
		o.note(pEmergency, who, judgeEmergency(p.Bursts))
		late := max(p.Late, p.late)
		o.note(pBudget, who+", "+p.name, judgeBudget(p.Micros, late, a.lab.budget).lateBy(late, a.lab.budget))
	}
	timed := func(text string, f finding, late int64) { o.note(text, who, f.lateBy(late, a.lab.budget)) }
	met := max(at.met, s.lone.Late, s.warm.Late, s.cold.Late)
	var connected Report
	connected.merge(&s.lone)
	connected.merge(&s.warm)
	o.times[l.gathered].add(&connected)
	o.times[l.gathered].add(&s.cold)
	switch a.fault.effect {
	case fails:
		timed(pFault, judgeFault(connected.Rows, a.fault.reason, a.fault.mixed), met)
		timed(pFault, judgeFault(s.cold.Rows, "", append([]string{timeoutReason, connectionReason}, a.fault.reason)), met)
		timed(pOpens, judgeOpens(s.lone.Order), met)
		if a.fault.rehearsed {
			s.asked = 0
		}
		if s.periods > 0 {
			timed(pProbe, judgeProbes(s.asked, s.probes, s.periods, max(1, a.fault.probe), a.fault.probe > 0), max(at.stay, s.during.Late))
		}
	case works:
		timed(pHarmless, judgeWell(s.lone.Rows), met)
		// One by one, a crowd queues for eight connections, and one that waits
		// for a call of half the budget has too little left for its own.
		if l.gathered && !a.fault.far {
			timed(pHarmless, judgeWell(s.warm.Rows), met)
		}
	}
	timed(pWell, judgeWell(s.calm.Rows), max(at.before, s.calm.Late))
	if a.lab.recovers(a.fault) {
		over := max(at.stay, at.after, s.during.Late, s.well.Late)
		timed(pRecovers, judgeRecovery(a.ended, max(s.during.LastFailure, s.well.LastFailure), s.well.LastDecision), over)
		timed(pWell, judgeWell(s.well.Rows), max(at.after, s.well.Late))
	}
}

// judgeBooks compares what Redis has charged, and what the log says, with what
// the callers saw.
func (a *arena) judgeBooks(o *outcome, l lane, s *sight) {
	note := func(text string, f finding) { o.note(text, a.fault.name+", "+l.String(), f) }
	for _, kind := range groups {
		rows := s.rows(kind)
		total := int64(0)
		for _, id := range []string{failOpenID, failClosedID} {
			n := s.charged[id+"."+l.group(kind)]
			total += n
			note(pOnce, judgeCharge(n, rows, id, a.fault.forgets))
		}
		if !a.fault.lossy && !a.fault.forgets {
			note(pExact, judgeExact(total, rows, s.failures[kind]["timeout"]+s.failures[kind]["connection"]))
		}
		if kind != closingGroup { // what is denied after Close is not logged
			note(pLog, judgeLog(l.group(kind), rows, a.books[l.worker]))
		}
	}
}
