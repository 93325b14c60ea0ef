package router

import (
	"cmp"
	"slices"
	"strings"
)

// descend finds the pattern of a path where the first choice everywhere leads to
// one, which is nearly always. The texts that it matches are good ones, as those
// of all patterns, so only what it captures is inspected. If it returns
// false, nothing is known.
func (r *Router) descend(method string, m *Match) bool {
	path, n := m.path, r.root
	if path[0] != '/' {
		return false
	}
	i := 1
	for i < len(path) {
		if e := n.next(path, i); e != nil {
			n, i = e.child, i+e.length
			continue
		}
		if n.param == nil {
			break
		}
		end := segmentEnd(path, i)
		if end == i || path[i] == '.' {
			return false
		}
		// If it ends at anything but a slash, no edge goes on from there.
		m.spans[n.captures] = span{i, end}
		n, i = n.param, end
	}
	if i == len(path) {
		return n.ends != nil && m.takes(n.ends, method)
	}
	if n.rest == nil {
		return false
	}
	if why, escaped := inspect(path[i-1:]); why != "" || escaped {
		return false
	}
	return m.takesRest(n, i, method)
}

// segmentEnd is where the plain part of a segment ends: at a slash, at the end of
// the path, or at a byte that needs a second look.
func segmentEnd(path string, i int) int {
	for i < len(path) && !stop[path[i]] {
		i++
	}
	return i
}

// edge leads to a child: it has the child's prefix, or the first 8 bytes of it, as
// a number.
type edge struct {
	word, mask uint64
	length     int // of the prefix
	child      *node
}

// next returns the edge by whose text the plain path goes on at i; nil if there is none.
func (n *node) next(path string, i int) *edge {
	var w uint64
	if i+8 <= len(path) {
		w = word(path[i : i+8])
	} else {
		w = lastWord(path, i)
	}
	for k := range n.edges {
		e := &n.edges[k]
		if w&e.mask != e.word {
			continue
		}
		if e.length > 8 && !strings.HasPrefix(path[i:], e.child.prefix) {
			return nil
		}
		return e
	}
	return nil
}

// lastWord is the up to 8 bytes of the path from i on as a number, as word does.
// Behind the end there are zeros, which no plain text has.
func lastWord(path string, i int) uint64 {
	if len(path) >= 8 {
		return word(path[len(path)-8:]) >> (8 * uint(i+8-len(path)))
	}
	var w uint64
	for k := len(path) - 1; k >= i; k-- {
		w = w<<8 | uint64(path[k])
	}
	return w
}

// settle makes the tree below n ready to be searched: it fills in what is known
// once all patterns are there. It returns how many leaves there are; edges to
// the most come first.
func (n *node) settle() int {
	leaves := n.ends.settle() + n.rest.settle()
	sizes := make(map[*node]int, len(n.children))
	for _, child := range n.children {
		sizes[child] = child.settle()
		leaves += sizes[child]
		length := min(len(child.prefix), 8)
		e := edge{word: lastWord(child.prefix[:length], 0), mask: 1<<(8*length) - 1, length: len(child.prefix), child: child}
		n.edges = append(n.edges, e)
	}
	slices.SortStableFunc(n.edges, func(a, b edge) int { return cmp.Compare(sizes[b.child], sizes[a.child]) })
	if n.param != nil {
		leaves += n.param.settle()
	}
	return leaves
}

func (l *leaf) settle() int {
	if l == nil {
		return 0
	}
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		l.common[number(method)] = l.listed(method)
	}
	return 1
}
