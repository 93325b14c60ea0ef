package sentinel

import (
	"crypto/hmac"
	"hash"
)

// keyedMAC is an HMAC under one key, with room for its text and its sum. To key
// one costs more than to use it, so they are kept in pools. It is not safe for
// concurrent use.
type keyedMAC struct {
	hash hash.Hash
	text []byte // what to authenticate
	room []byte
}

func newKeyedMAC(h func() hash.Hash, key []byte) *keyedMAC {
	return &keyedMAC{hash: hmac.New(h, key)}
}

// sum returns the MAC of m.text. It is overwritten by the next one.
func (m *keyedMAC) sum() []byte {
	m.hash.Reset()
	m.hash.Write(m.text)
	m.room = m.hash.Sum(m.room[:0])
	return m.room
}
