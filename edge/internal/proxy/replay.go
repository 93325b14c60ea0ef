package proxy

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// What is kept of bodies, so that they can be sent again.
const (
	maxKept   = 64 << 10 // bytes of one
	smallKept = 4 << 10  // room for most
	maxMemory = 32 << 20 // of all together
)

type (
	smallRoom [smallKept]byte
	largeRoom [maxKept + 1]byte // by the one more it shows that a body is too long
)

// memory is the buffers in which bodies are kept. What is in use is bounded: who
// gets none does without. It is safe for concurrent use.
type memory struct {
	most         int64
	used         atomic.Int64
	small, large sync.Pool
}

// newMemory is for so many bytes.
func newMemory(most int64) *memory {
	m := &memory{most: most}
	m.small.New = func() any { return new(smallRoom) }
	m.large.New = func() any { return new(largeRoom) }
	return m
}

// buffer is one of them. A nil one is no buffer.
type buffer struct {
	memory *memory
	small  *smallRoom // or
	large  *largeRoom
	data   []byte // what is in it
	freed  atomic.Bool
}

// take returns a buffer for size bytes; nil if there is no memory left.
func (m *memory) take(size int) *buffer {
	room := int64(smallKept)
	if size > smallKept {
		room = maxKept
	}
	if m.used.Add(room) > m.most {
		m.used.Add(-room)
		return nil
	}
	b := &buffer{memory: m}
	if size > smallKept {
		b.large, _ = m.large.Get().(*largeRoom)
		b.data = b.large[:0]
	} else {
		b.small, _ = m.small.Get().(*smallRoom)
		b.data = b.small[:0]
	}
	return b
}

// free gives the memory back, once however often it is called. Nobody may read data any more.
func (b *buffer) free() {
	if b == nil || b.freed.Swap(true) {
		return
	}
	if b.large != nil {
		b.memory.large.Put(b.large)
		b.memory.used.Add(-maxKept)
		return
	}
	b.memory.small.Put(b.small)
	b.memory.used.Add(-smallKept)
}

// grow returns a larger buffer with the same data, or nil, and frees b if it did.
func (b *buffer) grow() *buffer {
	if b.large != nil {
		return nil
	}
	larger := b.memory.take(maxKept)
	if larger != nil {
		larger.data = append(larger.data, b.data...)
		b.free()
	}
	return larger
}

// fill reads until the end, or as much as may be kept; whole is whether that was
// all. size is how much it will be, negative if nobody knows. The buffer is nil if
// there is no memory, and then nothing was read, or if the reading failed.
func (m *memory) fill(from io.Reader, size int64) (b *buffer, whole bool, err error) {
	if size > maxKept {
		return nil, false, nil
	}
	b = m.take(int(size + 1))
	for b != nil {
		if len(b.data) == cap(b.data) {
			larger := b.grow()
			if larger == nil {
				return b, false, nil
			}
			b = larger
		}
		n, err := from.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case err == io.EOF:
			return b, true, nil
		case err != nil:
			b.free()
			return nil, false, err
		}
	}
	return nil, false, nil
}

// readAhead keeps the request's body if it is short and the request may be sent
// more than once, before a backend is chosen: one that is slow to come takes nobody's
// place. What is longer goes on from what has been read.
func (x *exchange) readAhead() *problem {
	b := x.body
	if b == nil || !x.repeatable() || b.waiting() {
		return nil
	}
	if !x.deadline.IsZero() {
		over := time.AfterFunc(time.Until(x.deadline), func() { b.stop(errDeadline) })
		defer over.Stop()
	}
	var err error
	x.kept, x.whole, err = x.h.memory.fill(b, x.r.ContentLength)
	if err == nil {
		return nil
	}
	switch fault, stopped, _ := b.blame(); {
	case fault == &clientGone:
		return x.gone()
	case fault != nil:
		return fault
	case errors.Is(stopped, errDeadline):
		return &clientTimedOut
	default:
		return x.gone()
	}
}

// upload is a request's body as one attempt sends it: what was kept of it, and
// then what the client sends. A transport may come back for more when its round
// trip is over and another attempt has begun; it gets nothing then.
//
// Its Close does nothing: neither the buffer nor the client's body are the
// transport's to close.
type upload struct {
	body  *body
	round int  // which attempt's it is, see body.again
	whole bool // nothing follows on what was kept

	mu   sync.Mutex
	kept *buffer // nil: nothing is left of it
	sent int     // of what is kept
	over bool
}

// open begins an attempt's.
func (u *upload) open(x *exchange) {
	u.body, u.kept, u.whole = x.body, x.kept, x.whole
	u.round = x.body.current()
}

// Read is for one goroutine at a time.
func (u *upload) Read(p []byte) (int, error) {
	n, over := u.readKept(p)
	switch {
	case n > 0 || len(p) == 0:
		return n, nil
	case over:
		return 0, errOver
	case u.whole:
		return 0, io.EOF
	}
	return u.body.read(u.round, p)
}

// Close does nothing.
func (u *upload) Close() error { return nil }

// readKept copies under the lock, so that the buffer is not freed meanwhile.
func (u *upload) readKept(p []byte) (n int, over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || u.kept == nil {
		return 0, u.over
	}
	n = copy(p, u.kept.data[u.sent:])
	u.sent += n
	if u.sent == len(u.kept.data) && !u.whole { // it cannot be sent again
		u.kept.free()
		u.kept = nil
	}
	return n, false
}

// end has nobody read what was kept any more.
func (u *upload) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
}

// stop is body.stop, unless another attempt has the body now.
func (u *upload) stop(why error) { u.body.stopIn(u.round, why) }
