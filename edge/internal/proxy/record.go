package proxy

import (
	"net/netip"
	"time"
)

// Record is what is known of one request when it has ended: a line of the access
// log. It belongs to the proxy again when the observer has returned.
type Record struct {
	Start         time.Time
	ID            string // X-Request-Id
	Client        netip.Addr
	Method        string
	Host          string
	Path          string // escaped, without the query
	Route         string // its pattern; "" if there was none
	Status        int    // 499: the client went away before there was one
	Reason        Reason
	BytesIn       int64 // of the body
	BytesOut      int64
	Duration      time.Duration
	Upstream      time.Duration // spent waiting for backends' headers
	Backend       string        // the last one's name
	Pool          string
	Attempts      int // how often it was sent; net/http does that twice by itself where a kept connection has ended
	RetryDelay    time.Duration
	Retried       []Retried // the attempts on which another followed
	BudgetSpent   bool      // a retry would have followed, had the pool's budget allowed it
	Breaker       string    // the state of the backend's breaker when it was chosen
	ConfigVersion int64
	Proto         string
	Upgrade       string // the protocol that was switched to
}

// Retried is an attempt that was made good by another.
type Retried struct {
	Backend string
	Reason  string // a Reason, or the status that it was answered with
	Wires   int    // connections that it was sent on, see Attempts
}

// Observer sees every request that has ended, on the request's goroutine: it
// must not block, and must copy what it keeps.
type Observer interface {
	Ended(r *Record)
}
