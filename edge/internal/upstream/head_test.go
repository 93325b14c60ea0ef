package upstream

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// written is what net/http writes; "" if it refuses to.
func written(r *http.Request) string {
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		return ""
	}
	return b.String()
}

// sameHead fails if appendHead writes anything that net/http does not, and reports whether it writes.
func sameHead(t *testing.T, r *http.Request) bool {
	t.Helper()
	const before = "before"
	head, ok := appendHead([]byte(before), r)
	if want := before + written(r); ok && string(head) != want {
		t.Errorf("written\n%q\nwant\n%q", head, want)
	}
	return ok
}

// plainRequest is one as the proxy makes them.
func plainRequest() *http.Request {
	return &http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "backend:8080", Opaque: "/a%2Fb", RawQuery: "q=1;2"},
		Host: "example.com", Body: http.NoBody,
		Header: http.Header{
			"User-Agent": {"curl/8"}, "Accept": {"*/*", "text/html"}, "X-Empty": {""}, "Via": {"1.1 sentinel"}, "X-Request-Id": {"1"}, "Cookie": {"a=b; c=\xff"},
		},
	}
}

func TestHeadIsWrittenAsNetHTTPDoes(t *testing.T) {
	type change func(r *http.Request)
	for name, c := range map[string]change{
		"as it is":        func(*http.Request) {},
		"POST":            func(r *http.Request) { r.Method = http.MethodPost },
		"PATCH":           func(r *http.Request) { r.Method = http.MethodPatch },
		"DELETE":          func(r *http.Request) { r.Method = http.MethodDelete },
		"the URL's host":  func(r *http.Request) { r.Host = "" },
		"no query":        func(r *http.Request) { r.URL.RawQuery = "" },
		"an empty query":  func(r *http.Request) { r.URL.RawQuery, r.URL.ForceQuery = "", true },
		"a path":          func(r *http.Request) { r.URL.Opaque, r.URL.Path = "", "//a b" },
		"no path":         func(r *http.Request) { r.URL.Opaque = "" },
		"a host":          func(r *http.Request) { r.URL.Opaque = "//host/path" },
		"no agent to say": func(r *http.Request) { r.Header["User-Agent"] = []string{""} },
		"two agents":      func(r *http.Request) { r.Header["User-Agent"] = []string{"a", "b"} },
		"another case":    func(r *http.Request) { r.Header["x-lower"] = []string{"1"} },
		"fields apart": func(r *http.Request) {
			for _, name := range []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer"} {
				r.Header[name] = []string{"1"}
			}
		},
		"no body at all": func(r *http.Request) { r.Body = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := plainRequest()
			c(r)
			if !sameHead(t, r) {
				t.Error("net/http has to write it")
			}
		})
	}
	for name, c := range map[string]change{
		"no agent":             func(r *http.Request) { delete(r.Header, "User-Agent") },
		"no method":            func(r *http.Request) { r.Method = "" },
		"the last one":         func(r *http.Request) { r.Close = true },
		"a coding":             func(r *http.Request) { r.TransferEncoding = []string{"identity"} },
		"no host":              func(r *http.Request) { r.Host, r.URL.Host = "", "" },
		"a zone":               func(r *http.Request) { r.Host = "[fe80::1%eth0]" },
		"a name to encode":     func(r *http.Request) { r.Host = "bücher.example" },
		"a host that is none":  func(r *http.Request) { r.Host = "a b" },
		"a line end in a path": func(r *http.Request) { r.URL.Opaque = "/a\r\nX: y" },
		"in a value":           func(r *http.Request) { r.Header["X"] = []string{"a\nY: b"} },
		"in an agent":          func(r *http.Request) { r.Header["User-Agent"] = []string{"a\rb"} },
		"a name that is none":  func(r *http.Request) { r.Header["A B"] = []string{"a"} },
		"an empty name":        func(r *http.Request) { r.Header[""] = []string{"a"} },
		"a space before":       func(r *http.Request) { r.Header["X"] = []string{" a"} },
		"a tab behind":         func(r *http.Request) { r.Header["X"] = []string{"a\t"} },
		"too many fields": func(r *http.Request) {
			for i := range mostFields {
				r.Header[fmt.Sprint("X-", i)] = []string{"a"}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := plainRequest()
			c(r)
			if sameHead(t, r) {
				t.Error("it is written without net/http")
			}
		})
	}
}

func TestHeadsAtRandomAreWrittenAsNetHTTPDoes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func(alphabet string, most int) string {
		b := make([]byte, rnd.IntN(most+1))
		for i := range b {
			b[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		return string(b)
	}
	// odd is what may make a head one for net/http, seldom enough.
	odd := func(bytes string) string {
		if rnd.IntN(40) > 0 {
			return ""
		}
		return bytes
	}
	plain := 0
	for range 20_000 {
		r := plainRequest()
		r.Method = []string{"GET", "POST", "PUT", "X", "GET", "PATCH", ""}[rnd.IntN(7)]
		r.Host = text("ab.-:_1"+odd("[%\xfc "), 6)
		r.URL.Opaque = "/" + text("ab/%"+odd("\x7f\n"), 6)
		for range rnd.IntN(12) {
			values := make([]string, rnd.IntN(3))
			for i := range values {
				values[i] = text("abc=;"+odd(" \t\r\n\x00"), 8)
			}
			r.Header[odd(":")+"x"+text("abAB-"+odd(" :\xff"), 4)] = values
		}
		if sameHead(t, r) {
			plain++
		}
	}
	if plain < 1000 {
		t.Errorf("%d heads were written", plain)
	}
}

func BenchmarkHead(b *testing.B) {
	r := plainRequest()
	room := make([]byte, 0, 4<<10)
	b.Run("by=us", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := appendHead(room, r); !ok {
				b.Fatal("net/http has to write it")
			}
		}
	})
	b.Run("by=net/http", func(b *testing.B) {
		b.ReportAllocs()
		w := bufio.NewWriter(io.Discard)
		for b.Loop() {
			if r.Write(w) != nil {
				b.Fatal("it is not written")
			}
		}
	})
}
