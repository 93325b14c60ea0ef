package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// clientClosed is the status of a request whose client went away before there
// was one. It is only recorded, never sent.
const clientClosed = 499

// problem is an answer of our own: whatever is not a backend's.
type problem struct {
	status int
	reason Reason
	detail string // for the client; nothing that it sent
	allow  string // the header's value; "" for none
	last   bool   // nothing else that the connection says is to be believed
	// retryAfter is when to come back; 0 if nobody knows.
	retryAfter time.Duration
	// outcome is what the request says about the backend that it had.
	outcome breaker.Outcome
}

// The answers that need no particulars.
var (
	notConfigured   = problem{status: http.StatusServiceUnavailable, reason: NotConfigured, detail: "the proxy has no configuration yet"}
	noRoute         = problem{status: http.StatusNotFound, reason: NoRoute, detail: "no route for this path"}
	badPath         = problem{status: http.StatusBadRequest, reason: BadPath, last: true}
	badExpectation  = problem{status: http.StatusExpectationFailed, reason: BadRequest, detail: "the only expectation that can be met is 100-continue"}
	badMethod       = problem{status: http.StatusMethodNotAllowed, reason: MethodNotAllowed, detail: "the proxy does not forward this method", allow: "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT", last: true}
	tooLarge        = problem{status: http.StatusRequestEntityTooLarge, reason: BodyTooLarge, detail: "the request's body is too large"}
	badBody         = problem{status: http.StatusBadRequest, reason: BadBody, detail: "the request's body is malformed or incomplete"}
	slowBody        = problem{status: http.StatusRequestTimeout, reason: BadBody, detail: "the request's body did not arrive in time"}
	clientGone      = problem{status: clientClosed, reason: ClientClosed}
	stopping        = problem{status: clientClosed, reason: Draining}
	unreachable     = problem{status: http.StatusBadGateway, reason: UpstreamUnreachable, detail: "the backend cannot be reached", outcome: breaker.Failure}
	reset           = problem{status: http.StatusBadGateway, reason: UpstreamReset, detail: "the backend ended the connection before it answered", outcome: breaker.Failure}
	truncated       = problem{status: http.StatusBadGateway, reason: UpstreamTruncated, detail: "the backend ended the connection within its answer", outcome: breaker.Failure}
	timedOut        = problem{status: http.StatusGatewayTimeout, reason: UpstreamTimeout, detail: "the backend did not answer in time", outcome: breaker.Failure}
	clientTimedOut  = problem{status: http.StatusGatewayTimeout, reason: UpstreamTimeout, detail: "the request's body did not arrive in the time that the request may take"}
	badSwitch       = problem{status: http.StatusBadGateway, reason: BadUpgrade, detail: "the backend switched to a protocol that was not asked for", outcome: breaker.Failure}
	cannotSwitch    = problem{status: http.StatusInternalServerError, reason: Internal, detail: "the connection cannot be switched to another protocol"}
	internalProblem = problem{status: http.StatusInternalServerError, reason: Internal, detail: "internal error"}
)

// write answers with the problem as RFC 9457 says. The header fields that do not belong
// to a single answer are on w already.
func (p *problem) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Type"] = []string{"application/problem+json"}
	if p.allow != "" {
		h["Allow"] = []string{p.allow}
	}
	if p.retryAfter > 0 {
		h["Retry-After"] = []string{wholeSeconds(p.retryAfter)}
	}
	body := p.document()
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that is gone is nobody to tell
	}
}

// document is the body. None of its texts needs escaping: they are ours.
func (p *problem) document() []byte {
	b := make([]byte, 0, 256)
	b = append(b, `{"type":"about:blank","title":"`...)
	b = append(b, http.StatusText(p.status)...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	b = append(b, `,"detail":"`...)
	b = append(b, p.detail...)
	b = append(b, `","reason":"`...)
	b = append(b, p.reason...)
	return append(b, "\"}\n"...)
}

// wholeSeconds is d as Retry-After has it: rounded up, at least 1.
func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
