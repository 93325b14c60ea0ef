package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// slack is what a check may take beyond the budget and beyond what a bare timer
// was late at the same time.
const slack = 5 * time.Millisecond

// ledger adds up what many trials have found of the same promises.
type ledger struct {
	order []string
	by    map[string]*promise
	worst map[string]float64
}

func newLedger(promises ...string) *ledger {
	l := &ledger{order: promises, by: map[string]*promise{}, worst: map[string]float64{}}
	for _, text := range promises {
		l.by[text] = &promise{text: text, held: true}
	}
	return l
}

// finding is what one trial found of one promise.
type finding struct {
	tries  int
	worst  float64 // how near it came to be broken, to be compared
	figure string  // that in words
	broken []string
	// timed: it hangs on when things happened, so that a busy machine breaks it, too.
	timed bool
	// excuse says that the machine was so late, by its bare timers, that what is
	// broken says nothing; "" is none.
	excuse string
	// sure: it is broken by so much that no lateness excuses it.
	sure bool
}

// doubtful reports whether f found something broken that is to be met again: what
// a machine does once it does not do each time, and what the service does it does.
func (f finding) doubtful() bool { return len(f.broken) > 0 && f.timed && !f.sure }

// excused reports whether nothing can be said of what f found broken.
func (f finding) excused() bool { return f.doubtful() && f.excuse != "" }

// lateBy says that f hangs on time, and excuses what it has found broken where the
// machine was too late, microseconds, for checks of that budget.
func (f finding) lateBy(late int64, budget time.Duration) finding {
	f.timed = true
	if late >= tooLate(budget).Microseconds() && !f.sure {
		f.excuse = fmt.Sprintf("a bare timer was %.1f ms late", ms(late))
	}
	return f
}

// tooLate is how late a bare timer is on a machine on which a promise may break
// for want of a processor: 5 ms of 20.
func tooLate(budget time.Duration) time.Duration { return budget / 4 }

// note adds what was found at who.
func (l *ledger) note(text, who string, f finding) {
	p := l.by[text]
	if f.excused() {
		p.unjudged = append(p.unjudged, fmt.Sprintf("%s: %s, while %s", who, f.broken[0], f.excuse))
		return
	}
	p.tries += f.tries
	if f.figure != "" && (p.measured == "" || f.worst > l.worst[text]) {
		l.worst[text] = f.worst
		p.measured = f.figure + " (" + who + ")"
	}
	for _, b := range f.broken {
		p.held = false
		p.broken = append(p.broken, who+": "+b)
	}
}

// passed adds what was found broken in vain, unless the last time found something
// broken again: then that speaks for itself.
func (l *ledger) passed(vain, last []note) {
	for _, n := range last {
		if len(n.broken) > 0 && !n.excused() {
			return
		}
	}
	for _, n := range vain {
		if n.doubtful() && !n.excused() {
			p := l.by[n.text]
			p.passed = append(p.passed, n.who+": "+n.broken[0])
		}
	}
}

// promises is what has come of each.
func (l *ledger) promises() []promise {
	var all []promise
	for _, text := range l.order {
		p := *l.by[text]
		if !p.held {
			p.measured = plural(len(p.broken), "finding", "findings") + " below"
		}
		all = append(all, p)
	}
	return all
}

// tableRow reports whether a decision is a row of the table in
// docs/failure-semantics.md.
func tableRow(r Row) bool {
	if r.FromStore {
		return r.Allowed == (r.Reason == "allowed") && (r.Allowed || r.Reason == "rate_limited")
	}
	switch r.Endpoint + " " + r.Reason {
	case "page redis_timeout", "page redis_connection_error", "page redis_noscript_retry", "page circuit_open":
		return r.Allowed
	case "page emergency_local_limit", "job fail_closed", "job circuit_open":
		return !r.Allowed
	default:
		return false
	}
}

// httpRow reports whether the response to a decision is the right one: its
// status, and RateLimit headers on what Redis has decided and on nothing else.
func httpRow(r Row) bool {
	want := 503
	switch {
	case r.Status == 0:
		return true
	case r.Allowed:
		want = 200
	case r.Reason == "rate_limited" || r.Reason == "emergency_local_limit":
		want = 429
	}
	return r.Status == want && r.Headers == r.FromStore
}

// judgeRows finds decisions that are no row of the table, and responses that do
// not fit them.
func judgeRows(rows []Row) (f finding) {
	for _, r := range rows {
		f.tries += r.N
		if !tableRow(r) || !httpRow(r) {
			f.broken = append(f.broken, fmt.Sprintf("%d x %s", r.N, r))
		}
	}
	return f
}

// judgeFault finds decisions that do not fit the fault that is on: verdicts of a
// Redis that cannot answer, and the wrong row of the table. may is the reasons
// that an endpoint may carry that fails open, and must, unless it is "", the one
// that has to be among them.
func judgeFault(rows []Row, must string, may []string) (f finding) {
	met, seen := 0, must == ""
	for _, r := range rows {
		f.tries += r.N
		switch {
		case r.FromStore:
			f.broken = append(f.broken, fmt.Sprintf("%d x %s", r.N, r))
		case r.Endpoint != failOpenID || r.Reason == "circuit_open" || r.Reason == "emergency_local_limit":
		case must != "" && r.Reason == must:
			seen = true
			met += r.N
		case slices.Contains(may, r.Reason):
			met += r.N
		default:
			f.broken = append(f.broken, fmt.Sprintf("%d x %s", r.N, r))
		}
	}
	if met > 0 && !seen {
		f.broken = append(f.broken, "never "+must)
	}
	return f
}

// judgeWell finds decisions that a Redis that works has not taken.
func judgeWell(rows []Row) (f finding) {
	for _, r := range rows {
		f.tries += r.N
		if !r.FromStore {
			f.broken = append(f.broken, fmt.Sprintf("%d x %s", r.N, r))
		}
	}
	return f
}

// judgeMeeting finds what kept a fault from being met.
func judgeMeeting(err error) finding {
	f := finding{tries: 1}
	if err != nil {
		f.broken = []string{strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	return f
}

// judgeBudget finds checks that outlast the budget, the lateness of the machine
// and the slack.
func judgeBudget(micros []int64, late int64, budget time.Duration) finding {
	f := finding{tries: len(micros)}
	if len(micros) == 0 {
		return f
	}
	longest := slices.Max(micros)
	bound := budget.Microseconds() + late + slack.Microseconds()
	f.worst = float64(longest - late)
	f.figure = fmt.Sprintf("longest %.1f ms, bare timer %.1f ms late", ms(longest), ms(late))
	if longest > bound {
		// Sooner or later a machine that is late is on time: half of the checks are.
		f.sure = quantile(slices.Sorted(slices.Values(micros)), 0.5) > 3*budget.Microseconds()
		n := 0
		for _, m := range micros {
			if m > bound {
				n++
			}
		}
		f.broken = append(f.broken, fmt.Sprintf("%d of %d checks over %.1f ms, %s", n, len(micros), ms(bound), f.figure))
	}
	return f
}

func ms(micros int64) float64 { return float64(micros) / 1000 }

// quantile of sorted values.
func quantile(sorted []int64, q float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// judgeCharge compares what Redis has charged at one endpoint with what it has
// admitted there, as the callers saw it. A check that failed may have been
// charged, but once; none that the breaker turned away. Where data is lost,
// less may be charged.
func judgeCharge(charged int64, rows []Row, endpoint string, forgets bool) finding {
	var admitted, failed int64
	f := finding{}
	for _, r := range rows {
		switch {
		case r.Endpoint != endpoint:
			continue
		case r.FromStore && r.Allowed:
			admitted += int64(r.N)
		case !r.FromStore && r.Reason != "circuit_open":
			failed += int64(r.N)
		}
		f.tries += r.N
	}
	f.worst = float64(charged - admitted)
	f.figure = fmt.Sprintf("%d charged, %d admitted by Redis, %d asked and failed", charged, admitted, failed)
	if charged > admitted+failed || charged < admitted && !forgets {
		f.broken = append(f.broken, endpoint+": "+f.figure)
	}
	return f
}

// judgeExact is judgeCharge where no reply is lost, so that what was admitted is
// what was charged: of both endpoints together, but for the checks that timed
// out all the same.
func judgeExact(charged int64, rows []Row, timeouts int) finding {
	f := finding{}
	var admitted int64
	for _, r := range rows {
		f.tries += r.N
		if r.FromStore && r.Allowed {
			admitted += int64(r.N)
		}
	}
	over := charged - admitted
	f.worst, f.figure = float64(over), fmt.Sprintf("%d charged, %d admitted, %d timed out", charged, admitted, timeouts)
	if over < 0 || over > int64(timeouts) {
		f.broken = append(f.broken, f.figure)
	}
	return f
}

// judgeOpens finds out whether the fifth failure in a row opened the breaker:
// five failed checks, and then none that asks.
func judgeOpens(order []Row) finding {
	f := finding{tries: 1}
	failed := 0
	for n, r := range order {
		asked := r.Reason != "circuit_open" && r.Reason != "emergency_local_limit"
		if !asked && r.Reason == "circuit_open" && failed < 5 {
			f.broken = append(f.broken, fmt.Sprintf("open after %d failures", failed))
			return f
		}
		if !r.FromStore && asked {
			if failed++; failed > 5 {
				f.broken = append(f.broken, fmt.Sprintf("check %d still asks: %s", n+1, r))
				return f
			}
		}
	}
	if failed < 5 {
		f.broken = append(f.broken, fmt.Sprintf("%d failures of %d checks", failed, len(order)))
	}
	f.figure = fmt.Sprintf("%d failures, then open", failed)
	return f
}

// judgeProbes compares the calls that a server saw while a breaker was open with
// the probes that the breaker has let through. each is the calls of one probe; a
// probe that finds no connection sends none.
func judgeProbes(calls, probes, periods, each int, certain bool) finding {
	f := finding{tries: periods, figure: fmt.Sprintf("%d calls in %d open periods", calls, periods)}
	if probes != periods {
		f.broken = append(f.broken, fmt.Sprintf("%d probes in %d open periods", probes, periods))
	}
	if calls > probes*each || certain && calls < probes*each {
		f.broken = append(f.broken, fmt.Sprintf("%d calls seen of %d probes", calls, probes))
	}
	return f
}

// recoveryLimit is one open period of the breaker, and what the machine and the
// distance between two checks may add.
const recoveryLimit = openPeriod + 1500*time.Millisecond

// openPeriod is the open period of the breaker.
const openPeriod = 30 * time.Second

// judgeRecovery takes the end of the fault, of the last check that Redis did not
// decide and of the last that it did.
func judgeRecovery(fault time.Time, failure, decision int64) finding {
	f := finding{tries: 1}
	last := time.UnixMicro(failure).Sub(fault)
	if failure == 0 {
		last = 0
	}
	f.worst = last.Seconds()
	f.figure = fmt.Sprintf("last failure %.1f s after the fault", max(0, last.Seconds()))
	switch {
	case decision <= failure:
		f.broken = append(f.broken, "Redis does not decide again")
	case last > recoveryLimit:
		f.broken = append(f.broken, f.figure)
	}
	return f
}

// judgeEmergency holds what emergency buckets admitted to their rate: one second
// of it at once, and the rate from then on.
func judgeEmergency(bursts []Burst) (f finding) {
	for _, b := range bursts {
		f.tries += b.Admitted
		bound := emergency + float64(emergency)*float64(b.Micros)/1e6
		if over := float64(b.Admitted) - bound; f.figure == "" || over > f.worst {
			f.worst, f.figure = over, fmt.Sprintf("%d admitted in %.2f s, bound %.1f", b.Admitted, float64(b.Micros)/1e6, bound)
		}
		if float64(b.Admitted) > bound {
			f.broken = append(f.broken, fmt.Sprintf("%d admitted in %.2f s, bound %.1f", b.Admitted, float64(b.Micros)/1e6, bound))
		}
	}
	return f
}

// heapSlack is what the heap of a process may be larger by: its pools, and the
// proof's own books.
const heapSlack = 4 << 20

// judgeFootprint compares what a process holds with what it held before.
// sockets is how many more connections limiters may keep.
func judgeFootprint(before, after Footprint, sockets int) finding {
	f := finding{tries: 1}
	f.worst = float64(after.Heap - before.Heap)
	f.figure = fmt.Sprintf("goroutines %d to %d, sockets %d to %d, heap %.1f to %.1f MB",
		before.Goroutines, after.Goroutines, before.Sockets, after.Sockets, float64(before.Heap)/1e6, float64(after.Heap)/1e6)
	// The client keeps a few goroutines for each connection.
	if after.Goroutines > before.Goroutines+2*sockets || after.Sockets > before.Sockets+sockets || after.Heap > before.Heap+heapSlack {
		f.broken = append(f.broken, f.figure)
	}
	return f
}

// judgeLog compares what the log of a process says of denials at the endpoints
// of a group with what the callers saw.
func judgeLog(group string, rows []Row, book *logBook) (f finding) {
	denied := map[string]int{}
	for _, r := range rows {
		if !r.Allowed {
			denied[r.Endpoint+" "+r.Reason] += r.N
		}
	}
	for _, key := range sortedKeys(denied) {
		id, reason, _ := strings.Cut(key, " ")
		got := book.of(id+"."+group, reason)
		f.tries += denied[key]
		if over := float64(got.Lines); f.figure == "" || over > f.worst {
			f.worst, f.figure = over, fmt.Sprintf("%d lines + %d suppressed = %d denials", got.Lines, got.Suppressed, denied[key])
		}
		if got.Lines+got.Suppressed != denied[key] {
			f.broken = append(f.broken, fmt.Sprintf("%s.%s %s: %d lines + %d suppressed, %d denials", id, group, reason, got.Lines, got.Suppressed, denied[key]))
		}
	}
	return f
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
