package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

// Why an attempt was cancelled.
var (
	errDeadline   = errors.New("proxy: the time of the request is over")
	errClientGone = errors.New("proxy: the client has closed the connection")
	errTry        = errors.New("proxy: the time of the attempt is over")
)

// attempt is one try to have a request answered by one backend.
type attempt struct {
	x     *exchange
	lease *upstream.Lease

	scope   scope
	timer   *time.Timer    // ends it when the time is over; nil: there is no such time
	try     *time.Timer    // ends it when the attempt's own time is over; nil: it has none
	undo    [2]func() bool // what ends with the attempt; nil: nothing
	unwatch func()
	wires   int // connections that it was sent on; net/http sends again by itself what a kept connection did not take

	upload upload // the request's body, if it has one
	trace  httptrace.ClientTrace

	mu    sync.Mutex
	over  bool // nothing that comes before the response is passed on any more
	hints hints
}

// attempt begins one. Its end is to be called.
func (x *exchange) attempt(lease *upstream.Lease) *attempt {
	a := &attempt{x: x, lease: lease}
	a.scope.Context = context.Background()
	a.undo[0] = context.AfterFunc(x.r.Context(), a.clientGone)
	if !x.deadline.IsZero() {
		a.timer = time.AfterFunc(time.Until(x.deadline), func() { a.scope.end(errDeadline) })
	}
	if d := x.route.Retry.PerTry; d > 0 && x.replayable() && x.repeatable() {
		a.try = time.AfterFunc(d, func() { a.scope.end(errTry) })
	}
	a.hints.wait = x.another()
	a.trace.GotConn = a.gotConn
	a.trace.Got1xxResponse = a.got1xx
	if b := x.body; b != nil {
		a.upload.open(x)
		a.undo[1] = a.scope.AfterFunc(func() { a.upload.stop(a.scope.Err()) })
		if b.waiting() {
			a.trace.GotFirstResponseByte = func() { b.answerBegins(a.upload.round) }
			a.trace.Got100Continue = func() { b.wanted(a.upload.round) }
			b.onContinue(a.tellContinue)
		}
	}
	return a
}

// end lets go of all that the attempt has. The response's body is closed by then.
// Further calls do nothing.
func (a *attempt) end() {
	a.upload.end()
	a.inTime()
	for _, undo := range a.undo {
		if undo != nil {
			undo()
		}
	}
	if a.unwatch != nil {
		a.unwatch()
	}
	a.scope.end(errOver)
}

// inTime ends the time limits.
func (a *attempt) inTime() {
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.try != nil {
		a.try.Stop()
	}
}

// extend gives what is done next as much time as the whole request had.
func (a *attempt) extend() {
	if a.timer != nil {
		a.timer.Reset(a.x.route.Timeout)
	}
}

// roundTrip sends the request and waits for the header of the response.
func (a *attempt) roundTrip() (*http.Response, *problem) {
	out := a.request()
	began := time.Now()
	resp, err := a.lease.Backend().RoundTrip(out, &a.trace)
	a.x.record.Upstream += time.Since(began)
	a.x.record.Attempts += max(1, a.wires)
	a.seal()
	if err != nil {
		return nil, a.failure(err)
	}
	if b := a.x.body; b != nil && resp.StatusCode >= 400 {
		b.hold()
	}
	return resp, nil
}

// request is what the backend gets.
func (a *attempt) request() *http.Request {
	x := a.x
	backend := a.lease.Backend().URL()
	out := x.r.WithContext(&a.scope)
	out.URL = targetAt(x.r, x.record.Path, backend)
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/1.1", 1, 1
	out.Header = requestHeader(x.r, x.peer, x.claimed(), x.record.ID, x.upgrade)
	out.RequestURI, out.Close, out.GetBody = "", false, nil
	if x.route.RewriteHost {
		out.Host = ""
	}
	out.Body, out.Trailer, out.TransferEncoding = http.NoBody, nil, nil
	if x.body != nil {
		a.attach(out)
	}
	return out
}

// attach gives the request its body. One of which all is known has a length, unless
// a trailer is to follow.
func (a *attempt) attach(out *http.Request) {
	x := a.x
	out.Body = &a.upload
	switch {
	case out.ContentLength >= 0:
	case x.whole && len(x.body.went) == 0:
		out.ContentLength = int64(len(x.kept.data))
		if out.ContentLength == 0 {
			out.Body = http.NoBody
		}
	default:
		out.TransferEncoding = []string{"chunked"} // or net/http waits for a first byte
		out.Trailer = x.body.went
	}
}

// gotConn is called on the goroutine of roundTrip.
func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	a.wires++
	if b := a.x.body; b != nil {
		if a.unwatch != nil {
			a.unwatch()
		}
		a.unwatch = upstream.OnEnd(info.Conn, a.backendGone)
	}
}

// backendGone is called when the backend's connection has ended, also when the
// attempt was cancelled.
func (a *attempt) backendGone() {
	if a.scope.Err() == nil {
		a.upload.stop(errUpstreamDied)
	}
}

// got1xx passes on what comes before the response. A 100 is for the body, and comes to the
// client when that is read.
func (a *attempt) got1xx(status int, h textproto.MIMEHeader) error {
	if status == http.StatusContinue {
		return nil
	}
	if a.x.body != nil {
		a.x.body.answerWasInterim(a.upload.round)
	}
	if a.x.r.ProtoAtLeast(1, 1) {
		a.hint(status, h)
	}
	return nil
}

// tellContinue has the client send its body. In HTTP/2, net/http does that by itself.
func (a *attempt) tellContinue() {
	if !a.x.front.http2 {
		a.inform(http.StatusContinue, nil)
	}
}

func (a *attempt) inform(status int, h textproto.MIMEHeader) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.x.front.inform(status, h)
	}
}

// seal makes the response to the client the handler's alone.
func (a *attempt) seal() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// clientGone is called when net/http finds the client's connection dead, also
// when we made it so.
func (a *attempt) clientGone() {
	if _, stopped, _ := a.x.body.blame(); stopped == nil {
		a.scope.end(errClientGone)
	}
}

// failure is what an error of the round trip means.
func (a *attempt) failure(err error) *problem {
	var timeout net.Error
	_, stopped, _ := a.x.body.blame()
	p := a.ours()
	switch {
	case p == &timedOut && errors.Is(a.scope.Err(), errDeadline) && a.x.body.tookMost(a.x.route.Timeout):
		p = &clientTimedOut // it left the backend too little
	case p != nil:
	case a.wires == 0:
		p = &unreachable
	case errors.Is(stopped, errUpstreamDied):
		p = &reset
	case errors.As(err, &timeout) && timeout.Timeout():
		p = &timedOut
	default:
		p = &reset
	}
	a.remember(p, err)
	return p
}

// truncation is what an error within the response's body means.
func (a *attempt) truncation(err error) *problem {
	p := a.ours()
	if p == nil {
		p = &truncated
	}
	a.remember(p, err)
	return p
}

// remember keeps the error of a failure of the backend for whoever asks what is wrong
// with it: the client is not told.
func (a *attempt) remember(p *problem, err error) {
	if p.outcome == breaker.Failure {
		a.lease.Failed(err)
	}
}

// ours is the problem if the backend did not end the attempt by itself: the
// client did something wrong or went away, or we ran out of time. Otherwise nil.
func (a *attempt) ours() *problem {
	cause := a.scope.Err()
	if errors.Is(cause, errClientGone) {
		// net/http says so before the read that has failed returns, and only that
		// knows whether it was the end of a body that is too short.
		a.x.body.wait()
	}
	fault, stopped, cut := a.x.body.blame()
	switch {
	case fault == &clientGone:
		return a.x.gone()
	case fault != nil:
		return fault
	case errors.Is(cause, errDeadline) && errors.Is(stopped, errDeadline) && cut:
		return &clientTimedOut
	case errors.Is(cause, errDeadline), errors.Is(cause, errTry):
		return &timedOut
	case cause != nil:
		return a.x.gone()
	}
	return nil
}
