package limit

import (
	"encoding/binary"
	"hash/maphash"
	"net/http"
	"net/netip"
)

// KeySpec says who counts as one client. The zero value is the client's address.
type KeySpec struct {
	header string // canonical; "": the address
}

// ByClient tells clients apart by their addresses: an IPv4 address is one, and so
// is an IPv6 network of 64 bits, for who has one address in it has all. An
// IPv4-mapped address is the IPv4 one. Those who have no address are one client.
func ByClient() KeySpec { return KeySpec{} }

// ByHeader tells them apart by the value of a header that is made by someone who
// is trusted: who may write it himself has as many quotas as he likes. A request
// without it, or where it is empty, counts by its client's address.
func ByHeader(name string) KeySpec {
	if name == "" {
		panic("limit: ByHeader expects a name")
	}
	return KeySpec{header: http.CanonicalHeaderKey(name)}
}

// The first byte of a key.
const (
	byNothing = iota
	byIPv4
	byIPv6
	byHeader
)

// maxKey is the longest key: its kind, its policy, and 128 bits. Up to 32, the
// table allocates nothing to find one.
const maxKey = 1 + 4 + 16

// appendKey appends the key of the bucket that a request counts on.
func (p *Policy) appendKey(b []byte, r *http.Request, client netip.Addr) []byte {
	if name := p.key.header; name != "" {
		if values := valuesOf(r, name); !empty(values) {
			return p.appendHashes(p.appendKind(b, byHeader), values)
		}
	}
	return p.appendAddr(b, client)
}

func (p *Policy) appendKind(b []byte, kind byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, kind), p.number)
}

func (p *Policy) appendAddr(b []byte, client netip.Addr) []byte {
	client = client.Unmap()
	switch {
	case client.Is4():
		four := client.As4()
		return append(p.appendKind(b, byIPv4), four[:]...)
	case client.Is6():
		sixteen := client.As16()
		return append(p.appendKind(b, byIPv6), sixteen[:8]...)
	default:
		return p.appendKind(b, byNothing)
	}
}

// valuesOf returns a header's values. Host is none of the others.
func valuesOf(r *http.Request, name string) []string {
	if name == "Host" {
		return []string{r.Host}
	}
	return r.Header[name]
}

func empty(values []string) bool {
	for _, v := range values {
		if v != "" {
			return false
		}
	}
	return true
}

// appendHashes appends 128 bits of all values. The seeds are this store's, so that
// nobody can look for two values that share a bucket.
func (p *Policy) appendHashes(b []byte, values []string) []byte {
	for _, seed := range p.store.seeds {
		var h maphash.Hash
		h.SetSeed(seed)
		for _, v := range values {
			_, _ = h.WriteString(v) // no error, by its contract
			_ = h.WriteByte('\n')   // no value has one
		}
		b = binary.BigEndian.AppendUint64(b, h.Sum64())
	}
	return b
}
