// Package router finds the route of a request, by its method and its path.
//
// A path is matched as it stands on the wire, still escaped: it is split at its
// plain slashes, and %2F is a part of its segment. Segment by segment a text goes
// before a parameter, and a parameter before a rest, whatever the order of the
// patterns; where that leads nowhere, the next choice is tried. A pattern that
// does not take the method is no match.
//
//	/users          this path only; /users/ is another
//	/users/:id      one segment that is not empty
//	/files/*        /files/ and all below, but not /files; *name names it
//
// A path that servers read in different ways is refused before it is matched:
// see [BadPath].
package router

import "fmt"

// MaxCaptures is how many parameters, the rest of a path included, a pattern may have.
const MaxCaptures = 8

// Pattern is a path, as /users/:id or /files/*rest, and who may use it.
type Pattern struct {
	Path string
	// Methods are the tokens that it takes; none: all that no other pattern of
	// the same path names. GET takes HEAD too.
	Methods     []string
	EitherSlash bool // /users is /users/ too, and /files/* is /files too
}

// Fault is what is wrong with a set of patterns.
type Fault struct {
	Pattern int    // its index
	Other   int    // the index of the one that it clashes with; -1: none
	Text    string // names both
}

// Outcome is what became of a match.
type Outcome uint8

// The outcomes. The zero value is none of them.
const (
	Found Outcome = iota + 1
	NotFound
	// MethodNotAllowed is a path that patterns take, but none for this method.
	MethodNotAllowed
	// BadPath is a path with a segment . or .. in any encoding, with a backslash,
	// NUL, a control byte or a bad escape.
	BadPath
)

// Match is what was found. It is reused: Router.Match sets all of it. It is not
// safe for concurrent use.
type Match struct {
	Pattern int    // its index; -1: none
	Allow   string // of MethodNotAllowed: the header's value
	Why     string // of BadPath: what is wrong with it; nothing that was sent

	path    string
	escaped bool              // path has escapes
	known   bool              // a pattern takes the path, but not the method
	leaf    *leaf             // nil: none
	spans   [MaxCaptures]span // of the path, by the parameter's place
}

// span is a part of the path, from the first byte to the one behind the last.
type span struct{ from, to int }

// Router is immutable, and safe for concurrent use.
type Router struct {
	root     *node // behind the first slash
	texts    textTable
	coded    bool // some pattern's text is no text that a good path has
	patterns int
}

// New builds the router of these patterns, or says all that is wrong with them.
func New(patterns []Pattern) (*Router, []Fault) {
	b := builder{root: &node{}, patterns: patterns, shapes: make(map[string]origin), texts: make(map[string]*leaf)}
	for i := range patterns {
		b.pattern(i)
	}
	if len(b.faults) > 0 {
		return nil, b.faults
	}
	// Every path begins with a slash: the tree is searched from behind it.
	root := b.root.text("/")
	root.settle()
	return &Router{root: root, texts: newTextTable(b.texts), coded: b.coded, patterns: len(patterns)}, nil
}

// builder gathers the tree and the faults.
type builder struct {
	root     *node
	patterns []Pattern
	shapes   map[string]origin
	texts    map[string]*leaf // of the plain patterns that are one text
	coded    bool
	faults   []Fault
}

// origin is whose a shape was first.
type origin struct {
	pattern int
	names   []string
}

func (b *builder) fault(pattern, other int, format string, args ...any) {
	b.faults = append(b.faults, Fault{Pattern: pattern, Other: other, Text: fmt.Sprintf(format, args...)})
}

func (b *builder) pattern(i int) {
	p := b.patterns[i]
	s, faults := parse(p.Path)
	for _, text := range append(faults, methodFaults(p.Methods)...) {
		b.fault(i, -1, "%s %s", p.Path[:min(len(p.Path), 200)], text)
	}
	if len(faults) > 0 {
		return
	}
	if !b.add(i, s) || !p.EitherSlash {
		return
	}
	if other, ok := s.otherSlash(); ok {
		b.add(i, other)
	}
}

// add puts one shape of pattern i into the tree, unless it clashes.
func (b *builder) add(i int, s shape) bool {
	key := s.key()
	first, ok := b.shapes[key]
	if !ok {
		first = origin{i, s.names}
		b.shapes[key] = first
	}
	for k, name := range first.names {
		if name != s.names[k] {
			b.fault(i, first.pattern, "%s takes the paths that %s takes; give their parameters the same names", b.patterns[i].Path, b.patterns[first.pattern].Path)
			return false
		}
	}
	l := b.root.leafOf(s)
	if other, clash := l.add(i, b.patterns[i].Methods); clash {
		b.fault(i, other, "%s takes paths that %s takes, with the same method; remove one of them", b.patterns[i].Path, b.patterns[other].Path)
		return false
	}
	if !s.plain() {
		b.coded = true
	} else if len(s.pieces) == 1 { // the first one is a text
		b.texts[s.pieces[0].text] = l
	}
	return true
}

// Match finds the pattern for an escaped path, as it stands on the wire, without
// the query. The empty path is /. It allocates nothing, except for Allow.
func (r *Router) Match(method, path string, m *Match) Outcome {
	if m.Allow != "" || m.Why != "" { // mostly they are empty, and a look is cheaper
		m.Allow, m.Why = "", ""
	}
	if path == "" {
		path = "/"
	}
	m.path = path
	// A path that is a pattern is a good one: it need not be inspected.
	if r.texts.may(path) {
		if l := r.texts.find(path); l != nil {
			if p := l.pattern(method); p >= 0 {
				m.Pattern, m.leaf = int(p), nil // it has no parameters
				return Found
			}
		}
	}
	if !r.coded && r.descend(method, m) {
		return Found
	}
	return r.search(method, m)
}

// search is Match in full.
func (r *Router) search(method string, m *Match) Outcome {
	m.Pattern, m.leaf, m.known = -1, nil, false
	if m.path[0] != '/' {
		m.Why = whyNoSlash
		return BadPath
	}
	if m.Why, m.escaped = inspect(m.path); m.Why != "" {
		return BadPath
	}
	switch {
	case m.find(r.root, 1, method):
		return Found
	case m.known:
		m.Allow = allow(m.collect(r.root, 1, nil))
		return MethodNotAllowed
	default:
		return NotFound
	}
}

// Captures calls f with each parameter's name and its decoded text, in the order
// of the pattern. The rest of a pattern that gives it no name is "*".
func (m *Match) Captures(f func(name, value string)) {
	if m.leaf == nil {
		return
	}
	for k, name := range m.leaf.names {
		f(name, decode(m.path[m.spans[k].from:m.spans[k].to]))
	}
}

// Order returns the patterns' indices in the order of precedence: of two that
// take the same path, the one that is chosen comes first.
func (r *Router) Order() []int {
	return r.root.order(make([]int, 0, r.patterns), make([]bool, r.patterns))
}
