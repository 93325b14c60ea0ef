package router

// textTable finds the patterns without parameters by their whole text.
type textTable struct {
	leaves  map[string]*leaf
	lengths uint64 // bit n%64 is set if there is a text of n bytes
}

func newTextTable(leaves map[string]*leaf) textTable {
	t := textTable{leaves: leaves}
	for text := range leaves {
		t.lengths |= 1 << (len(text) % 64)
	}
	return t
}

// find returns the leaf of the text that is the path; nil if there is none.
func (t *textTable) find(path string) *leaf {
	if t.lengths&(1<<(len(path)%64)) == 0 {
		return nil
	}
	return t.leaves[path]
}
