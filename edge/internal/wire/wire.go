// Package wire looks at the bytes of a connection before net/http does, for
// net/http mends in silence what must be refused: of a request with
// Content-Length and Transfer-Encoding it drops the one and keeps the connection.
// Whoever stands before or behind may have dropped the other, and has then seen
// other requests.
//
// A connection reads the heads of HTTP/1 as strictly as RFC 9112 allows, follows
// the framing of the bodies, and so knows where the next request begins, also
// where several are pipelined. What may pass is passed on as it is. What is
// against the rules never reaches net/http:
//
//   - A bad head is replaced by another, of a GET or HEAD request with a header
//     that no client can forge. The handler recognises it by [Refused], and
//     answers in the request's turn. Nothing after it is passed on.
//   - A bad chunk is replaced by one that net/http refuses for certain, so that
//     reading the body fails. Nothing after it is passed on.
//
// HTTP/2 with prior knowledge passes as it is, and [Refused] looks at its requests
// when net/http has read them. What comes after a hijack passes as well, see
// [ConnState].
//
// Of connections to backends, [Responses] does the same.
package wire

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of a connection. All but HeaderTimeout are positive.
type Limits struct {
	// HeaderBytes is the greatest length of a head, from the request line to the
	// empty line at its end. HeaderFields is how many lines it may have between them.
	HeaderBytes, HeaderFields int
	// URLBytes is the greatest length of a request's target.
	URLBytes int
	// Connections is how many may be open; the next one waits to be accepted.
	Connections int
	// HeaderTimeout is how long a head may take from its first byte, on a connection that
	// was idle: net/http, whose ReadHeaderTimeout is the same, is not shown a byte
	// before the last one has come. 0: as long as the connection may be idle.
	HeaderTimeout time.Duration
}

// Listen returns a listener whose connections refuse, each in its turn among
// those that are pipelined, the requests that HTTP/1.1 does not allow, or that
// are beyond the limits. Such a request reaches the handler in another form, see
// [Refused]. The server has to call [ConnState] and [ConnContext].
func Listen(l net.Listener, limits Limits) net.Listener {
	if limits.HeaderBytes < 1 || limits.HeaderFields < 1 || limits.URLBytes < 1 || limits.Connections < 1 || limits.HeaderTimeout < 0 {
		panic("wire: Listen expects positive limits")
	}
	return &listener{Listener: l, limits: limits, slots: make(chan struct{}, limits.Connections), closed: make(chan struct{})}
}

// ConnState is to be called as, or by, [http.Server.ConnState]. It is how a
// connection knows what became of a request with Upgrade: what follows it is
// kept back until the next request is asked for, or until the handler has
// hijacked the connection, whose bytes then pass as they are. Without it no
// tunnel gets a byte, and no other request follows such a one.
//
// Only a request that has Upgrade, or is CONNECT, may be hijacked: what follows
// any other has been taken for requests.
func ConnState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	switch state {
	case http.StateIdle:
		c.ended.Add(1)
	case http.StateHijacked:
		c.hijacked.Store(true)
	case http.StateNew, http.StateActive, http.StateClosed:
	}
}

type connKey struct{}

// ConnContext is to be called as, or by, [http.Server.ConnContext]. It is how
// [Refused] knows the limits of a connection that has HTTP/2, which are none but the
// server's own without it, and how [SetReadIdle] and [SetTorn] know the connection.
func ConnContext(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// SetReadIdle sets how long the client may send nothing, until the next deadline
// is set: each byte that comes gives it that time again. A deadline would end a read
// of a chunk that is slow but never stands still, for net/http reads until its buffer
// is full. It reports whether it could: HTTP/2 has deadlines of its own.
func SetReadIdle(r *http.Request, d time.Duration) bool {
	if r.ProtoMajor > 1 {
		return false
	}
	c, ok := r.Context().Value(connKey{}).(*conn)
	if ok {
		c.setIdle(d)
	}
	return ok
}

// SetTorn has the end of the connection be a reset, until it is taken back, whoever
// ends it. It is for a response that is over when its connection is, as HTTP/1.0
// has it: where it breaks off, an ordinary end would make it look whole.
func SetTorn(r *http.Request, torn bool) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return
	}
	seconds := -1 // as it is by default
	if torn {
		seconds = 0
	}
	if s, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = s.SetLinger(seconds) // of a connection that is gone
	}
}

// listener accepts no more connections than may be open.
type listener struct {
	net.Listener
	limits Limits
	slots  chan struct{} // full: as many are open as may be
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener. It waits while too many connections are open.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	nc, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return newConn(nc, &l.limits, l.slots), nil
}

// Close implements net.Listener. Connections that were accepted stay open.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
