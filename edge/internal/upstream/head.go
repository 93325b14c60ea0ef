package upstream

import (
	"net/http"
	"strings"
)

// mostFields is how many fields appendHead sorts.
const mostFields = 32

// field is a header field of a head that is being written.
type field struct {
	name   string
	values []string
}

// appendHead appends the head of a request without a body, byte for byte as
// [http.Request.Write] writes it, in a fraction of the time. It reports false, and what
// it returns is of no use, where that would change something before it writes it,
// leave it out, or refuse it: then it is to be asked.
func appendHead(b []byte, r *http.Request) ([]byte, bool) {
	agent := r.Header["User-Agent"]
	if len(agent) == 0 || r.Method == "" || r.Close || len(r.TransferEncoding) > 0 {
		return b, false
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	if host == "" || !all(host, plainInHost) {
		return b, false
	}
	var room [mostFields]field
	fields, ok := sorted(room[:0], r.Header)
	if !ok {
		return b, false
	}
	b = append(append(b, r.Method...), ' ')
	start := len(b)
	b = appendTarget(b, r)
	if hasControl(b[start:]) {
		return b, false
	}
	b = append(append(b, " HTTP/1.1\r\nHost: "...), host...)
	b = append(b, '\r', '\n')
	if agent[0] != "" {
		if b, ok = appendField(b, "User-Agent", agent[0]); !ok {
			return b, false
		}
	}
	if usuallyHasBody(r.Method) {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	for _, f := range fields {
		for _, v := range f.values {
			if b, ok = appendField(b, f.name, v); !ok {
				return b, false
			}
		}
	}
	return append(b, '\r', '\n'), true
}

// usuallyHasBody reports whether a request of a method has Content-Length even
// without a body.
func usuallyHasBody(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// appendTarget appends what stands on the request line.
func appendTarget(b []byte, r *http.Request) []byte {
	u := r.URL
	if u.Opaque == "" || u.Opaque[0] != '/' || strings.HasPrefix(u.Opaque, "//") {
		return append(b, u.RequestURI()...)
	}
	b = append(b, u.Opaque...)
	if u.ForceQuery || u.RawQuery != "" {
		b = append(append(b, '?'), u.RawQuery...)
	}
	return b
}

func hasControl(b []byte) bool {
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			return true
		}
	}
	return false
}

// sorted appends the fields of a header in the order of their names, without those
// that have a place of their own. There may be too many, or one with a name that is none.
func sorted(fields []field, h http.Header) ([]field, bool) {
	for name, values := range h {
		switch name {
		case "Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		}
		if len(fields) == mostFields || name == "" || !all(name, inToken) {
			return fields, false
		}
		i := len(fields)
		fields = append(fields, field{})
		for ; i > 0 && fields[i-1].name > name; i-- {
			fields[i] = fields[i-1]
		}
		fields[i] = field{name, values}
	}
	return fields, true
}

// appendField appends a line, unless the value has line ends, or spaces around it.
func appendField(b []byte, name, value string) ([]byte, bool) {
	if value != "" && (value[0] <= ' ' || value[len(value)-1] <= ' ') || strings.IndexByte(value, '\n') >= 0 || strings.IndexByte(value, '\r') >= 0 {
		return b, false
	}
	b = append(append(b, name...), ": "...)
	b = append(b, value...)
	return append(b, '\r', '\n'), true
}

// kinds of bytes.
type kind uint8

const (
	inToken     kind = 1 << iota // of a field's name
	plainInHost                  // of a name or an IPv4 address, with a port
)

var kinds = func() (t [256]kind) {
	for i := range t {
		c := byte(i)
		if 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' {
			t[i] = inToken | plainInHost
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] |= inToken
	}
	for _, c := range []byte("-._:") {
		t[c] |= plainInHost
	}
	return t
}()

// all reports whether all bytes of a text are of a kind.
func all(text string, k kind) bool {
	for i := range len(text) {
		if kinds[text[i]]&k == 0 {
			return false
		}
	}
	return true
}
