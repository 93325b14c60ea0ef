package sentinel

import "time"

// Algorithm is how an endpoint counts. The zero value is no algorithm and is
// refused by [Config.Validate].
type Algorithm string

// The algorithms, spelled as in the policy file.
const (
	// TokenBucket allows bursts of up to the capacity and refills at a steady
	// rate.
	TokenBucket Algorithm = "token_bucket"
	// SlidingWindow allows a number of requests in any window, estimated from
	// the current and the previous fixed window:
	// current + previous * remaining / window.
	SlidingWindow Algorithm = "sliding_window"
)

// FailMode is what happens to a request while Redis gives no answer. The zero
// value is refused by [Config.Validate]; where a FailMode is read without
// validation, anything but [FailOpen] fails closed.
type FailMode string

// The fail modes, spelled as in the policy file.
const (
	// FailClosed denies while Redis is away.
	FailClosed FailMode = "fail_closed"
	// FailOpen admits while Redis is away, up to the endpoint's in-process
	// emergency bucket, never without limit.
	FailOpen FailMode = "fail_open"
)

// IdentityMode is who is counted at an endpoint. The zero value means
// [TenantJWT].
type IdentityMode string

// The identity modes, spelled as in the policy file.
const (
	// TenantJWT counts the sub claim of a verified bearer token.
	TenantJWT IdentityMode = "tenant_jwt"
	// Anonymous counts a signed cookie and the socket peer's IP together.
	Anonymous IdentityMode = "anonymous"
)

// Policy is the quota of one endpoint. The zero value is invalid: algorithm,
// fail mode and numbers have no defaults, because a limit that nobody chose
// protects nobody. [Config.Validate] checks every rule given here.
type Policy struct {
	// EndpointID matches ^[a-z0-9._-]+$ and equals the policy's key in
	// [Config.Policies]. It is part of the Redis key.
	EndpointID string
	// Algorithm is TokenBucket or SlidingWindow.
	Algorithm Algorithm
	// FailMode is FailOpen or FailClosed.
	FailMode FailMode
	// FallbackRate is the emergency bucket's rate while Redis is away,
	// microtokens per second in each process; at least 1. Its capacity is one
	// second of that, and never less than one token.
	FallbackRate Micro
	// Version is part of the Redis key; at least 1. Raise it together with
	// Algorithm, Window or Identity.
	Version int64
	// CarryOver is an earlier Version, whose buckets this one begins with; 0 for
	// none, which gives everybody a fresh bucket. As long as a bucket has no state
	// under Version, that of CarryOver is read, by today's numbers: tokens are cut to
	// the capacity, and what has another algorithm is a fresh bucket. It must be less
	// than Version. Not in a Redis Cluster.
	CarryOver int64
	// Identity is who is counted; "" means TenantJWT.
	Identity IdentityMode
	// Unenforced decides, counts and charges as always and lets every request
	// through (enforce: false): see [Decision.WouldDeny].
	Unenforced bool

	// Capacity is the token bucket's burst, Token to 2^52; 0 for a sliding
	// window.
	Capacity Micro
	// RefillRate is the token bucket's rate in microtokens per second, 0 to
	// 2^52; 0 never refills.
	RefillRate Micro

	// Limit is the sliding window's number of requests, at least 1; 0 for a
	// token bucket. Limit * Window in microseconds is at most 2^52.
	Limit int64
	// Window is the sliding window's length in whole microseconds, at least
	// 1ms; 0 means one minute for a sliding window, nothing for a token bucket.
	Window time.Duration

	// Also are further limits of the same endpoint, up to three: a request is
	// admitted if all of them admit it, and charged to all or to none. Each has
	// a key of its own, derived from the first one's and from its place in the
	// list: change their order, or an Algorithm or Window, only together with
	// Version.
	Also []Quota

	// Plans gives the numbers of tenants by the name of their plan, and Tenants
	// those of single tenants, by their name, whatever their plan is. Both need
	// TenantJWT. A bucket has the same key under every plan: a tenant whose plan
	// changes keeps it, cut to the new numbers.
	Plans   map[string]Plan
	Tenants map[string]Plan

	// Candidate are limits that are tried beside the policy's own; nil for none.
	Candidate *Candidate
}

// Candidate is what a policy might become: limits that decide on the same
// requests as the live ones, on keys of their own, and whose verdict is counted
// and nothing else. They are the same for every tenant, whatever its plan. The
// zero value is invalid.
type Candidate struct {
	// Quota is the first limit.
	Quota
	// Also are further limits, up to three, decided all or nothing with the first.
	Also []Quota
}

// quotas are all limits of the candidate, none of nil.
func (c *Candidate) quotas() []Quota {
	if c == nil {
		return nil
	}
	return append([]Quota{c.Quota}, c.Also...)
}

// Plan is the numbers that stand in place of a policy's. The algorithms and
// windows are the policy's own.
type Plan struct {
	// Numbers are those in place of the policy's own limit.
	Numbers
	// Also are those in place of the limits of [Policy.Also], one for each and
	// in their order; nil leaves these as they are.
	Also []Numbers
}

// Numbers are the numbers of one limit, under the rules of the fields of
// [Policy] that have the same names.
type Numbers struct {
	// Capacity and RefillRate are a token bucket's, both 0 for a sliding window.
	Capacity, RefillRate Micro
	// Limit is a sliding window's; 0 for a token bucket.
	Limit int64
}

// planned are the policy's quotas with the numbers of a plan.
func (p Policy) planned(plan Plan) []Quota {
	quotas := p.quotas()
	for i, n := range append([]Numbers{plan.Numbers}, plan.Also...) {
		if i < len(quotas) {
			quotas[i].Capacity, quotas[i].RefillRate, quotas[i].Limit = n.Capacity, n.RefillRate, n.Limit
		}
	}
	return quotas
}

// Quota is one limit: an algorithm and its numbers, under the rules of the
// fields of [Policy] that have the same names. The zero value is invalid.
type Quota struct {
	// Algorithm is TokenBucket or SlidingWindow.
	Algorithm Algorithm
	// Capacity and RefillRate are a token bucket's, in microtokens and
	// microtokens per second.
	Capacity, RefillRate Micro
	// Limit and Window are a sliding window's; a Window of 0 means one minute.
	Limit  int64
	Window time.Duration
}

// maxLimits is how many limits a policy has at most, its own included.
const maxLimits = 4

// quotas are all limits of the policy, its own first.
func (p Policy) quotas() []Quota {
	own := Quota{Algorithm: p.Algorithm, Capacity: p.Capacity, RefillRate: p.RefillRate, Limit: p.Limit, Window: p.Window}
	return append([]Quota{own}, p.Also...)
}
