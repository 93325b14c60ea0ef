package wire

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
)

// script is a connection whose bytes come in pieces.
type script struct {
	net.Conn
	data   []byte
	pieces func() int
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.data[:min(len(s.data), max(s.pieces(), 1))])
	s.data = s.data[n:]
	return n, nil
}

func (s *script) Close() error { return nil }

// passed is what comes through of data that arrives in pieces and is read in others.
func passed(data []byte, pieces, reads func() int) (*conn, []byte) {
	slots := make(chan struct{}, 1)
	slots <- struct{}{}
	c := newConn(&script{data: data, pieces: pieces}, &limits, slots)
	defer c.Close()
	var all []byte
	room := make([]byte, 1<<16)
	for {
		p := room[:max(reads(), 1)]
		n, err := c.Read(p)
		all = append(all, p[:n]...)
		if err != nil {
			return c, all
		}
	}
}

func whole() int { return 4096 }

// What passes depends on the bytes, not on how they come.
func TestPiecesDoNotMatter(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range cases {
		_, want := passed([]byte(c.raw), whole, whole)
		for range 20 {
			most := 1 + r.IntN(100)
			random := func() int { return 1 + r.IntN(most) }
			if _, got := passed([]byte(c.raw), random, random); !bytes.Equal(got, want) {
				t.Fatalf("%s: %q\nwant %q", c.name, got, want)
			}
		}
	}
}

// An idle connection holds no memory, also after an empty line that came in two pieces.
func TestWhatIsKeptIsGivenBack(t *testing.T) {
	t.Parallel()
	one := func() int { return 1 }
	for _, raw := range []string{"\r\n", get, "\r\n" + get} {
		if c, _ := passed([]byte(raw), one, whole); c.kept.array != nil || c.kept.bytes != nil {
			t.Errorf("%q: %d bytes of %d are held", raw, len(c.kept.bytes), len(c.kept.array))
		}
	}
}

// check compares what passes of data with what net/http makes of it.
func check(t *testing.T, data []byte, pieces, reads func() int) {
	t.Helper()
	c, out := passed(bytes.Clone(data), pieces, reads)
	if _, again := passed(bytes.Clone(data), whole, whole); !bytes.Equal(out, again) {
		t.Fatalf("%q\nin pieces %q\nat once   %q", data, out, again)
	}
	if c.scanner.phase == opaque {
		if !bytes.Equal(out, data) {
			t.Fatalf("%q: %q", data, out)
		}
		return
	}
	in := bufio.NewReaderSize(bytes.NewReader(out), 4096)
	for n := int64(0); ; n++ {
		if _, err := in.Peek(1); err != nil {
			if n != c.scanner.requests {
				t.Fatalf("%q: %d requests, want %d", out, n, c.scanner.requests)
			}
			return
		}
		r, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("request %d of %q: %v", n, out, err)
		}
		if _, refused := Refused(r); refused {
			if n != c.scanner.requests || in.Buffered() != 0 {
				t.Fatalf("%q: refused after %d requests, want %d", out, n, c.scanner.requests)
			}
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			whole := c.scanner.phase == inHead || c.scanner.phase == undecided
			if whole || n+1 != c.scanner.requests {
				t.Fatalf("%q: the body of request %d of %d: %v", out, n, c.scanner.requests, err)
			}
			if c.scanner.phase == over && errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%q: the body waits for more instead of failing", out)
			}
			return
		}
	}
}

// Whatever passes, net/http reads as the same requests.
func FuzzScanner(f *testing.F) {
	for _, c := range cases {
		f.Add([]byte(c.raw), uint16(3), uint16(50))
	}
	f.Add([]byte(preface+"more"), uint16(1), uint16(1))
	f.Add([]byte(lines("CONNECT a:443 HTTP/1.1", "Host: a")+rubbish), uint16(9), uint16(9))
	f.Fuzz(func(t *testing.T, data []byte, pieces, reads uint16) {
		check(t, data, func() int { return int(pieces) }, func() int { return int(reads) })
	})
}

// As the fuzz target, on random changes of the cases, in every run of the tests.
func TestNetHTTPReadsTheSame(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	tokens := []string{"\r\n", "\n", "\r", " ", "\t", ":", ",", ";", "0", "5", "chunked", "\x00", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "HTTP/1.0", get, "%", "/", "?"}
	for range 30_000 {
		raw := cases[r.IntN(len(cases))].raw
		for range r.IntN(4) {
			at := r.IntN(len(raw) + 1)
			to := min(at+r.IntN(3), len(raw))
			raw = raw[:at] + tokens[r.IntN(len(tokens))] + raw[to:]
		}
		most := 1 + r.IntN(300)
		random := func() int { return 1 + r.IntN(most) }
		check(t, []byte(raw), random, random)
	}
}

const browser = "GET /api/users/17?expand=orders HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n" +
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br\r\n" +
	"Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\nConnection: keep-alive\r\n\r\n"

// endless sends the same request again and again.
type endless struct {
	net.Conn
	text string
}

func (e *endless) Read(p []byte) (int, error) { return copy(p, e.text), nil }

func BenchmarkRequest(b *testing.B) {
	for name, text := range map[string]string{
		"short": get, "browser": browser, "chunked": chunked("400\r\n" + strings.Repeat("x", 1024) + "\r\n0\r\n\r\n"),
	} {
		b.Run(name, func(b *testing.B) {
			c := newConn(&endless{text: text}, &Limits{HeaderBytes: 32 << 10, HeaderFields: 100, URLBytes: 8 << 10}, nil)
			p := make([]byte, 4096)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := c.Read(p); n != len(text) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func TestAGoodRequestAllocatesNothing(t *testing.T) {
	c := newConn(&endless{text: browser}, &limits, nil)
	p := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Read(p) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
