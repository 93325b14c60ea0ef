package sentinelhttp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

func TestTopsKnownAnswer(t *testing.T) {
	var s tops
	for hash := range strings.SplitSeq("a a b a c b d a", " ") {
		s.add(hash, 2)
	}
	// a 2, b 1; a 3; c takes one from both, and itself; b; d likewise; a.
	if len(s.counts) != 1 || s.counts["a"] != 2 || s.lost != 2 || s.total != 8 {
		t.Errorf("%+v", s)
	}
}

// streams are what hashes come in, n of them: as in life, all different, all the
// same, and what an adversary sends to have others forgotten.
var streams = map[string]func(r *rand.Rand, n, k int) func(i int) int{
	"zipf": func(r *rand.Rand, _, _ int) func(int) int {
		z := rand.NewZipf(r, 1.1, 1, 10_000)
		return func(int) int { return int(z.Uint64()) }
	},
	"distinct":   func(*rand.Rand, int, int) func(int) int { return func(i int) int { return i } },
	"one":        func(*rand.Rand, int, int) func(int) int { return func(int) int { return 0 } },
	"few":        func(r *rand.Rand, _, k int) func(int) int { return func(int) int { return r.IntN(k) } },
	"one more":   func(_ *rand.Rand, _, k int) func(int) int { return func(i int) int { return i % (k + 1) } },
	"then flood": func(_ *rand.Rand, n, k int) func(int) int { return func(i int) int { return max(i-n/(k+1)-1, 0) } },
	"flood then": func(_ *rand.Rand, n, k int) func(int) int {
		return func(i int) int { return max(n-i-n/(k+1)-1, 0) }
	},
}

// Whatever comes in, by whatever shard and in whatever period: the truth is within
// the bounds, the bounds are as near as is promised, whoever is above them is
// listed, and no part holds more than k.
func TestTopTenantsBounds(t *testing.T) {
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(40) {
				r := rand.New(rand.NewPCG(seed, 1))
				k, n := 1+r.IntN(30), 1+r.IntN(5000)
				top := NewTopTenants(k)
				truth := map[string]uint64{}
				next := stream(r, n, k)
				for i := range n {
					hash := fmt.Sprint(next(i))
					truth[hash]++
					at := top.began
					if i >= n/2 {
						at = at.Add(topPeriod)
					}
					top.Observe(t.Context(), sentinel.Decision{EndpointID: "jobs", IdentityHash: hash}, at, 0)
				}
				sum := new(topCounts)
				for i := range top.shards {
					for _, part := range []map[string]*topCounts{top.shards[i].previous, top.shards[i].current} {
						if c := part["jobs"]; c != nil {
							if len(c.asked.counts) > k {
								t.Fatalf("k %d: a part holds %d", k, len(c.asked.counts))
							}
							sum.asked.merge(&c.asked)
						}
					}
				}
				checkBounds(t, sum.asked.list(len(truth)), truth, n, k)
				if t.Failed() {
					t.Fatalf("seed %d, k %d, n %d", seed, k, n)
				}
			}
		})
	}
}

func checkBounds(t *testing.T, got topList, truth map[string]uint64, n, k int) {
	t.Helper()
	bound := uint64(n / (k + 1))
	if got.Total != uint64(n) || got.Error > bound || len(truth) <= k && got.Error > 0 {
		t.Errorf("total %d of %d, error %d, promised %d", got.Total, n, got.Error, bound)
	}
	listed := map[string]bool{}
	for i, row := range got.Top {
		listed[row.Hash] = i < k
		if row.AtLeast == 0 || row.AtLeast > truth[row.Hash] || row.AtMost < truth[row.Hash] || row.AtMost-row.AtLeast != got.Error {
			t.Errorf("%+v, in truth %d", row, truth[row.Hash])
		}
		if i > 0 && row.AtLeast > got.Top[i-1].AtLeast {
			t.Errorf("row %d is above the one before it", i)
		}
	}
	for hash, count := range truth {
		if count > bound && !listed[hash] {
			t.Errorf("%s with %d of %d is not among the first %d", hash, count, n, k)
		}
	}
}

// However many clients there are, what is kept of them is bounded.
func TestTopTenantsMemory(t *testing.T) {
	const k, clients = 10, 20_000
	top := NewTopTenants(k)
	for i := range clients {
		d := sentinel.Decision{EndpointID: "jobs", IdentityHash: fmt.Sprint(i), Reason: sentinel.ReasonRateLimited}
		top.Observe(t.Context(), d, top.began.Add(time.Duration(i)*3*topPeriod/clients), 0)
	}
	kept := 0
	for i := range top.shards {
		for _, part := range []map[string]*topCounts{top.shards[i].previous, top.shards[i].current} {
			for _, c := range part {
				kept += len(c.asked.counts) + len(c.denied.counts)
			}
		}
	}
	if kept == 0 || kept > 64*k {
		t.Errorf("%d hashes are kept, of %d at most", kept, 64*k)
	}
}

// Counts last until the end of the next period, also where nobody asks.
func TestTopTenantsForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top := NewTopTenants(10)
		observe := func(hash string) {
			top.Observe(context.Background(), sentinel.Decision{EndpointID: "jobs", IdentityHash: hash}, time.Now(), 0)
		}
		expect := func(since time.Duration, want ...string) {
			t.Helper()
			p := top.page(10)
			var got []string
			for _, e := range p.Endpoints {
				for _, row := range e.Asked.Top {
					got = append(got, row.Hash)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || !p.Since.Equal(top.began.Add(since)) {
				t.Errorf("after %v: %v since %v, want %v since %v", time.Since(top.began), got, p.Since.Sub(top.began), want, since)
			}
		}
		expect(0)
		observe("a")
		time.Sleep(topPeriod - time.Second)
		expect(0, "a")
		time.Sleep(time.Second)
		observe("b")
		expect(0, "a", "b")
		time.Sleep(topPeriod)
		expect(topPeriod, "b")
		time.Sleep(topPeriod)
		expect(2 * topPeriod)
		observe("c")
		time.Sleep(100 * topPeriod)
		expect(102 * topPeriod)
	})
}

// None is lost where many count at once, and somebody looks.
func TestTopTenantsConcurrent(t *testing.T) {
	top := NewTopTenants(10)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			d := sentinel.Decision{EndpointID: "jobs", IdentityHash: fmt.Sprint(i % 2)}
			for range 1000 {
				top.Observe(t.Context(), d, top.began, 0)
			}
			top.page(10)
		})
	}
	wg.Wait()
	got := top.page(10).Endpoints[0].Asked
	if got.Total != 8000 || got.Error != 0 || len(got.Top) != 2 || got.Top[0].AtLeast != 4000 || got.Top[1].AtLeast != 4000 {
		t.Errorf("%+v", got)
	}
}

func TestTopTenantsAllocatesNothingForWhomItKnows(t *testing.T) {
	top := NewTopTenants(10)
	d := sentinel.Decision{EndpointID: "jobs", IdentityHash: "a", Reason: sentinel.ReasonRateLimited}
	observe := func() { top.Observe(context.Background(), d, top.began, 0) }
	for i := range top.shards { // all parts know it
		top.shards[i].turn(0)
		c := new(topCounts)
		c.asked.add("a", 10)
		c.denied.add("a", 10)
		top.shards[i].current["jobs"] = c
	}
	if n := testing.AllocsPerRun(1000, observe); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTopTenants(b *testing.B) {
	hashes := make([]string, 10_000)
	for i := range hashes {
		hashes[i] = fmt.Sprintf("%064x", i)
	}
	for name, pick := range map[string]func() int{
		"one tenant": func() int { return 0 },
		"flood":      func() int { return rand.IntN(len(hashes)) },
	} {
		b.Run(name, func(b *testing.B) {
			top := NewTopTenants(100)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					d := sentinel.Decision{EndpointID: "jobs", IdentityHash: hashes[pick()], Reason: sentinel.ReasonRateLimited}
					top.Observe(context.Background(), d, top.began, 0)
				}
			})
		})
	}
}
