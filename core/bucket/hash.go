package bucket

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// hasher hashes keys by numbers that nobody outside can know, so that nobody can
// choose keys that meet in one slot. hash/maphash would do, at twice the price
// for a short key.
type hasher [2]uint64

func newHasher() hasher { return hasher{rand.Uint64(), rand.Uint64()} }

// hash is never 0.
func (h *hasher) hash(key string) uint64 {
	sum := h[0] ^ uint64(len(key))
	for ; len(key) > 16; key = key[16:] {
		sum = fold(word(key)^h[1], word(key[8:])^sum)
	}
	if len(key) >= 8 {
		sum = fold(word(key)^h[1], word(key[len(key)-8:])^sum)
	} else {
		var short [8]byte
		copy(short[:], key)
		sum = fold(binary.LittleEndian.Uint64(short[:])^h[1], sum)
	}
	// Keys that differ in a few bits have products that differ in a few; the
	// second fold makes each of them count everywhere.
	return fold(sum, 0x9e3779b97f4a7c15) | 1<<63
}

// word is the first eight bytes of s.
func word(s string) uint64 { return binary.LittleEndian.Uint64([]byte(s[:8])) }

// fold multiplies and lets each bit of the product count.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
