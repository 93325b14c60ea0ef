package sentinel

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Reason is why a decision came out as it did. Its values are all there are,
// so it is safe as a metric label. "" is the reason of the zero Decision.
type Reason string

// The eight reasons. A store failure (redis_..., circuit_open) stands on an
// allowed decision when the endpoint fails open and its emergency bucket had a
// token; see docs/failure-semantics.md for the whole table.
const (
	// ReasonAllowed: the store admitted the request.
	ReasonAllowed Reason = "allowed"
	// ReasonRateLimited: the store answered that the quota is used up.
	ReasonRateLimited Reason = "rate_limited"
	// ReasonRedisTimeout: no answer within the budget; admitted by the
	// emergency bucket.
	ReasonRedisTimeout Reason = "redis_timeout"
	// ReasonRedisConnectionError: a connection error or an error reply;
	// admitted by the emergency bucket.
	ReasonRedisConnectionError Reason = "redis_connection_error"
	// ReasonRedisNoScriptRetry: NOSCRIPT again after one reload; admitted by
	// the emergency bucket.
	ReasonRedisNoScriptRetry Reason = "redis_noscript_retry"
	// ReasonCircuitOpen: the breaker is open. Denied where the endpoint fails
	// closed, admitted by the emergency bucket where it fails open.
	ReasonCircuitOpen Reason = "circuit_open"
	// ReasonFailClosed: the store failed and the endpoint fails closed.
	ReasonFailClosed Reason = "fail_closed"
	// ReasonEmergencyLocalLimit: the store failed, the endpoint fails open and
	// its emergency bucket is empty.
	ReasonEmergencyLocalLimit Reason = "emergency_local_limit"
)

// reasons is how many there are.
const reasons = 8

// number tells the reasons apart, from 0.
func (r Reason) number() int {
	switch r {
	case ReasonAllowed:
		return 0
	case ReasonRateLimited:
		return 1
	case ReasonRedisTimeout:
		return 2
	case ReasonRedisConnectionError:
		return 3
	case ReasonRedisNoScriptRetry:
		return 4
	case ReasonCircuitOpen:
		return 5
	case ReasonFailClosed:
		return 6
	default:
		return 7
	}
}

// Decision is the answer to one request. The zero Decision is a denial. It is
// a value: copy it freely.
type Decision struct {
	// EndpointID is the endpoint that was asked for.
	EndpointID string
	// Allowed reports whether the request may run. Nothing else does.
	Allowed bool
	// Unenforced reports that the endpoint's policy is not enforced, so that
	// Allowed is true whatever was decided.
	Unenforced bool
	// WouldDeny reports that the request was decided to be denied, as Reason and
	// RetryAfter say, and is allowed only because the policy is not enforced.
	WouldDeny bool
	// CandidateDenies reports that the endpoint's candidate would have denied the
	// request. It is false where there is none, and where the store did not answer.
	CandidateDenies bool
	// Reason is why.
	Reason Reason
	// RetryAfter is, on a denial, enforced or not, the exact wait until the same request would
	// be admitted if nobody else asks meanwhile. 0 on a denial: no wait is
	// known, or it never comes.
	RetryAfter time.Duration

	// FromStore reports whether the numbers below were answered by the store.
	// It is false on emergency decisions and where the store failed; the
	// numbers are then 0 and mean nothing.
	FromStore bool
	// Limit is the quota in whole requests: capacity in tokens, or the
	// window's limit. Of several buckets, and of several limits, all numbers are
	// the tightest one's: the least remaining. RetryAfter is the longest wait.
	Limit int64
	// Window is the time in which an empty bucket fills, rounded up to whole
	// seconds, or the sliding window's length; 0 where it never fills.
	// math.MaxInt64 stands for more than 292 years.
	Window        time.Duration
	windowSeconds int64
	limits        *[]QuotaLimit // nil where the endpoint has one
	limitName     string
	// Remaining is how many more requests would be admitted at this very
	// instant, after this one was charged.
	Remaining int64
	// NextAfter is the wait until Remaining grows by itself: on a denial it
	// equals RetryAfter, 0 means never or that the bucket is full.
	NextAfter time.Duration
	// ResetAfter is the wait until an untouched bucket counts nothing again,
	// rounded up to whole seconds; 0 means that it is full, or never.
	// math.MaxInt64 stands for more than 292 years.
	ResetAfter time.Duration

	id decisionID

	// IdentityMode is who was counted.
	IdentityMode IdentityMode
	// IdentityHash is the SHA-256 of the identity in hex, as in the Redis key:
	// of the tenant, or of the anonymous cookie where it is valid, else of the
	// peer. It is safe in logs; it is not safe as a metric label, for it grows
	// with the number of clients.
	IdentityHash string
	// Cookie is the anonymous cookie to hand to the client, nil for none. It
	// is set only on allowed decisions.
	Cookie *Cookie
}

// Cookie is a fresh anonymous cookie. An adapter sends it with HttpOnly,
// SameSite=Lax and Path=/.
type Cookie struct {
	// Name is the configured cookie name.
	Name string
	// Value is client_id.exp.mac. It is a credential: encodings leave it out and
	// fmt does not print it.
	Value string `json:"-"`
	// MaxAge is its life, whole seconds.
	MaxAge time.Duration
	// Secure is the configured Secure attribute.
	Secure bool
}

// Format prints the name alone, whatever the verb. fmt does not ask a value in an
// unexported field of another: of a struct that hides a Decision, a verb that is
// for text shows the cookie.
func (c Cookie) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "sentinel.Cookie{Name:%q, ...}", c.Name)
}

// WindowSeconds is Window in whole seconds, rounded up, and exact also beyond
// 292 years; 0 where an empty bucket never fills, or nothing is known.
func (d Decision) WindowSeconds() int64 {
	switch {
	case d.windowSeconds > 0:
		return d.windowSeconds
	case d.Window <= 0 || d.Window == math.MaxInt64: // a Decision that no limiter made
		return 0
	default:
		return int64((d.Window-1)/time.Second) + 1
	}
}

// QuotaLimit is one limit of an endpoint, as clients are told of it.
type QuotaLimit struct {
	// Name is the endpoint's id; of a further limit with its number behind it,
	// as in "billing.export:2".
	Name string
	// Limit is the quota in whole requests.
	Limit int64
	// WindowSeconds is the time in which it comes back, in seconds rounded up;
	// 0 where it never does.
	WindowSeconds int64
}

// Limits returns all limits of an endpoint that has several, in the order of its
// policy, and the name of the one that the numbers of this decision are of, the
// tightest. Where there is one limit it returns nil and the endpoint's id: Limit
// and Window say the same. Do not change the list.
func (d Decision) Limits() (all []QuotaLimit, tightest string) {
	if d.limits == nil {
		return nil, d.EndpointID
	}
	return *d.limits, d.limitName
}

// ID names a decision that was denied, or admitted although the store failed: a
// UUID whose first part is the time. It is in the log and in the response, so
// that who asks why finds the line. "" on other decisions.
func (d Decision) ID() string { return d.id.String() }

type decisionKey struct{}

// DecisionContext is a context that carries a decision, for an adapter that
// holds it in a value of its own; others call [NewContext]. Context must be set
// before it is used.
type DecisionContext struct {
	context.Context
	Decision Decision
}

// Value implements [context.Context].
func (c *DecisionContext) Value(key any) any {
	if key == (decisionKey{}) {
		return &c.Decision
	}
	return c.Context.Value(key)
}

// NewContext returns a context that carries d. Adapters call it before they
// run the handler.
func NewContext(ctx context.Context, d Decision) context.Context {
	return &DecisionContext{Context: ctx, Decision: d}
}

// FromContext returns the decision that an adapter made for this request, the
// latest one where several guards ran, and whether there was one. It works the
// same in every framework: sentinel.FromContext(r.Context()).
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(*Decision)
	if !ok {
		return Decision{}, false
	}
	return *d, true
}
