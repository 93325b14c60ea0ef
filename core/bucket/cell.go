package bucket

import (
	"runtime"
	"sync/atomic"
)

// cell is a State that many goroutines decide on at once, without a lock. The
// zero cell holds the zero State.
//
// Whoever charges replaces the word, and has then either charged or claimed the
// cell. Charging once more at the same stamp only counts in the word: that is
// every request of a window, and those that meet in one microsecond. For any
// other state the word gets the next version, and the rest is written after it,
// the count last. The count is sealed with the version it belongs to, so while
// the two differ a writer is at work, and others wait for it.
//
// A denial writes nothing: what was read belonged together if the word is still
// the same. Its version is not, before a reader has slept through 2^24 others.
type cell struct {
	word     atomic.Uint64 // version, low bits of the stamp, charges
	count    atomic.Uint64 // State.count, low bits of the version
	high     atomic.Int64  // high bits of the stamp
	previous atomic.Int64  // State.previous
}

const (
	chargeBits = 12
	lowBits    = 28 // 268 seconds: hardly ever do the high bits change
	sealBits   = 11 // beside a count of up to MaxExact

	lowShift     = chargeBits
	versionShift = chargeBits + lowBits

	chargeMask = 1<<chargeBits - 1
	lowMask    = 1<<lowBits - 1
	sealMask   = 1<<sealBits - 1

	maxCharges = chargeMask - 1
	// dead is the word of a cell that was dropped from its table. No other has
	// as many charges.
	dead = 1<<64 - 1
)

func seal(word uint64) uint64 { return word >> versionShift & sealMask }

// successor is the word of s after another state's word.
func successor(word uint64, s State) uint64 {
	return (word>>versionShift+1)<<versionShift | uint64(s.stamp&lowMask)<<lowShift
}

// charged is s after n charges at its stamp.
func (r *Rule) charged(s State, n int64) State {
	if r.sliding {
		s.count += n
	} else {
		s.count -= n * Token
	}
	return s
}

// read returns the state, and the word that it belongs to as long as the cell
// has that word. Of a dead cell only the word means something.
func (c *cell) read(r *Rule) (State, uint64) {
	for tries := 1; ; tries++ {
		word, count := c.word.Load(), c.count.Load()
		if count&sealMask != seal(word) && word != dead {
			yield(tries)
			continue
		}
		s := State{
			count: int64(count >> sealBits),
			stamp: c.high.Load()<<lowBits | int64(word>>lowShift&lowMask),
		}
		if r.sliding {
			s.previous = c.previous.Load()
		}
		return r.charged(s, int64(word&chargeMask)), word
	}
}

// yield lets others run once in a while: one that is waited for may have lost
// its processor.
func yield(tries int) {
	if tries%64 == 0 {
		runtime.Gosched()
	}
}

// take decides and charges. It returns false if the cell is dead.
func (c *cell) take(r *Rule, now, cost int64) (outcome, bool) {
	if cost == 1 {
		if s, ok := c.takeAgain(r, now); ok {
			return outcome{after: s}, true
		}
	}
	for {
		s, word := c.read(r)
		if word == dead {
			return outcome{}, false
		}
		o := r.decide(s, now, cost, true)
		if o.denied && c.word.Load() == word || !o.denied && c.replace(r, word, s, o.after) {
			return o, true
		}
	}
}

// takeAgain is take where that is short: from a token bucket into which nothing
// has flowed since its stamp.
func (c *cell) takeAgain(r *Rule, now int64) (State, bool) {
	word, count := c.word.Load(), c.count.Load()
	stamp := c.high.Load()<<lowBits | int64(word>>lowShift&lowMask)
	charges := int64(word & chargeMask)
	left := int64(count>>sealBits) - (charges+1)*Token
	ok := !r.sliding && count&sealMask == seal(word) && charges < maxCharges &&
		uint64(stamp-1-now) <= tolerance && left >= 0 && left <= r.size-Token &&
		c.word.CompareAndSwap(word, word+1)
	return State{count: left, stamp: stamp}, ok
}

// replace stores the state next in place of s, if the cell still has s's word.
func (c *cell) replace(r *Rule, word uint64, s, next State) bool {
	if next == r.charged(s, 1) && word&chargeMask < maxCharges {
		return c.word.CompareAndSwap(word, word+1)
	}
	if !c.claim(word, next) {
		return false
	}
	c.write(word, next)
	return true
}

// claim gives the cell the word of next, if it still has the given one. It must
// be followed by write, or by giving back the word.
func (c *cell) claim(word uint64, next State) bool {
	return c.word.CompareAndSwap(word, successor(word, next))
}

// write completes a claim.
func (c *cell) write(word uint64, next State) {
	if high := next.stamp >> lowBits; c.high.Load() != high {
		c.high.Store(high)
	}
	if c.previous.Load() != next.previous {
		c.previous.Store(next.previous)
	}
	c.count.Store(uint64(next.count)<<sealBits | seal(successor(word, next)))
}

// kill makes the cell refuse all further charges.
func (c *cell) kill(r *Rule) {
	for {
		// Not while it is claimed: whoever has claimed it may give back its word.
		if _, word := c.read(r); c.word.CompareAndSwap(word, dead) {
			return
		}
	}
}

// Bucket is a single bucket in this process, full at first. It is safe for
// concurrent use, and has no lock. The zero Bucket refuses everything.
type Bucket struct {
	cell cell
	rule Rule
	past []past // in order
	// What is allocated of 128 bytes begins at a multiple of them, so the cell is in
	// one cache line, and no neighbour is in it. Two processors that share a cell in
	// two lines need nearly twice as long.
	_ [128 - 80]byte
}

// New returns a full bucket.
func New(rule Rule) *Bucket { return &Bucket{rule: rule} }

// Take takes one request's worth at the time now and reports whether there was
// one. A denial changes nothing. The answer is written to a, which is nil if
// nobody asks.
func (b *Bucket) Take(now int64, a *Answer) bool { return b.TakeCost(now, 1, a) }

// TakeCost is Take for a request that costs as much as cost requests.
func (b *Bucket) TakeCost(now, cost int64, a *Answer) bool {
	o, _ := b.cell.take(&b.rule, now, cost) // a cell outside of a table does not die
	if a != nil {
		b.rule.answer(a, o, now, cost)
	}
	return !o.denied
}
