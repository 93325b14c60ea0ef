package sentinel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

func TestQueue(t *testing.T) {
	var q queue
	w := [4]*waiter{{}, {}, {}, {}}
	for _, each := range w {
		q.push(each)
	}
	if !q.remove(w[1]) || q.remove(w[1]) {
		t.Fatal("the second is not removed exactly once")
	}
	if !q.remove(w[3]) { // the last: the tail moves
		t.Fatal("the last is not removed")
	}
	q.push(w[1])
	for _, want := range []*waiter{w[0], w[2], w[1]} {
		if got := q.pop(); got != want || got.next != nil {
			t.Fatal("not in the order of arrival")
		}
	}
	if q.head != nil {
		t.Fatal("not empty")
	}
	q.push(w[0])
	if q.pop() != w[0] {
		t.Fatal("an emptied queue loses what is pushed")
	}
}

// crowd is a store without a Redis and a number of callers, each of whom asks
// again as soon as he is answered.
type crowd struct {
	*redisStore
	idle   int                  // callers without a question
	asking map[*waiter]struct{} // and with one
	flying []*line              // in the order in which their calls began
}

func newCrowd(callers int) *crowd {
	c := &crowd{
		redisStore: &redisStore{open: maxLines, max: maxLines, wake: make(chan struct{}, 1)},
		idle:       callers, asking: map[*waiter]struct{}{},
	}
	for range maxLines {
		c.free = append(c.free, &line{})
	}
	return c
}

// ask has one caller ask.
func (c *crowd) ask() {
	now := time.Now()
	w := &waiter{question: question{group: groupOf(cookieSubject), asked: now, deadline: now.Add(20 * time.Minute)}, turn: make(chan turn, 1)}
	c.idle--
	c.asking[w] = struct{}{}
	if ln, _ := c.arrive(w); ln != nil {
		c.begin(ln, w)
	}
	c.follow()
}

func (c *crowd) askAll() {
	for c.idle > 0 {
		c.ask()
	}
}

func (c *crowd) begin(ln *line, leader *waiter) {
	c.gather(ln, leader)
	c.flying = append(c.flying, ln)
}

// follow does what those do whose turn has come.
func (c *crowd) follow() {
	for w := range c.asking {
		select {
		case t := <-w.turn:
			c.begin(t.line, w)
		default:
		}
	}
}

// end has the i-th call in flight answered.
func (c *crowd) end(i int) {
	ln := c.flying[i]
	c.flying = slices.Delete(c.flying, i, i+1)
	for _, w := range ln.batch {
		delete(c.asking, w)
		c.inside--
		c.idle++
	}
	c.release(ln, nil)
	c.follow()
}

// Whoever waits waits behind a call, whose end wakes him: he has no timer.
func TestNobodyWaitsButBehindACall(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for _, callers := range []int{1, 2, 4, 5, 8, 13, 64, 256, 1000} {
		c := newCrowd(callers)
		most := 0
		for range 20_000 {
			if c.idle > 0 && (len(c.flying) == 0 || r.IntN(4) > 0) {
				c.ask()
			} else {
				c.end(r.IntN(len(c.flying)))
			}
			most = max(most, len(c.flying))
			inCalls := 0
			for _, ln := range c.flying {
				inCalls += len(ln.batch)
			}
			switch {
			case c.busy != len(c.flying) || c.busy > maxCalls:
				t.Fatalf("%d callers: %d busy, %d calls in flight", callers, c.busy, len(c.flying))
			case c.inside != len(c.asking) || c.inside != c.queue.n+inCalls:
				t.Fatalf("%d callers: %d inside, %d ask, %d wait, %d in calls", callers, c.inside, len(c.asking), c.queue.n, inCalls)
			case c.queue.n > 0 && c.busy == 0:
				t.Fatalf("%d callers: %d wait behind nothing", callers, c.queue.n)
			case callers <= few && c.queue.n > 0:
				t.Fatalf("%d callers: %d wait for company", callers, c.queue.n)
			}
		}
		if callers > 1 && most < 2 {
			t.Errorf("%d callers: never two calls in flight", callers)
		}
	}
}

// One call that is stuck, on a connection that has lost a packet, is no reason
// for others to wait.
func TestAStuckCallHoldsUpNobodyElse(t *testing.T) {
	for _, callers := range []int{2, 5, 6, 7, 8, 9, 16, 33, 64, 256} {
		for _, calls := range []int{1, 100} { // of a crowd that has just come, or that has its rhythm
			c := newCrowd(callers)
			for range calls {
				c.askAll()
				c.end(0)
			}
			stuck := c.flying[len(c.flying)-1]
			for range 100 {
				c.askAll()
				i := slices.IndexFunc(c.flying, func(ln *line) bool { return ln != stuck })
				if i < 0 {
					t.Fatalf("%d callers, after %d calls: one is stuck with %d of them, and %d wait behind it",
						callers, calls, len(stuck.batch), c.queue.n)
				}
				c.end(i)
			}
		}
	}
}

// Nor are those who come behind it, too few for a half and followed by nobody.
func TestFewBehindAStuckCallWaitAQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(64)
		for range 100 {
			c.askAll()
			c.end(0)
		}
		c.askAll()
		for len(c.flying) > 1 { // the last one is stuck
			c.end(0)
		}
		for range 5 {
			c.ask()
		}
		waiting := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.queue.n
		}
		n := waiting()
		if len(c.flying) != 1 || n < 5 {
			t.Fatalf("%d calls in flight, %d wait", len(c.flying), n)
		}
		time.Sleep(5*time.Minute - time.Nanosecond)
		synctest.Wait()
		if waiting() != n {
			t.Errorf("%d wait before a quarter of the budget is over", waiting())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		waiting() // orders what follows after the timer
		c.follow()
		if len(c.flying) != 2 || len(c.flying[1].batch) != n || c.queue.n != 0 {
			t.Errorf("%d calls in flight, %d wait", len(c.flying), c.queue.n)
		}
	})
}

// A crowd goes in two halves, so that Redis makes one while the other comes.
func TestACrowdGoesInHalves(t *testing.T) {
	c := newCrowd(64)
	for range 100 {
		c.askAll()
		c.end(0)
	}
	c.askAll()
	for _, ln := range c.flying {
		if n := len(ln.batch); n < 24 || n > 36 {
			t.Errorf("a call of %d", n)
		}
	}
	if len(c.flying) != 2 {
		t.Errorf("%d calls", len(c.flying))
	}
}

// Each decision gets its own part of a reply; one that does not fit is nobody's.
func TestShare(t *testing.T) {
	one, two := &waiter{question: question{group: groupOf(cookieSubject)}}, &waiter{question: question{group: groupOf(cookieSubject, peerSubject)}}
	batch := []*waiter{one, two}
	reply := []int64{
		testTime,
		0, 0, 5_000_000, 4,
		1_000_000, -1_000_000, 998_000, 0, 0, 0, 0, -1,
	}
	if failure := share(modeDecide, batch, reply); failure != nil {
		t.Fatal(failure)
	}
	if want := verdictOf(true, bucket.Answer{Remaining: 4, Wait: 1_000_000_000, Reset: 1000}); one.verdict != want {
		t.Errorf("%+v", one.verdict)
	}
	if want := verdictOf(false, bucket.Answer{Denied: true, Wait: 1_000_000, Reset: 4001}, bucket.Answer{Remaining: 10, Wait: bucket.Never}); two.verdict != want {
		t.Errorf("%+v", two.verdict)
	}
	for name, reply := range map[string][]int64{
		"empty":     nil,
		"too short": reply[:len(reply)-1],
		"too long":  append(append([]int64{}, reply...), 0),
		"a part":    reply[:5],
		"no time":   append([]int64{-1}, reply[1:]...),
		"late":      append([]int64{bucket.MaxWait}, reply[1:]...),
	} {
		if failure := share(modeDecide, batch, reply); failure == nil || failure.kind != kindBadReply || !failure.sent {
			t.Errorf("%s: %+v", name, failure)
		}
	}
}

// A call that fails is one event: its leader's.
func TestFailTogether(t *testing.T) {
	leader, follower := &waiter{}, &waiter{}
	leader.verdict.allowed, follower.verdict.allowed = true, true
	failTogether([]*waiter{follower, leader}, leader, &storeFailure{kind: kindConnection, sent: true})
	if leader.failure.shared || !follower.failure.shared || follower.failure.kind != kindConnection {
		t.Errorf("leader %+v, follower %+v", leader.failure, follower.failure)
	}
	if leader.verdict.allowed || follower.verdict.allowed {
		t.Error("a failed call left a verdict")
	}
}

// Whoever waited behind others' calls is nothing of its own to the breaker.
func TestWaitingBehindOthersIsNotAFailureOfRedis(t *testing.T) {
	for _, behind := range []bool{false, true} {
		w := &waiter{behind: behind}
		f := &storeFailure{kind: kindTimeout}
		w.fail(f)
		if w.failure.shared != behind || f.shared {
			t.Errorf("behind %v: %+v", behind, w.failure)
		}
	}
}

// Whoever was behind when the last line went, and learns that there is no other,
// has a failure of its own, like all who come later: or a crowd that meets a dead
// port in the middle of its calls would leave the breaker closed.
func TestNoLineLeftIsAFailureOfRedis(t *testing.T) {
	s := &redisStore{failed: &storeFailure{kind: kindConnection}}
	w := &waiter{behind: true, turn: make(chan turn, 1)}
	s.queue.push(w)
	s.dispatch()
	if got := <-w.turn; !got.answered || w.failure == nil || w.failure.shared {
		t.Errorf("%+v, failure %+v", got, w.failure)
	}
}

// Nor is a call that was sent with the rest of a time that others' calls took:
// one stall would fail it at once, however short it is.
func TestAHurriedCallIsNotAFailureOfRedis(t *testing.T) {
	asked := time.Now()
	for _, c := range []struct {
		name   string
		behind bool
		sent   time.Duration // after the question, which has 20 ms
		kind   failureKind
		want   bool
	}{
		{"sent at once", false, 0, kindTimeout, false},
		{"behind a short call", true, 9 * time.Millisecond, kindTimeout, false},
		{"behind a call that timed out", true, 19 * time.Millisecond, kindTimeout, true},
		{"behind nobody, but for want of a connection", false, 19 * time.Millisecond, kindTimeout, false},
		{"and answered with an error", true, 19 * time.Millisecond, kindErrorReply, false},
	} {
		w := &waiter{question: question{asked: asked, deadline: asked.Add(20 * time.Millisecond)}, behind: c.behind}
		f := &storeFailure{kind: c.kind, sent: true}
		failTogether([]*waiter{w}, w, f)
		w.hurried(asked.Add(c.sent))
		if w.failure.shared != c.want || f.shared || !w.failure.sent {
			t.Errorf("%s: %+v", c.name, w.failure)
		}
	}
}

// Calls that are out at the same time and get no answer are one failure: the
// first whose time runs out. One that is sent later is another.
func TestCallsOutTogetherFailOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &redisStore{}
		fails := func(sent time.Time, kind failureKind) bool {
			w := &waiter{failure: &storeFailure{kind: kind}}
			s.echoes(w, sent)
			return !w.failure.shared
		}
		sent := time.Now()
		time.Sleep(time.Millisecond)
		alsoSent := time.Now()
		time.Sleep(20 * time.Millisecond)
		for _, c := range []struct {
			name string
			sent time.Time
			kind failureKind
			want bool
		}{
			{"the first", sent, kindTimeout, true},
			{"sent before that failed", alsoSent, kindTimeout, false},
			{"a connection that broke", alsoSent, kindConnection, true},
			{"sent since", time.Now().Add(time.Millisecond), kindTimeout, true},
		} {
			if got := fails(c.sent, c.kind); got != c.want {
				t.Errorf("%s: counts %v, want %v", c.name, got, c.want)
			}
		}
	})
}

// What has waited behind others and has less time left than a call takes is not
// sent: it would time out, and cost the line.
func TestWhatCannotComeInTimeIsNotSent(t *testing.T) {
	s := &redisStore{}
	now := time.Now()
	left := func(d time.Duration, behind bool) bool {
		return s.tooLate(&waiter{question: question{deadline: now.Add(d)}, behind: behind}, now)
	}
	if left(time.Nanosecond, true) || !left(0, false) {
		t.Error("not by its deadline where nothing is known")
	}
	s.took(60 * time.Millisecond)
	s.took(76 * time.Millisecond)
	if s.usual.Load() != int64(62*time.Millisecond) {
		t.Errorf("usual is %v", time.Duration(s.usual.Load()))
	}
	if !left(77*time.Millisecond, true) || left(78*time.Millisecond, true) || left(time.Millisecond, false) {
		t.Error("not by what a call takes, for those behind others")
	}
	s.took(time.Millisecond)
	if left(2*time.Millisecond, true) {
		t.Error("a quick call does not count at once")
	}
}

// Whoever came while there was no line waits behind others as soon as there is
// one, and whose turn comes too late has waited behind them.
func TestALineIsThereButInUse(t *testing.T) {
	s := &redisStore{max: maxLines, attempt: make(chan struct{})}
	came := func() *waiter {
		w := &waiter{question: question{asked: time.Now(), deadline: time.Now().Add(time.Minute)}, turn: make(chan turn, 1)}
		if ln, queued := s.arrive(w); ln != nil || !queued || !w.timed || w.behind {
			t.Fatalf("%v, %v, %+v", ln, queued, w)
		}
		return w
	}
	first, second, late := came(), came(), came()
	ln := &line{}
	s.open, s.free = 1, []*line{ln}
	s.dispatch()
	if got := <-first.turn; got.line != ln || first.behind {
		t.Errorf("the first: %+v, behind %v", got, first.behind)
	}
	if !second.behind || !late.behind {
		t.Error("who waits while the first has the line does not wait behind it")
	}

	hasted := &waiter{question: question{deadline: time.Now().Add(-time.Millisecond)}, turn: make(chan turn, 1)}
	if !s.lead(ln, hasted) || hasted.failure == nil || !hasted.failure.shared {
		t.Errorf("its turn came too late: %+v", hasted.failure)
	}
}

// Whoever comes again, because its line was gone, stands behind those who came
// after it. Their calls may end later than it can wait, so it has a timer.
func TestWhoComesAgainWaitsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &redisStore{max: maxLines, open: 1, busy: 1, inside: 1, wake: make(chan struct{}, 1)}
		w := &waiter{question: question{asked: time.Now(), deadline: time.Now().Add(20 * time.Millisecond)}, turn: make(chan turn, 1), counted: true}
		if ln, queued := s.arrive(w); ln != nil || !queued || s.inside != 1 {
			t.Fatalf("%v, %v, %d inside", ln, queued, s.inside)
		}
		late := time.AfterFunc(40*time.Millisecond, func() { w.turn <- turn{} }) // when the call ahead ends
		defer late.Stop()
		if got := s.await(w); !got.answered || time.Now().After(w.deadline) {
			t.Errorf("%+v, %v late", got, time.Since(w.deadline))
		}
		if w.failure == nil || w.failure.kind != kindTimeout || !w.failure.shared {
			t.Errorf("%+v, which was others' time", w.failure)
		}
	})
}
