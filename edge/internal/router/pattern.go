package router

import (
	"fmt"
	"slices"
	"strings"
)

// piece is a part of a pattern: text, over one or many segments, in the alphabet
// of matching, or a parameter.
type piece struct {
	kind pieceKind
	text string
}

type pieceKind uint8

const (
	static pieceKind = iota
	param
	rest
)

// shape is a pattern, understood.
type shape struct {
	pieces []piece
	names  []string // of the parameters
}

// maxPattern is the length of the longest pattern, in bytes.
const maxPattern = 8 << 10

// parse reads a pattern, or says what is wrong with it.
func parse(path string) (s shape, faults []string) {
	if why := unfit(path); why != "" {
		return s, []string{why}
	}
	r := reading{text: []byte{'/'}}
	segments := strings.Split(path[1:], "/")
	for i, segment := range segments {
		if i > 0 {
			r.text = append(r.text, '/')
		}
		r.segment(segment, i == len(segments)-1)
	}
	if len(r.text) > 0 {
		r.pieces = append(r.pieces, piece{static, string(r.text)})
	}
	if len(r.names) > MaxCaptures {
		r.fault("has %d parameters; the most is %d", len(r.names), MaxCaptures)
	}
	return r.shape, r.faults
}

// unfit says why no pattern can be so, whatever its segments are.
func unfit(path string) string {
	switch {
	case path == "":
		return "is empty; the shortest is /"
	case path[0] != '/':
		return "must begin with /"
	case len(path) > maxPattern:
		return fmt.Sprintf("has %d bytes; the most is %d", len(path), maxPattern)
	case strings.ContainsAny(path, "?#"):
		return "must not have a query or a fragment; requests are routed by their path alone"
	}
	if why, _ := inspect(path); why != "" {
		return "no request can have it: " + why
	}
	return ""
}

// reading is a pattern of which some segments are read.
type reading struct {
	shape
	text   []byte // since the last parameter
	faults []string
}

func (r *reading) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *reading) segment(segment string, last bool) {
	if why := misplaced(segment, last); why != "" {
		r.fault("%s", why)
		return
	}
	switch {
	case strings.HasPrefix(segment, ":"):
		r.parameter(param, segment[1:])
	case segment == "*":
		r.parameter(rest, "*")
	case strings.HasPrefix(segment, "*"):
		r.parameter(rest, segment[1:])
	default:
		r.literal(segment)
	}
}

func (r *reading) parameter(kind pieceKind, name string) {
	if slices.Contains(r.names, name) {
		r.fault("has two parameters %s", name)
	}
	r.pieces = append(r.pieces, piece{static, string(r.text)}, piece{kind, name})
	r.names = append(r.names, name)
	r.text = r.text[:0]
}

func (r *reading) literal(segment string) {
	for i := 0; i < len(segment); {
		c, width := symbol(segment, i)
		if c == encodedControl {
			r.fault("has an encoded control byte in %s", segment)
		}
		r.text = append(r.text, c)
		i += width
	}
}

// misplaced says what is wrong with the parameters of a segment.
func misplaced(segment string, last bool) string {
	switch at := strings.IndexAny(segment, ":*"); {
	case at < 0 && len(segment) > 1 && segment[0] == '{' && segment[len(segment)-1] == '}':
		return fmt.Sprintf("a parameter is written :name, not %s; a literal { is %%7B", segment)
	case at < 0:
		return ""
	case segment[0] == '*' && !last:
		return fmt.Sprintf("%s must be the last segment", segment)
	case segment == "*":
		return ""
	case segment == ":":
		return "has a parameter without a name; write one behind the colon"
	case at > 0:
		return fmt.Sprintf("a parameter is a whole segment, unlike that in %s; a literal : is %%3A, a literal * is %%2A", segment)
	case strings.ContainsAny(segment[1:], ":*"):
		return fmt.Sprintf("has two parameters in the segment %s; a parameter is a whole segment", segment)
	case strings.ContainsFunc(segment[1:], notOfName):
		return fmt.Sprintf("the name of %s may have letters, digits, _ and -", segment)
	default:
		return ""
	}
}

func notOfName(c rune) bool {
	return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-'
}

// key is the same for patterns that match the same paths.
func (s shape) key() string {
	var b strings.Builder
	for _, p := range s.pieces {
		switch p.kind {
		case static:
			b.WriteString(p.text)
		case param:
			b.WriteByte(encodedControl) // no pattern's text has it
		case rest:
			b.WriteByte(encodedControl)
			b.WriteByte('*')
		}
	}
	return b.String()
}

// plain reports whether the texts are texts of a path: whether they have no
// encoded slash and no encoded percent sign.
func (s shape) plain() bool {
	return !slices.ContainsFunc(s.pieces, func(p piece) bool {
		return p.kind == static && strings.ContainsAny(p.text, "\x00\x01")
	})
}

// otherSlash is the pattern with a slash more or less at its end. It is false
// for the path /, which has no other form.
func (s shape) otherSlash() (shape, bool) {
	pieces, names := slices.Clone(s.pieces), s.names
	end := &pieces[len(pieces)-1]
	switch {
	case end.kind == param:
		return shape{append(pieces, piece{static, "/"}), names}, true
	case end.kind == rest: // the other form of /files/* is /files
		pieces, names = pieces[:len(pieces)-1], names[:len(names)-1]
		end = &pieces[len(pieces)-1]
	case !strings.HasSuffix(end.text, "/"):
		end.text += "/"
		return shape{pieces, names}, true
	}
	if end.text == "/" && len(pieces) == 1 {
		return s, false
	}
	if end.text = end.text[:len(end.text)-1]; end.text == "" {
		pieces = pieces[:len(pieces)-1]
	}
	return shape{pieces, names}, true
}

// methodFaults says what is wrong with a pattern's methods.
func methodFaults(methods []string) (faults []string) {
	for i, m := range methods {
		switch {
		case m == "" || strings.ContainsFunc(m, notOfToken):
			faults = append(faults, fmt.Sprintf("%q is no method", m))
		case slices.Contains(methods[:i], m):
			faults = append(faults, fmt.Sprintf("has the method %s twice", m))
		}
	}
	return faults
}

func notOfToken(c rune) bool {
	return notOfName(c) && !strings.ContainsRune("!#$%&'*+.^`|~", c)
}
