package sentinel

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// Every decision counts itself. Counted in one place, the cores would pass its
// cache line to and fro, which costs more than the rest of a known denial. So
// each counter has several copies, far enough apart, and whoever reads it adds
// them up.
const (
	stripeBits = 5
	stripes    = 1 << stripeBits
	// lineBytes is what two cores must not both write: two cache lines, for
	// processors fetch them in pairs.
	lineBytes = 128
)

// stripe picks a copy by the goroutine's stack: those that run at the same time
// are on different stacks, and each comes back to its own copy. Any answer is
// right, some are faster.
func stripe() uint64 {
	var here byte
	at := uint64(uintptr(unsafe.Pointer(&here))) //nolint:gosec // only the number: nothing is read through it
	return at >> 11 * 0x9e3779b97f4a7c15 >> (64 - stripeBits)
}

// latencyBounds are those of the histogram's buckets.
var latencyBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	20 * time.Millisecond, 50 * time.Millisecond,
}

func inMicroseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// tally counts decisions by their latency. Its zero value is empty. It is safe
// for concurrent use.
type tally [stripes]struct {
	counts [len(latencyBounds) + 1]atomic.Uint64 // the last: beyond all bounds
	sum    atomic.Int64                          // nanoseconds
	_      [lineBytes - 8*(len(latencyBounds)+2)]byte
}

// add counts one decision, on the copy that stripe has picked. It returns a number
// that no other decision of this process has at the same time: from where it has
// counted, and how many were counted there.
func (t *tally) add(stripe uint64, latency time.Duration) (unique uint64) {
	s := &t[stripe%stripes]
	i := 0
	for i < len(latencyBounds) && latency > latencyBounds[i] {
		i++
	}
	at := &s.counts[i]
	count := at.Add(1)
	if latency > 0 {
		s.sum.Add(int64(latency))
	}
	return uniqueOf(at, count)
}

// read returns how many there were, up to each bound, and their time in
// microseconds. What is added meanwhile may be in some of the numbers only, but
// never more than once in any.
func (t *tally) read() (count uint64, sum float64, upTo map[float64]uint64) {
	var counts [len(latencyBounds) + 1]uint64
	var total time.Duration
	for i := range t {
		total += time.Duration(t[i].sum.Load())
		for j := range counts {
			counts[j] += t[i].counts[j].Load()
		}
	}
	upTo = make(map[float64]uint64, len(latencyBounds))
	for i, n := range counts {
		count += n
		if i < len(latencyBounds) {
			upTo[inMicroseconds(latencyBounds[i])] = count
		}
	}
	return count, inMicroseconds(total), upTo
}

// counter is a number that many add to and few read. Its zero value is 0. It is
// safe for concurrent use; a nil one is 0.
type counter [stripes]struct {
	n atomic.Uint64
	_ [lineBytes - 8]byte
}

// add adds 1. It returns a number as tally.add does.
func (c *counter) add(stripe uint64) (unique uint64) {
	at := &c[stripe%stripes].n
	return uniqueOf(at, at.Add(1))
}

func (c *counter) read() (n int64) {
	if c == nil {
		return 0
	}
	for i := range c {
		n += int64(c[i].n.Load())
	}
	return n
}

// uniqueOf is a number for what was the count-th to be counted there, that no other
// has at the same time.
func uniqueOf(at *atomic.Uint64, count uint64) uint64 {
	return uint64(uintptr(unsafe.Pointer(at)))*0x9e3779b97f4a7c15 + count //nolint:gosec // see stripe
}
