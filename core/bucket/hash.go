package bucket

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
)

// Hasher hashes keys by numbers that nobody outside can know, so that nobody can
// choose keys that meet in one place. The same key has the same hash from the
// same Hasher, and from no other. It is safe for concurrent use; the zero Hasher
// is not usable. It is hash/maphash, but for keys of up to 16 bytes, as most names
// of tenants are: those at less than half of its price.
type Hasher struct {
	a, b uint64
	long maphash.Seed
}

// NewHasher returns one with numbers of its own.
func NewHasher() Hasher { return Hasher{rand.Uint64(), rand.Uint64(), maphash.MakeSeed()} }

// Hash is never 0.
func (h *Hasher) Hash(key string) uint64 {
	const top = 1 << 63
	if len(key) > 16 {
		return maphash.String(h.long, key) | top
	}
	sum := h.a ^ uint64(len(key))
	if len(key) >= 8 {
		sum = fold(word(key)^h.b, word(key[len(key)-8:])^sum)
	} else {
		var short [8]byte
		copy(short[:], key)
		sum = fold(binary.LittleEndian.Uint64(short[:])^h.b, sum)
	}
	// Keys that differ in a few bits have products that differ in a few; the
	// second fold makes each of them count everywhere.
	return fold(sum, 0x9e3779b97f4a7c15) | top
}

// word is the first eight bytes of s.
func word(s string) uint64 { return binary.LittleEndian.Uint64([]byte(s[:8])) }

// fold multiplies and lets each bit of the product count.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
