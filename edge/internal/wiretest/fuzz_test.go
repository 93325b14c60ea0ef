package wiretest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// most is how long an input may be: beyond it, only limits are of interest, which
// the corpus has.
const most = 16 << 10

// Whatever is made of the corpus, what must be so is so.
func FuzzExchange(f *testing.F) {
	for _, in := range inputs(f) {
		if len(in.raw) <= most {
			f.Add(in.raw, uint16(0))
			f.Add(in.raw, uint16(7))
		}
	}
	s := newStage(f, "")
	f.Fuzz(func(t *testing.T, raw []byte, pieces uint16) {
		if len(raw) > most {
			return
		}
		s.exchange(t, raw, piecesOf(pieces, len(raw)))
	})
}

// piecesOf is how long the pieces of an input are, which are a hundred at most.
func piecesOf(n uint16, length int) int {
	if n == 0 {
		return most
	}
	return max(int(n), length/100+1)
}

// tokens are what makes a difference where it is put.
var tokens = []string{
	"\r\n", "\n", "\r", " ", "\t", ":", ",", ";", "0", "5", "\x00", "\x0b", "\x7f", "\xa0", "_", "-", "%", "%2e", "%2f", "%5c", "%00", "/", "//", "..", "?", "#", "*",
	"\r\n\r\n", "\r\n ", "0\r\n\r\n", "5\r\nhello\r\n", "chunked", "gzip, ", "HTTP/1.0", "HTTP/1.1", "HEAD", "POST", "CONNECT", "OPTIONS",
	"Content-Length: 3\r\n", "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "Connection: keep-alive, X-A\r\n",
	"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Expect: 100-continue\r\n", "Host: b\r\n", "Trailer: X-Sum\r\n", "TE: trailers\r\n", "http://b/",
	"GET /smuggled HTTP/1.1\r\nHost: edge\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

// As the fuzz target, on random changes of the corpus, in every run of the tests.
func TestWhateverIsSent(t *testing.T) {
	s := newStage(t, "")
	all := slices.DeleteFunc(inputs(t), func(in input) bool { return len(in.raw) > 4096 })
	r := rand.New(rand.NewPCG(1, 2))
	tries := 3000
	if testing.Short() {
		tries = 300
	}
	for range tries {
		raw := mutate(r, all)
		s.exchange(t, raw, piecesOf(uint16(r.IntN(3)*r.IntN(50)), len(raw)))
	}
}

// mutate is one or two inputs, with a few changes.
func mutate(r *rand.Rand, all []input) []byte {
	raw := bytes.Clone(all[r.IntN(len(all))].raw)
	if r.IntN(3) == 0 {
		raw = append(raw, all[r.IntN(len(all))].raw...)
	}
	for range r.IntN(5) {
		at := r.IntN(len(raw) + 1)
		to := min(at+r.IntN(4), len(raw))
		raw = slices.Replace(raw, at, to, []byte(tokens[r.IntN(len(tokens))])...)
	}
	return raw
}

// Whatever a backend makes of the corpus, what must be so is so.
func FuzzResponse(f *testing.F) {
	for _, r := range allResponses(f) {
		if len(r.script.raw) <= most {
			f.Add(r.script.raw, r.method == "HEAD", false, uint16(0))
			f.Add(r.script.raw, r.method == "HEAD", true, uint16(7))
		}
	}
	th := newTheatre(f)
	f.Fuzz(func(t *testing.T, raw []byte, head, body bool, pieces uint16) {
		if len(raw) <= most {
			th.answer(t, raw, head, body, pieces)
		}
	})
}

// answer has raw answer a request. The backend closes the connection where the edge would
// wait for more, and sends at once what has more than one response: of what comes in
// pieces, a later one may come when the next request was sent, and is its answer then.
func (th *theatre) answer(t *testing.T, raw []byte, head, body bool, pieces uint16) {
	t.Helper()
	read := parseResponses(raw, head, false)
	s := script{raw: raw, close: read.err != nil}
	if pieces > 0 && len(read.rest) == 0 {
		s.pieces = piecesOf(pieces, len(raw))
	}
	th.perform(t, map[bool]string{true: "HEAD", false: "GET"}[head], map[bool]string{true: "with a body", false: "without a body"}[body], s)
}

// As the fuzz target, on random changes of the corpus, in every run of the tests.
func TestWhateverIsAnswered(t *testing.T) {
	th := newTheatre(t)
	defer leavesNothing(t)()
	all := slices.DeleteFunc(allResponses(t), func(r response) bool { return len(r.script.raw) > 4096 })
	var raws []input
	for _, r := range all {
		raws = append(raws, input{raw: r.script.raw})
	}
	r := rand.New(rand.NewPCG(3, 4))
	tries := 3000
	if testing.Short() {
		tries = 300
	}
	for range tries {
		th.answer(t, mutate(r, raws), r.IntN(6) == 0, r.IntN(2) == 0, uint16(r.IntN(3)*r.IntN(50)))
		if t.Failed() {
			return
		}
	}
}
