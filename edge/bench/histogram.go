package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that are at most 1/64 of their value
// wide. The zero histogram is empty. It is not safe for concurrent use: each
// worker has its own, and they are merged.
type histogram struct {
	counts [buckets]uint64
	n      uint64
	most   time.Duration
}

const (
	subBits = 6
	buckets = (40 - subBits) << subBits // to 2^39 ns, nine minutes
)

func (h *histogram) add(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.n++
	h.most = max(h.most, d)
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.most = max(h.most, o.most)
}

// quantile is the duration that the part q of all is not longer than, 0 if
// there is none.
func (h *histogram) quantile(q float64) time.Duration {
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
