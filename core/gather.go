package sentinel

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// Decisions that arrive together go to Redis together. One that finds no call in
// flight is sent at once and alone, and while few are about all are. Where there
// are more, another call begins beside those in flight as soon as a half of all
// decisions has gathered for it; the one that has waited longest leads it and
// takes the others along. When the last call in flight ends, the next begins with
// whoever is there, so nobody waits for company alone. Nor does anybody wait long
// behind a call that is stuck: a quarter of the budget, by one timer for all.
//
// A decision that waits behind calls needs no timer of its own: a call ends by its
// leader's deadline, and calls begin in the order of arrival, so its own deadline
// is later. Only where there is no line at all does a decision wait by the clock,
// and where it has lost its place because the server had closed its line.

const (
	// maxBatch bounds the decisions of one call: a script is not interrupted,
	// and others may use this Redis too.
	maxBatch = 128
	// maxCalls bounds the calls in flight at the same time.
	maxCalls = 8
	// few decisions are not worth waiting for each other. Of more a call takes
	// one of parts: fuller calls spare Redis and this process the most work, but
	// there must be one on its way while another is made, and a call that is
	// stuck must leave enough of them out to fill others.
	few, parts = 4, 2
	// The number of decisions is smoothed, for it drops by a whole part when a
	// call ends.
	loadUnit = 16
)

// waiter is one decision inside the store.
type waiter struct {
	question
	verdict verdict
	failure *storeFailure
	// timed waits by the clock, for there was no line when it came, or it came
	// again. behind has waited behind the calls of others.
	timed, behind bool
	counted       bool // in inside
	turn          chan turn
	next          *waiter // in the queue
}

// turn is why a waiter is woken.
type turn struct {
	line     *line // to lead a call on
	answered bool  // its verdict or failure is there
}

// The third turn, neither, says that no line is left: wait by the clock.

var waiters = sync.Pool{New: func() any { return &waiter{turn: make(chan turn, 1)} }}

// fail fails the decision. To the breaker it is nothing of its own where other
// decisions' calls took the time.
func (w *waiter) fail(f *storeFailure) {
	if w.behind && !f.shared {
		also := *f
		also.shared = true
		f = &also
	}
	w.failure = f
}

// hurried takes back the failure of a call that w has led, where most of w's
// time was gone before the call was sent, behind others: that it was not
// answered in the rest says nothing new about Redis. A stall fails the calls that
// are out, and the first of those behind them a moment later.
func (w *waiter) hurried(sent time.Time) {
	if w.behind && w.failure.kind == kindTimeout && w.deadline.Sub(sent) < w.deadline.Sub(w.asked)/2 {
		w.fail(w.failure)
	}
}

// echoes takes back the failure of a call that w has led, where that call was out
// when the time of another ran out that counts: one silence has failed both. What
// opens the breaker is calls that fail one after the other.
func (s *redisStore) echoes(w *waiter, sent time.Time) {
	if w.failure.kind != kindTimeout || w.failure.shared {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.After(s.silent) {
		s.silent = time.Now()
		return
	}
	also := *w.failure
	also.shared = true
	w.failure = &also
}

// tooLate reports whether w has less time left than calls take, and a quarter of
// that for those that take longer. To send its call would cost the line.
func (s *redisStore) tooLate(w *waiter, now time.Time) bool {
	left := w.deadline.Sub(now)
	return left <= 0 || w.behind && left < time.Duration(s.usual.Load())*5/4
}

// took notes how long a call took that was answered. The quick ones count more:
// what is usual is what the way to Redis and back takes.
func (s *redisStore) took(d time.Duration) {
	usual := time.Duration(s.usual.Load())
	if usual > 0 && d > usual {
		d = usual + (d-usual)/8
	}
	s.usual.Store(int64(d))
}

// queue holds waiters in the order of their arrival. Its zero value is empty.
type queue struct {
	head, tail *waiter
	n          int
}

func (q *queue) push(w *waiter) {
	q.n++
	if q.head == nil {
		q.head = w
	} else {
		q.tail.next = w
	}
	q.tail = w
}

func (q *queue) pop() *waiter {
	w := q.head
	q.head, w.next = w.next, nil
	q.n--
	return w
}

// remove takes w out and reports whether it was there.
func (q *queue) remove(w *waiter) bool {
	var before *waiter
	for at := q.head; at != nil; before, at = at, at.next {
		if at != w {
			continue
		}
		if before == nil {
			q.head = w.next
		} else {
			before.next = w.next
		}
		if q.tail == w {
			q.tail = before
		}
		w.next = nil
		q.n--
		return true
	}
	return false
}

func (s *redisStore) decide(q question) (verdict, *storeFailure) {
	w := waiters.Get().(*waiter)
	defer waiters.Put(w)
	w.question, w.verdict, w.failure = q, verdict{}, nil
	w.timed, w.behind, w.counted = false, false, false
	for ln, queued := s.arrive(w); ; ln, queued = s.arrive(w) {
		if queued {
			t := s.await(w)
			if t == (turn{}) {
				continue
			}
			ln = t.line
		}
		if ln == nil || s.lead(ln, w) {
			break
		}
	}
	s.mu.Lock()
	s.inside--
	s.mu.Unlock()
	return w.verdict, w.failure
}

// arrive returns a line to lead a call on at once, or queues the decision.
// Neither: it has failed.
func (s *redisStore) arrive(w *waiter) (ln *line, queued bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := w.counted
	if !again {
		w.counted = true
		s.inside++
		s.load += s.inside - s.load/loadUnit
	}
	if failure := s.hopeless(); failure != nil {
		w.failure = failure
		return nil, false
	}
	s.queue.push(w)
	due := s.due()
	if due && s.queue.head == w { // as every lone decision: nobody need be woken
		return s.take(), false
	}
	w.timed = s.open == 0 || again // it stands behind later ones now
	w.behind = w.behind || s.open > 0
	s.clocked = s.clocked || s.open == 0
	if due {
		s.dispatch()
	} else {
		s.grow()
	}
	s.beImpatient()
	return nil, true
}

// beImpatient has the one who has waited longest wait no longer than a quarter of
// his time for company; the caller holds the lock.
func (s *redisStore) beImpatient() {
	w := s.queue.head
	if w == nil || s.open == 0 || s.impatient {
		return
	}
	s.lookAfter(time.Until(w.asked.Add(w.quarter())))
}

func (s *redisStore) lookAfter(d time.Duration) {
	s.impatient = true
	if s.patience == nil {
		s.patience = time.AfterFunc(d, s.outOfPatience)
	} else {
		s.patience.Reset(d)
	}
}

// quarter is the part of its time that a decision waits for company at most.
func (w *waiter) quarter() time.Duration { return w.deadline.Sub(w.asked) / 4 }

// outOfPatience begins a call for whoever waits too long behind those in flight.
func (s *redisStore) outOfPatience() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.impatient = false
	w := s.queue.head
	if w == nil || s.open == 0 {
		return
	}
	if time.Since(w.asked) < w.quarter() {
		s.beImpatient()
		return
	}
	s.lookAfter(w.quarter()) // whoever the call does not take along
	if len(s.free) > 0 && s.busy < maxCalls {
		w.turn <- turn{line: s.take()}
	}
}

// due reports whether a call is to begin; the caller holds the lock.
func (s *redisStore) due() bool { return s.worth() && len(s.free) > 0 }

// worth reports whether a call is to begin as soon as there is a line; the caller
// holds the lock.
func (s *redisStore) worth() bool {
	switch {
	case s.queue.n == 0 || s.busy >= maxCalls:
		return false
	case s.busy == 0 || s.queue.head.alone:
		return true
	default:
		return s.queue.n >= s.part()
	}
}

// part is how many decisions a call takes while there are others, in flight or
// to come; the caller holds the lock.
func (s *redisStore) part() int {
	load := s.load / loadUnit
	if load <= few {
		return 1
	}
	return min((load+parts-1)/parts, maxBatch)
}

// hopeless returns why waiting for a line is pointless, nil if it is not. Where
// Redis is known to be away and the next attempt is not yet due, waiting would
// only be slower. The caller holds the lock.
func (s *redisStore) hopeless() *storeFailure {
	switch {
	case s.closed:
		return &storeFailure{kind: kindClosed, detail: "the limiter is closed"}
	case s.open == 0 && s.attempt == nil:
		return s.failed
	default:
		return nil
	}
}

// take takes the head out of the queue and, for its call, the line that was used
// last; the caller holds the lock and has seen that both are there.
func (s *redisStore) take() *line {
	s.queue.pop()
	last := len(s.free) - 1
	ln := s.free[last]
	s.free = s.free[:last]
	s.busy++
	return ln
}

// grow asks for one more line where a decision waits for nothing else; the
// caller holds the lock.
func (s *redisStore) grow() {
	wanted := s.open == 0 || len(s.free) == 0 && s.worth() && s.open < s.max && time.Now().After(s.growAfter)
	if wanted && s.attempt == nil && s.failed == nil {
		s.begin()
	}
}

// await waits for the turn of a queued decision, or for its deadline where no
// call is in flight whose end would wake it.
func (s *redisStore) await(w *waiter) turn {
	if !w.timed {
		return <-w.turn
	}
	timer := time.NewTimer(time.Until(w.deadline))
	defer timer.Stop()
	select {
	case t := <-w.turn:
		return t
	case <-timer.C:
	case <-w.done:
	}
	s.mu.Lock()
	left := s.queue.remove(w)
	s.mu.Unlock()
	if !left {
		return <-w.turn // its turn came at the same moment
	}
	w.fail(&storeFailure{kind: kindTimeout, detail: "no connection became ready in time"})
	return turn{answered: true}
}

// lead makes one call on ln, for w and those that it takes along, and passes
// the line on. It reports false where the server had closed the line: nothing
// was sent then, and w may try again.
func (s *redisStore) lead(ln *line, w *waiter) bool {
	sent := time.Now()
	switch {
	case s.tooLate(w, sent):
		w.behind = true // there is a line, and others had it
		w.fail(&storeFailure{kind: kindTimeout, detail: "its turn came too late"})
		s.release(ln, nil)
		return true
	case !s.sound(ln):
		s.release(ln, &storeFailure{kind: kindConnection})
		return false
	}
	s.gather(ln, w)
	failure := s.run(ln, w)
	if w.failure != nil {
		w.hurried(sent)
		s.echoes(w, sent)
	} else {
		s.took(time.Since(sent))
	}
	var room [maxBatch]*waiter
	followers := room[:copy(room[:], ln.batch)]
	s.release(ln, failure)
	for _, f := range followers {
		if f != w {
			f.turn <- turn{answered: true}
		}
	}
	return true
}

// run makes the call for ln's batch, led by w, and gives each its verdict or
// failure. It returns what the call says against the line.
func (s *redisStore) run(ln *line, w *waiter) *storeFailure {
	ctx, cancel := withDeadline(w.deadline)
	defer cancel()
	if s.cluster && ln.cut() {
		return runParts(ctx, ln, w)
	}
	reply, failure := call(ctx, ln, w.mode)
	if failure == nil {
		failure = share(w.mode, ln.batch, reply)
	}
	if failure != nil {
		failTogether(ln.batch, w, failure)
	}
	if failure.aboutCluster() {
		return nil
	}
	return failure
}

// gather puts w and its part of those behind it into ln's next call, sorted so
// that decisions of one kind stand together. The sort is stable: one key is
// always of one kind, so decisions on it keep their order.
func (s *redisStore) gather(ln *line, w *waiter) {
	ln.batch = append(ln.batch[:0], w)
	if !w.alone {
		s.mu.Lock()
		most := max(s.part(), few)
		for len(ln.batch) < most && s.queue.head != nil && !s.queue.head.alone {
			ln.batch = append(ln.batch, s.queue.pop())
		}
		s.mu.Unlock()
		if s.cluster {
			slices.SortStableFunc(ln.batch, bySlot)
		} else {
			slices.SortStableFunc(ln.batch, byKind)
		}
	}
	ln.groups = ln.groups[:0]
	for _, each := range ln.batch {
		ln.groups = append(ln.groups, each.group)
	}
	ln.beside = besides(ln.beside[:0], ln.batch)
}

// besides appends what is to be decided beside the batch, in its order.
func besides(groups []group, batch []*waiter) []group {
	for _, w := range batch {
		if w.beside != nil {
			groups = append(groups, w.beside.group)
		}
	}
	return groups
}

func byKind(a, b *waiter) int {
	return cmp.Or(
		cmp.Compare(a.group.of[0].rule.number, b.group.of[0].rule.number),
		cmp.Compare(a.group.n, b.group.n),
		cmp.Compare(a.group.cost, b.group.cost),
	)
}

// share hands each its part of the reply, which begins with the time. Behind the
// parts of all are those of their candidates.
func share(m mode, batch []*waiter, reply []int64) *storeFailure {
	if len(reply) == 0 || reply[0] < 0 || reply[0] >= bucket.MaxWait {
		return badReply(errors.New("a reply without a time"))
	}
	now, rest := reply[0], reply[1:]
	for _, w := range batch {
		n := replyLen(&w.group)
		if n > len(rest) {
			return badReply(errors.New("a reply that is too short"))
		}
		var err error
		if w.verdict, err = parseReply(m, now, rest[:n], &w.group); err != nil {
			return badReply(err)
		}
		rest = rest[n:]
	}
	for _, w := range batch {
		if w.beside == nil {
			continue
		}
		n := replyLen(&w.beside.group)
		if n > len(rest) {
			return badReply(errors.New("a reply that is too short"))
		}
		w.beside.take(m, now, rest[:n])
		rest = rest[n:]
	}
	if len(rest) > 0 {
		return badReply(errors.New("a reply that is too long"))
	}
	return nil
}

func badReply(err error) *storeFailure {
	return &storeFailure{kind: kindBadReply, sent: true, detail: err.Error()}
}

// failTogether fails decisions of a call. For the breaker the call is one event,
// and its leader reports it, if it has failed too.
func failTogether(batch []*waiter, leader *waiter, f *storeFailure) {
	also := *f
	also.shared = true
	for _, w := range batch {
		w.verdict, w.failure = verdict{}, &also
		if w == leader {
			w.failure = f
		}
	}
}

// release gives a line back, or drops it after a failure: the next answer on it
// might be the last question's, and after an error reply this may be another
// server than it was, or no longer the master. The client's pool keeps the
// connection if it is sound, so that a successor costs no dial.
func (s *redisStore) release(ln *line, failure *storeFailure) {
	ln.used = time.Now()
	clear(ln.batch) // they belong to their callers again
	clear(ln.groups)
	clear(ln.beside)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if failure == nil && !s.closed && !s.deposed(ln) {
		s.free = append(s.free, ln)
	} else {
		s.open--
		_ = ln.conn.Close()
		if failure != nil && failure.replica {
			s.proven = false
		}
		if failure != nil && (failure.kind == kindConnection || ln.rested && ln.socket == nil) {
			s.drain() // the server hung up on one: do not trust the others unseen
		}
		s.topUp()
	}
	s.dispatch()
}

// drain gives all unused lines back to the client's pool; the caller holds the
// lock.
func (s *redisStore) drain() {
	for _, ln := range s.free {
		s.open--
		_ = ln.conn.Close()
	}
	clear(s.free)
	s.free = s.free[:0]
}

// dispatch hands free lines to those who have waited longest. Where none is
// left it sends those away who cannot hope, and has the others wait by the
// clock; the caller holds the lock.
func (s *redisStore) dispatch() {
	for s.due() {
		w := s.queue.head
		w.turn <- turn{line: s.take()}
	}
	if s.open > 0 {
		s.lineUp()
		return
	}
	failure := s.hopeless()
	var clocked queue
	for s.queue.head != nil {
		switch w := s.queue.pop(); {
		case failure != nil: // its own, also of those who were behind: no call took their time
			w.failure = failure
			w.turn <- turn{answered: true}
		case w.timed:
			clocked.push(w)
		default:
			w.turn <- turn{}
		}
	}
	s.queue = clocked
}

// lineUp has those who came while there was no line wait behind whoever has one
// now; the caller holds the lock.
func (s *redisStore) lineUp() {
	if !s.clocked {
		return
	}
	s.clocked = false
	for w := s.queue.head; w != nil; w = w.next {
		w.behind = true
	}
}
