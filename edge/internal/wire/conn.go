package wire

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// errEarly ends a connection whose client sends more than is kept while it is not
// decided what it is talking.
var errEarly = errors.New("wire: the client did not wait for the answer to its Upgrade")

const (
	// mostRead is the most that is read at once: all of it may have to be kept.
	mostRead = 32 << 10
	// leastRead is less than any buffer that a head is read into.
	leastRead = 1 << 10
	// poolSize is the room for what is kept. Few heads come in two pieces, and
	// fewer are larger.
	poolSize = 8 << 10
)

// pool has arrays for what is kept, of poolSize.
var pool = sync.Pool{New: func() any { return new([poolSize]byte) }}

// conn is a connection whose Read returns what may pass. As for any net.Conn that
// is given to net/http, one goroutine reads at a time; everything else is safe for
// concurrent use.
type conn struct {
	net.Conn
	limits *Limits
	slots  chan struct{}
	closed atomic.Bool

	scanner scanner
	kept    kept
	err     error // that came with what is kept

	ended    atomic.Int64 // requests that net/http is done with
	hijacked atomic.Bool

	in, out deadline      // of reads and of writes; in's mu guards the next three
	idle    time.Duration // from a read to the next; 0: asked does not move
	asked   time.Time     // for which deadline of reads net/http has asked
	by      time.Time     // when the head that has begun must be there; zero: there is none, or no hurry
	rolls   atomic.Bool   // idle may be set
}

func newConn(nc net.Conn, limits *Limits, slots chan struct{}) *conn {
	return &conn{
		Conn: nc, limits: limits, slots: slots, scanner: scanner{limits: limits, phase: inHead, first: true},
		in: deadline{set: nc.SetReadDeadline}, out: deadline{set: nc.SetWriteDeadline},
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		c.heed()
		if n := c.kept.take(p); n > 0 {
			return n, nil
		}
		if err := c.err; err != nil {
			c.err = nil // the next read asks the connection again
			return 0, err
		}
		switch c.scanner.phase {
		case opaque:
			return c.read(p)
		case over:
			return c.discard(p)
		}
		if n := c.fill(p); n > 0 {
			return n, nil
		}
	}
}

// read reads from the connection below.
func (c *conn) read(p []byte) (int, error) {
	for {
		c.in.begin()
		n, err := c.Conn.Read(p)
		switch early := c.in.end(err); {
		case !early:
			return n, err
		case n > 0:
			return n, nil
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (written int, err error) {
	for {
		c.out.begin()
		n, err := c.Conn.Write(p[written:])
		written += n
		if early := c.out.end(err); !early {
			return written, err
		}
	}
}

// heed does what ConnState has told.
func (c *conn) heed() {
	switch {
	case c.scanner.phase == opaque:
	case c.hijacked.Load():
		c.scanner.phase = opaque
		c.kept.ready = len(c.kept.bytes)
		c.calm()
	case c.scanner.phase == undecided && c.ended.Load() == c.scanner.requests:
		c.scanner.phase = inHead
		c.siftKept()
	}
}

// fill reads once from the connection. It returns how many bytes of p may pass;
// there may be more among those that are kept.
func (c *conn) fill(p []byte) int {
	// A read of one byte is how net/http notices a client that goes away during
	// the request before: nobody waits for the head yet. Any other that is short is
	// how it looks for HTTP/2: the head comes as a whole all the same, as nearly always.
	if len(c.kept.bytes) == 0 && (len(p) == 1 || len(p) >= leastRead) {
		var n int
		p = p[:min(len(p), mostRead)]
		n, c.err = c.read(p)
		c.roll(n)
		return c.sift(p[:n])
	}
	if c.scanner.phase == undecided && len(c.kept.bytes) > c.limits.HeaderBytes {
		c.err = errEarly
		return 0
	}
	if len(p) > 1 && len(c.kept.bytes) > 0 && c.scanner.phase == inHead {
		c.hurry()
	}
	var n int
	n, c.err = c.read(c.kept.room())
	c.roll(n)
	c.kept.bytes = c.kept.bytes[:len(c.kept.bytes)+n]
	c.siftKept()
	return 0
}

// sift returns how much of b may pass, and keeps the rest.
func (c *conn) sift(b []byte) int {
	ready, rest := c.pass(b)
	c.keep(rest)
	return ready
}

// siftKept is sift of what is kept, none of which was ready.
func (c *conn) siftKept() {
	b := c.kept.bytes
	ready, rest := c.pass(b)
	c.kept.bytes, c.kept.ready = b[:ready+len(rest)], ready
	if c.scanner.instead != nil {
		c.kept.bytes = b[:ready]
		c.keep(nil)
	}
	if ready > 0 || c.scanner.phase != inHead {
		c.calm()
	}
	if len(c.kept.bytes) == 0 {
		c.kept.free()
	}
}

// pass shows b to the scanner. It returns how much may pass, and what stays.
func (c *conn) pass(b []byte) (ready int, rest []byte) {
	for {
		n, empty := c.scanner.scan(b[ready:])
		ready += n
		if !empty {
			return ready, b[ready:]
		}
		// net/http does not know that there may be an empty line before a request.
		b = append(b[:ready], b[ready+2:]...)
	}
}

// keep adds rest to what is kept or, if it has been refused, what is passed on
// instead.
func (c *conn) keep(rest []byte) {
	if instead := c.scanner.instead; instead != nil {
		c.scanner.instead = nil
		c.kept.add(instead)
		c.kept.ready = len(c.kept.bytes)
		return
	}
	if len(rest) > 0 {
		c.kept.add(rest)
	}
}

// discard reads what nobody wants to know, so that the client can read our
// answer: a close with unread bytes would be a reset. It returns when the
// connection fails.
func (c *conn) discard(p []byte) (int, error) {
	if len(p) < 512 {
		p = make([]byte, 4<<10)
	}
	for {
		if _, err := c.read(p); err != nil {
			return 0, err
		}
	}
}

// hurry begins the time that the head which has begun may take.
func (c *conn) hurry() {
	if c.limits.HeaderTimeout == 0 || !c.by.IsZero() { // only the reader writes by
		return
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.by = time.Now().Add(c.limits.HeaderTimeout)
	_ = c.in.ask(c.sooner()) // the read that follows fails, too
}

// calm ends it.
func (c *conn) calm() {
	if c.by.IsZero() {
		return
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.by = time.Time{}
	_ = c.in.ask(c.asked) // the read that follows fails, too
}

// sooner is the deadline of reads. The caller holds mu.
func (c *conn) sooner() time.Time {
	if c.by.IsZero() || !c.asked.IsZero() && c.asked.Before(c.by) {
		return c.asked
	}
	return c.by
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.asked, c.idle = t, 0
	c.rolls.Store(false)
	return c.in.ask(c.sooner())
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.ask(t)
}

// setIdle has the deadline move with each read that brings something.
func (c *conn) setIdle(d time.Duration) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.asked, c.idle = time.Now().Add(d), d
	c.rolls.Store(true)
	_ = c.in.ask(c.sooner()) // the read that follows fails, too
}

// roll moves the deadline, after a read of n bytes, if it is one that moves.
func (c *conn) roll(n int) {
	if n <= 0 || !c.rolls.Load() {
		return
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.idle > 0 {
		c.asked = time.Now().Add(c.idle)
		_ = c.in.ask(c.sooner()) // the read that follows fails, too
	}
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close implements net.Conn, and lets another connection be accepted.
func (c *conn) Close() error {
	err := c.Conn.Close()
	if !c.closed.Swap(true) {
		<-c.slots
	}
	return err
}

// CloseWrite ends what is sent, and lets the client send on.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection below. To read from it passes over what is kept, and
// its deadlines are not those that were set here.
func (c *conn) NetConn() net.Conn { return c.Conn }

// SyscallConn implements syscall.Conn.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// kept is what was read and not yet passed on. The zero value is nothing.
type kept struct {
	bytes []byte // a part of array
	ready int    // how many of them may pass
	array []byte
}

// take moves what may pass to p.
func (k *kept) take(p []byte) int {
	if k.ready == 0 {
		return 0
	}
	n := copy(p, k.bytes[:k.ready])
	k.bytes, k.ready = k.bytes[n:], k.ready-n
	if len(k.bytes) == 0 {
		k.free()
	}
	return n
}

// room returns space behind the bytes, at least half as much as the smallest array.
func (k *kept) room() []byte {
	k.reserve(poolSize / 2)
	return k.bytes[len(k.bytes):cap(k.bytes)]
}

func (k *kept) add(b []byte) {
	k.reserve(len(b))
	k.bytes = append(k.bytes, b...)
}

// reserve makes room for n more bytes, at the front, in the pool, or beyond it.
func (k *kept) reserve(n int) {
	need := len(k.bytes) + n
	switch {
	case cap(k.bytes)-len(k.bytes) >= n:
	case len(k.array) >= need:
		k.bytes = k.array[:copy(k.array, k.bytes)]
	case need <= poolSize: // and so array is nil
		k.array = pool.Get().(*[poolSize]byte)[:]
		k.bytes = k.array[:copy(k.array, k.bytes)]
	default:
		grown := make([]byte, max(need, 2*len(k.array)))
		k.bytes = grown[:copy(grown, k.bytes)]
		k.giveBack()
		k.array = grown
	}
}

// free gives the array back. Nothing is kept.
func (k *kept) free() {
	k.giveBack()
	*k = kept{}
}

func (k *kept) giveBack() {
	if len(k.array) == poolSize {
		pool.Put((*[poolSize]byte)(k.array))
	}
}
