package bucket

import "sync/atomic"

// index finds the entry of a key. Finding takes no lock and may miss an entry
// that is there, while others are added or removed; it never finds a wrong one.
// Everything else, and finding for certain, is for whoever holds the table.
type index struct {
	slots []slot // a power of two; probed one after the other
	used  int
}

// slot is empty if its hash is 0.
type slot struct {
	hash  atomic.Uint64
	entry atomic.Pointer[entry]
}

func newIndex(slots int) *index { return &index{slots: make([]slot, slots)} }

func (x *index) at(i uint64) *slot { return &x.slots[i&uint64(len(x.slots)-1)] }

func (x *index) find(hash uint64, key string) *entry {
	for i := hash; ; i++ {
		s := x.at(i)
		switch s.hash.Load() {
		case hash:
			if e := s.entry.Load(); e != nil && e.key == key {
				return e
			}
		case 0:
			return nil
		}
	}
}

// full reports whether there is no room for one more: a search must end at an
// empty slot, and soon.
func (x *index) full() bool { return x.used >= len(x.slots)*3/4 }

// grown returns a copy with twice the slots.
func (x *index) grown() *index {
	y := newIndex(2 * len(x.slots))
	for i := range x.slots {
		if s := &x.slots[i]; s.hash.Load() != 0 {
			y.add(s.hash.Load(), s.entry.Load())
		}
	}
	return y
}

func (x *index) add(hash uint64, e *entry) {
	i := hash
	for x.at(i).hash.Load() != 0 {
		i++
	}
	x.at(i).set(hash, e)
	x.used++
}

func (s *slot) set(hash uint64, e *entry) {
	s.entry.Store(e)
	s.hash.Store(hash)
}

// remove removes an entry that is there, and moves those up that were displaced
// by it.
func (x *index) remove(hash uint64, e *entry) {
	gap := hash
	for x.at(gap).entry.Load() != e {
		gap++
	}
	mask := uint64(len(x.slots) - 1)
	for i := gap + 1; ; i++ {
		s := x.at(i)
		h := s.hash.Load()
		if h == 0 {
			break
		}
		// It may stand in the gap if that is not before the slot of its hash.
		if (i-h)&mask >= i-gap {
			x.at(gap).set(h, s.entry.Load())
			gap = i
		}
	}
	s := x.at(gap)
	s.hash.Store(0)
	s.entry.Store(nil)
	x.used--
}
