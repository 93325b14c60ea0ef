package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// conn is a connection to a backend that passes on nothing but responses, and
// tells at once when it has ended: net/http notices it as soon, but first waits
// until the request's body is sent, and that may depend on a client who sends nothing.
type conn struct {
	net.Conn
	in   *intake // below it; nil: there is none
	said wire.Responses
	over atomic.Bool // reading it has failed
	tell atomic.Pointer[func()]
}

// watched has a dialer's connections tell when they have ended.
func watched(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, in: intakeOf(c)}, nil
	}
}

// intakeOf finds the one below TLS, too.
func intakeOf(c net.Conn) *intake {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	i, _ := c.(*intake)
	return i
}

// ask tells that a request, HEAD or another, is about to be sent. net/http puts a
// connection back before it reads on, and what has come unasked could be taken for the
// response to this request: the connection is closed then, and the request fails as on
// one that the backend has closed.
func (c *conn) ask(head, reused bool) {
	if reused && !c.in.silent() {
		_ = c.in.Close()
		return
	}
	c.said.Asked(head)
}

// OnEnd has f called when the connection c has ended, which a request was given, see
// httptrace.GotConnInfo: at once if it has already, else on the goroutine that
// reads it, perhaps more than once, and not after stop. It must not block. A
// connection that is not this package's never tells.
func OnEnd(c net.Conn, f func()) (stop func()) {
	w, ok := c.(*conn)
	if !ok {
		return func() {}
	}
	w.tell.Store(&f)
	if w.over.Load() {
		f()
	}
	return func() { w.tell.CompareAndSwap(&f, nil) }
}

// Read passes on what are responses, and tells of an end.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.said.Read(c.Conn, p)
	if err != nil {
		c.over.Store(true)
		if f := c.tell.Load(); f != nil {
			(*f)()
		}
	}
	return n, err
}

// CloseWrite tells the backend that nothing more will come.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// copyBuffers are for bodies of known length, for which net/http would make one each.
var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadFrom sends what it reads from r.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	buffer := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(writerOnly{c.Conn}, r, buffer[:])
}

// writerOnly keeps io.CopyBuffer from asking for more than Write.
type writerOnly struct{ io.Writer }
