// Package router finds the route of a request.
package router

// MaxCaptures is how many parameters, the rest of a path included, a pattern may have.
const MaxCaptures = 8

// Pattern is a path, as /users/:id or /files/*rest, and who may use it.
type Pattern struct {
	Path        string
	Methods     []string // none: all
	EitherSlash bool     // /users is /users/ too
}

// Fault is what is wrong with a set of patterns.
type Fault struct {
	Pattern int // its index
	Other   int // the index of the one that it clashes with; -1: none
	Text    string
}

// Outcome is what became of a match.
type Outcome uint8

// The outcomes. The zero value is none of them.
const (
	Found Outcome = iota + 1
	NotFound
	MethodNotAllowed
	BadPath
)

// Match is what was found. It is reused: Router.Match sets all of it.
type Match struct {
	Pattern int // its index
	Allow   string // of MethodNotAllowed: the header's value
	// unexported: captures
}

// Router is immutable, and safe for concurrent use.
type Router struct{}

// New builds the router of these patterns, or says all that is wrong with them.
func New(patterns []Pattern) (*Router, []Fault) { panic("to be written") }

// Match finds the pattern for an escaped path, as it stands on the wire, without
// the query.
func (r *Router) Match(method, path string, m *Match) Outcome { panic("to be written") }

// Captures calls f with each parameter's name and its decoded text.
func (m *Match) Captures(f func(name, value string)) { panic("to be written") }
