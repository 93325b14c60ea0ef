package wire

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// headers is a connection of HTTP/2 with one request, which has no body.
func headers(fields ...string) []byte {
	var block []byte
	for _, text := range fields {
		name, value, _ := strings.Cut(text, "=")
		block = append(block, 0) // a literal, which is not to be remembered
		for _, s := range []string{name, value} {
			if n := len(s); n < 127 {
				block = append(block, byte(n))
			} else { // in seven bits a byte, from the lowest
				block = append(block, 127)
				for n -= 127; n >= 128; n >>= 7 {
					block = append(block, byte(n)|128)
				}
				block = append(block, byte(n))
			}
			block = append(block, s...)
		}
	}
	b := append([]byte(preface), 0, 0, 0, 4, 0, 0, 0, 0, 0)                                        // SETTINGS
	b = append(b, byte(len(block)>>16), byte(len(block)>>8), byte(len(block)), 1, 1|4, 0, 0, 0, 1) // HEADERS
	return append(b, block...)
}

// What net/http lets through of HTTP/2 is held to the rules of HTTP/1.
func TestHTTP2IsHeldToTheRules(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	addr := start(t, limits, func(_ http.ResponseWriter, r *http.Request) {
		refusal, ok := Refused(r)
		if !ok {
			refusal.Detail = "passes"
		}
		seen <- refusal.Detail
	}, withHTTP2)
	const get, slash, scheme, host = ":method=GET", ":path=/", ":scheme=http", ":authority=a"
	many := []string{get, slash, scheme, host}
	for i := range 20 {
		many = append(many, fmt.Sprintf("a%d=b", i))
	}
	for _, c := range []struct {
		fields []string
		want   string
	}{
		{[]string{get, slash, scheme, host}, "passes"},
		{[]string{get, ":path=/a?b=%zz", scheme, ":authority=a.example:8080"}, "passes"},
		{[]string{get, slash, scheme, host, "host=A", "content-length=0", "expect=100-continue"}, "passes"},
		{[]string{":method=OPTIONS", ":path=*", scheme, host}, "passes"},
		{[]string{":method=CONNECT", ":authority=a:443"}, "passes"},
		{many, "passes"},
		{append(many, "one=more"), "there are too many header fields"},
		{[]string{get, ":path=/" + strings.Repeat("a", 255), scheme, host}, "passes"},
		{[]string{get, ":path=/" + strings.Repeat("a", 256), scheme, host}, "the request target is too long"},
		{[]string{":method=G T", slash, scheme, host}, "the request line is malformed"},
		{[]string{get, ":path=/a b", scheme, host}, "the path has a byte that must be escaped, or a bad escape"},
		{[]string{get, ":path=/a#b", scheme, host}, "the path has a byte that must be escaped, or a bad escape"},
		{[]string{get, ":path=/ä", scheme, host}, "the path has a byte that must be escaped, or a bad escape"},
		{[]string{get, ":path=*", scheme, host}, "the request target is malformed"},
		{[]string{get, ":path=http://b/", scheme, host}, "the request target is malformed"},
		{[]string{get, slash, scheme}, "Host is missing"},
		{[]string{get, slash, scheme, ":authority=a b"}, "Host is invalid"},
		{[]string{get, slash, scheme, ":authority=a/../b"}, "Host is invalid"},
		{[]string{get, slash, scheme, host, "host=b"}, "there is more than one Host"},
		{[]string{get, slash, scheme, host, "content-length=+0"}, "Content-Length is not a number"},
		{[]string{get, slash, scheme, host, "content-length=0", "content-length=0"}, "there is more than one Content-Length"},
		{[]string{get, slash, scheme, host, "content-length=5"}, "there is a Content-Length, and no body"},
		{[]string{get, slash, scheme, host, "expect=a miracle"}, "the expectation is not supported"},
	} {
		conn := dial(t, addr)
		if _, err := conn.Write(headers(c.fields...)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		select {
		case got := <-seen:
			if got != c.want {
				t.Errorf("%.200q: %s, want %s", c.fields, got, c.want)
			}
		case <-time.After(patience):
			t.Errorf("%.200q: it does not get here", c.fields)
		}
		_ = conn.Close()
	}
}

// Without ConnContext there are no limits, but all rules.
func TestHTTP2WithoutItsLimits(t *testing.T) {
	t.Parallel()
	r := &http.Request{ProtoMajor: 2, Method: "GET", RequestURI: "/" + strings.Repeat("a", 10_000), Host: "a"}
	if refusal, ok := Refused(r); ok {
		t.Errorf("%+v", refusal)
	}
	r.Host = "a b"
	if refusal, ok := Refused(r); !ok || refusal.Status != http.StatusBadRequest {
		t.Errorf("%+v", refusal)
	}
}
