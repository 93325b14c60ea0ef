package wire

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// What a backend may send before the body of a response. Both are far beyond what
// clients and other proxies take.
const (
	responseHeads  = 256 << 10 // bytes, those of interim responses included
	responseFields = 1000      // of one head
)

// Why a response does not pass. What is not here net/http refuses by itself.
var (
	errStatusLine    = errors.New("wire: the response's status line is malformed")
	errResponseLF    = errors.New("wire: a line of the response does not end in CR LF")
	errResponseFold  = errors.New("wire: a header field of the response is folded")
	errResponseName  = errors.New("wire: a header field of the response has a space before its colon, or has none")
	errResponseCL    = errors.New("wire: the response's Content-Length is malformed, or there is more than one")
	errResponseTE    = errors.New("wire: the response has another Transfer-Encoding than chunked, or is too old for it")
	errResponseBoth  = errors.New("wire: the response has Content-Length and Transfer-Encoding")
	errResponseHeads = errors.New("wire: the response's head is too large")
	errResponseChunk = errors.New("wire: the response's body is not chunked as it should be")
)

// Responses follows the responses on a connection to a backend, whose bytes it is
// shown in order, one response for each request. What HTTP/1 does not allow, or
// could be read in two ways, does not pass, nor does anything after it; and what
// comes after a response is never taken for that to the next request, whoever
// makes it. The zero value is for a new connection. One goroutine reads at a time.
type Responses struct {
	phase phase
	asked atomic.Uint32 // what is to be answered: nothing, a request, or one that is HEAD
	head  responseHead
	body  body
	last  bool                     // the backend says that it closes the connection
	own   atomic.Pointer[[]string] // see Restore
	err   error                    // why nothing passes any more
}

const (
	askedNothing uint32 = iota
	askedRequest
	askedHead
)

// responseHead is what is known of a head.
type responseHead struct {
	line   []byte // the beginning of one that is not whole
	bytes  int    // of this head and of interim ones before
	fields int

	status  int // 0: its line has not come
	old     bool
	ofHead  bool // the request is HEAD
	lengths int
	length  int64
	chunked bool
	own     []string // values of Connection
}

// Asked tells that a request is about to be sent, and whether it is HEAD. The one before
// has its whole response.
func (r *Responses) Asked(head bool) {
	if head {
		r.asked.Store(askedHead)
		return
	}
	r.asked.Store(askedRequest)
}

// Idle reports whether the last response has ended, with nothing after it. It is for
// who reads.
func (r *Responses) Idle() bool { return r.phase == idle && !r.Awaited() }

// Awaited reports whether nothing of the response to the last request has come.
func (r *Responses) Awaited() bool { return r.asked.Load() != askedNothing }

// Restore puts the values of Connection back into the header of a response that
// has come, or of an interim one before it: net/http drops them all where one is close, and with
// them the names of the fields that are for this connection only.
func (r *Responses) Restore(h http.Header) {
	if own := r.own.Load(); own != nil {
		h["Connection"] = *own
	}
}

// Read reads from the connection what may pass. A response that has ended with
// something after it, or whose end is in doubt, comes with io.EOF, as from a
// connection that has been closed then; and so does what comes when nothing was
// asked, as the 408 of a server that gives an idle connection up.
func (r *Responses) Read(from io.Reader, p []byte) (int, error) {
	if r.phase == over {
		return 0, r.err
	}
	n, err := from.Read(p)
	n = r.scan(p[:n])
	if r.phase == over {
		err = r.err
	}
	return n, err
}

// scan returns how much of b passes. If that is not all, nothing does any more.
func (r *Responses) scan(b []byte) (n int) {
	for n < len(b) {
		switch r.phase {
		case idle:
			was := r.asked.Swap(askedNothing)
			if was == askedNothing {
				r.refuse(io.EOF)
				return n
			}
			r.phase, r.head.ofHead = inHead, was == askedHead
		case inHead:
			n += r.scanHead(b[n:])
		case inBody:
			n += r.body.skip(len(b) - n)
			if r.body.left == 0 {
				r.end()
			}
		case opaque:
			return len(b)
		case over:
			return n
		default:
			passed, next, ok := r.body.scanChunks(r.phase, b[n:], responseFields)
			n += passed
			r.phase = next
			switch {
			case !ok:
				r.refuse(errResponseChunk)
			case next == inHead:
				r.end()
			}
		}
	}
	return n
}

func (r *Responses) refuse(err error) { r.phase, r.err = over, err }

// end is that of a response.
func (r *Responses) end() {
	if r.last {
		r.refuse(io.EOF)
		return
	}
	r.phase = idle
	r.head = responseHead{line: r.head.line}
}

// scanHead looks at one line, or at a part of it, and returns how much that is.
func (r *Responses) scanHead(b []byte) int {
	h := &r.head
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		i = len(b) - 1
	}
	part := b[:i+1]
	h.bytes += len(part)
	if h.bytes > responseHeads {
		r.refuse(errResponseHeads)
		return 0
	}
	line := part
	if len(h.line) > 0 || part[i] != '\n' {
		h.line = append(h.line, part...)
		line = h.line
	}
	if part[i] != '\n' {
		return len(part)
	}
	if err := h.scan(line); err != nil {
		r.refuse(err)
		return 0
	}
	h.line = h.line[:0]
	if len(line) == 2 {
		r.heed()
		r.begin()
	}
	return len(part)
}

// scan reads a whole line.
func (h *responseHead) scan(line []byte) error {
	end := len(line) - 2
	if end < 0 || line[end] != '\r' {
		return errResponseLF
	}
	line = line[:end]
	switch {
	case h.status == 0:
		return h.statusLine(line)
	case len(line) == 0:
		return h.whole()
	default:
		return h.field(line)
	}
}

// statusLine reads HTTP/1.1 200 and what may stand behind it.
func (h *responseHead) statusLine(line []byte) error {
	const version = "HTTP/1.x "
	if len(line) < len(version)+3 || string(line[:7]) != version[:7] || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return errStatusLine
	}
	code, reason := line[len(version):len(version)+3], line[len(version)+3:]
	for _, c := range code {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || len(reason) > 0 && reason[0] != ' ' || !all(reason, inFieldValue) {
		return errStatusLine
	}
	h.old = line[7] == '0'
	return nil
}

// field reads a line with a name and a value. What else they must not have, net/http
// looks for.
func (h *responseHead) field(line []byte) error {
	h.fields++
	if h.fields > responseFields {
		return errResponseHeads
	}
	if line[0] == ' ' || line[0] == '\t' {
		return errResponseFold
	}
	colon := bytes.IndexByte(line, ':')
	if colon < 1 || bytes.IndexByte(line[:colon], ' ') >= 0 {
		return errResponseName
	}
	switch name := line[:colon]; {
	case len(name) == len("Connection") && is(name, "connection"):
		if value := bytes.Trim(line[colon+1:], " \t"); !is(value, "keep-alive") {
			h.own = append(h.own, string(value))
		}
	case len(name) == len("Content-Length") && is(name, "content-length"):
		return h.contentLength(bytes.Trim(line[colon+1:], " \t"))
	case len(name) == len("Transfer-Encoding") && is(name, "transfer-encoding"):
		if h.chunked || h.old || !is(bytes.Trim(line[colon+1:], " \t"), "chunked") {
			return errResponseTE
		}
		h.chunked = true
	}
	return nil
}

// contentLength takes digits, once, as of a request.
func (h *responseHead) contentLength(value []byte) error {
	h.lengths++
	n, ok := parseLength(value)
	if !ok || h.lengths > 1 {
		return errResponseCL
	}
	h.length = n
	return nil
}

func (h *responseHead) whole() error {
	if h.chunked && h.lengths > 0 {
		return errResponseBoth
	}
	return nil
}

// heed does what Connection says. A connection that is to be closed is used for this
// response alone, so that what Restore has is of no other.
func (r *Responses) heed() {
	h := &r.head
	for _, value := range h.own {
		for name := range strings.SplitSeq(value, ",") {
			r.last = r.last || strings.EqualFold(strings.Trim(name, " \t"), "close")
		}
	}
	if r.last && len(h.own) > 0 {
		r.own.Store(&h.own)
	}
}

// begin goes on after a head that is whole.
func (r *Responses) begin() {
	h := &r.head
	if cap(h.line) > poolSize {
		h.line = nil
	}
	switch {
	case h.status == 101:
		r.phase = opaque
	case h.status < 200:
		r.head = responseHead{line: h.line, bytes: h.bytes, ofHead: h.ofHead, own: h.own}
	case h.status == 204 && (h.chunked || h.length > 0):
		r.refuse(io.EOF) // there may be a body, which is none
	case h.ofHead, h.status == 204, h.status == 304:
		r.end()
	case h.chunked:
		r.phase, r.body = inSize, body{}
	case h.lengths == 0:
		r.phase = opaque // up to the end of the connection
	case h.length == 0:
		r.end()
	default:
		r.phase, r.body = inBody, body{left: h.length}
	}
}
