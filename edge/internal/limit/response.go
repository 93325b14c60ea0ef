package limit

import (
	"math"
	"net/http"
	"strconv"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// headers are those of draft-ietf-httpapi-ratelimit-headers-10, as far as they are
// the same for all requests.
type headers struct {
	policy []string // the value of RateLimit-Policy: nobody changes it
	item   string   // how that of RateLimit begins
}

// maxInteger is the greatest integer of RFC 9651's structured fields: 15 digits.
const maxInteger = 999_999_999_999_999

func newHeaders(id string, capacity, rate int64) headers {
	name := quote(id)
	value := name + ";q=" + strconv.FormatInt(capacity/bucket.Token, 10)
	if w := ceil(capacity, rate); w <= maxInteger {
		value += ";w=" + strconv.FormatInt(w, 10)
	}
	return headers{policy: []string{value}, item: name + ";r="}
}

// quote makes a string of RFC 9651 of an id. It has no other than ASCII's visible
// characters, and the space.
func quote(id string) string {
	b := []byte{'"'}
	for _, c := range []byte(id) {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '_')
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// set sets both headers.
func (s *headers) set(h http.Header, a *bucket.Answer) {
	b := make([]byte, 0, 64)
	b = append(b, s.item...)
	b = strconv.AppendInt(b, min(a.Remaining, maxInteger), 10)
	if a.Wait > 0 && a.Wait < bucket.MaxWait {
		b = strconv.AppendInt(append(b, ";t="...), ceil(a.Wait, second), 10)
	}
	h["Ratelimit-Policy"] = s.policy
	h["Ratelimit"] = []string{string(b)}
}

// second is in microseconds.
const second = 1_000_000

// retryAfter is in whole seconds, for who comes too early is refused again.
func retryAfter(a *bucket.Answer) int64 { return max(1, ceil(a.Wait, second)) }

func ceil(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return a / b
	}
	return (a + b - 1) / b
}

// refusal is the body, an RFC 9457 problem document as package proxy's are.
var refusal = []byte(`{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"rate limit exceeded","reason":"` + string(proxy.RateLimited) + "\"}\n")

// refuse answers for the policy.
func (p *Policy) refuse(w http.ResponseWriter, r *http.Request, a *bucket.Answer) {
	h := w.Header()
	p.headers.set(h, a)
	if a.Wait != bucket.Never && a.Wait < bucket.MaxWait {
		h["Retry-After"] = []string{strconv.FormatInt(retryAfter(a), 10)}
	}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Type"] = []string{"application/problem+json"}
	h["Content-Length"] = []string{strconv.Itoa(len(refusal))}
	w.WriteHeader(http.StatusTooManyRequests)
	if r.Method != http.MethodHead {
		_, _ = w.Write(refusal) // a client that is gone is nobody to tell
	}
}
