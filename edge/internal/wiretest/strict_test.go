package wiretest

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// A second reading of HTTP/1, from the grammar of RFC 9112 and RFC 9110, and with
// nothing of net/http or package wire. Whatever two readers could take
// differently, it refuses. It is used at both ends: of what a client sends, to
// know what may be forwarded, and of what the backend receives.

// field is a field of a header or a trailer, its value without spaces around.
type field struct{ name, value string }

// message is a request, or a response.
type message struct {
	method, target string
	status         int
	minor          int // HTTP/1.minor
	header         []field
	chunked        bool
	length         int // Content-Length; 0 if there is none
	body           []byte
	extras         bool // its chunks have more than sizes before them
	trailer        []field
}

// errShort is of bytes that are the beginning of a request.
var errShort = errors.New("there is more to come")

// refusal is why a strict reader does not take a request.
type refusal string

func (r refusal) Error() string { return string(r) }

// values are those of all fields with a name, in any case of its letters.
func values(all []field, name string) (found []string) {
	for _, f := range all {
		if strings.EqualFold(f.name, name) {
			found = append(found, f.value)
		}
	}
	return found
}

// parse reads the request at the beginning of b, and returns its length. With
// errShort or a refusal, m is nil if the head is not whole or not right, and
// else has what there is of the body.
func parse(b []byte) (m *message, n int, err error) {
	r := &reader{rest: b}
	m, err = r.head()
	if err != nil {
		return nil, 0, err
	}
	err = r.body(m)
	return m, len(b) - len(r.rest), err
}

// reader is what has not been read yet.
type reader struct{ rest []byte }

// line is the next one, without its CR LF.
func (r *reader) line() (string, error) {
	end := bytes.IndexByte(r.rest, '\n')
	switch {
	case end < 0:
		return "", errShort
	case end == 0 || r.rest[end-1] != '\r':
		return "", refusal("a line ends in LF alone")
	}
	line := string(r.rest[:end-1])
	r.rest = r.rest[end+1:]
	return line, nil
}

// head reads a request line and a header.
func (r *reader) head() (*message, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return nil, refusal("a request line has three parts, and a space between them")
	}
	m := &message{method: parts[0], target: parts[1]}
	switch {
	case !token(m.method):
		return nil, refusal("the method is no token")
	case m.target == "" || !visible(m.target):
		return nil, refusal("a target is made of visible characters")
	case parts[2] == "HTTP/1.1":
		m.minor = 1
	case parts[2] != "HTTP/1.0":
		return nil, refusal("the version is neither HTTP/1.1 nor HTTP/1.0")
	}
	if m.header, err = r.fields(); err != nil {
		return nil, err
	}
	return m, m.frame()
}

// fields reads lines up to an empty one.
func (r *reader) fields() (all []field, err error) {
	for {
		line, err := r.line()
		if err != nil || line == "" {
			return all, err
		}
		name, value, ok := strings.Cut(line, ":")
		switch {
		case !ok || !token(name):
			return nil, refusal("what stands before a colon is no token")
		case !text(value):
			return nil, refusal("a value has a control character")
		}
		all = append(all, field{name, strings.Trim(value, " \t")})
	}
}

// frame finds out where the body ends, and whom the request is for.
func (m *message) frame() error {
	hosts := values(m.header, "Host")
	switch {
	case len(hosts) > 1 || len(hosts) == 0 && m.minor == 1:
		return refusal("there is no Host, or more than one")
	case len(hosts) == 1 && strings.ContainsAny(hosts[0], " \t,/@?#"):
		return refusal("Host is more than a host")
	}
	return m.lengths()
}

// lengths finds out where the body ends.
func (m *message) lengths() error {
	lengths, codings := values(m.header, "Content-Length"), values(m.header, "Transfer-Encoding")
	switch {
	case len(lengths) > 1 || len(codings) > 1 || len(lengths)+len(codings) > 1:
		return refusal("the end of the body is given twice")
	case len(codings) == 1 && (m.minor == 0 || (len(codings[0]) != len("chunked") || !strings.EqualFold(codings[0], "chunked"))):
		return refusal("the transfer coding is not chunked, or the version has none")
	}
	m.chunked = len(codings) == 1
	if len(lengths) == 1 {
		if !every(lengths[0], func(c byte) bool { return '0' <= c && c <= '9' }) {
			return refusal("Content-Length is not made of digits")
		}
		n, err := strconv.Atoi(lengths[0])
		if err != nil || len(lengths[0]) > 18 {
			return refusal("Content-Length is beyond all measure")
		}
		m.length = n
	}
	return nil
}

// body reads what follows a head.
func (r *reader) body(m *message) error {
	if !m.chunked {
		n := min(m.length, len(r.rest))
		m.body, r.rest = r.rest[:n], r.rest[n:]
		if n < m.length {
			return errShort
		}
		return nil
	}
	for {
		n, extras, err := r.size()
		if err != nil {
			return err
		}
		m.extras = m.extras || extras
		if n == 0 {
			m.trailer, err = r.fields()
			return err
		}
		part := min(n, len(r.rest))
		m.body, r.rest = append(m.body, r.rest[:part]...), r.rest[part:]
		switch {
		case part < n || len(r.rest) < 2 && bytes.HasPrefix([]byte("\r\n"), r.rest):
			return errShort
		case !bytes.HasPrefix(r.rest, []byte("\r\n")):
			return refusal("a chunk is longer than its size")
		}
		r.rest = r.rest[2:]
	}
}

// size reads the line before a chunk. What an extension says frames nothing, so
// it may say anything.
func (r *reader) size() (n int, extras bool, err error) {
	line, err := r.line()
	if err != nil {
		return 0, false, err
	}
	digits, extension, _ := strings.Cut(line, ";")
	hex := func(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) >= 0 }
	size, err := strconv.ParseInt(digits, 16, 64)
	if err != nil || !every(digits, hex) || !text(extension) {
		return 0, false, refusal("a chunk's size is not hexadecimal")
	}
	return int(size), len(digits) > 16 || extension != "", nil
}

// every reports whether s is not empty and all its bytes are right.
func every(s string, right func(c byte) bool) bool {
	for i := range len(s) {
		if !right(s[i]) {
			return false
		}
	}
	return s != ""
}

func token(s string) bool {
	return every(s, func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
	})
}

func visible(s string) bool { return every(s, func(c byte) bool { return 0x21 <= c && c <= 0x7e }) }

// text reports whether s may be a value.
func text(s string) bool {
	return s == "" || every(s, func(c byte) bool { return c == '\t' || c >= ' ' && c != 0x7f })
}

// resource is what a request's target means: whom it is for, and the target in
// origin form, as a server behind a proxy gets it. ok is false if it has no such form, or
// is none that the method may have.
func (m *message) resource() (host, target string, ok bool) {
	if hosts := values(m.header, "Host"); len(hosts) == 1 {
		host = hosts[0]
	}
	target = m.target
	if scheme, rest, absolute := strings.Cut(target, "://"); absolute && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")) {
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		host, target = rest[:end], rest[end:]
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
		if host == "" || strings.ContainsAny(host, "@,") {
			return "", "", false
		}
	}
	return host, target, target[0] == '/' && !strings.Contains(target, "#") && m.method != "CONNECT"
}

// reading is what a client has sent, in order.
type reading struct {
	whole []*message
	torn  *message // behind those: one whose body is short or wrong; nil: none
	err   error    // how it ends: nil: with the last whole one
}

// refused reports whether it ends with what a strict reader does not take.
func (r *reading) refused() bool { return r.err != nil && !errors.Is(r.err, errShort) }

// read reads all that a client has sent. A server may pass over one empty line
// before a request.
func read(b []byte) (all reading) {
	for len(b) > 0 {
		b = bytes.TrimPrefix(b, []byte("\r\n"))
		if len(b) == 0 {
			break
		}
		m, n, err := parse(b)
		if err != nil {
			all.torn, all.err = m, err
			break
		}
		all.whole = append(all.whole, m)
		b = b[n:]
	}
	return all
}
