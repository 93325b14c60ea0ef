package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// Why a client's body is not read any further.
var (
	errUpstreamDied = errors.New("proxy: the backend's connection has ended")
	errOver         = errors.New("proxy: the request is over")
)

// continuing is where a request stands that came with Expect: 100-continue.
type continuing uint8

const (
	notExpected continuing = iota
	expected               // the client waits for a 100
	answering              // as expected, and the backend's answer has begun: a 100 or a final one
	continued              // the client sends its body
)

// body is the client's body as a backend's transport reads it. It can be told to stop,
// which net/http's cannot: a read of that lasts until the client sends something.
// It remembers whose fault an end was, which no error of the transport tells. And
// it has deadlines, which move with each byte, so that a client may take hours as
// long as it goes on sending.
type body struct {
	from  io.ReadCloser
	r     *http.Request
	front *front
	idle  time.Duration // of a read
	pace  pace
	paced bool        // a read may last longer than until there is something
	left  int64       // bytes that may still come
	went  http.Header // the trailer that the backend gets; filled at the end

	mu      sync.Mutex
	changed sync.Cond
	expect  continuing
	reading bool     // a read of the client's connection is under way
	asked   bool     // somebody has wanted to read it
	round   int      // of the attempt that may read it, see again
	ended   bool     // the client has sent all of it
	held    bool     // the backend has answered, and reads no more
	stopped error    // no more is to be read, and why
	cut     bool     // a read was under way when it was stopped
	fault   *problem // what the client did wrong; nil: nothing
	bytes   int64
	waited  time.Duration // for the client, in all
	tell    func()        // writes a 100 to the client; nil where net/http does
}

// bodyOf returns nil for a request without one.
func bodyOf(r *http.Request, f *front, limit int64, idle time.Duration) *body {
	if r.ContentLength == 0 {
		return nil
	}
	b := &body{
		from: r.Body, r: r, front: f, idle: idle,
		left:  limit,
		paced: r.ContentLength < 0 && !f.http2,
	}
	b.changed.L = &b.mu
	if r.ContentLength < 0 {
		b.went = announced(r.Trailer)
	}
	if expectsContinue(r) {
		b.expect = expected
	}
	return b
}

// announced is a trailer of which only the names are known.
func announced(trailer http.Header) http.Header {
	t := make(http.Header, len(trailer))
	for key := range trailer {
		if mayTrail(key) {
			t[key] = nil
		}
	}
	return t
}

// Read is for one goroutine at a time, and for before the first attempt.
func (b *body) Read(p []byte) (int, error) { return b.read(0, p) }

// read is Read for the attempt of a round.
func (b *body) read(round int, p []byte) (int, error) {
	if b.paced {
		p = b.pace.of(p)
	}
	if int64(len(p))-1 > b.left {
		p = p[:b.left+1] // one too many is enough to know
	}
	err := b.begin(round)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	n, err := b.from.Read(p)
	took := time.Since(start)
	if b.paced {
		b.pace.took(took, b.idle)
	}
	return b.end(n, took, err)
}

// begin waits until the client's connection may be read, and sets the deadline.
func (b *body) begin(round int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if round == b.round {
		b.asked = true
	}
	for (b.held || b.expect == answering) && !b.ended && b.stopped == nil && b.fault == nil && round == b.round {
		b.changed.Wait()
	}
	switch {
	case round != b.round:
		return errOver
	case b.stopped != nil:
		return b.stopped
	case b.fault != nil:
		return errOver
	case b.ended:
		return io.EOF
	}
	if b.expect == expected || b.expect == continued {
		if b.tell != nil {
			b.tell()
			b.tell = nil
		}
		b.expect = notExpected
	}
	b.reading = true
	// Under the lock, lest it undo the deadline with which stop ends a read.
	if !wire.SetReadIdle(b.r, b.idle) {
		_ = b.front.control.SetReadDeadline(time.Now().Add(b.idle))
	}
	return nil
}

// end takes in what a read of the client's connection brought.
func (b *body) end(n int, took time.Duration, err error) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.changed.Broadcast()
	if b.front.http2 && b.stopped == nil {
		// There a deadline ends the body even while nobody reads.
		_ = b.front.control.SetReadDeadline(time.Time{})
	}
	b.bytes += int64(n)
	b.waited += took
	b.left -= int64(n)
	switch {
	case err == io.EOF: //nolint:errorlint // as io.Reader returns it
		b.ended = true
		if b.went != nil {
			copyTrailer(b.went, b.r.Trailer, "")
		}
	case err == nil:
		err = b.stopped
	case !b.cutOff(err):
		b.fault = b.faultOf(err)
	}
	if b.left < 0 {
		b.fault = &tooLarge
		return 0, errOver
	}
	return n, err
}

// cutOff reports whether a read failed because it was stopped. That the client is gone is
// what net/http says of any read that fails, before the read returns.
func (b *body) cutOff(err error) bool {
	return b.stopped != nil && !errors.Is(b.stopped, errClientGone) && errors.Is(err, os.ErrDeadlineExceeded)
}

// faultOf is what an error of the client's body means.
func (b *body) faultOf(err error) *problem {
	var connection *net.OpError
	switch {
	case b.front.http2 && b.r.Context().Err() != nil:
		return &clientGone
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &slowBody
	case errors.As(err, &connection):
		return &clientGone
	default: // the client may have closed its half only, and wait for an answer
		return &badBody
	}
}

// answerBegins tells that the first byte of a response has come: whether the
// body is wanted will be known when the response is.
func (b *body) answerBegins(round int) { b.turn(round, answering, expected) }

// answerWasInterim tells that it was a 1xx other than 100.
func (b *body) answerWasInterim(round int) { b.turn(round, expected, answering) }

// wanted tells that the backend has sent a 100.
func (b *body) wanted(round int) { b.turn(round, continued, expected, answering) }

func (b *body) turn(round int, to continuing, from ...continuing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if round == b.round && slices.Contains(from, b.expect) {
		b.expect = to
		b.changed.Broadcast()
	}
}

// waiting reports whether the client still expects a 100.
func (b *body) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.expect == expected || b.expect == answering
}

// stop ends a read that is under way and refuses further ones, unless there is
// nothing more to be read. In HTTP/1 the connection is of no use afterwards.
func (b *body) stop(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.halt(why)
}

// stopIn is stop, if it is still the attempt of this round that has the body.
func (b *body) stopIn(round int, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if round == b.round {
		b.halt(why)
	}
}

// halt is stop for who holds the lock.
func (b *body) halt(why error) {
	if b.ended || b.stopped != nil || b.fault != nil {
		return
	}
	b.stopped, b.cut = why, b.reading
	if b.reading {
		_ = b.front.control.SetReadDeadline(past)
	}
	b.changed.Broadcast()
}

// current is the round of the attempt that may read the body.
func (b *body) current() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.round
}

// untouched reports whether nobody has wanted to read any of it: another attempt
// may send what one before did not.
func (b *body) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fresh()
}

// fresh is untouched for who holds the lock.
func (b *body) fresh() bool {
	return !b.asked && b.fault == nil && (b.stopped == nil || errors.Is(b.stopped, errUpstreamDied))
}

// again gives an untouched body to another attempt, as if there had been none
// before, and reports whether it was untouched. The one before gets nothing of it.
func (b *body) again() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fresh() {
		return false
	}
	b.round++
	b.stopped, b.held = nil, false
	if b.expect != notExpected {
		b.expect = expected
	}
	b.changed.Broadcast()
	return true
}

// hold has further reads wait until the body is stopped: an error would have the
// transport close the connection, and the rest of the response be lost.
func (b *body) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = true
}

// rest stops the body and returns when nobody reads it.
func (b *body) rest() {
	b.stop(errOver)
	b.wait()
}

// wait returns when nobody reads the body.
func (b *body) wait() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.reading {
		b.changed.Wait()
	}
}

// blame tells why a transport could not read the body: the client's fault, or
// why it was stopped, and whether that was while the client was waited for. Of a
// nil body there is nothing to tell.
func (b *body) blame() (fault *problem, stopped error, cut bool) { //nolint:revive // an error that is told of, not one of blame's
	if b == nil {
		return nil, nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault, b.stopped, b.cut
}

// complete reports whether the client has sent all of it and its connection is
// fit for another request.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended && b.stopped == nil && b.fault == nil
}

// count is how many bytes have been read.
func (b *body) count() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// tookMost reports whether most of a time was spent waiting for the client. Of a nil
// body none was.
func (b *body) tookMost(of time.Duration) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waited > of/2
}

// Of a body that nobody wants a little is read, so that the connection may be kept.
const (
	maxDrain      = 64 << 10
	drainPatience = 100 * time.Millisecond
)

// drain does that.
func (b *body) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended || b.stopped != nil || b.fault != nil || b.reading || b.expect != notExpected || b.r.ContentLength-b.bytes > maxDrain {
		return
	}
	_ = b.front.control.SetReadDeadline(time.Now().Add(drainPatience))
	n, err := io.CopyN(io.Discard, b.from, maxDrain+1)
	b.bytes += n
	b.ended = err == io.EOF //nolint:errorlint // as io.CopyN returns it
	if !b.ended {
		b.stopped = errOver
	}
	b.changed.Broadcast()
}

// onContinue has tell called before the first read, if the client waits for a 100.
func (b *body) onContinue(tell func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell = tell
}
