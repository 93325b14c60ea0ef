package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// answered is what passes of what a backend sends to one request.
func answered(data []byte, head bool, pieces func() int) (r *Responses, out []byte, err error) {
	r = new(Responses)
	r.Asked(head)
	from := &script{data: data, pieces: pieces}
	for room := make([]byte, 4096); err == nil; {
		var n int
		n, err = r.Read(from, room)
		out = append(out, room[:n]...)
	}
	return r, out, err
}

// ended reports whether the response is whole, whatever came after it.
func (r *Responses) ended() bool {
	return r.Idle() || r.phase == over && errors.Is(r.err, io.EOF)
}

// checkResponse holds what passes to what net/http makes of it: where the one sees the
// end of a head or of a body, the other does, and nothing is left.
func checkResponse(t *testing.T, data []byte, head bool, pieces func() int) {
	t.Helper()
	r, out, _ := answered(bytes.Clone(data), head, pieces)
	again, other, _ := answered(bytes.Clone(data), head, whole)
	same := bytes.Equal(out, other) // or the beginning of a line has passed that came alone
	if !r.ended() {
		same = errors.Is(r.err, again.err)
	}
	if !same || r.ended() != again.ended() {
		t.Fatalf("%q\nin pieces %q %v\nat once   %q %v", data, out, r.err, other, again.err)
	}
	if !bytes.HasPrefix(data, out) {
		t.Fatalf("%q passes as %q", data, out)
	}
	in := bufio.NewReader(bytes.NewReader(out))
	method := map[bool]string{true: http.MethodHead, false: http.MethodGet}[head]
	for {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			if r.phase != over && errors.Is(err, io.ErrUnexpectedEOF) && r.phase != idle && r.phase != inHead {
				t.Fatalf("%q: the head is whole to one alone", out)
			}
			return // it is refused by both, or by net/http alone
		}
		if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		if r.phase == inHead || r.phase == over && !r.ended() && r.body == (body{}) && !errors.Is(r.err, errResponseChunk) {
			t.Fatalf("%q: net/http takes a head that is refused: %v", out, r.err)
		}
		if r.phase == opaque {
			return // up to the end of the connection
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if (err == nil) != r.ended() && !isStricter(err) {
			t.Fatalf("%q: net/http says %v, and it has ended: %t", out, err, r.ended())
		}
		if err == nil && in.Buffered() > 0 {
			t.Fatalf("%q: %d bytes are left", out, in.Buffered())
		}
		return
	}
}

// isStricter reports whether net/http does not take a trailer: it has looked at its
// values, or finds it suspicious.
func isStricter(err error) bool {
	return err != nil && !errors.Is(err, io.ErrUnexpectedEOF)
}

// responseCorpus is that of wiretest.
func responseCorpus(tb testing.TB) (all [][]byte) {
	tb.Helper()
	files, err := filepath.Glob("../../testdata/responses/*.resp")
	if err != nil || len(files) < 300 {
		tb.Fatal(len(files), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, raw)
	}
	return all
}

// Whatever passes of a backend's bytes, net/http reads as the same response.
func FuzzResponses(f *testing.F) {
	for _, raw := range responseCorpus(f) {
		f.Add(raw, false, uint16(3))
		f.Add(raw, true, uint16(50))
	}
	f.Fuzz(func(t *testing.T, data []byte, head bool, pieces uint16) {
		checkResponse(t, data, head, func() int { return int(pieces) })
	})
}

// As the fuzz target, on random changes of the corpus, in every run of the tests.
func TestNetHTTPReadsTheSameResponse(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	all := slices.DeleteFunc(responseCorpus(t), func(raw []byte) bool { return len(raw) > 4096 })
	tokens := []string{
		"\r\n", "\n", "\r", " ", "\t", ":", ",", ";", "0", "5", "chunked", "\x00", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n",
		"HTTP/1.0", "HTTP/1.1 204 X\r\n", "HTTP/1.1 103 X\r\n", "Connection: close, X-A\r\n", "0\r\n\r\n", "5\r\nhello\r\n", "Trailer: X-Sum\r\n",
	}
	for range 30_000 {
		raw := bytes.Clone(all[r.IntN(len(all))])
		for range r.IntN(4) {
			at := r.IntN(len(raw) + 1)
			to := min(at+r.IntN(3), len(raw))
			raw = slices.Replace(raw, at, to, []byte(tokens[r.IntN(len(tokens))])...)
		}
		most := 1 + r.IntN(100)
		checkResponse(t, raw, r.IntN(4) == 0, func() int { return 1 + r.IntN(most) })
	}
}

const smallResponse = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nDate: Mon, 30 Nov 2026 11:12:13 GMT\r\nContent-Length: 5\r\n\r\nhello"

// A head takes no more memory than it may, whatever it says.
func TestAHeadOfAResponseIsBounded(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{
		"a line":            strings.Repeat("x", 1000),
		"fields":            "X: " + strings.Repeat("y", 100) + "\r\n",
		"empty fields":      "X:\r\n",
		"interim responses": "\r\nHTTP/1.1 103 X\r\n",
	} {
		raw := "HTTP/1.1 200 OK\r\n"
		if name == "interim responses" {
			raw = "HTTP/1.1 103 X\r\n"
		}
		_, out, err := answered([]byte(raw+strings.Repeat(part, 1<<20/len(part))), false, whole)
		if !errors.Is(err, errResponseHeads) || len(out) > responseHeads {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}

// As many fields as there may be pass, and no more.
func TestFieldsOfAResponseAreCounted(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]error{responseFields: nil, responseFields + 1: errResponseHeads} {
		r, _, _ := answered([]byte("HTTP/1.1 204 X\r\n"+strings.Repeat("X:\r\n", n)+"\r\n"), false, whole)
		if !errors.Is(r.err, want) {
			t.Errorf("%d fields: %v", n, r.err)
		}
	}
}

// What comes when nothing was asked is no answer to what is asked then.
func TestNothingPassesUnasked(t *testing.T) {
	t.Parallel()
	r := new(Responses)
	r.Asked(false)
	if r.Idle() || !r.Awaited() {
		t.Error("it awaits nothing")
	}
	room := make([]byte, 4096)
	if n, err := r.Read(strings.NewReader(smallResponse), room); n != len(smallResponse) || err != nil || !r.Idle() || r.Awaited() {
		t.Fatal(n, err)
	}
	if n, err := r.Read(strings.NewReader(smallResponse), room); n != 0 || !errors.Is(err, io.EOF) || r.Idle() {
		t.Error(n, err)
	}
	r.Asked(false)
	if n, err := r.Read(strings.NewReader(smallResponse), room); n != 0 || !errors.Is(err, io.EOF) {
		t.Error(n, err)
	}
}

// again reads the same response again and again.
type again struct{ text string }

func (a again) Read(p []byte) (int, error) { return copy(p, a.text), nil }

func TestAGoodResponseAllocatesNothing(t *testing.T) {
	r, from, room := new(Responses), io.Reader(again{smallResponse}), make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() {
		r.Asked(false)
		_, _ = r.Read(from, room)
	}); n > 0 || !r.Idle() {
		t.Errorf("%v allocations, idle: %t", n, r.Idle())
	}
}

func BenchmarkResponse(b *testing.B) {
	for name, text := range map[string]string{
		"small": smallResponse, "chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + strings.Repeat("x", 1024) + "\r\n0\r\n\r\n",
	} {
		b.Run(name, func(b *testing.B) {
			r, from, room := new(Responses), io.Reader(again{text}), make([]byte, 4096)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				r.Asked(false)
				if n, err := r.Read(from, room); n != len(text) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
