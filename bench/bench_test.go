package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
	var whole, a, b histogram
	var values []time.Duration
	for i := range 10_000 {
		d := time.Duration(rnd.ExpFloat64() * 1e6)
		values = append(values, d)
		whole.add(d)
		if i%3 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	a.merge(&b)
	if a != whole {
		t.Error("two halves merged are not the whole")
	}
	slices.Sort(values)
	for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
		want := values[int(q*float64(len(values)-1))]
		if got := whole.quantile(q); got < want || float64(got) > float64(want)*(1+1.0/64)+1 {
			t.Errorf("quantile %v: %s, want %s", q, got, want)
		}
	}
	if got := new(histogram).quantile(0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}

func TestStat(t *testing.T) {
	t.Parallel()
	if got, want := statOf([]float64{5, 1, 3}), (stat{3, 1, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := statOf([]float64{4, 1, 3, 2}), (stat{2.5, 1, 4}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	// A slow round is slow for both.
	if got, want := ratioOf([]float64{10, 2, 20}, []float64{5, 1, 10}), (stat{2, 2, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	got := func(v float64) stat { return stat{v, v, v} }
	for _, c := range []struct {
		bar  bar
		want string
	}{
		{atLeast("", got(2.6), 2.6), "PASS"},
		{atLeast("", got(1.3), 2.6), "SHORT by 50 %"},
		{atLeast("", got(3), 2.6).aimingAt(3.3), "PASS, short of the aim of 3.30x"},
		{atLeast("", got(3.4), 2.6).aimingAt(3.3), "PASS, and the aim of 3.30x"},
		{atLeast("", got(2), 2.5).aimingAt(3.3), "SHORT by 20 %"},
		{atMost("", got(0.6), 0.6), "PASS"},
		{atMost("", got(0.9), 0.6), "SHORT by 50 %"},
		{atMost("", got(20), 2), "SHORT by a factor of 10.0"},
		{noAllocations("", got(0.001)), "PASS"},
		{noAllocations("", got(1)), "SHORT by a factor of 100.0"},
	} {
		if v := c.bar.verdict(); v != c.want {
			t.Errorf("%+v: %q, want %q", c.bar, v, c.want)
		}
	}
}

func TestInterleaveRotates(t *testing.T) {
	t.Parallel()
	var order []int
	results, err := interleave(3, 3, func(i int) (int, error) {
		order = append(order, i)
		return len(order), nil
	})
	if want := []int{0, 1, 2, 1, 2, 0, 2, 0, 1}; err != nil || !slices.Equal(order, want) {
		t.Errorf("%v, %v, want %v", order, err, want)
	}
	if want := []int{1, 6, 8}; !slices.Equal(results[0], want) {
		t.Errorf("%v, want %v", results[0], want)
	}
}

// A benchmark of a limiter that admits too much, or too little, is none.
func TestProveFindsTheWrong(t *testing.T) {
	t.Parallel()
	counted := func(quota int64) limit {
		var mu sync.Mutex
		used := map[string]int64{}
		return func(_ context.Context, key string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			used[key]++
			return used[key] <= quota, nil
		}
	}
	if err := prove(t.Context(), "right", counted(scarce.burst)); err != nil {
		t.Error(err)
	}
	one := counted(scarce.burst)
	for name, decide := range map[string]limit{
		"too much":   counted(scarce.burst + 1),
		"too little": counted(scarce.burst - 1),
		"one for all": func(ctx context.Context, _ string) (bool, error) {
			return one(ctx, "")
		},
		"fails": func(context.Context, string) (bool, error) { return false, errors.New("away") },
	} {
		if err := prove(t.Context(), name, decide); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if all, err := choose(""); err != nil || len(all) != len(experiments) {
		t.Errorf("%d, %v", len(all), err)
	}
	if two, err := choose("memory,redis"); err != nil || len(two) != 2 || two[0].name != "memory" {
		t.Errorf("%v, %v", two, err)
	}
	if _, err := choose("redis,nothing"); err == nil {
		t.Error("an experiment that is not there was chosen")
	}
}
