package measure

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramBuckets(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, 63, 64, 127, 128, 129, 1000, 12345, time.Millisecond, time.Second, time.Minute} {
		upper := upperOf(bucketOf(d))
		if upper < d || float64(upper) > float64(d)*(1+1.0/64)+1 {
			t.Errorf("%d ns is in a bucket up to %d ns", d, upper)
		}
		if lower := upperOf(bucketOf(d) - 1); d > 0 && lower >= d {
			t.Errorf("%d ns would fit into the bucket up to %d ns", d, lower)
		}
	}
	if got := bucketOf(time.Hour); got != buckets-1 {
		t.Errorf("an hour is in bucket %d, want the last", got)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	var whole, a, b Histogram
	var values []time.Duration
	for i := range 10_000 {
		d := time.Duration(rnd.ExpFloat64() * 1e6)
		values = append(values, d)
		whole.Add(d)
		if i%3 == 0 {
			a.Add(d)
		} else {
			b.Add(d)
		}
	}
	a.Merge(&b)
	if a != whole {
		t.Error("two halves merged are not the whole")
	}
	slices.Sort(values)
	for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
		want := values[int(q*float64(len(values)-1))]
		if got := whole.Quantile(q); got < want || float64(got) > float64(want)*(1+1.0/64)+1 {
			t.Errorf("quantile %v: %s, want %s", q, got, want)
		}
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}
