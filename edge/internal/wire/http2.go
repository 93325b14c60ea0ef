package wire

import (
	"net/http"
	"strings"
)

// faultOf is what is wrong with a request of HTTP/2 that net/http has let through.
// The length of its head is the server's to limit, by MaxHeaderBytes.
func faultOf(r *http.Request) fault {
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		limits := c.limits
		if len(r.RequestURI) > limits.URLBytes {
			return longTarget
		}
		if fieldsOf(r.Header) > limits.HeaderFields {
			return manyFields
		}
	}
	method := []byte(r.Method)
	switch {
	case len(method) == 0 || !all(method, inToken):
		return badRequestLine
	case r.RequestURI != "" && r.RequestURI[0] != '/' && r.RequestURI != "*" && r.Method != http.MethodConnect:
		return badTarget // HTTP/2 has no absolute form: the host has a field of its own
	case !validTarget(method, []byte(r.RequestURI)):
		return targetFault([]byte(r.RequestURI))
	case r.Host == "":
		return noHost
	case !validAuthority([]byte(r.Host), false):
		return badHost
	}
	return faultOfHeader(r)
}

func fieldsOf(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// faultOfHeader looks at the fields that HTTP/1 has to have right.
func faultOfHeader(r *http.Request) fault {
	for _, host := range r.Header["Host"] { // beside :authority
		if !strings.EqualFold(host, r.Host) {
			return manyHosts
		}
	}
	var h head
	for _, length := range r.Header["Content-Length"] {
		if f := h.contentLength([]byte(length)); f != noFault {
			return f
		}
	}
	if h.length > 0 && r.ContentLength == 0 {
		return noBody // it ends with its header
	}
	for _, expected := range r.Header["Expect"] {
		if !is([]byte(expected), "100-continue") {
			return badExpect
		}
	}
	return noFault
}
