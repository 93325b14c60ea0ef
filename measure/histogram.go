package measure

import (
	"math/bits"
	"time"
)

// Histogram counts durations in buckets that are at most 1/64 of their value
// wide. The zero Histogram is empty. It is not safe for concurrent use: each
// worker has its own, and they are merged.
type Histogram struct {
	counts [buckets]uint64
	n      uint64
	most   time.Duration
}

const (
	subBits = 6
	buckets = (40 - subBits) << subBits // to 2^39 ns, nine minutes
)

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.n++
	h.most = max(h.most, d)
}

// Merge adds what o has counted.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.most = max(h.most, o.most)
}

// Count is how many durations have been added.
func (h *Histogram) Count() uint64 { return h.n }

// Longest is the longest duration that has been added.
func (h *Histogram) Longest() time.Duration { return h.most }

// Quantile is the duration that the part q of all is not longer than, 0 if
// there is none.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q*float64(h.n-1)) + 1
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			return min(upperOf(i), h.most)
		}
	}
	return h.most
}

// bucketOf is exact below 2^(subBits+1) ns; above, a bucket is named by the
// position of the highest bit and the subBits bits below it.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(0, bits.Len64(v)-subBits-1)
	return min(shift<<subBits+int(v>>shift), buckets-1)
}

// upperOf is the greatest duration in a bucket.
func upperOf(i int) time.Duration {
	shift := max(0, i>>subBits-1)
	return time.Duration((i-shift<<subBits+1)<<shift - 1)
}
