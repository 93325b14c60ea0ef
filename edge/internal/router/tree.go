package router

import (
	"slices"
	"strings"
)

// node is a place in the tree: what was matched up to here, and how it may go on.
// Each place has one way to it from the root, so that a match visits a
// node at most once, whatever the path.
type node struct {
	prefix   string // the text that leads here from the parent; "" to a parameter's node
	first    string // the first byte of each child's prefix
	children []*node
	edges    []edge // to the children, for descend
	param    *node  // behind a parameter
	captures int    // how many parameters lead here
	ends     *leaf  // the paths that end here
	rest     *leaf  // the paths that go on anyhow
}

// leaf is the patterns of one shape, for whichever methods.
type leaf struct {
	common  [others]int32 // the pattern for each of the common methods; -1: none
	methods []methodPattern
	any     int32 // the pattern for all other methods; -1: none
	names   []string
}

type methodPattern struct {
	method  string
	pattern int32
}

// The common methods have a number.
const (
	get = iota
	head
	post
	put
	patch
	del
	options
	others
)

func number(method string) int {
	switch method {
	case "GET":
		return get
	case "HEAD":
		return head
	case "POST":
		return post
	case "PUT":
		return put
	case "PATCH":
		return patch
	case "DELETE":
		return del
	case "OPTIONS":
		return options
	default:
		return others
	}
}

// pattern returns the index of the pattern for a method; -1 if there is none.
func (l *leaf) pattern(method string) int32 {
	if method == "GET" { // as mostly
		return l.common[get]
	}
	if n := number(method); n < others {
		return l.common[n]
	}
	return l.listed(method)
}

// listed is pattern without the help of common.
func (l *leaf) listed(method string) int32 {
	for i := range l.methods {
		if l.methods[i].method == method {
			return l.methods[i].pattern
		}
	}
	if method == "HEAD" {
		return l.listed("GET")
	}
	return l.any
}

// add puts a pattern into the leaf, and says which one takes its place, if any.
func (l *leaf) add(pattern int, methods []string) (other int, clash bool) {
	if len(methods) == 0 {
		if l.any >= 0 {
			return int(l.any), true
		}
		l.any = int32(pattern)
		return 0, false
	}
	for _, m := range methods {
		i := slices.IndexFunc(l.methods, func(p methodPattern) bool { return p.method == m })
		if i >= 0 && int(l.methods[i].pattern) != pattern {
			return int(l.methods[i].pattern), true
		}
	}
	for _, m := range methods {
		l.methods = append(l.methods, methodPattern{m, int32(pattern)})
	}
	return 0, false
}

// allow is the header Allow of these methods.
func allow(methods []methodPattern) string {
	var names []string
	for _, m := range methods {
		names = append(names, m.method)
		if m.method == "GET" {
			names = append(names, "HEAD")
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// leafOf returns the place for a shape's patterns.
func (n *node) leafOf(s shape) *leaf {
	at := &n.ends
	for _, p := range s.pieces {
		switch p.kind {
		case static:
			n = n.text(p.text)
			at = &n.ends
		case param:
			if n.param == nil {
				n.param = &node{captures: n.captures + 1}
			}
			n = n.param
			at = &n.ends
		case rest:
			at = &n.rest
		}
	}
	if *at == nil {
		*at = &leaf{any: -1, names: s.names}
	}
	return *at
}

// text returns the node behind a text, and makes it if need be.
func (n *node) text(text string) *node {
	for text != "" {
		i := strings.IndexByte(n.first, text[0])
		if i < 0 {
			child := &node{prefix: text, captures: n.captures}
			at, _ := slices.BinarySearch([]byte(n.first), text[0])
			n.first = n.first[:at] + text[:1] + n.first[at:]
			n.children = slices.Insert(n.children, at, child)
			return child
		}
		child := n.children[i]
		common := 0
		for common < len(text) && common < len(child.prefix) && text[common] == child.prefix[common] {
			common++
		}
		if common < len(child.prefix) {
			child.prefix = child.prefix[common:]
			child = &node{prefix: text[:common], captures: n.captures, first: child.prefix[:1], children: []*node{child}}
			n.children[i] = child
		}
		n, text = child, text[common:]
	}
	return n
}

// find goes on from n at position i of the path, to the first pattern in the
// order of precedence that takes the method.
func (m *Match) find(n *node, i int, method string) bool {
	for i < len(m.path) {
		more := n.param != nil || n.rest != nil
		if child, at := n.child(m.path, i, m.escaped); child != nil {
			if !more {
				n, i = child, at
				continue
			}
			if m.find(child, at, method) {
				return true
			}
		}
		if !more {
			return false
		}
		if n.param != nil && m.path[i] != '/' {
			end := i + 1
			for end < len(m.path) && m.path[end] != '/' {
				end++
			}
			m.capture(n.captures, i, end)
			if n.rest == nil {
				n, i = n.param, end
				continue
			}
			if m.find(n.param, end, method) {
				return true
			}
		}
		return m.takesRest(n, i, method)
	}
	return n.ends != nil && m.takes(n.ends, method) || m.takesRest(n, i, method)
}

// child returns the child by whose text the path goes on at i, and the position
// behind it.
func (n *node) child(path string, i int, escaped bool) (*node, int) {
	c := path[i]
	if c == '%' {
		c, _ = symbol(path, i)
	}
	for k := range len(n.first) {
		if n.first[k] != c {
			continue
		}
		child := n.children[k]
		end := i + len(child.prefix)
		if end <= len(path) && path[i:end] == child.prefix {
			return child, end
		}
		if escaped {
			return child.behind(path, i)
		}
		return nil, 0
	}
	return nil, 0
}

// behind is child for a path with escapes.
func (n *node) behind(path string, i int) (*node, int) {
	for k := range len(n.prefix) {
		if i >= len(path) {
			return nil, 0
		}
		c, width := symbol(path, i)
		if c != n.prefix[k] {
			return nil, 0
		}
		i += width
	}
	return n, i
}

func (m *Match) takesRest(n *node, i int, method string) bool {
	if n.rest == nil || !m.takes(n.rest, method) {
		return false
	}
	m.capture(n.captures, i, len(m.path))
	return true
}

// takes settles the match if the leaf has the method.
func (m *Match) takes(l *leaf, method string) bool {
	p := l.pattern(method)
	if p < 0 {
		m.known = true
		return false
	}
	m.Pattern, m.leaf = int(p), l
	return true
}

func (m *Match) capture(k, from, to int) { m.spans[k] = span{from, to} }

// collect adds the methods of every pattern that takes the path.
func (m *Match) collect(n *node, i int, methods []methodPattern) []methodPattern {
	if i == len(m.path) {
		if n.ends != nil {
			methods = append(methods, n.ends.methods...)
		}
	} else {
		if child, at := n.child(m.path, i, m.escaped); child != nil {
			methods = m.collect(child, at, methods)
		}
		if n.param != nil && m.path[i] != '/' {
			end := i + 1
			for end < len(m.path) && m.path[end] != '/' {
				end++
			}
			methods = m.collect(n.param, end, methods)
		}
	}
	if n.rest != nil {
		methods = append(methods, n.rest.methods...)
	}
	return methods
}

// order adds the patterns of n and below in the order of precedence.
func (n *node) order(patterns []int, seen []bool) []int {
	patterns = n.ends.order(patterns, seen)
	for _, child := range n.children {
		patterns = child.order(patterns, seen)
	}
	if n.param != nil {
		patterns = n.param.order(patterns, seen)
	}
	return n.rest.order(patterns, seen)
}

func (l *leaf) order(patterns []int, seen []bool) []int {
	if l == nil {
		return patterns
	}
	for _, m := range append(slices.Clone(l.methods), methodPattern{pattern: l.any}) {
		if m.pattern >= 0 && !seen[m.pattern] {
			seen[m.pattern] = true
			patterns = append(patterns, int(m.pattern))
		}
	}
	return patterns
}
