package sentinelhttp

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// Denial is a request that was refused, and how to say so. As an
// [http.Handler] it writes the default response.
type Denial struct {
	// Status is the HTTP status: 401, 404, 429 or 503.
	Status int
	// Detail says in a few fixed words what is wrong. It holds nothing about
	// the client or the store, so it may be shown.
	Detail string
	// Decision is the limiter's answer; the zero Decision where Err is not nil.
	Decision sentinel.Decision
	// Err is nil on an ordinary denial, else [sentinel.ErrUnauthenticated],
	// [sentinel.ErrUnknownEndpoint], [ErrNoMiddleware], or the error of the
	// request's own context. It is for logs, not for clients.
	Err error
}

// decisionIDHeader names the decision that denied: the log has it as decision_id.
const decisionIDHeader = "Sentinel-Decision-Id"

// answer is a status with its detail, and the default body of both.
type answer struct {
	status int
	detail string
	body   []byte // never changed
}

// The four answers to a denial.
var (
	unauthenticated = newAnswer(http.StatusUnauthorized, "authentication required")
	unknownEndpoint = newAnswer(http.StatusNotFound, "unknown endpoint")
	rateLimited     = newAnswer(http.StatusTooManyRequests, "rate limit exceeded")
	unavailable     = newAnswer(http.StatusServiceUnavailable, "rate limiter unavailable")
)

// newAnswer makes the body, an RFC 9457 problem document.
func newAnswer(status int, detail string) answer {
	body, err := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
	if err != nil {
		panic("sentinelhttp: a struct of strings and an int is always JSON: " + err.Error())
	}
	return answer{status, detail, body}
}

// deny maps an outcome that is not an allowed decision to its response and sets
// the headers of it. This is the one place where outcomes become statuses.
func deny(h http.Header, o *outcome, rateLimit bool) *Denial {
	d, err := &o.Decision, o.err
	// A gate before this one may have been passed; its numbers are not those
	// of this response.
	if rateLimit {
		o.headers.setRateLimit(h, d)
	}
	o.headers.set(h, "Cache-Control", "no-store")
	var a answer
	switch {
	case errors.Is(err, sentinel.ErrUnauthenticated):
		a = unauthenticated
		o.headers.set(h, "Www-Authenticate", "Bearer")
	case errors.Is(err, sentinel.ErrUnknownEndpoint):
		a = unknownEndpoint
	case err == nil && (d.Reason == sentinel.ReasonRateLimited || d.Reason == sentinel.ReasonEmergencyLocalLimit):
		a = rateLimited
		o.headers.setRetryAfter(h, d.RetryAfter)
	default:
		// The store failed, the client's context ended, the Middleware is
		// missing: whatever is not understood is refused.
		a = unavailable
		o.headers.setRetryAfter(h, d.RetryAfter)
	}
	if id := d.ID(); err == nil && id != "" {
		o.headers.set(h, decisionIDHeader, id)
	}
	return &Denial{Status: a.status, Detail: a.detail, Decision: *d, Err: err}
}

// ServeHTTP writes the status and the default body, an RFC 9457 problem
// document. The denial's headers are on w already. Call it once, on a response
// that has not begun.
func (d Denial) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body := d.body()
	h := w.Header()
	delete(h, "Content-Length") // of a body that will not come
	h["Content-Type"] = []string{"application/problem+json"}
	w.WriteHeader(d.Status)
	// The server drops the body of a HEAD and keeps its length. A client that
	// is gone is nobody to report the error to.
	_, _ = w.Write(body) //nolint:gosec // JSON, said to be JSON
}

func (d Denial) body() []byte {
	for _, a := range []*answer{&rateLimited, &unavailable, &unauthenticated, &unknownEndpoint} {
		if a.status == d.Status && a.detail == d.Detail {
			return a.body
		}
	}
	return newAnswer(d.Status, d.Detail).body // an application's own
}

// headerValues is room for the values of the headers that one gate sets, so that
// they need no slice each. Its zero value is empty. A header that is set twice
// takes room twice.
type headerValues struct {
	room [5]string
	used int
}

// set sets a header whose key is canonical.
func (v *headerValues) set(h http.Header, key, value string) {
	if v.used == len(v.room) {
		h[key] = []string{value}
		return
	}
	v.room[v.used] = value
	v.used++
	h[key] = v.room[v.used-1 : v.used : v.used] // whoever appends takes a copy
}

// setRetryAfter sets the header, or takes an earlier one away, where no time is
// known.
func (v *headerValues) setRetryAfter(h http.Header, wait time.Duration) {
	if s, ok := seconds(wait); ok {
		v.set(h, "Retry-After", strconv.FormatInt(s, 10))
		return
	}
	delete(h, "Retry-After")
}

// setRateLimit sets the two RateLimit headers from the store's numbers, or
// takes an earlier gate's away where the store gave none.
func (v *headerValues) setRateLimit(h http.Header, d *sentinel.Decision) {
	if !d.FromStore {
		delete(h, "Ratelimit-Policy")
		delete(h, "Ratelimit")
		return
	}
	policy, rateLimit := rateLimit(d)
	v.set(h, "Ratelimit-Policy", policy)
	v.set(h, "Ratelimit", rateLimit)
}

// maxInteger is the largest integer of RFC 9651 structured fields: 15 digits.
const maxInteger = 999_999_999_999_999

// rateLimit returns the values of the headers in
// draft-ietf-httpapi-ratelimit-headers-10. RateLimit-Policy is the quota, and the
// seconds in which it comes back, where it does, of each limit; RateLimit is what
// remains of the tightest, and the seconds until it grows, where it will. Both are
// cut from one text.
func rateLimit(d *sentinel.Decision) (policy, rateLimit string) {
	var room [128]byte
	limits, tightest := d.Limits()
	b := room[:0]
	if limits == nil {
		b = quota(b, tightest, d.Limit, d.WindowSeconds())
	}
	for i, l := range limits {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = quota(b, l.Name, l.Limit, l.WindowSeconds)
	}
	end := len(b)
	b = item(b, tightest)
	b = parameter(b, ";r=", d.Remaining)
	if t, ok := seconds(d.NextAfter); ok {
		b = parameter(b, ";t=", t)
	}
	text := string(b)
	return text[:end], text[end:]
}

func quota(b []byte, name string, limit, window int64) []byte {
	b = parameter(item(b, name), ";q=", limit)
	if window > 0 && window <= maxInteger {
		b = parameter(b, ";w=", window)
	}
	return b
}

// item begins a structured field with a name as its string. The pattern of ids
// leaves nothing in them to escape.
func item(b []byte, id string) []byte {
	b = append(b, '"')
	b = append(b, id...)
	return append(b, '"')
}

// parameter adds a parameter that the draft requires to be there. A number that
// a structured field cannot hold becomes the greatest that it can.
func parameter(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(max(n, 0), maxInteger), 10)
}

// seconds is a wait in whole seconds, rounded up, for a client that waits too
// little is refused again. There is no number for a wait that is unknown or
// never ends (0), nor for one of more than 292 years ([math.MaxInt64]).
func seconds(d time.Duration) (int64, bool) {
	if d <= 0 || d == math.MaxInt64 {
		return 0, false
	}
	s := int64(d / time.Second)
	if d%time.Second != 0 {
		s++
	}
	return s, true
}
