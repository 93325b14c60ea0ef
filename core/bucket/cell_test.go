package bucket

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// A cell is its State, whatever the order of decisions: those that only count in
// its word, those that give it another version, and those that deny.
func TestCellIsItsState(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(31, 32))
	counted, versions, denied := 0, 0, 0
	for range 2000 {
		rule := randomRule(r)
		var c cell
		var s State
		now := int64(epoch)
		for range 50 {
			switch r.IntN(8) {
			case 0:
				now += r.Int64N(3)
			case 1:
				now += r.Int64N(3 * second)
			case 2:
				now += r.Int64N(MaxExact) >> r.IntN(52)
			case 3:
				now -= r.Int64N(100 * second)
			}
			now = min(max(now, 0), MaxExact)
			before := c.word.Load()
			want := rule.decide(s, now, 1, true)
			got, ok := c.take(&rule, now, 1)
			if !want.denied {
				s = want.after
			}
			after, word := c.read(&rule)
			if !ok || got != want || after != s {
				t.Fatalf("%+v at %d: %+v and %+v, want %+v and %+v", rule, now, got, after, want, s)
			}
			switch {
			case want.denied && word != before:
				t.Fatalf("%+v at %d: a denial wrote %x over %x", rule, now, word, before)
			case want.denied:
				denied++
			case word == before+1:
				counted++
			default:
				versions++
			}
		}
	}
	if counted < 10_000 || versions < 10_000 || denied < 10_000 {
		t.Errorf("%d counted, %d versions, %d denied: the walk misses its aim", counted, versions, denied)
	}
}

func randomRule(r *rand.Rand) Rule {
	if r.IntN(2) == 0 {
		limit := 1 + r.Int64N(MaxExact)>>r.IntN(52)
		return NewSlidingWindow(limit, 1+r.Int64N(MaxExact/limit)>>r.IntN(52))
	}
	return NewTokenBucket(Token+r.Int64N(MaxExact-Token)>>r.IntN(52), r.Int64N(MaxExact)>>r.IntN(52))
}

// More charges at one stamp than a word can count.
func TestCellCountsBeyondItsWord(t *testing.T) {
	t.Parallel()
	const charges = 3*maxCharges + 7
	for _, rule := range []Rule{NewTokenBucket(charges*Token, 0), NewSlidingWindow(charges, 1000)} {
		var c cell
		for i := range int64(charges) {
			if o, ok := c.take(&rule, epoch, 1); !ok || o.denied {
				t.Fatalf("%+v: charge %d: %+v %t", rule, i, o, ok)
			}
			if s, _ := c.read(&rule); s != rule.charged(rule.Fresh(epoch), i+1) {
				t.Fatalf("%+v: %+v after %d charges", rule, s, i+1)
			}
		}
		if o, _ := c.take(&rule, epoch, 1); !o.denied {
			t.Errorf("%+v: one more is admitted", rule)
		}
	}
}

// Where a capacity was lowered in place, the tokens above it are cut also by a
// decision at an instant that has been decided before.
func TestCellIsCutToALoweredCapacity(t *testing.T) {
	t.Parallel()
	for _, was := range []int64{2*Token + 1, 3*Token - 1, 9 * Token} {
		var c cell
		high, low := NewTokenBucket(was+Token, 0), NewTokenBucket(2*Token, 0)
		c.take(&high, epoch, 1)
		for i := range 3 {
			if o, _ := c.take(&low, epoch, 1); o.denied != (i == 2) {
				t.Errorf("cut from %d: decision %d: %+v", was, i, o)
			}
		}
	}
}

// Nobody sees a state that is half another: of a bucket whose clock runs, every
// state that is read is one that an order of its charges makes. Its tokens and
// its stamp are then bound to each other, for it starts empty and gains one
// microtoken in a microsecond.
func TestCellIsReadAsAWhole(t *testing.T) {
	t.Parallel()
	rule := NewTokenBucket(MaxExact, second)
	var c cell
	c.claim(0, State{stamp: epoch + 1})
	c.write(0, State{stamp: epoch + 1})
	var now, charges atomic.Int64
	now.Store(epoch)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20_000 {
				if o, _ := c.take(&rule, now.Add(400_000), 1); !o.denied {
					charges.Add(1)
				}
			}
		})
		all.Go(func() {
			for range 20_000 {
				s, word := c.read(&rule)
				if c.word.Load() != word {
					continue // it has changed, and means nothing
				}
				if (s.stamp-1-epoch-s.count)%Token != 0 || s.count < 0 {
					t.Errorf("%+v: no such state", s)
					return
				}
			}
		})
	}
	all.Wait()
	s, _ := c.read(&rule)
	if n := (s.stamp - 1 - epoch - s.count) / Token; n != charges.Load() || n < 1000 {
		t.Errorf("%d charges are in the state, %d were admitted", n, charges.Load())
	}
}

// Once dead, a cell charges nobody.
func TestDeadCellChargesNobody(t *testing.T) {
	t.Parallel()
	rule := NewTokenBucket(MaxExact, second)
	for range 200 {
		var c cell
		var late atomic.Int64
		var all sync.WaitGroup
		var killed atomic.Bool
		for range 4 {
			all.Go(func() {
				for range 100 {
					was := killed.Load()
					if _, ok := c.take(&rule, epoch, 1); ok && was {
						late.Add(1)
					}
				}
			})
		}
		c.kill(&rule)
		killed.Store(true)
		all.Wait()
		if n := late.Load(); n != 0 {
			t.Fatalf("%d were charged to a dead cell", n)
		}
	}
}

// A bucket that is shared by processors is alone in its cache lines.
func TestABucketHasCacheLinesOfItsOwn(t *testing.T) {
	shared := make([]*Bucket, 100) // not on the stack
	for i := range shared {
		shared[i] = New(NewTokenBucket(Token, Token))
	}
	for _, b := range shared {
		if at := uintptr(unsafe.Pointer(b)); at%128 != 0 || unsafe.Sizeof(*b) != 128 {
			t.Fatalf("%d bytes, %d behind a multiple of 128", unsafe.Sizeof(*b), at%128)
		}
	}
	runtime.KeepAlive(shared)
}
