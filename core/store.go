package sentinel

import (
	"context"
	"fmt"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// A store holds the buckets: this process's memory, one Redis for all processes,
// or the masters of a cluster. All give the same answers to the microtoken.
type store interface {
	// decide reads every bucket of the question's group and, in modeDecide,
	// charges all of them or none. It returns within the budget. A failure is
	// never an admission; the error is that of the caller's own context, and
	// nothing else.
	decide(context.Context, question) (verdict, *storeFailure, error)
	// status says whether the store can decide now.
	status() Status
	// breakerState is closed, half_open or open, "" without a breaker.
	breakerState() string
	// close ends all background work. Every later decide fails.
	close() error
}

// question is one decision, as a store is asked for it.
type question struct {
	mode  mode
	group group
	// beside is decided in the same call, for nobody to wait; nil for nothing.
	beside *beside
	start  time.Duration // of the check, on the limiter's clock: memory://'s is the same
	// budget is how long after start the answer must be there.
	budget time.Duration
	// asked is when the caller asked, deadline when the answer must be there,
	// done the end of the caller's own context: whoever waits for a connection
	// need not wait longer.
	asked    time.Time
	deadline time.Time
	done     <-chan struct{}
	// alone keeps the question out of a call with others: the breaker's probe
	// must not take them with it.
	alone bool

	// slot is the cluster's that all keys of the group are in; 0 outside one.
	slot uint16
	// asking: the slot is on its way to this node, and whoever it belongs to has
	// sent us. It goes alone.
	asking bool
}

// rule is what all buckets of one limit share, prepared at the start.
type rule struct {
	bucket.Rule
	number   int            // of the endpoint, to sort by
	overflow *bucket.Bucket // what memory:// uses instead when it is full
	args     [2]any         // its numbers, as the script takes them
	window   time.Duration
	told     QuotaLimit // what clients are told of it
	// further are the rules of an endpoint's other limits, and all are all of
	// them; both nil where there is one limit, and where this is not the first.
	further []*rule
	all     []QuotaLimit
	// candidate are the rules of the endpoint's candidate; nil for none, and where
	// this is not the first. Subjects are made by it, so another candidate needs
	// another rule.
	candidate []candidateRule
}

func newRule(r bucket.Rule, number int) *rule {
	size, pace := r.Numbers()
	return &rule{Rule: r, number: number, overflow: bucket.New(r), args: [2]any{size, pace}}
}

// newRules prepares the valid limits of an endpoint and returns the first one's
// rule.
func newRules(id string, quotas []Quota, number int) *rule {
	first := newQuotaRule(id, quotas[0], number)
	for i, q := range quotas[1:] {
		first.further = append(first.further, newQuotaRule(fmt.Sprintf("%s:%d", id, i+2), q, number))
	}
	if first.further == nil {
		return first
	}
	first.all = append(first.all, first.told)
	for _, r := range first.further {
		first.all = append(first.all, r.told)
	}
	return first
}

func newQuotaRule(name string, q Quota, number int) *rule {
	if q.Algorithm == SlidingWindow {
		r := newRule(bucket.NewSlidingWindow(q.Limit, q.Window.Microseconds()), number)
		r.window = q.Window
		r.told = QuotaLimit{Name: name, Limit: q.Limit, WindowSeconds: int64((q.Window-1)/time.Second) + 1}
		return r
	}
	r := newRule(bucket.NewTokenBucket(int64(q.Capacity), int64(q.RefillRate)), number)
	r.told = QuotaLimit{Name: name, Limit: int64(q.Capacity / Token)}
	if q.RefillRate > 0 {
		r.told.WindowSeconds = int64((q.Capacity-1)/q.RefillRate) + 1
		r.window = seconds(r.told.WindowSeconds)
	}
	return r
}

// verdict is a store's answer to one group.
type verdict struct {
	allowed bool
	n       int
	// One answer for each of the group, in its order: in two, or in many where
	// there are more, which few endpoints have. It is copied a lot.
	two  [2]bucket.Answer
	many *[maxGroup]bucket.Answer
}

// newVerdict has room for n answers.
func newVerdict(n int) (v verdict) {
	v.n = n
	if n > len(v.two) {
		v.many = new([maxGroup]bucket.Answer)
	}
	return v
}

func (v *verdict) buckets() []bucket.Answer {
	if v.many != nil {
		return v.many[:v.n]
	}
	return v.two[:v.n]
}

// tightest returns the index of the bucket that decides what the client is
// told: the least remaining, and of equals the one that keeps it waiting
// longest.
func (v *verdict) tightest() int {
	best, answers := 0, v.buckets()
	for i, b := range answers[1:] {
		a := answers[best]
		if b.Remaining < a.Remaining || b.Remaining == a.Remaining && waitsLonger(b, a) {
			best = i + 1
		}
	}
	return best
}

// waitsLonger orders first by denial, then by wait, where Never is the longest.
func waitsLonger(b, a bucket.Answer) bool {
	if b.Denied != a.Denied {
		return b.Denied
	}
	if a.Wait == bucket.Never || b.Wait == bucket.Never {
		return a.Wait != bucket.Never
	}
	return b.Wait > a.Wait
}

// failureKind is a label of sentinel_store_errors_total, so its values are
// few and fixed.
type failureKind string

const (
	kindTimeout    failureKind = "timeout"     // no answer within the budget
	kindConnection failureKind = "connection"  // no connection, or it broke
	kindErrorReply failureKind = "error_reply" // Redis answered with an error
	kindNoScript   failureKind = "noscript"    // NOSCRIPT again after one reload
	kindBadReply   failureKind = "bad_reply"   // an answer of the wrong shape
	kindRefused    failureKind = "refused"     // the server is not fit for use
	kindClosed     failureKind = "closed"      // the limiter was closed
	kindCircuit    failureKind = "circuit"     // the breaker let nobody through
	kindCorrupt    failureKind = "corrupt_state"
)

// storeFailure is why there is no verdict. It is not an error, so that it
// cannot be returned as one: a Redis failure is a Decision.
type storeFailure struct {
	kind failureKind
	// sent reports whether the script was handed to a connection, so that
	// Redis may have executed it.
	sent bool
	// shared reports that this is not the failure of a call of its own, so that
	// it is nothing new to the breaker: another decision of the same call
	// reports it, or the call was never made because others took the time.
	shared bool
	// replica reports that the server has said that it is no master.
	replica bool
	// redirect is where a node of a cluster has sent the question instead of
	// executing anything; nil for every other failure.
	redirect *redirect
	// clusterDown reports that a node has refused because of the state of its
	// cluster. Nothing was executed.
	clusterDown bool
	// detail is safe to log: no address, no credential.
	detail string
}

// reason is the row of the decision table.
func (f *storeFailure) reason() Reason {
	switch f.kind {
	case kindTimeout:
		return ReasonRedisTimeout
	case kindNoScript:
		return ReasonRedisNoScriptRetry
	case kindCircuit:
		return ReasonCircuitOpen
	default:
		return ReasonRedisConnectionError
	}
}

// aboutCluster reports whether a sound node has answered that it is not the time
// or not the place. Its connection is as good as before.
func (f *storeFailure) aboutCluster() bool { return f != nil && (f.redirect != nil || f.clusterDown) }

// withDeadline is the context of a call that belongs to Sentinel and not to
// the caller: a client who hangs up must not break a connection that others
// use.
func withDeadline(deadline time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(context.Background(), deadline)
}
