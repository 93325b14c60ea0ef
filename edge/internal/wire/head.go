package wire

import (
	"bytes"
	"strings"
)

// classes says where a byte may stand.
var classes = makeClasses()

type class uint8

const (
	inToken      class = 1 << iota // a method or a field's name
	inFieldValue                   // with spaces, tabs, and bytes beyond ASCII
	inURI                          // of a target
	inRegName                      // of a host
)

func makeClasses() (t [256]class) {
	for i := range t {
		c := byte(i)
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if c == '\t' || c >= ' ' && c != 0x7f {
			t[i] |= inFieldValue
		}
		if c > ' ' && c < 0x7f && c != '#' {
			t[i] |= inURI
		}
		if letter || '0' <= c && c <= '9' {
			t[i] |= inToken | inRegName
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] |= inToken
	}
	for _, c := range []byte("-._~") {
		t[c] |= inRegName
	}
	return t
}

// all reports whether all bytes are of a class.
func all(b []byte, k class) bool {
	for _, c := range b {
		if classes[c]&k == 0 {
			return false
		}
	}
	return true
}

// head is what is known of a head. It is read line by line, so that what comes in
// pieces is looked at once, and has the same faults as what comes at once.
type head struct {
	at     int // where the line begins that is next
	seen   int // how far its end was looked for
	fields int

	begun      bool // the request line has been read
	afterEmpty bool // there was an empty line before it
	empty      bool // there is one now

	ofHead   bool // its method is HEAD
	old      bool // HTTP/1.0
	switches bool // it has Upgrade, or is CONNECT
	hosts    int
	lengths  int
	length   int64
	chunked  bool
}

// lineExtra is how much longer than its target a request line may be.
const lineExtra = 64

// scan reads on in a head of which b is all that is there. It returns its length
// when it is whole.
func (h *head) scan(b []byte, limits *Limits) (length int, f fault) {
	for {
		most, tooLong := limits.HeaderBytes, longHead
		if !h.begun && limits.URLBytes+lineExtra < most {
			most, tooLong = limits.URLBytes+lineExtra, longTarget
		}
		i := bytes.IndexByte(b[h.seen:], '\n')
		end := h.seen + i + 1
		if i < 0 {
			end, h.seen = len(b), len(b)
		}
		switch {
		case end > most:
			return 0, tooLong
		case i < 0:
			return 0, noFault
		case end < h.at+2 || b[end-2] != '\r':
			return 0, bareLF
		}
		line := b[h.at : end-2]
		h.at, h.seen = end, end
		switch {
		case !h.begun && len(line) == 0 && !h.afterEmpty:
			h.empty = true
			return 0, noFault
		case !h.begun:
			f = h.requestLine(line, limits)
		case len(line) == 0:
			return end, h.whole()
		default:
			f = h.field(line, limits)
		}
		if f != noFault {
			return 0, f
		}
	}
}

// requestLine reads the first line.
func (h *head) requestLine(line []byte, limits *Limits) fault {
	h.begun = true
	method, rest, _ := bytes.Cut(line, []byte{' '})
	target, version, ok := bytes.Cut(rest, []byte{' '})
	h.ofHead = string(method) == "HEAD"
	if !ok || len(method) == 0 || !all(method, inToken) || !isVersion(version) {
		return badRequestLine
	}
	switch string(version) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		h.old = true
	default:
		return badVersion
	}
	h.switches = string(method) == "CONNECT"
	switch {
	case len(target) > limits.URLBytes:
		return longTarget
	case !validTarget(method, target):
		return targetFault(target)
	}
	return noFault
}

// isVersion reports whether b is HTTP/, a digit, a point and a digit.
func isVersion(b []byte) bool {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	return len(b) == 8 && string(b[:5]) == "HTTP/" && digit(b[5]) && b[6] == '.' && digit(b[7])
}

// field reads a line that is not empty.
func (h *head) field(line []byte, limits *Limits) fault {
	h.fields++
	if h.fields > limits.HeaderFields {
		return manyFields
	}
	if line[0] == ' ' || line[0] == '\t' {
		return folded
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 0 {
		return badField
	}
	name, value := line[:colon], line[colon+1:]
	switch {
	case colon == 0:
		return badName
	case name[colon-1] == ' ' || name[colon-1] == '\t':
		return spaceBeforeColon
	case !all(name, inToken):
		return badName
	case !all(value, inFieldValue):
		return badValue
	}
	return h.known(name, bytes.Trim(value, " \t"))
}

// known reads the fields that say where the request ends, and those that net/http
// would answer by itself.
func (h *head) known(name, value []byte) fault {
	switch len(name) { // hardly any other field has such a length
	case len("Host"):
		if is(name, "host") {
			h.hosts++
			if h.hosts > 1 {
				return manyHosts
			}
			if !validAuthority(value, false) {
				return badHost
			}
		}
	case len("Expect"):
		if is(name, "expect") && !is(value, "100-continue") {
			return badExpect
		}
	case len("Upgrade"): // and Trailer
		if is(name, "upgrade") {
			h.switches = true
		}
		if is(name, "trailer") && announcesFraming(value) {
			return badTrailer
		}
	case len("Content-Length"):
		if is(name, "content-length") {
			return h.contentLength(value)
		}
	case len("Transfer-Encoding"):
		if is(name, "transfer-encoding") {
			return h.transferEncoding(value)
		}
	}
	return noFault
}

// is reports whether b is a text, which is in lower case.
func is(b []byte, text string) bool {
	if len(b) != len(text) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != text[i] {
			return false
		}
	}
	return true
}

// contentLength takes digits, once. RFC 9110 lets a server take equal ones, also
// as a list, or refuse them.
func (h *head) contentLength(value []byte) fault {
	h.lengths++
	if h.lengths > 1 {
		return manyLengths
	}
	n, ok := parseLength(value)
	if !ok {
		return badLength
	}
	h.length = n
	return noFault
}

// parseLength reads a length that is made of digits.
func parseLength(value []byte) (n int64, ok bool) {
	if len(value) == 0 || len(value) > 18 {
		return 0, false
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// transferEncoding takes chunked alone. What ends in it and has other codings
// before could be read; anything else has no end that is known.
func (h *head) transferEncoding(value []byte) fault {
	if h.chunked {
		return badCoding
	}
	if is(value, "chunked") {
		h.chunked = true
		return noFault
	}
	first, last := []byte(nil), value
	if i := bytes.LastIndexByte(value, ','); i >= 0 {
		first, last = value[:i], bytes.Trim(value[i+1:], " \t")
	}
	if len(first) == 0 || !is(last, "chunked") || strings.Contains(strings.ToLower(string(first)), "chunked") {
		return badCoding
	}
	return unknownCoding
}

// announcesFraming reports whether a value of Trailer has a field that says where
// a message ends.
func announcesFraming(value []byte) bool {
	for name := range bytes.SplitSeq(value, []byte{','}) {
		name = bytes.Trim(name, " \t")
		if is(name, "content-length") || is(name, "transfer-encoding") || is(name, "trailer") {
			return true
		}
	}
	return false
}

// whole says what is wrong with a head that ends here.
func (h *head) whole() fault {
	switch {
	case h.hosts == 0 && !h.old:
		return noHost
	case h.chunked && h.old:
		return oldCoding
	case h.chunked && h.lengths > 0:
		return lengthAndCoding
	}
	return noFault
}
