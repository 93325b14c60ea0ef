package wiretest

import (
	"strconv"
	"strings"
)

// What readers of responses take is read here in the same way as requests are: from
// the grammar, and with nothing of net/http or package wire.

// heads is how much the heads of a response may take: bytes with those of interim
// ones, and fields of each.
const (
	headBytes  = 256 << 10
	headFields = 1000
)

// got is what a strict reader makes of the bytes that answer one request.
type got struct {
	interim []*message
	final   *message // nil: there is no whole head
	cut     bool     // the body ends too early, or wrongly; what there is of it is right
	rest    []byte   // that nobody has asked for
	err     error    // nil: a whole response
}

// parseResponses reads what answers a request, HEAD or another, of which ended says
// that nothing follows.
func parseResponses(b []byte, head, ended bool) (g got) {
	r := &reader{rest: b}
	for {
		var m *message
		m, g.err = r.responseHead()
		if g.err == nil && len(b)-len(r.rest) > headBytes {
			g.err = refusal("the heads are too long")
		}
		if g.err != nil {
			return g
		}
		if m.status >= 200 || m.status == 101 {
			g.final = m
			break
		}
		g.interim = append(g.interim, m)
	}
	m := g.final
	switch {
	case head, m.status == 204, m.status == 304, m.status == 101:
		m.chunked, m.length = false, 0
	case !m.chunked && len(values(m.header, "Content-Length")) == 0:
		m.body, r.rest = r.rest, nil
		if !ended {
			g.err = errShort
		}
		g.cut = !ended
		return g
	}
	if g.err = r.body(m); g.err != nil {
		g.cut = true
		return g
	}
	g.rest = r.rest
	return g
}

// responseHead reads a status line and a header.
func (r *reader) responseHead() (*message, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	version, rest, ok := strings.Cut(line, " ")
	code, reason, _ := strings.Cut(rest, " ")
	m := &message{}
	switch {
	case version == "HTTP/1.1":
		m.minor = 1
	case version != "HTTP/1.0":
		return nil, refusal("the version is neither HTTP/1.1 nor HTTP/1.0")
	}
	m.status, err = strconv.Atoi(code)
	if !ok || err != nil || len(code) != 3 || m.status < 100 || !text(reason) {
		return nil, refusal("no status line")
	}
	if m.header, err = r.fields(); err != nil {
		return nil, err
	}
	if len(m.header) > headFields {
		return nil, refusal("there are too many fields")
	}
	return m, m.lengths()
}
