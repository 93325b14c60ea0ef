package proxy

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// trusted is whose word on forwarded requests is believed.
type trusted []netip.Prefix

func (t trusted) contains(a netip.Addr) bool {
	for _, p := range t {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// peerOf is the address at the other end of the connection, the zero Addr if it
// is none, as of a Unix socket.
func peerOf(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// Client is who sent a request that comes from peer with these values of
// X-Forwarded-For, when what these proxies say of others is believed.
func Client(proxies []netip.Prefix, peer netip.Addr, forwarded []string) netip.Addr {
	return trusted(proxies).clientOf(peer.Unmap().WithZone(""), forwarded)
}

// clientOf is who sent the request: the peer, or, as long as who speaks is
// trusted, whom it names. The chain is read from its end, for only there stands
// what our own proxies wrote; the first address that is not trusted is the
// client. A hop that is no address ends what can be believed.
func (t trusted) clientOf(peer netip.Addr, forwarded []string) netip.Addr {
	client := peer
	for _, f := range slices.Backward(forwarded) {
		for rest, more := f, true; more && t.contains(client); {
			var hop string
			rest, hop, more = cutLast(rest)
			a, ok := parseHop(hop)
			if !ok {
				return client
			}
			client = a
		}
	}
	return client
}

// cutLast splits a list at its last comma.
func cutLast(list string) (rest, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

// parseHop reads an element of X-Forwarded-For: an address, perhaps with a
// port, perhaps in brackets.
func parseHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return a.Unmap().WithZone(""), true
	}
	at, err := netip.ParseAddrPort(s)
	return at.Addr().Unmap().WithZone(""), err == nil
}
