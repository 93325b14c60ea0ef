package proxy

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

// Retry is how a request is sent again when an attempt has failed in a way that
// may pass. The zero value is: not at all.
type Retry struct {
	Attempts    int  // in all; below 2: one
	NextBackend bool // each attempt goes to another backend; else all go to the same
	// Base and Cap bound the wait before an attempt: the first one's is up to Base,
	// each further one's up to twice as much, never more than Cap.
	Base, Cap time.Duration
	PerTry    time.Duration // of each attempt, to its response's header; 0: none
	// Of the requests that wait for the pool's backends, Percent may be retries, but
	// Least in any case.
	Percent, Least int
	Budget         *Budget // of the pool; nil: retries are not bounded
}

// bound is what the wait before the attempt after the k-th is less than; k is at
// least 1.
func (r *Retry) bound(k int) time.Duration {
	d := r.Base
	for ; k > 1 && d < r.Cap; k-- {
		if d > r.Cap/2 {
			return r.Cap
		}
		d *= 2
	}
	return min(d, r.Cap)
}

// delay is the wait before the attempt after the k-th: anything below the bound,
// each as likely, so that clients who failed together do not come back together.
func (r *Retry) delay(k int) time.Duration {
	bound := r.bound(k)
	if bound <= 0 {
		return 0
	}
	return rand.N(bound) // #nosec G404 -- no secret
}

// repeatable reports whether the method does no harm when it is done twice.
func repeatable(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// moment is what decides about another attempt when one has failed in a way that
// may pass.
type moment struct {
	method     string
	upgrade    bool // the request is to switch protocols
	begun      bool // the client has got something other than a 1xx
	replayable bool // the body can be sent again
	draining   bool
	attempts   int           // that were made
	delay      time.Duration // before the next one
	left       time.Duration // of the request's time
}

// follows reports whether another attempt is to follow, if the backends and the
// budget allow it.
func (r *Retry) follows(m moment) bool {
	return m.attempts < r.Attempts && repeatable(m.method) && !m.upgrade && !m.begun &&
		m.replayable && !m.draining && m.delay < m.left
}

// repeatable reports whether the request may be sent more than once, as far as
// that is known before it is sent.
func (x *exchange) repeatable() bool {
	return x.route.Retry.Attempts > 1 && x.upgrade == "" && repeatable(x.r.Method)
}

// replayable reports whether all of the body is here, or there is none.
func (x *exchange) replayable() bool { return x.body == nil || x.whole }

// another reports whether an attempt that is about to begin may be followed by
// another one.
func (x *exchange) another() bool {
	return x.repeatable() && x.replayable() && x.record.Attempts+1 < x.route.Retry.Attempts && !x.draining()
}

func (x *exchange) draining() bool {
	select {
	case <-x.h.draining:
		return true
	default:
		return false
	}
}

// left is how much time the request has.
func (x *exchange) left() time.Duration {
	if x.deadline.IsZero() {
		return 1<<63 - 1
	}
	return time.Until(x.deadline)
}

// pause waits before another attempt, and reports whether there is still to be one.
func (x *exchange) pause(d time.Duration) bool {
	if d >= x.left() {
		return false
	}
	began := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.r.Context().Done():
	case <-x.h.draining:
	}
	x.record.RetryDelay += time.Since(began)
	return x.r.Context().Err() == nil && !x.draining()
}

// tries is how a request comes to its answer: by one attempt, and by another one
// after each that failed in a way that may pass. The client gets the last
// response that a backend gave, if one did.
//
// All attempts at one backend have the same lease, and so one outcome for its
// breaker.
type tries struct {
	x     *exchange
	share share
	lease *upstream.Lease
	tried []*upstream.Backend // with other leases
	made  int
	wires int // that had been counted before the last attempt

	now    *attempt // under way; nil: none is
	failed *problem // why the last attempt had no response; nil: it had one

	// The last response, which is perhaps of an earlier attempt.
	last *attempt // nil: there was none
	resp *http.Response
	kept *buffer // of its body
	done bool    // all of the body is in it; the attempt has ended
}

// attempt sends the request once.
func (t *tries) attempt() {
	x := t.x
	x.record.Backend, x.record.Breaker = t.lease.Backend().Name(), breaker.Closed.String()
	if t.lease.Probe() {
		x.record.Breaker = breaker.HalfOpen.String()
	}
	if !x.repeatable() || !x.route.Retry.NextBackend {
		x.leave() // it will ask for no other backend
	}
	t.made++
	t.wires = x.record.Attempts
	a := x.attempt(t.lease)
	t.now = a
	resp, failed := a.roundTrip() //nolint:bodyclose // drop or relay closes it
	t.now = nil
	t.share.answered()
	t.failed = failed
	if failed != nil {
		a.end()
		return
	}
	t.drop()
	t.last, t.resp = a, resp
}

// again waits for the next attempt, and reports whether there is to be one.
func (t *tries) again() bool {
	x := t.x
	r := &x.route.Retry
	why := t.passing()
	if why == "" {
		return false // as nearly always
	}
	m := moment{
		method: x.r.Method, upgrade: x.upgrade != "", begun: x.front.status != 0,
		replayable: x.replayable() || x.body.untouched(), draining: x.draining(), attempts: x.record.Attempts,
		delay: r.delay(t.made), left: x.left(),
	}
	if !r.follows(m) || !t.possible() {
		return false
	}
	if !t.share.again(r.Percent, r.Least) {
		x.record.BudgetSpent = true
		return false
	}
	retried := Retried{Backend: x.record.Backend, Reason: why, Wires: x.record.Attempts - t.wires}
	t.keep()
	if !t.pause(m.delay) || !t.next() {
		return false
	}
	x.record.Retried = append(x.record.Retried, retried)
	return true
}

// passing is how the last attempt failed, if that is of a kind that may pass; else "".
func (t *tries) passing() string {
	if t.failed != nil {
		switch t.failed.reason {
		case UpstreamUnreachable, UpstreamReset, UpstreamTimeout:
			if t.failed.outcome == breaker.Failure { // and not the client's
				return string(t.failed.reason)
			}
		}
		return ""
	}
	switch t.resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return strconv.Itoa(t.resp.StatusCode)
	}
	return ""
}

// possible reports whether there is a backend for another attempt at this moment.
func (t *tries) possible() bool {
	if t.x.route.Retry.NextBackend {
		return t.x.route.Pool.Ready(append(t.tried, t.lease.Backend())...)
	}
	return t.lease.Passes()
}

// pause waits, and reports whether the request goes on.
func (t *tries) pause(d time.Duration) bool {
	goes := t.x.pause(d)
	if t.x.r.Context().Err() != nil {
		t.failed = t.x.gone()
	}
	return goes
}

// next takes what the next attempt needs, and reports whether it could.
func (t *tries) next() bool {
	x := t.x
	if !t.possible() || !x.replayable() && !x.body.again() {
		return false
	}
	if !x.route.Retry.NextBackend {
		return true
	}
	t.tried = append(t.tried, t.lease.Backend())
	lease, _, _ := x.route.Pool.Acquire(t.tried...)
	if lease == nil {
		return false
	}
	before := t.lease
	t.lease = lease
	before.Report(t.outcome())
	if t.last == nil || t.done || t.last.lease != before {
		before.Done()
	}
	return true
}

// outcome is what the last attempt says about its backend.
func (t *tries) outcome() breaker.Outcome {
	if t.failed != nil {
		return t.failed.outcome
	}
	return t.x.route.outcomeOf(t.resp.StatusCode)
}

// keep takes in the body of a response that will perhaps be the answer, so that
// its connection is free; of a long one as much as the memory may have, and the
// connection waits with the rest. One that breaks off is none.
func (t *tries) keep() {
	if t.failed != nil || t.done {
		return
	}
	length := t.resp.ContentLength
	if t.x.r.Method == http.MethodHead {
		length = 0
	}
	kept, whole, err := t.x.h.memory.fill(t.resp.Body, length)
	if err != nil {
		t.failed = t.last.truncation(err)
		t.drop()
		return
	}
	t.last.inTime() // which is for the header
	if kept == nil {
		return
	}
	t.kept, t.done = kept, whole
	body := t.resp.Body
	start := bytes.NewReader(kept.data)
	if whole {
		body.Close()
		t.last.end()
		t.resp.Body = io.NopCloser(start)
		return
	}
	t.resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(start, body), body}
}

// drop lets go of the last response.
func (t *tries) drop() {
	if t.last == nil {
		return
	}
	t.resp.Body.Close()
	t.last.end()
	if t.last.lease != t.lease {
		t.last.lease.Done()
	}
	t.kept.free()
	t.last, t.resp, t.kept, t.done = nil, nil, nil, false
}

// answer gives the client what there is.
func (t *tries) answer() {
	x := t.x
	x.leave()
	t.share.end()
	if t.failed != nil {
		t.lease.Report(t.failed.outcome)
		if t.last == nil || t.failed.outcome != breaker.Failure {
			x.answer(t.failed)
			return
		}
	}
	t.last.tellHints()
	x.relay(t.last, t.resp)
	if t.failed != nil && x.reason == OK {
		x.reason = t.failed.reason // of the backend that is recorded, which did not answer
	}
}

// end lets go of all that is left, also when something panicked.
func (t *tries) end() {
	t.share.end()
	if t.now != nil {
		t.now.end()
	}
	t.drop()
	t.lease.Done()
}
