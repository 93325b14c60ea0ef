package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// whyUnsendable is of what sendable refuses.
const whyUnsendable = "the path begins with // and has a byte that needs escaping"

// pathOf is the path of a request as it stands on the wire. It is what is matched,
// logged and sent on, byte for byte: net/url would write what it thinks should
// be escaped in a way of its own.
func pathOf(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if r.Method == http.MethodConnect || path == "" {
		return r.URL.EscapedPath()
	}
	if path[0] == '/' || path == "*" {
		return path
	}
	_, rest, _ := strings.Cut(path, "://") // http://host/path
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return "/"
	}
	return rest[slash:]
}

// sendable reports whether net/http can be made to send a path as it is.
func sendable(r *http.Request, path string) bool {
	return !strings.HasPrefix(path, "//") || r.URL.EscapedPath() == path
}

// targetAt is the URL of a request at a backend, with this path and the client's query.
func targetAt(r *http.Request, path string, backend *url.URL) *url.URL {
	u := &url.URL{Scheme: backend.Scheme, Host: backend.Host, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery}
	if strings.HasPrefix(path, "//") { // as Opaque, it would be a host
		u.Path, u.RawPath = r.URL.Path, r.URL.RawPath
	} else {
		u.Opaque = path
	}
	return u
}
