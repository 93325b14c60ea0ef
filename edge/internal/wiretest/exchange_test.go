package wiretest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// answer is a response as the client reads it. Interim ones are not counted.
type answer struct {
	status int
	reason string // of a problem of the edge's own, "" for the backend's answer
	closes bool   // it says that the connection ends
}

func (a answer) String() string {
	if a.reason == "" {
		return strconv.Itoa(a.status)
	}
	return fmt.Sprintf("%d:%s", a.status, a.reason)
}

// hardened are the reasons after which nothing that a connection says is to be
// believed any more.
var hardened = []string{"bad_request", "bad_body", "bad_path", "header_too_large"}

// preface is how HTTP/2 begins.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// talk sends raw in pieces, and returns the answers up to the end of the
// connection. all is what a strict reader makes of raw.
func (e *edge) talk(raw []byte, pieces int, all reading) ([]answer, error) {
	nc, err := net.Dial("tcp", e.addr) //nolint:noctx // loopback
	if err != nil {
		return nil, err
	}
	c := nc.(*net.TCPConn)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for piece := range slices.Chunk(raw, pieces) {
			if _, err := c.Write(piece); err != nil {
				return // it was refused
			}
		}
	}()
	defer func() {
		c.Close() // else a client whose bytes nobody wants would wait
		<-sent
	}()
	var answers []answer
	for r := bufio.NewReader(c); ; {
		if len(answers) == len(all.whole) && !all.refused() {
			// Earlier, it would look as if the client were gone; and what is to be
			// refused needs no end.
			<-sent
			_ = c.CloseWrite()
		}
		method := "" // of what follows the whole ones
		switch n := len(answers); {
		case n < len(all.whole):
			method = all.whole[n].method
		case all.torn != nil:
			method = all.torn.method
		case bytes.Contains(raw, []byte("HEAD")):
			method = "HEAD or not"
		}
		a, err := readAnswer(r, method)
		switch {
		case errors.Is(err, io.EOF):
			return answers, nil
		case err != nil:
			return answers, fmt.Errorf("after %v: %w", answers, err)
		}
		if a.status >= 200 {
			answers = append(answers, a)
		}
	}
}

// readAnswer reads a response. What ends before its first byte is io.EOF.
func readAnswer(r *bufio.Reader, method string) (answer, error) {
	line, err := readLine(r)
	if err != nil {
		return answer{}, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, ok := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || !ok || err != nil || len(code) != 3 {
		return answer{}, fmt.Errorf("no status line: %q", line)
	}
	a, length, problem := answer{status: status}, -1, false
	for {
		line, err := readLine(r)
		if err != nil {
			return a, noEOF(err)
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch {
		case !ok || !token(name) || !text(value):
			return a, fmt.Errorf("no field: %q", line)
		case strings.EqualFold(name, "Transfer-Encoding"):
			return a, errors.New("chunks that the backend has not sent")
		case strings.EqualFold(name, "Connection"):
			a.closes = strings.EqualFold(value, "close")
		case strings.EqualFold(name, "Content-Type"):
			problem = value == "application/problem+json"
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(value); err != nil {
				return a, err
			}
		}
	}
	if a.status < 200 || a.status == 204 || method == "HEAD" {
		a.reason = map[bool]string{true: "?"}[problem]
		return a, nil
	}
	if method == "HEAD or not" { // and the last one
		if _, err := r.Peek(1); errors.Is(err, io.EOF) {
			length = 0
		}
	}
	body := make([]byte, max(length, 0))
	if _, err := io.ReadFull(r, body); err != nil || length < 0 {
		return a, fmt.Errorf("a body of %d: %w", length, noEOF(err))
	}
	if problem {
		_, rest, _ := strings.Cut(string(body), `"reason":"`)
		a.reason, _, _ = strings.Cut(rest, `"`)
	}
	return a, nil
}

// readLine reads a line that ends as it must.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	switch {
	case err != nil && line != "":
		return "", noEOF(err)
	case errors.Is(err, syscall.ECONNRESET):
		return "", io.EOF // that of who has not read all that he refused
	case err != nil:
		return "", err
	case !strings.HasSuffix(line, "\r\n"):
		return "", fmt.Errorf("a line ends in LF alone: %q", line)
	}
	return strings.TrimSuffix(line, "\r\n"), nil
}

// noEOF is err where an end comes too early.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// stage is an edge and its backend, for one exchange after another.
type stage struct {
	*edge
	backend *backend
	torn    []*message // what may reach the backend in parts, see exchange
}

func newStage(tb testing.TB, more string) *stage {
	b := startBackend(tb)
	s := &stage{edge: startEdge(tb, b.url(), more), backend: b}
	tb.Cleanup(func() { s.nothingMore(tb) })
	return s
}

// exchange sends raw to the edge, and holds what comes of it to what must be so
// whatever the bytes are:
//
//   - The backend gets the requests that a strict reader finds in raw and the edge
//     has not answered itself, in their order, the same in method, target, host,
//     body, and fields, and no byte besides.
//   - The access log names the same method, path and length of body.
//   - What a strict reader does not take never gets there whole.
//   - No answer blames the backend, or us.
//   - Each request that ends has one answer, and one that could be read in two
//     ways is the last of its connection.
//
// It returns the answers, and what the backend got. HTTP/2 is not looked at.
func (s *stage) exchange(tb testing.TB, raw []byte, pieces int) ([]answer, []*message) {
	tb.Helper()
	if bytes.HasPrefix(raw, []byte(preface)) {
		return nil, nil
	}
	raw = bytes.Clone(raw) // what is read of it may be looked at later
	all := read(raw)
	answers, err := s.talk(raw, pieces, all)
	fail := func(format string, args ...any) {
		tb.Helper()
		tb.Fatalf("%s\nsent    %.2000q\nread    %d whole, then %v\nanswers %v", fmt.Sprintf(format, args...), raw, len(all.whole), all.err, answers)
	}
	if err != nil {
		fail("%v", err)
	}
	short := len(answers) == len(all.whole) && errors.Is(all.err, errShort)
	if short {
		s.mark(tb) // or what is logged of a client who has not sent all would be another's
	}
	records := slices.DeleteFunc(s.records(tb, len(answers)), func(r record) bool { return r.ID == marked })
	if n := len(answers); short && len(records) == n+1 && records[n].Reason == "client_closed" {
		s.torn = append(s.torn, all.torn) // it was gone before anybody looked at what it had not sent
		records = records[:n]
	}
	got, torn, wrong := s.drain()
	if len(wrong) > 0 {
		fail("the backend got what it must not: %s", strings.Join(wrong, "; "))
	}
	if len(records) != len(answers) {
		fail("%d answers, and in the log %v", len(answers), records)
	}
	s.torn = s.torn[max(0, len(s.torn)-100):]
	left := got
	for i, a := range answers {
		switch {
		case a.status >= 500:
			fail("answer %d blames us", i)
		case slices.Contains(hardened, a.reason) && (i != len(answers)-1 || !a.closes):
			fail("after answer %d the connection goes on", i)
		case a.status != records[i].Status || a.reason != "?" && a.reason != "" && a.reason != records[i].Reason:
			fail("answer %d was logged as %+v", i, records[i])
		}
		if i >= len(all.whole) {
			if a.status < 400 || i > len(all.whole) {
				fail("answer %d is to no request", i)
			}
			if records[i].Backend != "" {
				s.torn = append(s.torn, all.torn)
			}
			continue
		}
		m := all.whole[i]
		if records[i].Backend == "" {
			continue
		}
		if a.status != 200 {
			// Cut off after it was sent, as far as it was.
			s.torn = append(s.torn, m)
			continue
		}
		if len(left) == 0 {
			fail("request %d was answered, and the backend has not seen it", i)
		}
		if fault := differs(m, left[0], records[i]); fault != "" {
			fail("request %d: %s\nat the backend %+v\nlogged %+v", i, fault, left[0], records[i])
		}
		left = left[1:]
	}
	if len(left) > 0 {
		fail("the backend got %s %s besides", left[0].method, left[0].target)
	}
	s.explain(torn, fail)
	return answers, got
}

// marked is the id of what mark sends.
const marked = "a-mark-in-the-log"

// mark sends a request of its own, and waits until it is logged: what has ended before is
// then, too.
func (s *stage) mark(tb testing.TB) {
	tb.Helper()
	c, r := s.dial(tb)
	defer c.Close()
	_, _ = io.WriteString(c, "GET /get HTTP/1.1\r\nHost: edge\r\nX-Request-Id: "+marked+"\r\nConnection: close\r\n\r\n")
	wantAnswer(tb, r, "200")
	s.access.wait(tb, func(lines [][]byte) bool {
		return slices.ContainsFunc(lines, func(line []byte) bool { return bytes.Contains(line, []byte(marked)) })
	})
}

// drain is the backend's, without marks.
func (s *stage) drain() (whole, torn []*message, wrong []string) {
	whole, torn, wrong = s.backend.drain()
	return slices.DeleteFunc(whole, func(m *message) bool { return slices.Contains(values(m.header, "X-Request-Id"), marked) }), torn, wrong
}

// explain holds what a backend got of a request, and nothing more of it, to those
// that were cut off. It may come late.
func (s *stage) explain(torn []*message, fail func(string, ...any)) {
	for _, m := range torn {
		if !slices.ContainsFunc(s.torn, func(of *message) bool {
			if of == nil {
				return false
			}
			_, target, ok := of.resource()
			return ok && m.method == of.method && m.target == target && bytes.HasPrefix(of.body, m.body)
		}) {
			fail("the backend got a part of %s %s, with %d bytes, that nobody has sent", m.method, m.target, len(m.body))
		}
	}
}

// nothingMore is that at the end of the test the backend has got no more than was
// accounted for.
func (s *stage) nothingMore(tb testing.TB) {
	whole, torn, wrong := s.backend.drain()
	if len(whole) > 0 || len(wrong) > 0 {
		tb.Errorf("the backend got, too late: %v, %v", whole, wrong)
	}
	s.explain(torn, func(format string, args ...any) { tb.Errorf(format, args...) })
}

// differs says how a request at the backend is not the one that was sent, ""
// if it is that and nothing else.
func differs(sent, got *message, logged record) string {
	host, target, ok := sent.resource()
	path, _, _ := strings.Cut(target, "?")
	switch {
	case !ok:
		return "it has no target that can be forwarded"
	case got.method != sent.method || logged.Method != sent.method:
		return "the method is another"
	case got.target != target:
		return "the target is another"
	case logged.Path != path && !strings.ContainsFunc(path, func(r rune) bool { return r >= 0x7f }):
		return "another path was logged"
	case values(got.header, "Host")[0] != host && host != "":
		return "the host is another"
	case !bytes.Equal(got.body, sent.body) || logged.BytesIn != int64(len(sent.body)):
		return "the body is another"
	case logged.Attempts != 1:
		return "it was sent more than once"
	}
	want, have := passing(sent, sent.header), passing(got, got.header)
	if len(values(sent.header, "Cache-Control")) == 0 && len(have) > len(want) {
		have = slices.DeleteFunc(have, func(f string) bool { return f == "cache-control: no-cache" }) // net/http's, for Pragma
	}
	if !slices.Equal(want, have) {
		return fmt.Sprintf("the header is another: %q, want %q", have, want)
	}
	if len(values(got.header, "TE")) > 0 && !strings.Contains(strings.ToLower(strings.Join(values(sent.header, "TE"), ",")), "trailers") {
		return "it has a TE that was not sent"
	}
	announced := strings.ToLower(strings.Join(values(sent.header, "Trailer"), ","))
	for _, f := range sent.trailer {
		name := strings.ToLower(f.name)
		if sent.chunked && slices.Contains(strings.Split(announced, ", "), name) && !slices.Contains(notInTrailers, name) &&
			!strings.HasPrefix(name, "x-forwarded-") && !slices.Contains(ours, name) && !strings.Contains(name, "_") && !slices.Contains(values(got.trailer, name), f.value) {
			return fmt.Sprintf("the trailer has lost %q", f)
		}
	}
	for _, f := range got.trailer {
		if !slices.Contains(sent.trailer, f) && !slices.ContainsFunc(sent.trailer, func(s field) bool {
			return strings.EqualFold(s.name, f.name) && s.value == f.value
		}) {
			return fmt.Sprintf("the trailer has %q", f)
		}
	}
	return ""
}

// passing is the fields of a request that a proxy passes on as they are, each as
// one text, in an order of their own.
func passing(m *message, header []field) (all []string) {
	var own []string
	for _, value := range values(m.header, "Connection") {
		for name := range strings.SplitSeq(value, ",") {
			own = append(own, strings.ToLower(strings.Trim(name, " \t")))
		}
	}
	for _, f := range header {
		name := strings.ToLower(f.name)
		switch {
		case slices.Contains(own, name), slices.Contains(ours, name), strings.HasPrefix(name, "x-forwarded-"), strings.Contains(name, "_"):
		default:
			all = append(all, name+": "+f.value)
		}
	}
	slices.Sort(all)
	return all
}

// ours are the fields that are for one connection, or that a proxy writes itself.
var ours = []string{
	"connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
	"upgrade", "http2-settings", "host", "content-length", "expect", "via", "forwarded", "x-real-ip", "x-request-id", "user-agent",
}
