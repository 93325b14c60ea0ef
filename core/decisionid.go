package sentinel

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"time"
)

// decisionID tells one decision from all others: a UUID of version 7, RFC 9562,
// 5.7, which begins with the time: milliseconds, and the rest in 12 bits, by
// method 3 of 6.2. 62 bits are random: of a million a second no two are equal in
// thousands of years. It is no secret. The zero value is none.
type decisionID struct {
	at     int64  // nanoseconds since 1970
	unique uint64 // which no other decision of this process has at the same time
}

// processSeed tells the decisions of this process from those of others.
var processSeed = rand.Uint64()

// random is the unique number and the process's seed, mixed by the finalizer of
// splitmix64, which maps no two numbers to one. A flood of denials names each, so
// a generator of random numbers would cost every one of them, and this costs
// whoever reads the text.
func (id decisionID) random() uint64 {
	x := id.unique ^ processSeed
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// String makes the text, which nobody wants of most decisions.
func (id decisionID) String() string {
	if id == (decisionID{}) {
		return ""
	}
	return uuid7(uint64(id.at), id.random())
}

// uuid7 is the UUID of a time in nanoseconds and 62 random bits, the upper ones.
func uuid7(at, random uint64) string {
	const version, variant, milli = 7 << 12, 1 << 63, uint64(time.Millisecond)
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], at/milli<<16|version|at%milli<<12/milli)
	binary.BigEndian.PutUint64(raw[8:], variant|random>>2)
	text := make([]byte, 0, 36)
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		if i > 0 {
			text = append(text, '-')
		}
		start := [...]int{0, 4, 6, 8, 10}[i]
		text = hex.AppendEncode(text, raw[start:end])
	}
	return string(text)
}
