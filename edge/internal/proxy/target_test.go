package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A path is matched, logged and sent on as it was sent, and nothing is escaped for
// the client.
func TestAPathStaysAsItIs(t *testing.T) {
	got := make(chan string, 1)
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		for {
			line, _, ok := strings.Cut(p.head(), "\r\n")
			if !ok {
				return
			}
			got <- line
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})}})
	c := e.dial()
	for i, test := range []struct{ target, want, logged string }{
		{"/a?b", "/a?b", "/a"},
		{`/"<>^{|}[x]`, `/"<>^{|}[x]`, `/"<>^{|}[x]`},
		{"/%41%2f%3b?%zz", "/%41%2f%3b?%zz", "/%41%2f%3b"},
		{"/a%2f|", "/a%2f|", "/a%2f|"},
		{"//a//%2f", "//a//%2f", "//a//%2f"},
		{"/a?", "/a?", "/a"},
		{"/a??b", "/a??b", "/a"},
		{"http://b", "/", "/"},
		{"http://b?c/d", "/?c/d", "/"},
		{"http://b/|?c", "/|?c", "/|"},
		{"http://b//c", "//c", "//c"},
	} {
		c.send("GET " + test.target + " HTTP/1.1\r\nHost: a\r\n\r\n")
		if a := c.response("GET"); a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", test.target, a.Status)
		}
		if line := <-got; line != "GET "+test.want+" HTTP/1.1" {
			t.Errorf("%s: the backend got %s", test.target, line)
		}
		if r := e.record(i + 1); r.Path != test.logged {
			t.Errorf("%s was logged as %s", test.target, r.Path)
		}
	}
	c.send("GET //a/| HTTP/1.1\r\nHost: a\r\n\r\n")
	c.response("GET").wantProblem(t, http.StatusBadRequest, BadPath)
}

// After a request whose sender has another idea of where it leads, or of who it is
// speaking to, the connection says nothing more that counts.
func TestSomeRefusalsEndTheConnection(t *testing.T) {
	e := newEdge(t, setup{backends: []string{serve(t, func(http.ResponseWriter, *http.Request) {})}, routes: []string{"GET /a"}})
	const next = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
	for request, closes := range map[string]bool{
		"GET /b/../a HTTP/1.1\r\nHost: a\r\n\r\n":                     true,
		"GET /b%00 HTTP/1.1\r\nHost: a\r\n\r\n":                       true,
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n":               true,
		"TRACE /a HTTP/1.1\r\nHost: a\r\n\r\n":                        true,
		"GET /nobody HTTP/1.1\r\nHost: a\r\n\r\n":                     false,
		"DELETE /a HTTP/1.1\r\nHost: a\r\n\r\n":                       false,
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n":                       false,
		"POST /no HTTP/1.1\r\nContent-Length: 2\r\nHost: a\r\n\r\nhi": false,
	} {
		c := e.dial()
		c.send(request + next)
		if a := c.response("GET"); a.Close != closes {
			t.Errorf("%q: %s, close is %t", request, a.Status, a.Close)
		}
		if closes {
			c.wantClosed()
		} else if a := c.response("GET"); a.StatusCode != http.StatusOK {
			t.Errorf("%q: the next one has %s", request, a.Status)
		}
	}
}

// What a client announces as a trailer is its own affair: it is neither the
// backend's fault nor sent on, unless it can be a field.
func TestATrailerThatCannotBeAnnounced(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		got := make(chan http.Header, 1)
		e := newEdge(t, setup{backends: []string{serve(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			got <- r.Trailer
		})}})
		r := e.request(http.MethodPost, "/", io.MultiReader(strings.NewReader("hello")))
		r.Header["Trailer"] = []string{"X-Sum, a b", "\xe4"}
		if version == 1 {
			c := e.dial()
			c.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, a b\r\nTrailer: \xe4\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")
			if a := c.response("POST"); a.StatusCode != http.StatusOK {
				t.Fatal(a.Status)
			}
		} else if a := e.do(e.client(version), r); a.StatusCode != http.StatusOK {
			t.Fatal(a.Status)
		}
		for name := range <-got {
			if name != "X-Sum" {
				t.Errorf("the backend was told of %q", name)
			}
		}
		e.wantBreaker("closed")
	})
}

// A client that closes its half within its body has its answer.
func TestABodyThatEndsEarlyIsAnswered(t *testing.T) {
	e := newEdge(t, setup{backends: []string{serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}})
	for range 50 {
		c := e.dial()
		c.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
		_ = c.CloseWrite()
		c.response("POST").wantProblem(t, http.StatusBadRequest, BadBody)
	}
	e.wantBreaker("closed")
}
