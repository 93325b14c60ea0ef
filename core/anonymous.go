package sentinel

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The prefixes of anonymous identities and of what the cookie's MAC covers.
const (
	cookieIdentityPrefix = "anon:cookie:"
	peerIdentityPrefix   = "anon:ip:"
	cookieMACPrefix      = "sentinel-anon:v1:"
)

// unknownPeer is the one name of all peers that are no IP address.
// It counts too many clients together, never too few.
const unknownPeer = "unknown"

const (
	clientIDBytes = 16
	clientIDChars = 2 * clientIDBytes
	macChars      = 2 * sha256.Size
	// maxCookies bounds the cookies that one request can make us verify, each
	// with a MAC for every secret at most.
	maxCookies = 16
)

// anonymizer tells anonymous clients apart: by a signed cookie that it made,
// client_id.exp.mac, and by the socket peer. It keeps no state and is safe for
// concurrent use.
type anonymizer struct {
	name   string
	ttl    time.Duration
	secure bool
	macs   []*sync.Pool // of *keyedMAC, one for each secret
	prefix int          // of IPv6 addresses, in bits
}

// newAnonymizer takes a valid App with its defaults filled in.
func newAnonymizer(app App) *anonymizer {
	a := &anonymizer{
		name:   app.AnonymousCookieName,
		ttl:    app.AnonymousCookieTTL,
		secure: !app.InsecureAnonymousCookie,
		prefix: app.IPv6Prefix,
	}
	for _, secret := range app.AnonymousCookieSecret.reveal() {
		a.macs = append(a.macs, &sync.Pool{New: func() any { return newKeyedMAC(sha256.New, []byte(secret)) }})
	}
	return a
}

// client returns the client id of the first valid cookie among the raw
// values of the Cookie header, "" if there is none. Of a cookie all is valid or
// nothing is.
func (a *anonymizer) client(headers []string, now time.Time) string {
	cookies := 0
	for _, header := range headers {
		for pair := range strings.SplitSeq(header, ";") {
			name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
			if strings.TrimRight(name, " \t") != a.name {
				continue
			}
			id, exp, mac, ok := splitCookie(unquote(strings.TrimLeft(value, " \t")))
			if !ok || exp <= now.Unix() {
				continue
			}
			if cookies++; cookies > maxCookies {
				return ""
			}
			if a.made(id, exp, mac) {
				return id
			}
		}
	}
	return ""
}

// made reports whether mac is what one of the secrets says to id and exp.
func (a *anonymizer) made(id string, exp int64, mac string) bool {
	for i := range a.macs {
		want := a.mac(i, id, exp)
		if hmac.Equal(want[:], []byte(mac)) {
			return true
		}
	}
	return false
}

// mint makes a cookie for a client that is new at now.
func (a *anonymizer) mint(now time.Time) *Cookie {
	var random [clientIDBytes]byte
	_, _ = rand.Read(random[:]) // never fails, says its documentation
	id := hex.EncodeToString(random[:])
	exp := now.Add(a.ttl).Unix()
	mac := a.mac(0, id, exp)
	return &Cookie{
		Name:   a.name,
		Value:  id + "." + strconv.FormatInt(exp, 10) + "." + string(mac[:]),
		MaxAge: a.ttl,
		Secure: a.secure,
	}
}

// mac is the hex HMAC-SHA256 of what a cookie says, under one of the secrets.
func (a *anonymizer) mac(secret int, id string, exp int64) (text [macChars]byte) {
	m := a.macs[secret].Get().(*keyedMAC)
	m.text = append(m.text[:0], cookieMACPrefix...)
	m.text = append(m.text, id...)
	m.text = append(m.text, ':')
	m.text = strconv.AppendInt(m.text, exp, 10)
	hex.Encode(text[:], m.sum())
	a.macs[secret].Put(m)
	return text
}

// splitCookie checks the form of a cookie's value, to the letter in which mint
// writes it.
func splitCookie(value string) (id string, exp int64, mac string, ok bool) {
	id, rest, _ := strings.Cut(value, ".")
	expText, mac, _ := strings.Cut(rest, ".")
	if len(id) != clientIDChars || len(mac) != macChars || !lowerHex(id) || !lowerHex(mac) {
		return "", 0, "", false
	}
	exp, err := strconv.ParseInt(expText, 10, 64)
	var room [20]byte
	if err != nil || exp < 0 || string(strconv.AppendInt(room[:0], exp, 10)) != expText {
		return "", 0, "", false
	}
	return id, exp, mac, true
}

func lowerHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// unquote removes one pair of double quotes, as net/http does.
func unquote(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

// PeerIdentity returns as whom a socket peer, "ip:port" or "ip", counts at anonymous
// endpoints, anon:ip:ADDRESS, for [Policy.RedisKey] and for tools: an IPv6 address is
// cut to ipv6_prefix, and what is no address is anon:ip:unknown.
func (a App) PeerIdentity(peer string) string {
	return string(appendPeer([]byte(peerIdentityPrefix), peer, cmp.Or(a.IPv6Prefix, defaultIPv6Prefix)))
}

// appendPeer appends the name of a socket peer, "ip:port" or "ip", an IPv6
// address in brackets or bare. An IPv4-mapped address is its IPv4 address and a
// zone does not count, for both would give one client several buckets; an IPv6
// address is cut to prefix bits, for one customer owns them all.
func appendPeer(name []byte, peer string, prefix int) []byte {
	addr, ok := peerAddr(peer)
	if !ok {
		return append(name, unknownPeer...)
	}
	addr = addr.Unmap()
	if addr.Is6() {
		masked, err := addr.Prefix(prefix) // which drops the zone, too
		if err != nil {
			return append(name, unknownPeer...)
		}
		addr = masked.Addr()
	}
	return addr.AppendTo(name)
}

func peerAddr(peer string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(peer); err == nil {
		return withPort.Addr(), true
	}
	if len(peer) >= 2 && peer[0] == '[' && peer[len(peer)-1] == ']' {
		peer = peer[1 : len(peer)-1]
	}
	addr, err := netip.ParseAddr(peer)
	return addr, err == nil
}
