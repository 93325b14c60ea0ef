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
	outer
	length int
	leaf   *leaf
	text   string
}

// outer is the first 8 bytes of a text and the last 8, which may overlap. With its
// length they are all of a text that is no longer than 16.
type outer struct{ first, last uint64 }

const allOuter = 16

func newTextTable(leaves map[string]*leaf) textTable {
	size := bits.Len(uint(2 * len(leaves)))
	t := textTable{slots: make([]text, 1<<size), shift: uint8(64 - size)}
	for path, l := range leaves {
		s, e := t.place(path)
		*s = text{e, len(path), l, path}
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
	s, _ := t.place(path)
	return s.leaf
}

// place returns the slot of a path, which is not empty, or the free one where it would
// be. The patterns are the operator's, so nobody else can make them collide.
func (t *textTable) place(path string) (*text, outer) {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f
	n := len(path)
	var e outer
	if n >= 8 {
		e = outer{word(path), word(path[n-8:])}
	} else {
		e = outerOfShort(path)
	}
	h := e.first*odd1 ^ e.last*odd2
	for i := 8; i < n-8; i += 8 {
		h = (h ^ word(path[i:i+8])) * odd1
	}
	for i := h >> t.shift; ; i++ {
		s := &t.slots[i&uint64(len(t.slots)-1)]
		if s.leaf == nil || s.outer == e && s.length == n && (n <= allOuter || s.text == path) {
			return s, e
		}
	}
}

// outerOfShort is for a path of fewer than 8 bytes.
func outerOfShort(path string) outer {
	n := len(path)
	if n >= 4 {
		return outer{half(path), half(path[n-4:])}
	}
	return outer{uint64(path[0]) | uint64(path[n/2])<<8, uint64(path[n-1])}
}

// mark is a poor hash that costs next to nothing.
func mark(path string) uint8 {
	return uint8(len(path))*8 + path[len(path)-1]
}

// word is the first 8 bytes of a text as a number, the first one lowest.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// half is word of 4 bytes.
func half(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}
