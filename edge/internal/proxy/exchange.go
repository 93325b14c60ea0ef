package proxy

import (
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/router"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// exchange is one request and its response.
type exchange struct {
	h     *Handler
	r     *http.Request
	front front
	body  *body   // nil: the request has none
	kept  *buffer // of the body; nil: nothing
	whole bool    // kept is all of it

	peer     netip.Addr
	believed bool      // the peer is trusted
	snapshot *Snapshot // nil: let go of, or there was none
	route    *Route
	deadline time.Time // zero: none
	upgrade  string    // the protocol that may be switched to; "" for none

	record   Record
	reason   Reason // "": it has not ended
	aborted  bool   // the response must not look complete
	hijacked bool   // net/http no longer has the connection
}

func (h *Handler) exchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{h: h, r: r, front: newFront(w, r, h.options.WriteIdle)}
	x.peer = peerOf(r)
	x.believed = h.trusted.contains(x.peer)
	client := x.peer
	if x.believed {
		client = h.trusted.clientOf(x.peer, r.Header["X-Forwarded-For"])
	}
	x.record = Record{
		Start: time.Now(), ID: requestID(r.Header), Client: client,
		Method: r.Method, Host: r.Host, Path: pathOf(r), Proto: r.Proto,
	}
	x.front.Header()["X-Request-Id"] = []string{x.record.ID}
	x.body = bodyOf(r, &x.front, h.options.MaxBodyBytes, h.options.BodyIdle)
	return x
}

// claimed is who has sent the request by the word of a trusted peer; the zero Addr if the
// peer is none.
func (x *exchange) claimed() netip.Addr {
	if !x.believed {
		return netip.Addr{}
	}
	return x.record.Client
}

// serve decides and answers.
func (x *exchange) serve() {
	if refused, ok := wire.Refused(x.r); ok {
		if x.r.ProtoMajor == 1 { // then r only stands for it
			x.record.Method, x.record.Host, x.record.Path = "", "", ""
		}
		x.hangUp()
		x.answer(refusalOf(refused))
		return
	}
	if x.answerOurselves() {
		return
	}
	if !x.enter() {
		x.answer(&notConfigured)
		return
	}
	if !x.find() || !x.allowed() {
		return
	}
	if x.r.ContentLength > x.h.options.MaxBodyBytes {
		x.answer(&tooLarge)
		return
	}
	if p := x.readAhead(); p != nil {
		x.answer(p)
		return
	}
	lease, refusal, retryAfter := x.route.Pool.Acquire()
	if lease == nil {
		x.answer(noLease(refusal, retryAfter))
		return
	}
	x.forward(lease)
}

// answerOurselves answers what no configuration could change, and reports whether it did.
func (x *exchange) answerOurselves() bool {
	switch {
	case x.r.Method == http.MethodConnect, x.r.Method == http.MethodTrace:
		x.answer(&badMethod)
	case x.r.Method == http.MethodOptions && (x.r.RequestURI == "*" || noFurther(x.r)):
		x.settle()
		x.front.WriteHeader(http.StatusNoContent)
		x.reason = OK
	case unknownExpectation(x.r):
		x.answer(&badExpectation)
	default:
		return false
	}
	return true
}

// enter takes the snapshot that the whole request uses, and reports whether there is one.
func (x *exchange) enter() bool {
	x.snapshot = x.h.enter()
	if x.snapshot == nil {
		return false
	}
	x.record.ConfigVersion = x.snapshot.Version
	return true
}

// leave tells that the request will ask for no other backend.
func (x *exchange) leave() {
	if s := x.snapshot; s != nil {
		x.snapshot = nil
		s.leave()
	}
}

// find finds the route, or answers.
func (x *exchange) find() bool {
	if !sendable(x.r, x.record.Path) {
		p := badPath
		p.detail = whyUnsendable
		x.answer(&p)
		return false
	}
	var m router.Match
	switch x.snapshot.Router.Match(x.r.Method, x.record.Path, &m) {
	case router.Found:
	case router.MethodNotAllowed:
		p := badMethod
		p.detail, p.allow, p.last = "the route has no such method", m.Allow, false
		x.answer(&p)
		return false
	case router.BadPath:
		p := badPath
		p.detail = m.Why
		x.answer(&p)
		return false
	default:
		x.answer(&noRoute)
		return false
	}
	x.route = &x.snapshot.Routes[m.Pattern]
	x.record.Route, x.record.Pool = x.route.Pattern, x.route.PoolName
	x.upgrade = upgradeOf(x.r, x.route.Upgrades)
	if x.route.Timeout > 0 {
		x.deadline = x.record.Start.Add(x.route.Timeout)
	}
	return true
}

// allowed asks the limiter, which answers itself if it says no.
func (x *exchange) allowed() bool {
	if x.route.Limit == nil {
		return true
	}
	ok, reason := x.route.Limit.Allow(&refusing{front: &x.front, x: x}, x.r, x.record.Client)
	switch {
	case ok:
	case x.front.status == 0:
		x.answer(x.gone()) // or net/http answers 200
	default:
		x.reason = reason
	}
	return ok
}

// refusing is the response as a limiter gets it: if it writes one, that is
// the answer to a request whose body nobody has read.
type refusing struct {
	*front
	x *exchange
}

// WriteHeader begins the refusal.
func (r *refusing) WriteHeader(status int) {
	if status >= 200 {
		r.x.settle()
	}
	r.front.WriteHeader(status)
}

// Write writes the refusal's body.
func (r *refusing) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.front.Write(p)
}

// forward has a backend answer, in as many attempts as that takes.
func (x *exchange) forward(lease *upstream.Lease) {
	t := tries{x: x, lease: lease}
	defer t.end()
	t.share.begin(x.route.Retry.Budget)
	for t.attempt(); t.again(); t.attempt() {
	}
	t.answer()
}

// answer ends the request with a problem: as a response if none has begun and
// there is somebody to read it, else by cutting off.
func (x *exchange) answer(p *problem) {
	x.reason = p.reason
	if x.front.status != 0 || p.status == clientClosed {
		x.aborted = true
		if x.front.status == 0 {
			x.record.Status = p.status
		}
		return
	}
	x.settle()
	if p.last {
		x.hangUp()
	}
	p.write(&x.front, x.r)
}

// gone is the problem of a client that has gone, or whose connection was closed
// because the server stops.
func (x *exchange) gone() *problem {
	if x.h.stopping.Load() {
		return &stopping
	}
	return &clientGone
}

// settle is called before the header of a response is written. In HTTP/1 the rest of
// a body stands between this response and the next request: either it is small
// and here, or the connection ends. That also keeps net/http from waiting for the rest
// before it writes the header.
func (x *exchange) settle() {
	if x.body == nil || x.front.http2 {
		return
	}
	x.body.drain()
	if !x.body.complete() {
		x.hangUp()
	}
}

// hangUp makes the response that is about to be written the last of its connection. That
// a limit of the body was exceeded is what net/http must be told to not only close
// the connection but leave it open for a moment: a client that is still
// sending would lose the response otherwise.
func (x *exchange) hangUp() {
	if x.front.http2 {
		return
	}
	over := http.MaxBytesReader(x.front.ResponseWriter, io.NopCloser(oneByte{}), 0)
	_, _ = over.Read(make([]byte, 1))
	x.front.Header()["Connection"] = []string{"close"}
}

// oneByte is a body that is longer than nothing.
type oneByte struct{}

func (oneByte) Read(p []byte) (int, error) { return len(p), io.EOF }

// linger is how long net/http may look for the end of a body that nobody wants.
const linger = 500 * time.Millisecond

// end finishes the request, whatever became of it: it is deferred.
func (x *exchange) end() {
	switch v := recover(); v {
	case nil:
	case http.ErrAbortHandler: // a limiter's
		x.aborted, x.reason, x.record.Status = true, Internal, http.StatusInternalServerError
	default:
		x.panicked(v)
	}
	x.leave()
	x.endBody()
	x.kept.free()
	if !x.hijacked && !x.aborted {
		x.front.end()
	}
	x.observe()
	if x.aborted {
		panic(http.ErrAbortHandler)
	}
}

// panicked answers for a mistake of ours.
func (x *exchange) panicked(v any) {
	x.h.log.Error("a request's handler panicked", slog.Any("panic", v), slog.String("id", x.record.ID), slog.String("stack", string(debug.Stack())))
	if x.hijacked {
		x.reason = Internal
		return
	}
	x.answer(&internalProblem)
}

// endBody sees to it that nobody reads the body when the handler returns.
func (x *exchange) endBody() {
	if x.body == nil {
		return
	}
	x.body.rest()
	x.record.BytesIn = x.body.count()
	if x.front.http2 || x.body.complete() {
		return
	}
	until := past
	if !x.aborted {
		until = time.Now().Add(linger)
	}
	_ = x.front.control.SetReadDeadline(until)
}

// observe completes the record and shows it.
func (x *exchange) observe() {
	r := &x.record
	r.Reason = x.reason
	if x.front.status != 0 {
		r.Status = x.front.status
	}
	r.BytesOut += x.front.bytes
	r.Duration = time.Since(r.Start)
	if o := x.h.options.Observer; o != nil {
		o.Ended(r)
	}
}

// refusalOf is the answer to what the connection has refused.
func refusalOf(r wire.Refusal) *problem {
	p := &problem{status: r.Status, reason: BadRequest, detail: r.Detail}
	if r.Path {
		p.reason = BadPath
	}
	if r.Status == http.StatusRequestHeaderFieldsTooLarge || r.Status == http.StatusRequestURITooLong {
		p.reason = HeaderTooLarge
	}
	return p
}

// noLease is the answer if there is no backend.
func noLease(r upstream.Refusal, retryAfter time.Duration) *problem {
	p := &problem{status: http.StatusServiceUnavailable, retryAfter: retryAfter}
	switch r {
	case upstream.BreakerOpen:
		p.reason, p.detail = BreakerOpen, "the backend has failed too often; it is being left alone"
	case upstream.Overloaded:
		p.reason, p.detail = Overloaded, "every backend has as many requests as it may have"
	default:
		p.reason, p.detail = NoBackend, "no backend is well"
	}
	return p
}

// outcomeOf is what a status says about a backend.
func (r *Route) outcomeOf(status int) breaker.Outcome {
	if slices.Contains(r.FailureStatus, status) {
		return breaker.Failure
	}
	return breaker.Success
}
