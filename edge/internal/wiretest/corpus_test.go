package wiretest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// corpus is where the inputs are; its README says how they are written down.
const corpus = "../../testdata/wire"

// input is one of the corpus.
type input struct {
	name             string
	raw              []byte
	answers, backend string // as in expected.txt
}

// inputs reads the corpus.
func inputs(tb testing.TB) (all []input) {
	tb.Helper()
	for _, f := range files(tb, corpus, ".req", "name | answers | backend") {
		all = append(all, input{name: f.parts[0], raw: f.raw, answers: f.parts[1], backend: f.parts[2]})
	}
	return all
}

// file is one of a corpus: its bytes, and the parts of its line in expected.txt, of
// which the first is its name.
type file struct {
	raw   []byte
	parts []string
}

// files reads a corpus, whose lines are of a form. A file without a line, or a line
// without a file, is a mistake.
func files(tb testing.TB, dir, extension, form string) (all []file) {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "expected.txt"))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := file{parts: strings.Split(line, " | ")}
		if len(f.parts) != strings.Count(form, "|")+1 {
			tb.Fatalf("expected.txt: %s: want %s", line, form)
		}
		for i, p := range f.parts { // which stand in columns
			f.parts[i] = strings.TrimSpace(p)
		}
		if f.raw, err = os.ReadFile(filepath.Join(dir, f.parts[0]+extension)); err != nil {
			tb.Fatal(err)
		}
		all = append(all, f)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil || len(found) != len(all) {
		tb.Fatalf("there are %d files and %d lines in expected.txt: %v", len(found), len(all), err)
	}
	return all
}

// Every input gets its answers, and the backend what it should, however it arrives.
func TestCorpus(t *testing.T) {
	s := newStage(t, "")
	for _, in := range inputs(t) {
		for _, pieces := range []int{1 << 20, 7} {
			if pieces == 7 && len(in.raw) > 2000 {
				continue
			}
			t.Run(fmt.Sprintf("%s in %d", in.name, pieces), func(t *testing.T) {
				answers, got := s.exchange(t, in.raw, pieces)
				if a, b := answersText(answers), backendText(got); a != in.answers || b != in.backend {
					t.Errorf("%s | %s | %s\nwant %s | %s", in.name, a, b, in.answers, in.backend)
				}
			})
		}
	}
}

func answersText(all []answer) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return squeeze(texts, " ")
}

// backendText is what a backend got: method, target and length of body.
func backendText(all []*message) string {
	var texts []string
	for _, m := range all {
		target := m.target
		if len(target) > 60 {
			target = fmt.Sprintf("%s...(%d)", target[:20], len(target))
		}
		texts = append(texts, strings.ReplaceAll(fmt.Sprintf("%s %s %d", m.method, target, len(m.body)), "|", "%7C"))
	}
	return squeeze(texts, ", ")
}

// squeeze joins texts, many of them by their number.
func squeeze(texts []string, by string) string {
	if len(texts) == 0 {
		return "-"
	}
	if len(texts) > 20 {
		return fmt.Sprintf("%s%s...(%d)", texts[0], by, len(texts))
	}
	return strings.Join(texts, by)
}

// The strict reader takes what it should of the corpus' own requests, and no more.
func TestTheStrictReaderReads(t *testing.T) {
	t.Parallel()
	const get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, c := range []struct {
		raw   string
		whole int
		body  string // of the first
		err   string
	}{
		{get, 1, "", ""},
		{get + get, 2, "", ""},
		{get + get[:20], 1, "", errShort.Error()},
		{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" + get, 2, "hello", ""},
		{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", 0, "", errShort.Error()},
		{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n" + get, 2, "hello", ""},
		{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhelx", 0, "", "a chunk is longer than its size"},
		{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 0, "", "the end of the body is given twice"},
		{"GET /a HTTP/1.1\nHost: a\r\n\r\n", 0, "", "a line ends in LF alone"},
		{"GET /a HTTP/1.1\r\nHost : a\r\n\r\n", 0, "", "what stands before a colon is no token"},
		{"GET /a HTTP/1.1\r\n Host: a\r\n\r\n", 0, "", "what stands before a colon is no token"},
		{"GET /a HTTP/1.1\r\nHost: a\r\nA: \x00\r\n\r\n", 0, "", "a value has a control character"},
		{"GET /a HTTP/1.1\r\n\r\n", 0, "", "there is no Host, or more than one"},
	} {
		all := read([]byte(c.raw))
		err := ""
		if all.err != nil {
			err = all.err.Error()
		}
		if len(all.whole) != c.whole || err != c.err {
			t.Errorf("%q: %d whole, %q", c.raw, len(all.whole), err)
		}
		if c.whole > 0 && string(all.whole[0].body) != c.body {
			t.Errorf("%q: body %q", c.raw, all.whole[0].body)
		}
	}
}

// A backend that counts each byte has to see those that belong to nobody.
func TestTheBackendSeesWhatItMustNot(t *testing.T) {
	t.Parallel()
	ok := "GET / HTTP/1.1\r\nHost: a\r\nVia: 1.1 sentinel\r\nX-Request-Id: 1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a\r\n\r\n"
	with := func(field string) string { return strings.Replace(ok, "Via", field+"\r\nVia", 1) }
	for raw, want := range map[string]string{
		ok:                                 "",
		ok + "x":                           "before its answer",
		with("Connection: close"):          "another than what is for it",
		with("TE: trailers"):               "another than what is for it",
		with("Upgrade: h2c"):               "another than a WebSocket",
		with("X_A: b"):                     "a name has _",
		with("TE: gzip"):                   "TE is more",
		with("X-Request-Id: 2"):            "X-Request-Id",
		strings.Replace(ok, "127", "8", 1): "X-Forwarded-For",
		strings.Replace(ok, "/ ", "/", 1):  "three parts",
	} {
		m, n, err := parse([]byte(raw))
		b := &backend{}
		if err != nil {
			b.note("%v", err)
		} else {
			b.take(m, []byte(raw)[n:])
		}
		_, _, wrong := b.drain()
		if got := strings.Join(wrong, ";"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
	if !slices.Contains(hardened, "bad_request") {
		t.Error("what could be read in two ways may be followed by something")
	}
}
