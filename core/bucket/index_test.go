package bucket

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// An index finds what was added and not removed, in a crowd of equal hashes, too.
func TestIndexAgainstAMap(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(41, 42))
	for range 50 {
		x, known := newIndex(8), map[string]*entry{}
		hash := func(key string) uint64 { return uint64(len(key))*7 | 1<<63 } // most keys of a length meet
		for i := range 300 {
			key := strings.Repeat("k", r.IntN(20)) + fmt.Sprint(r.IntN(4))
			if e := known[key]; e != nil {
				x.remove(hash(key), e)
				delete(known, key)
			} else {
				if x.full() {
					x = x.grown()
				}
				known[key] = &entry{key: key}
				x.add(hash(key), known[key])
			}
			if x.used != len(known) {
				t.Fatalf("%d used, want %d", x.used, len(known))
			}
			if i%10 > 0 {
				continue
			}
			for length := range 20 {
				for n := range 4 {
					key := strings.Repeat("k", length) + fmt.Sprint(n)
					if got := x.find(hash(key), key); got != known[key] {
						t.Fatalf("%q: %v, want %v", key, got, known[key])
					}
				}
			}
		}
	}
}

// Whoever searches meanwhile finds the right entry or none, and an end.
func TestIndexIsSearchedWhileItChanges(t *testing.T) {
	t.Parallel()
	x := newIndex(64)
	h := NewHasher()
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("key", i)
	}
	var stop atomic.Bool
	var found atomic.Int64
	var all sync.WaitGroup
	for w := range 3 {
		all.Go(func() {
			for i := w; !stop.Load(); i++ {
				key := keys[i%len(keys)]
				if e := x.find(h.Hash(key), key); e != nil {
					found.Add(1)
					if e.key != key {
						t.Errorf("searched %q, found %q", key, e.key)
						return
					}
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(43, 44))
	known := map[string]*entry{}
	for i := 0; i < 20_000 || found.Load() < 1000; i++ {
		key := keys[r.IntN(len(keys))]
		if e := known[key]; e != nil {
			x.remove(h.Hash(key), e)
			delete(known, key)
		} else if !x.full() {
			known[key] = &entry{key: key}
			x.add(h.Hash(key), known[key])
		}
	}
	stop.Store(true)
	all.Wait()
}

// Keys that differ in little spread over the slots as if by chance, whatever
// their length, and no hash is 0.
func TestHashSpreads(t *testing.T) {
	t.Parallel()
	const keys, slots = 1 << 14, 1 << 10
	for name, key := range map[string]func(i int) string{
		"short":      func(i int) string { return fmt.Sprint(i) },
		"end":        func(i int) string { return fmt.Sprintf("tenant-%08d", i) },
		"long end":   func(i int) string { return strings.Repeat("x", 80) + fmt.Sprintf("%08d", i) },
		"middle":     func(i int) string { return strings.Repeat("x", 20) + fmt.Sprintf("%08d", i) + strings.Repeat("y", 20) },
		"beginning":  func(i int) string { return fmt.Sprintf("%08d", i) + strings.Repeat("y", 50) },
		"length":     func(i int) string { return strings.Repeat("x", i%500) + fmt.Sprint(i/500) },
		"multiples":  func(i int) string { return fmt.Sprint(i * 1024) },
		"high bytes": func(i int) string { return string([]byte{0, 0, 0, 0, 0, 0, byte(i), byte(i >> 8)}) },
	} {
		names := make([]string, keys)
		for i := range names {
			names[i] = key(i)
		}
		// One seed in thirty shows what the others hide.
		for range 30 {
			h := NewHasher()
			var counts [slots]float64
			seen := make(map[uint64]struct{}, keys)
			for _, k := range names {
				sum := h.Hash(k)
				if _, twice := seen[sum]; twice || sum == 0 {
					t.Fatalf("%s: %q has the hash %x, as has another", name, k, sum)
				}
				seen[sum] = struct{}{}
				counts[sum%slots]++
			}
			chi := 0.0
			for _, n := range counts {
				chi += (n - keys/slots) * (n - keys/slots) / (keys / slots)
			}
			// The sum is slots-1 in the mean, with a deviation of sqrt(2*slots) = 45.
			if chi < slots-10*45 || chi > slots+10*45 {
				t.Errorf("%s: seeds %x: uneven by %.0f, by chance it is %d", name, h, chi, slots)
			}
		}
	}
}

// Every byte of a key counts, and so does the seed.
func TestHashReadsAllOfAKey(t *testing.T) {
	t.Parallel()
	h, other := NewHasher(), NewHasher()
	for length := range 70 {
		key := []byte(strings.Repeat("a", length))
		sum := h.Hash(string(key))
		if sum == other.Hash(string(key)) {
			t.Errorf("length %d: two seeds, one hash", length)
		}
		for i := range key {
			key[i] ^= 1
			if h.Hash(string(key)) == sum {
				t.Errorf("length %d: byte %d does not count", length, i)
			}
			key[i] ^= 1
		}
	}
}
