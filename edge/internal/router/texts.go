package router

import "math/bits"

// textTable finds the patterns without parameters by their whole text: a hash
// table with open addressing, at most half full.
type textTable struct {
	slots []text
	shift uint8     // of a hash, to a slot's index
	marks [4]uint64 // a bit is set for the mark of each text
}

// text is a slot; without a leaf it is free.
type text struct {
	text string
	leaf *leaf
}

func newTextTable(leaves map[string]*leaf) textTable {
	size := bits.Len(uint(2 * len(leaves)))
	t := textTable{slots: make([]text, 1<<size), shift: uint8(64 - size)}
	for path, l := range leaves {
		i := t.slot(path)
		for t.slots[i].leaf != nil {
			i = (i + 1) % len(t.slots)
		}
		t.slots[i] = text{path, l}
		k := mark(path)
		t.marks[k>>6] |= 1 << (k & 63)
	}
	return t
}

// may says no to most paths that are no text, at less cost than find.
func (t *textTable) may(path string) bool {
	k := mark(path)
	return t.marks[k>>6]&(1<<(k&63)) != 0
}

// find returns the leaf of the text that is the path; nil if there is none.
func (t *textTable) find(path string) *leaf {
	for i := t.slot(path); ; i++ {
		s := &t.slots[i&(len(t.slots)-1)]
		if s.leaf == nil || s.text == path {
			return s.leaf
		}
	}
}

// mark is a poor hash that costs next to nothing.
func mark(path string) uint8 {
	return uint8(len(path))*8 + path[len(path)-1]
}

// slot is where the search for a path begins. The patterns are the operator's, so
// nobody else can make them collide.
func (t *textTable) slot(path string) int {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f
	var h uint64
	n := len(path)
	switch {
	case n < 8:
		for i := range n {
			h = h<<8 | uint64(path[i])
		}
		h *= odd1
	default:
		h = word(path[:8])*odd1 ^ word(path[n-8:])*odd2
		for i := 8; i < n-8; i += 8 {
			h = (h ^ word(path[i:i+8])) * odd1
		}
	}
	return int(h >> t.shift)
}

// word is 8 bytes of text as a number, the first one lowest.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
