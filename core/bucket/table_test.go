package bucket

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// epoch is an arbitrary time, microseconds.
const epoch = 1_790_000_000_000_000

// item is a key with an overflow bucket of its own.
func item(key string, rule Rule) Item { return Item{Key: key, Overflow: New(rule)} }

func (it Item) rule() Rule { return it.Overflow.rule }

// answered asks for the answers of a group.
func answered(f func(int64, []Item, []Answer) bool, now int64, group ...Item) ([]Answer, bool) {
	answers := make([]Answer, len(group))
	return answers, f(now, group, answers)
}

// atOnce runs f in 50 goroutines, 100 times each, and returns how often it
// reported true.
func atOnce(f func() bool) int64 {
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 100 {
				if f() {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	return admitted.Load()
}

func TestConcurrentTakesAdmitExactlyTheCapacity(t *testing.T) {
	t.Parallel()
	b := New(NewTokenBucket(1234*Token, 0))
	if n := atOnce(func() bool { return b.Take(epoch, nil) }); n != 1234 {
		t.Errorf("bucket admitted %d, want 1234", n)
	}
	table := NewTable(10)
	tokens := []Item{item("a", NewTokenBucket(1234*Token, 0))}
	if n := atOnce(func() bool { return table.Decide(epoch, tokens, nil) }); n != 1234 {
		t.Errorf("table admitted %d, want 1234", n)
	}
	window := []Item{item("b", NewSlidingWindow(1234, second))}
	if n := atOnce(func() bool { return table.Decide(epoch, window, nil) }); n != 1234 {
		t.Errorf("table admitted %d in one window, want 1234", n)
	}
}

// Two buckets of different fill are charged once each per admission, by
// whatever order of calls.
func TestConcurrentGroupsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	big, small := item("big", NewTokenBucket(1000*Token, 0)), item("small", NewTokenBucket(300*Token, 0))
	if n := atOnce(func() bool { return table.Decide(epoch, []Item{big, small}, nil) }); n != 300 {
		t.Errorf("admitted %d, want 300", n)
	}
	if n := atOnce(func() bool { return table.Decide(epoch, []Item{big}, nil) }); n != 700 {
		t.Errorf("%d were left in the big bucket, want 700", n)
	}
}

func TestDenialChargesNoPartner(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	full, empty := item("full", NewTokenBucket(10*Token, 0)), item("empty", NewTokenBucket(Token, 0))
	table.Decide(epoch, []Item{empty}, nil)
	for range 5 {
		answers, ok := answered(table.Decide, epoch, full, empty)
		if ok || answers[0].Denied || answers[0].Remaining != 10 || !answers[1].Denied {
			t.Fatalf("allowed %t, %+v", ok, answers)
		}
	}
	if table.Len() != 1 {
		t.Errorf("%d keys, want 1: a denial stored something", table.Len())
	}
	if answers, ok := answered(table.Decide, epoch, full); !ok || answers[0].Remaining != 9 {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
}

// A table that drops what has expired decides like one that forgets nothing.
func TestDroppingLosesNothing(t *testing.T) {
	t.Parallel()
	rules := []Rule{
		NewTokenBucket(3*Token, Token), NewTokenBucket(Token, 3*Token+1), NewTokenBucket(5*Token, 0),
		NewSlidingWindow(3, second), NewSlidingWindow(1, 2*second+1),
	}
	r := rand.New(rand.NewPCG(7, 8))
	table, all := NewTable(1000), map[string]State{}
	now := int64(epoch)
	for i := range 30_000 {
		now += r.Int64N(second / 4)
		group := make([]Item, 1+r.IntN(3))
		first := r.IntN(50)
		for j := range group {
			k := first + j
			group[j] = item(fmt.Sprint(k), rules[k%len(rules)])
		}
		if r.IntN(50) == 0 {
			table.Reset(now, group, nil)
			for _, it := range group {
				all[it.Key] = it.rule().Fresh(now)
			}
		}
		want, wantOK := model(all, now, group)
		seen, seenOK := answered(table.Peek, now, group...)
		got, ok := answered(table.Decide, now, group...)
		if ok != wantOK || seenOK != ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v: %t %+v, want %t %+v", group, ok, got, wantOK, want)
		}
		if ok == (seen[0].Remaining == got[0].Remaining) {
			t.Fatalf("%v: peek %+v, then decide %+v", group, seen, got)
		}
		if i%20 == 0 {
			checkTable(t, now, table)
		}
		if table.Len() > 52 {
			t.Fatalf("%d keys", table.Len())
		}
	}
	now += 3600 * second
	for range 50 { // somebody new
		table.Peek(now, []Item{item("x", rules[0])}, nil)
	}
	// Of the keys 0 to 51, every fifth never refills.
	if table.Len() != 10 {
		t.Errorf("%d keys after an hour, want the 10 that never refill", table.Len())
	}
}

// checkTable looks at what no decision may break: every entry is found, is alive,
// and is looked at, unless it never expires, by whoever needs room when it has:
// at the time now or later.
func checkTable(t *testing.T, now int64, table *Table) {
	t.Helper()
	table.mu.Lock()
	defer table.mu.Unlock()
	x := table.index.Load()
	entries := 0
	for i := range x.slots {
		e := x.slots[i].entry.Load()
		if e == nil {
			continue
		}
		entries++
		if x.find(x.slots[i].hash.Load(), e.key) != e || e.cell.word.Load() == dead {
			t.Fatalf("%q is not found, or dead: %+v", e.key, e)
		}
		s, _ := e.cell.read(e.rule.Load())
		if at := e.rule.Load().expiry(s); (at > 0) != (e.place.second > 0) {
			t.Fatalf("%q expires at %d and is at %+v", e.key, at, e.place)
		} else if at > 0 {
			hand := table.expires.hand
			look := hand + (int64(e.place.second-1)-hand)&(wheelSeconds-1)
			if table.expires.seconds[e.place.second-1][e.place.index] != e || look > max(at, now/second) {
				t.Fatalf("%q expires at %d and is at %+v, the hand at %d", e.key, at, e.place, hand)
			}
		}
	}
	if entries != x.used {
		t.Fatalf("%d entries, %d used", entries, x.used)
	}
}

// model is the table without an expiry and without a bound.
func model(all map[string]State, now int64, group []Item) ([]Answer, bool) {
	allowed, next := true, map[string]State{}
	answers := make([]Answer, len(group))
	for i, it := range group {
		next[it.Key], answers[i] = it.rule().Decide(all[it.Key], now, true)
		allowed = allowed && !answers[i].Denied
	}
	for i, it := range group {
		if allowed {
			all[it.Key] = next[it.Key]
		} else {
			_, answers[i] = it.rule().Decide(all[it.Key], now, false)
		}
	}
	return answers, allowed
}

func TestFullTableSharesOneOverflowBucket(t *testing.T) {
	t.Parallel()
	const most = 100
	table := NewTable(most)
	rule := NewTokenBucket(3*Token, Token)
	overflow := map[string]*Bucket{"login": New(rule), "export": New(rule)}
	decide := func(now int64, key, endpoint string) bool {
		return table.Decide(now, []Item{{Key: key, Overflow: overflow[endpoint]}}, nil)
	}
	for i := range most {
		decide(epoch, fmt.Sprint("known", i), "login")
	}
	admitted := 0
	for i := range 1000 {
		if decide(epoch, fmt.Sprint("stranger", i), "login") {
			admitted++
		}
	}
	if admitted != 3 || table.Len() != most {
		t.Errorf("%d strangers admitted, want 3; %d keys, want %d", admitted, table.Len(), most)
	}
	if !decide(epoch, "stranger", "export") {
		t.Error("another endpoint's overflow bucket is not its own")
	}
	for i := range 3 { // one of three was taken before
		if ok := decide(epoch, "known0", "login"); ok != (i < 2) {
			t.Errorf("request %d to a known key's own bucket: %t", i, ok)
		}
	}
	group := []Item{item("known1", rule), {Key: "stranger", Overflow: overflow["login"]}}
	if answers, ok := answered(table.Reset, epoch, group...); ok || answers[0].Remaining != 3 || !answers[1].Denied {
		t.Errorf("reset: %t %+v; a shared bucket must stay, the own one be fresh", ok, answers)
	}
	// Full again after a second, and dropped a second later: there is room, and
	// the same stranger has a bucket of its own.
	later := int64(epoch + 2*second)
	for i := range 3 {
		if !decide(later, "stranger", "login") {
			t.Errorf("stranger's own request %d denied", i)
		}
	}
}

// Whether a key has a bucket of its own does not depend on when others were
// looked at: it has, unless as many as there may be still matter.
func TestOverflowOnlyWhereNothingCanBeDropped(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 10))
	rules := []Rule{
		NewTokenBucket(3*Token, Token), NewTokenBucket(40*Token, Token/50), NewSlidingWindow(2, second),
		NewSlidingWindow(5, 2000*second), NewTokenBucket(Token, 0),
	}
	overflows, drops := 0, 0
	for range 20 {
		const most = 20
		table, alive := NewTable(most), map[string]int64{} // the second from which on a key does not matter
		own := map[string]State{}
		shared := make([]State, len(rules))
		overflow := make([]*Bucket, len(rules))
		for i, rule := range rules {
			overflow[i] = New(rule)
		}
		now := int64(epoch)
		for range 3000 {
			now += r.Int64N(2*second) >> r.IntN(30)
			if r.IntN(300) == 0 {
				now += r.Int64N(5000 * second)
			}
			for key, at := range alive {
				if at <= now/second {
					delete(alive, key)
					delete(own, key)
					drops++
				}
			}
			n := r.IntN(60)
			kind := n % len(rules)
			if kind == 4 && r.IntN(20) > 0 {
				kind, n = 0, n+1 // few that are never dropped
			}
			key, rule := fmt.Sprint(kind, "-", n), rules[kind]
			group := []Item{{Key: key, Overflow: overflow[kind]}}
			if r.IntN(50) == 0 {
				table.Reset(now, group, nil)
				delete(alive, key)
				delete(own, key)
			}
			state, has := own[key]
			if has = has || len(alive) < most; !has {
				state = shared[kind]
				overflows++
			}
			next, want := rule.Decide(state, now, true)
			got, _ := answered(table.Decide, now, group...)
			if got[0] != want {
				t.Fatalf("%s at %d, own %t, %d keys: %+v, want %+v", key, now, has, len(alive), got[0], want)
			}
			switch {
			case want.Denied:
			case !has:
				shared[kind] = next
			default:
				own[key] = next
				alive[key] = 1 << 60
				if ttl := rule.TTL(next, now); ttl > 0 {
					alive[key] = ceilDiv(next.time(), second) + ttl
				}
			}
			checkTable(t, now, table)
		}
	}
	if overflows < 1000 || drops < 1000 {
		t.Errorf("%d overflows, %d drops: the walk misses its aim", overflows, drops)
	}
}

// Buckets that are charged while they are looked at for being dropped admit what
// they hold and no more.
func TestDroppedWhileCharged(t *testing.T) {
	t.Parallel()
	const hot, callers, newcomers, capacity = 32, 8, 40, 20
	rule := NewTokenBucket(capacity*Token, capacity*Token) // full in a second, dropped after two
	table, overflow := NewTable(hot+callers*newcomers), New(rule)
	drops := 0
	for round := range 60 {
		now := int64(epoch + round*4*second)
		var admitted [hot]atomic.Int64
		var all sync.WaitGroup
		before := table.Len()
		for c := range callers {
			all.Go(func() {
				var places [hot]Place
				for i := range newcomers {
					table.Decide(now, []Item{{Key: fmt.Sprint(round, c, i), Overflow: overflow}}, nil)
					for k := range hot {
						item := Item{Key: fmt.Sprint("hot", k), Overflow: overflow}
						if c%2 == 0 {
							item.Place = &places[k]
						}
						if table.Decide(now, []Item{item}, nil) {
							admitted[k].Add(1)
						}
					}
				}
			})
		}
		all.Wait()
		for k := range admitted {
			if n := admitted[k].Load(); n != capacity {
				t.Fatalf("round %d: key %d was admitted %d times, want %d", round, k, n, capacity)
			}
		}
		drops += before + callers*newcomers - table.Len()
		checkTable(t, now, table)
	}
	if drops < 1000 {
		t.Errorf("%d drops: the rounds miss their aim", drops)
	}
}

// A reset is for all: whoever decides meanwhile does so before or after it, and
// nobody keeps the old bucket.
func TestResetWhileCharged(t *testing.T) {
	t.Parallel()
	const capacity, resets, callers = 100, 300, 6
	a, b := item("a", NewTokenBucket(capacity*Token, 0)), item("b", NewSlidingWindow(capacity, 1<<40))
	table := NewTable(10)
	var admitted [2]atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			group := [][]Item{{a, b}, {a}, {b, a}}[c%3]
			for !stop.Load() {
				if !table.Decide(epoch, group, nil) {
					runtime.Gosched()
					continue
				}
				admitted[0].Add(1)
				admitted[1].Add(int64(len(group) - 1))
			}
		})
	}
	for range resets {
		table.Reset(epoch, []Item{a, b}, nil)
		runtime.Gosched()
	}
	stop.Store(true)
	all.Wait()
	for table.Decide(epoch, []Item{a}, nil) {
		admitted[0].Add(1)
	}
	for i := range admitted {
		if n := admitted[i].Load(); n > capacity*(resets+1) || i == 0 && n < capacity {
			t.Errorf("%c: %d admitted over %d resets of %d", 'a'+i, n, resets, capacity)
		}
	}
}

// A Place spares a search and decides nothing: not where its bucket was dropped,
// and not even where it is given to another key.
func TestPlaceIsOnlyAHint(t *testing.T) {
	t.Parallel()
	var place Place
	table, rule := NewTable(2), NewTokenBucket(2*Token, 2*Token)
	overflow := New(rule)
	ask := func(now int64, key string) int64 {
		answers, _ := answered(table.Decide, now, Item{Key: key, Overflow: overflow, Place: &place})
		return answers[0].Remaining
	}
	for i, step := range []struct {
		key        string
		now        int64
		remaining  int64
		understood string
	}{
		{"a", epoch, 1, "new"},
		{"a", epoch, 0, "at its place"},
		{"b", epoch, 1, "another key's place"},
		{"a", epoch, 0, "found again, and denied"},
		{"c", epoch + 4*second, 1, "drops the others"},
		{"d", epoch + 4*second, 1, "the table is full"},
		{"a", epoch + 4*second, 1, "the shared bucket"},
		{"a", epoch + 4*second, 0, "the shared bucket"},
		{"a", epoch + 8*second, 1, "its own again"},
		{"a", epoch + 8*second, 0, "its own again"},
	} {
		if got := ask(step.now, step.key); got != step.remaining {
			t.Errorf("step %d, %q: %d remaining, want %d: %s", i, step.key, got, step.remaining, step.understood)
		}
	}
}

func TestGroupOfStrangersInAFullTable(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	rule := NewTokenBucket(2*Token, 0)
	table.Decide(epoch, []Item{item("known", rule)}, nil)
	overflow := New(rule)
	group := []Item{{Key: "cookie", Overflow: overflow}, {Key: "ip", Overflow: overflow}}
	for i := range 3 { // both share one bucket, which each request charges once
		if ok := table.Decide(epoch, group, nil); ok != (i < 2) {
			t.Errorf("request %d: %t", i, ok)
		}
	}
}

func TestPeekStoresNothing(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	for range 3 {
		if answers, ok := answered(table.Peek, epoch, item("a", NewTokenBucket(2*Token, 0))); !ok || answers[0].Remaining != 2 {
			t.Fatalf("%t %+v", ok, answers)
		}
	}
	if table.Len() != 0 {
		t.Errorf("%d keys", table.Len())
	}
}

// The memory of a full table, which docs promise.
func TestTableBytesPerKey(t *testing.T) {
	const keys = 200_000
	before := heapBytes()
	table := NewTable(keys)
	rule := NewTokenBucket(100*Token, Token)
	for i := range keys {
		// As long as a real key: "sentinel:v1:", 64 hex digits, endpoint, version.
		key := fmt.Sprintf("sentinel:v1:%064x:billing.export:1", i)
		table.Decide(epoch, []Item{item(key, rule)}, nil)
	}
	each := (heapBytes() - before) / keys
	t.Logf("%d bytes per key", each)
	if each > 400 {
		t.Errorf("%d bytes per key, want at most 400", each)
	}
	runtime.KeepAlive(table)
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkTable(b *testing.B) {
	for _, keys := range []int{1, 10_000, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			table := NewTable(keys)
			groups := make([][]Item, keys)
			for i := range groups {
				groups[i] = []Item{item(fmt.Sprintf("sentinel:v1:%064x:billing.export:1", i), NewTokenBucket(100*Token, Token))}
				table.Decide(epoch, groups[i], nil)
			}
			answers := make([]Answer, 1)
			start := time.Now()
			i := 0
			for b.Loop() {
				table.Decide(epoch+time.Since(start).Microseconds(), groups[i], answers)
				if i++; i == keys {
					i = 0
				}
			}
		})
	}
}
