package proxy

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// pseudonym is our name in Via.
const pseudonym = "sentinel"

// hopByHop reports whether a header field is for one connection only, and so
// never forwarded as it came.
func hopByHop(key string) bool {
	switch key {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// forwarding reports whether a field of a request tells of the proxies before us, in a
// way that those we trust know.
func forwarding(key string) bool {
	return strings.HasPrefix(key, "X-Forwarded-")
}

// rebuilt reports whether we write a field of a request ourselves, or nobody does: Forwarded
// says what X-Forwarded-For does, and few of those whom we trust for that mind it.
func rebuilt(key string) bool {
	switch key {
	case "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-Ip", "Forwarded", "X-Request-Id", "Via", "User-Agent", "Expect":
		return true
	}
	return false
}

// listed is the fields that Connection names as its own. They are the sender's
// to withdraw, not those that we add.
type listed []string

func listedBy(connection []string) listed {
	var names listed
	for _, line := range connection {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.TrimString(name); name != "" {
				names = append(names, textproto.CanonicalMIMEHeaderKey(name))
			}
		}
	}
	return names
}

func (l listed) has(key string) bool {
	return slices.Contains(l, key)
}

// hasToken reports whether a list, over all its lines, has a token, in any case
// of its letters.
func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			t, _, _ = strings.Cut(t, ";")
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// outgoing is a header that is being written, and room for the values of our own
// fields, so that they need no slice each.
type outgoing struct {
	http.Header
	room []string
}

func (o *outgoing) set(key, value string) {
	o.room = append(o.room, value)
	o.Header[key] = o.room[len(o.room)-1 : len(o.room) : len(o.room)] // whoever appends takes a copy
}

// requestHeader is the header that a backend gets. It shares the values of the
// client's, and never changes those. upgrade is the protocol to ask for, "" for
// none. client is who has sent the request, as far as the peer's word on forwarding
// counts; the zero Addr: it does not.
func requestHeader(r *http.Request, peer, client netip.Addr, id, upgrade string) http.Header {
	believe := client.IsValid()
	h := outgoing{make(http.Header, len(r.Header)+6), make([]string, 0, 8)}
	own := listedBy(r.Header["Connection"])
	for key, values := range r.Header {
		switch {
		case hopByHop(key), rebuilt(key), own.has(key), forwarding(key) && !believe, strings.IndexByte(key, '_') >= 0:
		default:
			h.Header[key] = values
		}
	}
	h.connect(hasToken(r.Header["Te"], "trailers"), upgrade)
	if agent, ok := r.Header["User-Agent"]; ok {
		h.Header["User-Agent"] = agent
	} else {
		h.set("User-Agent", "") // or net/http puts its own
	}
	if expectsContinue(r) && r.ContentLength != 0 {
		h.set("Expect", "100-continue")
	}
	h.set("X-Request-Id", id)
	h.set("Via", via(r.ProtoMajor, r.ProtoMinor))
	if before := r.Header["Via"]; len(before) > 0 {
		h.Header["Via"] = append(slices.Clip(before), h.Header["Via"]...)
	}
	if n, ok := forwards(r); ok && n > 0 {
		h.set("Max-Forwards", strconv.FormatUint(n-1, 10))
	}
	if believe && r.Header["X-Real-Ip"] != nil {
		h.set("X-Real-Ip", client.String())
	}
	h.tellForwarding(r, peer, believe)
	return h.Header
}

// connect says what is for this connection only.
func (o *outgoing) connect(trailers bool, upgrade string) {
	if trailers {
		o.set("Te", "trailers")
	}
	if upgrade != "" {
		o.set("Upgrade", upgrade)
	}
	switch {
	case trailers && upgrade != "":
		o.set("Connection", "Upgrade, TE")
	case upgrade != "":
		o.set("Connection", "Upgrade")
	case trailers:
		o.set("Connection", "TE")
	}
}

// tellForwarding says where the request comes from.
func (o *outgoing) tellForwarding(r *http.Request, peer netip.Addr, believe bool) {
	proto, host := "http", r.Host
	if r.TLS != nil {
		proto = "https"
	}
	var chain string
	if believe {
		chain = strings.Join(r.Header["X-Forwarded-For"], ", ")
		if v := r.Header["X-Forwarded-Proto"]; len(v) == 1 && (v[0] == "http" || v[0] == "https") {
			proto = v[0]
		}
		if v := r.Header["X-Forwarded-Host"]; len(v) == 1 && v[0] != "" {
			host = v[0]
		}
	}
	if peer.IsValid() {
		if chain != "" {
			chain += ", "
		}
		chain += peer.String()
	}
	if chain != "" {
		o.set("X-Forwarded-For", chain)
	}
	o.set("X-Forwarded-Proto", proto)
	if host != "" {
		o.set("X-Forwarded-Host", host)
	}
}

// via is how we name ourselves to the next, with the version in which we were spoken to.
func via(major, minor int) string {
	switch {
	case major == 1 && minor == 1:
		return "1.1 " + pseudonym
	case major == 2:
		return "2.0 " + pseudonym
	default:
		return strconv.Itoa(major) + "." + strconv.Itoa(minor) + " " + pseudonym
	}
}

// expectsContinue reports whether the client waits for a 100 before it sends its body.
func expectsContinue(r *http.Request) bool {
	return r.ProtoAtLeast(1, 1) && hasToken(r.Header["Expect"], "100-continue")
}

// forwards is how many proxies may still pass a request on, if it says so. Of the
// methods that we forward OPTIONS is the only one of which that is to be minded.
func forwards(r *http.Request) (n uint64, ok bool) {
	if r.Method != http.MethodOptions {
		return 0, false
	}
	n, err := strconv.ParseUint(r.Header.Get("Max-Forwards"), 10, 64)
	return n, err == nil
}

// noFurther reports whether a request is for the first who gets it.
func noFurther(r *http.Request) bool {
	n, ok := forwards(r)
	return ok && n == 0
}

// unknownExpectation reports whether the client expects something else.
func unknownExpectation(r *http.Request) bool {
	expect := r.Header["Expect"]
	return len(expect) > 1 || len(expect) == 1 && !strings.EqualFold(expect[0], "100-continue")
}

// upgradeOf is the protocol to which the client may switch: the first that it asks for and
// that is allowed, "" if there is none. HTTP/2 has no Upgrade, and a request with
// a body is not switched: who would read its body?
func upgradeOf(r *http.Request, allowed []string) string {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.ContentLength != 0 || !hasToken(r.Header["Connection"], "upgrade") {
		return ""
	}
	for _, line := range r.Header["Upgrade"] {
		for asked := range strings.SplitSeq(line, ",") {
			asked = textproto.TrimString(asked)
			for _, a := range allowed {
				if strings.EqualFold(a, asked) {
					return asked
				}
			}
		}
	}
	return ""
}

// copyResponseHeader puts the header of a backend's response on to, where our own
// fields are already: those stay as they are. A limiter's cookie and the backend's
// are none of each other's business.
func copyResponseHeader(to http.Header, resp *http.Response) {
	own := listedBy(resp.Header["Connection"])
	for key, values := range resp.Header {
		if hopByHop(key) || own.has(key) {
			continue
		}
		if ours, ok := to[key]; !ok {
			to[key] = values
		} else if key == "Set-Cookie" {
			to[key] = append(slices.Clip(ours), values...)
		}
	}
	if _, ok := to["Content-Type"]; !ok {
		to["Content-Type"] = nil // or net/http guesses
	}
	to["Via"] = append(slices.Clip(to["Via"]), via(resp.ProtoMajor, resp.ProtoMinor))
}

// mayTrail reports whether a field may stand in a trailer: it must not say how
// the message is framed or where it comes from.
func mayTrail(key string) bool {
	switch key {
	case "Content-Length", "Content-Encoding", "Content-Type", "Content-Range", "Host", "Authorization", "Cookie", "Set-Cookie", "Max-Forwards":
		return false
	}
	return !hopByHop(key) && !rebuilt(key) && !forwarding(key) && isName(key) && strings.IndexByte(key, '_') < 0
}

// isName reports whether a trailer's announced field can be one: net/http takes
// any text there, and then does not send the request.
func isName(key string) bool {
	for i := range len(key) {
		if c := key[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return key != ""
}

// validValue reports whether a trailer's value is fit to be sent on: net/http
// checks those of headers only.
func validValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// copyTrailer puts the fields of a trailer on to, with a prefix for their names.
func copyTrailer(to, from http.Header, prefix string) {
	for key, values := range from {
		if !mayTrail(key) {
			continue
		}
		for _, v := range values {
			if validValue(v) {
				to[prefix+key] = append(to[prefix+key], v)
			}
		}
	}
}
