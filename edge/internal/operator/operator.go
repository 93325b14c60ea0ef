// Package operator is what the listeners have in common that a person, a script or
// Prometheus asks, and no client: of the edge and of its control plane.
package operator

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Loopback reports whether an address to listen on, host:port, is this machine's alone.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, bad := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || bad == nil && ip.Unmap().IsLoopback())
}

// Hosts are the names by which a listener may be asked: that in the address it listens
// on, and more. Each is a name without a port.
func Hosts(listen string, more ...string) []string {
	host, _, _ := net.SplitHostPort(listen) // "" is no name
	return append(slices.Clip(more), host)
}

// Guard answers only who asks by one of the hosts, as localhost or by an address, and
// keeps what is shown out of caches, frames and scripts. setting is what allows another
// name, "" if nothing does.
//
// A page in a browser on the same machine, or in the same network, may have its own
// name lead here, and then counts as ours to the browser. It cannot do that with an
// address, and no browser sends no Host at all.
func Guard(next http.Handler, hosts []string, setting string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		if name := nameOf(r.Host); !known(name, hosts) {
			misdirected(w, name, setting)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// nameOf is the host of a Host field, without its port.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

func known(name string, hosts []string) bool {
	if _, err := netip.ParseAddr(name); err == nil || name == "" || strings.EqualFold(name, "localhost") {
		return true
	}
	return slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, name) })
}

func misdirected(w http.ResponseWriter, name, setting string) {
	detail := fmt.Sprintf("this is not asked for by the name %.100q: use localhost or an address", name)
	if setting != "" {
		detail += ", or allow the name with " + setting
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusMisdirectedRequest)
	_ = encode(w, struct { // the client is gone
		Status int    `json:"status"`
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}{http.StatusMisdirectedRequest, http.StatusText(http.StatusMisdirectedRequest), detail})
}

// Answer sends a value as JSON.
func Answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = encode(w, v) // the client is gone
}

func encode(w http.ResponseWriter, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
