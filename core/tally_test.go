package sentinel

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A tally says what a histogram of the library would say.
func TestTallyIsAHistogram(t *testing.T) {
	var bounds []float64
	for _, b := range latencyBounds {
		bounds = append(bounds, inMicroseconds(b))
	}
	want := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x", Buckets: bounds})
	got := new(tally)
	latencies := []time.Duration{0, 1, time.Hour}
	for _, b := range latencyBounds {
		latencies = append(latencies, b-1, b, b+1)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		latencies = append(latencies, time.Duration(r.Int64N(int64(100*time.Millisecond))))
	}
	for i, d := range latencies {
		want.Observe(inMicroseconds(d))
		got.add(uint64(i), d)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(want)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	h := families[0].GetMetric()[0].GetHistogram()
	count, sum, upTo := got.read()
	if count != h.GetSampleCount() || sum-h.GetSampleSum() > 1 || h.GetSampleSum()-sum > 1 {
		t.Errorf("%d decisions in %f µs, want %d in %f", count, sum, h.GetSampleCount(), h.GetSampleSum())
	}
	if len(upTo) != len(h.GetBucket()) {
		t.Errorf("%d buckets, want %d", len(upTo), len(h.GetBucket()))
	}
	for _, b := range h.GetBucket() {
		if upTo[b.GetUpperBound()] != b.GetCumulativeCount() {
			t.Errorf("up to %v: %d, want %d", b.GetUpperBound(), upTo[b.GetUpperBound()], b.GetCumulativeCount())
		}
	}
}

// Nothing is lost or counted twice, however many count and look at once, and no
// number ever falls.
func TestTallyAndCounterOfManyGoroutines(t *testing.T) {
	const workers, each = 8, 20_000
	var c counter
	var most int64
	counted := new(tally)
	done := make(chan struct{})
	var looking, counting sync.WaitGroup
	looking.Go(func() {
		var last []uint64
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			count, _, upTo := counted.read()
			now := []uint64{count}
			for _, b := range latencyBounds {
				now = append(now, upTo[inMicroseconds(b)])
			}
			for i := range last {
				if now[i] < last[i] {
					t.Errorf("%v after %v", now, last)
				}
			}
			if !slices.IsSorted(now[1:]) || now[len(now)-1] > count {
				t.Errorf("%v is no histogram", now)
			}
			last = now
			n := c.read()
			if n < most {
				t.Errorf("%d after %d", n, most)
			}
			most = n
		}
	})
	for w := range workers {
		counting.Go(func() {
			for i := range each {
				counted.add(uint64(w+i%2), time.Duration(i)*time.Microsecond)
				c.add(uint64(w + i%2))
			}
		})
	}
	counting.Wait()
	close(done)
	looking.Wait()
	count, sum, _ := counted.read()
	if wantSum := float64(workers * each * (each - 1) / 2); count != workers*each || sum != wantSum {
		t.Errorf("%d decisions in %f µs, want %d in %f", count, sum, workers*each, wantSum)
	}
	if n := c.read(); n != workers*each {
		t.Errorf("%d counted, want %d", n, workers*each)
	}
}

// Goroutines that are there at the same time do not all count on one copy.
func TestStripesAreShared(t *testing.T) {
	const many = 1000
	seen := make(chan uint64, many)
	var wg, here sync.WaitGroup
	here.Add(many)
	for range many {
		wg.Go(func() {
			seen <- stripe()
			here.Done()
			here.Wait()
		})
	}
	wg.Wait()
	close(seen)
	counts := map[uint64]int{}
	for s := range seen {
		counts[s]++
	}
	if len(counts) < stripes/2 {
		t.Errorf("%d goroutines on %d of %d copies: %v", many, len(counts), stripes, counts)
	}
}
