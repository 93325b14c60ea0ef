package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// direct sends requests that have no body, over TCP. It does as http.Transport
// does, with net/http's own writing of requests and reading of responses, but all
// on the goroutine of the request: where there is no body, nothing has to be
// sent while the response is awaited. It is safe for concurrent use.
type direct struct {
	dial           dialer
	address        string
	response, idle time.Duration // zero: no limit
	most           int           // connections that are kept

	mu     sync.Mutex
	kept   []*line     // idle; who became so first comes first
	expiry *time.Timer // of the first; nil: none was ever kept
	closed bool        // none is kept until the next request
}

// line is a connection, and what a request on it needs. One goroutine has it.
type line struct {
	net.Conn
	of     *direct
	in     *bufio.Reader
	out    *bufio.Writer
	silent silence
	said   wire.Responses
	// interrupt has what is under way fail.
	interrupt func()
	reused    bool
	eager     bool      // a read must not wait
	since     time.Time // it is idle
	began     time.Time // the request

	ctx   context.Context //nolint:containedctx // the request's, as the response is
	by    time.Time       // when what is read next must have come; zero: no limit
	armed time.Time       // the connection's deadline, see freshen; zero: none
}

// lineBuffer is as in http.Transport.
const lineBuffer = 4 << 10

// past is a deadline that is over.
var past = time.Unix(1, 0)

// isDirect reports whether a request is one for a direct.
func isDirect(r *http.Request) bool {
	return hasDirect && r.URL.Scheme == "http" && r.ContentLength == 0 && (r.Body == nil || r.Body == http.NoBody) && r.Header["Upgrade"] == nil
}

// roundTrip is that of a backend. As http.Transport, it sends a request that
// asks for nothing to be changed once more, if a kept connection turns out to be
// closed.
func (d *direct) roundTrip(r *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	for {
		l, err := d.line(r.Context())
		if err != nil {
			return nil, err
		}
		if trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{Conn: l.Conn, Reused: l.reused})
		}
		resp, err := l.roundTrip(r, trace)
		if err == nil {
			return resp, nil
		}
		if cause := context.Cause(r.Context()); cause != nil {
			return nil, cause
		}
		if !l.reused || !l.said.Awaited() || !isSafe(r.Method) || isTimeout(err) {
			return nil, err
		}
	}
}

func isSafe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// line returns a kept connection, or a new one.
func (d *direct) line(ctx context.Context) (*line, error) {
	for {
		l := d.take()
		if l == nil {
			break
		}
		l.reused, l.began = true, time.Now()
		l.freshen()
		if l.silent.holds() {
			return l, nil
		}
		_ = l.Close() // the backend has closed it, or says what nobody has asked for
	}
	c, err := d.dial(ctx, "tcp", d.address)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: c, of: d, silent: silenceOf(c), began: time.Now()}
	l.freshen()
	l.interrupt = func() { _ = c.SetDeadline(past) }
	l.in, l.out = bufio.NewReaderSize(l, lineBuffer), bufio.NewWriterSize(c, lineBuffer)
	return l, nil
}

// take takes the connection that was used last; nil if there is none.
func (d *direct) take() *line {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = false
	n := len(d.kept)
	if n == 0 {
		return nil
	}
	l := d.kept[n-1]
	d.kept[n-1], d.kept = nil, d.kept[:n-1]
	return l
}

// giveBack keeps a connection, or closes it.
func (d *direct) giveBack(l *line) {
	if !d.keep(l) {
		_ = l.Close()
	}
}

// keep reports whether a connection may be kept, and if so does.
func (d *direct) keep(l *line) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.kept) >= d.most {
		return false
	}
	l.since = time.Now()
	d.kept = append(d.kept, l)
	switch {
	case d.idle == 0 || len(d.kept) > 1: // the timer is that of the first
	case d.expiry == nil:
		d.expiry = time.AfterFunc(d.idle, d.expire)
	default:
		d.expiry.Reset(d.idle)
	}
	return true
}

// expire closes the connections that have been idle for too long.
func (d *direct) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, now := 0, time.Now()
	for n < len(d.kept) && now.Sub(d.kept[n].since) >= d.idle {
		_ = d.kept[n].Close()
		n++
	}
	d.kept = append(d.kept[:0], d.kept[n:]...)
	if len(d.kept) > 0 {
		d.expiry.Reset(d.idle - now.Sub(d.kept[0].since))
	}
}

// CloseIdleConnections closes them, and those that become idle before the next
// request.
func (d *direct) CloseIdleConnections() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, l := range d.kept {
		_ = l.Close()
	}
	d.kept = nil
	if d.expiry != nil {
		d.expiry.Stop()
	}
}

// Read is that of the connection, as far as it is a response.
func (l *line) Read(p []byte) (int, error) {
	return l.said.Read((*source)(l), p)
}

// source is what a line reads from.
type source line

// Read reads from the connection, until the time of the response.
func (s *source) Read(p []byte) (int, error) {
	if s.eager {
		return s.silent.more(p)
	}
	for {
		n, err := s.Conn.Read(p)
		if n == 0 && err != nil && (*line)(s).early(err) {
			continue
		}
		return n, err
	}
}

// roundTrip sends a request and reads the head of the response. If it fails the
// connection is closed.
func (l *line) roundTrip(r *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	l.ctx = r.Context()
	release := afterFunc(l.ctx, l.interrupt)
	resp, err := l.exchange(r, trace)
	if err != nil {
		release()
		_ = l.Close()
		return nil, err
	}
	b := &lineBody{from: resp.Body, ctx: l.ctx, line: l, release: release, last: resp.Close, fresh: resp.ContentLength > 0}
	if resp.Body == http.NoBody {
		b.finish(true)
		return resp, nil
	}
	resp.Body = b
	return resp, nil
}

// afterFunc is context.AfterFunc, without its own part where the context has one.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if c, ok := ctx.(interface{ AfterFunc(f func()) func() bool }); ok {
		return c.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// exchange sends a request, and reads heads until one is that of the response.
func (l *line) exchange(r *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	l.said.Asked(r.Method == http.MethodHead)
	if err := l.write(r); err != nil {
		return nil, err
	}
	if l.of.response > 0 {
		l.by = l.began.Add(l.of.response)
	}
	for {
		resp, err := http.ReadResponse(l.in, r)
		if err != nil {
			return nil, err
		}
		l.said.Restore(resp.Header)
		switch {
		case resp.StatusCode == http.StatusSwitchingProtocols: // which nobody has asked for
			resp.Close = true
		case resp.StatusCode >= 100 && resp.StatusCode < 200:
			if trace.Got1xxResponse != nil {
				if err := trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
					return nil, err
				}
			}
			continue
		}
		l.by = time.Time{}
		return resp, context.Cause(r.Context())
	}
}

// write sends a request.
func (l *line) write(r *http.Request) error {
	head, ok := appendHead(l.out.AvailableBuffer(), r)
	if ok {
		_, _ = l.out.Write(head) // Flush has the error
	} else if err := r.Write(l.out); err != nil {
		return err
	}
	return l.out.Flush()
}

// freshen sees to it that the connection has a deadline, not after the time that a
// request which begins now has for its response. To set one costs a timer of the
// runtime: one that others left is good enough as long as it is half of the time
// ahead. If it comes too early, see early.
func (l *line) freshen() {
	if response := l.of.response; response > 0 && l.armed.Sub(l.began) < response/2 {
		_ = l.arm(l.began.Add(response)) // what is read next fails, too
	}
}

// early reports whether a read failed because a deadline came that was for others,
// and has it begin anew. The end of the context sets one, too, and must not be
// undone: it came before or comes after.
func (l *line) early(err error) bool {
	if !isTimeout(err) || !l.by.IsZero() && !time.Now().Before(l.by) {
		return false
	}
	return l.arm(l.by) == nil && context.Cause(l.ctx) == nil
}

func (l *line) arm(t time.Time) error {
	l.armed = t
	return l.SetReadDeadline(t)
}

// lineBody is a response's body. Its end gives the connection back.
type lineBody struct {
	from    io.ReadCloser
	ctx     context.Context //nolint:containedctx // it is the request's, as the response is
	line    *line
	release func() bool // of the connection from the context
	last    bool        // there is no request after this one
	fresh   bool        // nothing was read of it, and its length is known
	done    atomic.Bool
}

// Read is for one goroutine at a time.
func (b *lineBody) Read(p []byte) (int, error) {
	if b.done.Load() {
		return 0, io.EOF
	}
	n, err := b.from.Read(p)
	if err == nil && b.fresh && b.line.in.Buffered() == 0 {
		// It was what came with the head, which is little. What else is here goes with it.
		b.line.eager = true
		var more int
		more, err = b.from.Read(p[n:])
		b.line.eager = false
		n += more
	}
	b.fresh = false
	if err == nil {
		return n, nil
	}
	whole := err == io.EOF //nolint:errorlint // as io.Reader returns it
	b.finish(whole)
	if cause := context.Cause(b.ctx); cause != nil && !whole {
		err = cause
	}
	return n, err
}

// Close closes the connection unless the body has ended: the rest would have to be read.
func (b *lineBody) Close() error {
	b.finish(false)
	return nil
}

// finish is called at the end of the body, or when nobody wants more of it.
func (b *lineBody) finish(whole bool) {
	if b.done.Swap(true) {
		return
	}
	free := b.release() // or its deadline is over, or will be
	if whole && free && !b.last && b.line.said.Idle() {
		b.line.of.giveBack(b.line)
		return
	}
	_ = b.line.Close()
}
