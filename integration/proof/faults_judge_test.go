package main

import (
	"strings"
	"testing"
	"time"
)

// holds and breaks say what a judge must have found.
func holds(t *testing.T, name string, f finding) {
	t.Helper()
	if len(f.broken) != 0 || f.tries == 0 {
		t.Errorf("%s: %+v, want a promise that was tried and held", name, f)
	}
}

func breaks(t *testing.T, name string, f finding) {
	t.Helper()
	if len(f.broken) == 0 {
		t.Errorf("%s: %+v, want a broken promise", name, f)
	}
}

func one(endpoint, reason string, allowed, fromStore bool) Row {
	return Row{Endpoint: endpoint, Reason: reason, Allowed: allowed, FromStore: fromStore, N: 1}
}

// Every row of the table is one, and no other combination is.
func TestJudgeRows(t *testing.T) {
	good := map[Row]bool{}
	for _, id := range []string{failOpenID, failClosedID} {
		good[one(id, "allowed", true, true)] = true
		good[one(id, "rate_limited", false, true)] = true
	}
	for _, reason := range []string{"redis_timeout", "redis_connection_error", "redis_noscript_retry", "circuit_open"} {
		good[one(failOpenID, reason, true, false)] = true
	}
	good[one(failOpenID, "emergency_local_limit", false, false)] = true
	good[one(failClosedID, "fail_closed", false, false)] = true
	good[one(failClosedID, "circuit_open", false, false)] = true

	for _, id := range []string{failOpenID, failClosedID} {
		for _, reason := range []string{
			"allowed", "rate_limited", "redis_timeout", "redis_connection_error", "redis_noscript_retry",
			"circuit_open", "fail_closed", "emergency_local_limit", "", "error: x",
		} {
			for _, allowed := range []bool{true, false} {
				for _, fromStore := range []bool{true, false} {
					r := one(id, reason, allowed, fromStore)
					f := judgeRows([]Row{r})
					if got := len(f.broken) == 0; got != good[r] {
						t.Errorf("%s: held %t, want %t", r, got, good[r])
					}
				}
			}
		}
	}
}

func TestJudgeResponses(t *testing.T) {
	http := func(r Row, status int, headers bool) []Row {
		r.Status, r.Headers = status, headers
		return []Row{r}
	}
	holds(t, "allowed", judgeRows(http(one("page", "allowed", true, true), 200, true)))
	holds(t, "limited", judgeRows(http(one("page", "rate_limited", false, true), 429, true)))
	holds(t, "failed open", judgeRows(http(one("page", "redis_timeout", true, false), 200, false)))
	holds(t, "emergency", judgeRows(http(one("page", "emergency_local_limit", false, false), 429, false)))
	holds(t, "closed", judgeRows(http(one("job", "fail_closed", false, false), 503, false)))
	breaks(t, "headers without a verdict", judgeRows(http(one("page", "redis_timeout", true, false), 200, true)))
	breaks(t, "verdict without headers", judgeRows(http(one("page", "allowed", true, true), 200, false)))
	breaks(t, "503 for 429", judgeRows(http(one("page", "emergency_local_limit", false, false), 503, false)))
	breaks(t, "429 for 503", judgeRows(http(one("job", "fail_closed", false, false), 429, false)))
	breaks(t, "no response", judgeRows([]Row{{Endpoint: "page", Reason: "error: EOF", Status: -1, N: 1}}))
}

func TestJudgeFault(t *testing.T) {
	rows := []Row{one("page", "redis_timeout", true, false), one("job", "fail_closed", false, false), one("page", "circuit_open", true, false)}
	holds(t, "the reason", judgeFault(rows, "redis_timeout", nil))
	breaks(t, "another reason", judgeFault(rows, "redis_connection_error", nil))
	breaks(t, "only another that may be mixed in", judgeFault(rows, "redis_connection_error", []string{"redis_timeout"}))
	holds(t, "any", judgeFault(rows, "", []string{"redis_timeout"}))
	breaks(t, "a verdict", judgeFault(append(rows, one("page", "allowed", true, true)), "redis_timeout", nil))
}

func TestJudgeWell(t *testing.T) {
	holds(t, "all by Redis", judgeWell([]Row{one("page", "allowed", true, true)}))
	breaks(t, "one failed", judgeWell([]Row{one("page", "allowed", true, true), one("page", "redis_timeout", true, false)}))
}

func TestJudgeBudget(t *testing.T) {
	holds(t, "in time", judgeBudget([]int64{100, 20_000, 24_900}, 0, 20*time.Millisecond))
	breaks(t, "too late", judgeBudget([]int64{100, 25_100}, 0, 20*time.Millisecond))
	holds(t, "a late machine", judgeBudget([]int64{100, 27_900}, 3_000, 20*time.Millisecond))
	late := judgeBudget([]int64{100, 100, 90_000}, 20_000, 20*time.Millisecond).lateBy(20_000, 20*time.Millisecond)
	if !late.excused() {
		t.Errorf("a machine that is late excuses nothing: %+v", late)
	}
	always := judgeBudget([]int64{90_000, 90_000}, 20_000, 20*time.Millisecond).lateBy(20_000, 20*time.Millisecond)
	if always.excused() {
		t.Errorf("checks that are always late are excused by a machine that once was: %+v", always)
	}
	breaks(t, "later than the machine", judgeBudget([]int64{100, 28_100}, 3_000, 20*time.Millisecond))
}

func TestJudgeCharge(t *testing.T) {
	rows := []Row{
		{Endpoint: "job", Reason: "allowed", Allowed: true, FromStore: true, N: 10},
		{Endpoint: "job", Reason: "fail_closed", N: 3},
		{Endpoint: "job", Reason: "circuit_open", N: 100},
		{Endpoint: "page", Reason: "allowed", Allowed: true, FromStore: true, N: 50},
	}
	for charged, want := range map[int64]bool{9: false, 10: true, 13: true, 14: false} {
		if f := judgeCharge(charged, rows, "job", false); (len(f.broken) == 0) != want {
			t.Errorf("%d charged: %+v", charged, f)
		}
	}
	holds(t, "lost data", judgeCharge(2, rows, "job", true))
	breaks(t, "lost data, charged twice", judgeCharge(14, rows, "job", true))

	holds(t, "exact", judgeExact(60, rows, 0))
	breaks(t, "one more", judgeExact(61, rows, 0))
	breaks(t, "one less", judgeExact(59, rows, 0))
	holds(t, "one timed out", judgeExact(61, rows, 1))
}

func TestJudgeOpens(t *testing.T) {
	failed, open, good := one("job", "fail_closed", false, false), one("job", "circuit_open", false, false), one("job", "allowed", true, true)
	empty := one("page", "emergency_local_limit", false, false)
	sequence := func(n int, then ...Row) (rows []Row) {
		for range n {
			rows = append(rows, failed)
		}
		return append(rows, then...)
	}
	holds(t, "on the fifth", judgeOpens(sequence(5, open, empty, open)))
	breaks(t, "on the fourth", judgeOpens(sequence(4, open, open)))
	breaks(t, "on the sixth", judgeOpens(sequence(6, open)))
	breaks(t, "never", judgeOpens(sequence(20)))
	breaks(t, "too few", judgeOpens(sequence(3)))
	breaks(t, "a verdict between", judgeOpens(sequence(3, good, good)))
}

func TestJudgeProbes(t *testing.T) {
	holds(t, "one", judgeProbes(1, 1, 1, 1, true))
	breaks(t, "two calls", judgeProbes(2, 1, 1, 1, true))
	breaks(t, "two probes", judgeProbes(2, 2, 1, 1, true))
	breaks(t, "none", judgeProbes(0, 0, 1, 1, false))
	breaks(t, "a call that did not arrive", judgeProbes(0, 1, 1, 1, true))
	holds(t, "no connection to send it on", judgeProbes(0, 1, 1, 1, false))
	holds(t, "NOSCRIPT and again", judgeProbes(2, 1, 1, 2, true))
}

func TestJudgeRecovery(t *testing.T) {
	end := time.Now()
	at := func(d time.Duration) int64 { return end.Add(d).UnixMicro() }
	holds(t, "in time", judgeRecovery(end, at(29*time.Second), at(35*time.Second)))
	holds(t, "nothing failed", judgeRecovery(end, 0, at(time.Second)))
	breaks(t, "too late", judgeRecovery(end, at(32*time.Second), at(35*time.Second)))
	breaks(t, "never", judgeRecovery(end, at(29*time.Second), at(-time.Second)))
	breaks(t, "nothing at all", judgeRecovery(end, 0, 0))
}

func TestJudgeEmergency(t *testing.T) {
	holds(t, "a second of it at once", judgeEmergency([]Burst{{10, 0}}))
	breaks(t, "one more", judgeEmergency([]Burst{{11, 0}}))
	holds(t, "ten seconds", judgeEmergency([]Burst{{3, 0}, {110, 10_000_000}}))
	breaks(t, "ten seconds, one more", judgeEmergency([]Burst{{3, 0}, {111, 10_000_000}}))
}

// A bucket may have admitted as early as the first of its checks began, and that
// one may have ended last: the time of a burst is from there.
func TestABurstBeginsWithItsFirstCheck(t *testing.T) {
	at := func(millis int) time.Time { return time.UnixMilli(int64(millis)) }
	row := one(failOpenID, "redis_timeout", true, false)
	tally := newTally()
	tally.add(row, at(90), at(190))
	tally.add(row, at(0), at(200))
	tally.add(row, at(300), at(400))
	tally.add(row, at(310), at(390))
	var r Report
	tally.addTo(&r)
	if want := (Burst{Admitted: 4, Micros: 400_000}); len(r.Bursts) != 1 || r.Bursts[0] != want {
		t.Errorf("bursts %v, want %v", r.Bursts, want)
	}
}

func TestJudgeFootprint(t *testing.T) {
	before := Footprint{Goroutines: 20, Sockets: 10, Heap: 1 << 20}
	holds(t, "the same", judgeFootprint(before, before, 0))
	breaks(t, "a goroutine", judgeFootprint(before, Footprint{Goroutines: 21, Sockets: 10, Heap: 1 << 20}, 0))
	breaks(t, "a socket", judgeFootprint(before, Footprint{Goroutines: 20, Sockets: 11, Heap: 1 << 20}, 0))
	breaks(t, "memory", judgeFootprint(before, Footprint{Goroutines: 20, Sockets: 10, Heap: 6 << 20}, 0))
	holds(t, "more connections", judgeFootprint(before, Footprint{Goroutines: 28, Sockets: 18, Heap: 1 << 20}, 8))
	breaks(t, "too many connections", judgeFootprint(before, Footprint{Goroutines: 28, Sockets: 19, Heap: 1 << 20}, 8))
}

const (
	deniedText = "2026/11/29 10:00:00 WARN sentinel: denied identity_mode=tenant_jwt identity_hash=ab endpoint_id=job.live decision_reason=fail_closed latency_micro=3 breaker_state=open"
	heldText   = "2026/11/29 10:00:00 WARN sentinel: denials held back until close endpoint_id=job.live decision_reason=fail_closed suppressed=4"
	movedText  = "2026/11/29 10:00:00 WARN sentinel: circuit breaker open scope=limiter name=redis from=closed to=open"
)

func TestJudgeLog(t *testing.T) {
	rows := []Row{{Endpoint: "job", Reason: "fail_closed", N: 13}, one("page", "redis_timeout", true, false)}
	book := &logBook{}
	for _, line := range []string{deniedText, deniedText + " suppressed=7", movedText, "something else", heldText} {
		half := len(line) / 2 // as pipes do
		_, _ = book.Write([]byte(line[:half]))
		_, _ = book.Write([]byte(line[half:] + "\n"))
	}
	holds(t, "2 lines, 11 suppressed", judgeLog("live", rows, book))
	rows[0].N++
	breaks(t, "one denial more", judgeLog("live", rows, book))
	if n, some := book.rest(); n != 1 || some != "something else" || book.moves["open"] != 1 {
		t.Errorf("%d others %q, moves %v", n, some, book.moves)
	}
}

func TestLedger(t *testing.T) {
	l := newLedger("a", "b")
	l.note("a", "x", finding{tries: 2, worst: 1, figure: "one"})
	l.note("a", "y", finding{tries: 3, worst: 7, figure: "seven"})
	l.note("a", "z", finding{tries: 1, worst: 2, figure: "two"})
	got := l.promises()
	if p := got[0]; !p.holds() || p.tries != 6 || p.measured != "seven (y)" {
		t.Errorf("%+v", p)
	}
	if got[1].holds() {
		t.Error("a promise that was not tried is held")
	}
	l.note("a", "x", finding{tries: 1, broken: []string{"gone"}})
	if p := l.promises()[0]; p.holds() || strings.Join(p.broken, ";") != "x: gone" {
		t.Errorf("%+v", p)
	}
	l.note("b", "x", finding{tries: 1, broken: []string{"gone"}, timed: true, excuse: "the machine was late"})
	if p := l.promises()[1]; p.holds() || p.breaks() || p.tries != 0 || !strings.HasPrefix(p.verdict(), "NOT JUDGED") || len(p.unjudged) != 1 {
		t.Errorf("%+v", p)
	}
}

// What broke once and not again is listed; what broke again speaks for itself; what
// does not hang on time is not met again.
func TestWhatBreaksOnceIsMetAgain(t *testing.T) {
	late := finding{tries: 1, broken: []string{"over"}}.lateBy(0, 20*time.Millisecond)
	double := finding{tries: 1, broken: []string{"charged twice"}}
	for name, c := range map[string]struct {
		notes []note
		again bool
	}{
		"nothing broke":          {[]note{{"a", "x", finding{tries: 1}}}, false},
		"one that hangs on time": {[]note{{"a", "x", late}, {"b", "x", finding{tries: 1}}}, true},
		"one that does not":      {[]note{{"a", "x", late}, {"b", "x", double}}, false},
	} {
		o := &outcome{notes: c.notes}
		if again, _ := o.undecided(); again != c.again {
			t.Errorf("%s: met again: %v, want %v", name, again, c.again)
		}
	}
	l := newLedger("a")
	l.note("a", "x", finding{tries: 1})
	l.passed([]note{{"a", "x", late}}, []note{{"a", "x", late}})
	if p := l.promises()[0]; len(p.passed) != 0 {
		t.Errorf("what broke the last time, too, is passed: %+v", p)
	}
	l.passed([]note{{"a", "x", late}}, []note{{"a", "x", finding{tries: 1}}})
	if p := l.promises()[0]; !p.holds() || len(p.passed) != 1 || !strings.Contains(p.verdict(), "when met again") {
		t.Errorf("%+v, %s", p, p.verdict())
	}
}

func TestQuantile(t *testing.T) {
	sorted := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for q, want := range map[float64]int64{0: 1, 0.5: 6, 0.99: 11, 1: 11} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
}

func TestKeysOf(t *testing.T) {
	command := "*7\r\n$7\r\nevalsha\r\n$3\r\nabc\r\n$2\r\n17\r\n$1\r\nk\r\n"
	if got := keysOf([]byte(command)); got != 17 {
		t.Errorf("%d keys, want 17", got)
	}
	if got := keysOf([]byte("PING\r\n")); got != 0 {
		t.Errorf("%d keys of a PING", got)
	}
}
