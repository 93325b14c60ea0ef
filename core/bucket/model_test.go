package bucket_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
)

// These tests follow buckets through whole lives, by what a client and an owner
// may count on, and not formula by formula: bucket_test.go does that.

const (
	start  = 1_790_000_000_000_000 // a time in 2026, microseconds
	second = 1_000_000
	minute = 60 * second
)

// item is a key with an overflow bucket of its own.
func item(key string, rule bucket.Rule) bucket.Item {
	return bucket.Item{Key: key, Overflow: bucket.New(rule)}
}

// eachKind runs f on the two kinds of bucket that there are: one by itself, and
// one key among others in a table.
func eachKind(t *testing.T, f func(t *testing.T, open func(bucket.Rule) func(now int64) bucket.Answer)) {
	t.Run("bucket", func(t *testing.T) {
		t.Parallel()
		f(t, func(rule bucket.Rule) func(int64) bucket.Answer {
			b := bucket.New(rule)
			return func(now int64) (a bucket.Answer) {
				if b.Take(now, &a) == a.Denied {
					t.Fatalf("%+v", a)
				}
				return a
			}
		})
	})
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		table, n := bucket.NewTable(1000), 0 // room for all: these buckets have clocks of their own
		f(t, func(rule bucket.Rule) func(int64) bucket.Answer {
			n++
			group := []bucket.Item{item(fmt.Sprint(n), rule)}
			return func(now int64) bucket.Answer {
				answers := make([]bucket.Answer, 1)
				ok := table.Decide(now, group, answers)
				if answers[0].Denied == ok {
					t.Fatalf("%t %+v", ok, answers)
				}
				return answers[0]
			}
		})
	})
}

func randomTokens(r *rand.Rand) bucket.Rule {
	capacities := []int64{
		bucket.Token, bucket.Token + 1, 2*bucket.Token - 1, 5 * bucket.Token, bucket.Token + r.Int64N(50*bucket.Token),
		1 << 40, bucket.MaxExact,
	}
	rates := []int64{0, 1, 3, 999_999, bucket.Token, 1 + r.Int64N(20*bucket.Token), 1 << 40, bucket.MaxExact}
	return bucket.NewTokenBucket(capacities[r.IntN(len(capacities))], rates[r.IntN(len(rates))])
}

// horizon is how long a bucket takes to forget, in microseconds.
func horizon(rule bucket.Rule) int64 {
	size, pace := rule.Numbers()
	switch {
	case rule.Sliding():
		return 2 * pace
	case pace == 0:
		return bucket.MaxExact
	}
	h := new(big.Int).Mul(big.NewInt(size), big.NewInt(second))
	if h.Quo(h, big.NewInt(pace)); !h.IsInt64() || h.Int64() > bucket.MaxExact {
		return bucket.MaxExact
	}
	return h.Int64()
}

// walk moves a clock: mostly a little, sometimes exactly to where the last
// answer pointed, a microsecond beside it, or over years; and backwards, by no
// more than a stored time may be ahead.
func walk(r *rand.Rand, rule bucket.Rule, now, highest int64, last bucket.Answer) int64 {
	h := horizon(rule)
	switch k := r.IntN(20); {
	case k < 8:
		return now
	case k < 11:
		now += 1 + r.Int64N(10)
	case k < 14:
		now += 1 + r.Int64N(h/4+1)
	case k < 17 && last.Wait > 0:
		now += max(0, last.Wait-1+r.Int64N(3))
	case k == 17:
		now += h + r.Int64N(h+1)
	case k == 18 && r.IntN(10) == 0:
		now += bucket.MaxExact - now
	default:
		now = max(highest-max(minute, h), now-r.Int64N(max(minute, h)+1), 0)
	}
	return min(now, bucket.MaxExact)
}

// Through long idle times, overflowing products and a clock that steps back and
// forth, nobody gets more than the policy, measured on the furthest that the
// clock has been; and nobody gets less than it, but for one microtoken that an
// admission may lose to rounding.
func TestNobodyGetsMoreNorLessThanThePolicy(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, open func(bucket.Rule) func(int64) bucket.Answer) {
		r := rand.New(rand.NewPCG(11, 12))
		admitted, denied := 0, 0
		for range 500 {
			rule := randomTokens(r)
			take, now := open(rule), int64(start)
			size, pace := rule.Numbers()
			most, least := buckettest.NewContent(size, pace, now), buckettest.NewContent(size, pace, now)
			var last bucket.Answer
			for i := range 200 {
				if i > 0 { // a bucket that nobody has used knows no time
					now = walk(r, rule, now, most.Highest(), last)
				}
				most.Flow(now)
				least.Flow(now)
				last = take(now)
				switch {
				case last.Corrupt:
					t.Fatalf("%v at %d: a state that is at most %d ahead is called corrupt", rule, now, most.Highest()-now)
				case !last.Denied && !most.Enough():
					t.Fatalf("%v at %d: admitted, and there were only %v", rule, now, most)
				case last.Denied && least.Enough():
					t.Fatalf("%v at %d: denied, and there were %v", rule, now, least)
				case last.Denied:
					denied++
					continue
				}
				admitted++
				most.Take()
				least.Take()
				least.Round()
			}
		}
		if admitted < 10_000 || denied < 10_000 {
			t.Errorf("%d admitted and %d denied: the walk misses its aim", admitted, denied)
		}
	})
}

// After a step back beyond the limit there is one fresh bucket, and one for each
// step only.
func TestOneFreshBucketForEachFarStepBack(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, open func(bucket.Rule) func(int64) bucket.Answer) {
		r := rand.New(rand.NewPCG(13, 14))
		for range 300 {
			capacity := 1 + r.Int64N(20)
			rule := bucket.NewTokenBucket(capacity*bucket.Token, 1+r.Int64N(20*bucket.Token))
			if r.IntN(2) == 0 {
				rule = bucket.NewSlidingWindow(capacity, 1+r.Int64N(100*second))
			}
			take, now := open(rule), int64(start)
			steps := 1 + r.IntN(5)
			admitted := int64(0)
			for step := range steps + 1 {
				if step > 0 { // back, and for a moment on
					now -= max(minute, horizon(rule)) + 1 + r.Int64N(3600*second)
				}
				for range 3 * capacity {
					if !take(now).Denied {
						admitted++
					}
				}
			}
			if want := capacity * int64(steps+1); admitted != want {
				t.Fatalf("%v: %d admitted over %d steps back at standing clocks, want %d", rule, admitted, steps, want)
			}
		}
	})
}

// Bursts where windows roll over, at the instant, a microsecond beside it, and
// after long silence: the window admits exactly what the reference does, and
// never more than its limit in one window.
func TestSlidingWindowAgainstTheReference(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, open func(bucket.Rule) func(int64) bucket.Answer) {
		r := rand.New(rand.NewPCG(15, 16))
		for range 300 {
			limit := 1 + r.Int64N(20)
			window := []int64{1, 2, 1000, second, minute, 1 + r.Int64N(3600*second), bucket.MaxExact / 64}[r.IntN(7)]
			rule := bucket.NewSlidingWindow(limit, window)
			take, now, ref := open(rule), int64(start), &buckettest.Window{Limit: limit, Length: window}
			for range 60 {
				for range 1 + r.Int64N(2*limit) {
					if a, want := take(now), ref.Admits(now); a.Denied == want || a.Corrupt {
						t.Fatalf("%v at %d, %d after the anchor: %+v, the reference says %t", rule, now, now-ref.Anchor(), a, want)
					}
				}
				next := ref.Anchor() + window*(1+r.Int64N(3)) - 1 + r.Int64N(3)
				if r.IntN(4) == 0 {
					next = now + r.Int64N(2*window)
				}
				if r.IntN(8) == 0 {
					next = now - r.Int64N(min(window, minute)) // a step back within the limit
				}
				if now = next; now > bucket.MaxExact {
					break
				}
			}
			if n := ref.Most(); n > limit {
				t.Fatalf("%v: %d admitted in one window", rule, n)
			}
		}
	})
}

// Whoever waits exactly as long as it was told is admitted, and one microsecond
// earlier it is not: of a bucket by itself, and of a group, whose bucket that
// waits longest decides.
func TestWaitingExactlyThatLongAdmits(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(17, 18))
	waits := map[string]int{}
	for range 400 {
		rules := []bucket.Rule{randomTokens(r), bucket.NewSlidingWindow(1+r.Int64N(10), 1+r.Int64N(3600*second))}
		table, single := bucket.NewTable(4), bucket.New(rules[0])
		a := item("a", rules[0])
		b := item("b", rules[1])
		for name, take := range map[string]func(int64) (int64, bool){
			"bucket": func(now int64) (int64, bool) { return waitOf(single, now) },
			"alone":  func(now int64) (int64, bool) { return wait(table, now, a) },
			"group":  func(now int64) (int64, bool) { return wait(table, now, a, b) },
		} {
			now := int64(start)
			for range 60 {
				for range r.IntN(4) {
					now += r.Int64N(second)
					take(now)
				}
				told, ok := take(now)
				if ok || told == bucket.MaxWait {
					continue
				}
				if told == bucket.Never {
					if _, ok := take(bucket.MaxExact); ok {
						t.Fatalf("%s %v: never, and then it admits", name, rules)
					}
					break
				}
				if now+told > bucket.MaxExact {
					break
				}
				if _, early := take(now + told - 1); early {
					t.Fatalf("%s %v at %d: admitted one microsecond before the wait of %d is over", name, rules, now, told)
				}
				if _, then := take(now + told); !then {
					t.Fatalf("%s %v at %d: denied after the wait of %d", name, rules, now, told)
				}
				now += told
				waits[name]++
			}
		}
	}
	for _, name := range []string{"bucket", "alone", "group"} {
		if waits[name] < 1000 {
			t.Errorf("%d waits of a %s: the walk misses its aim", waits[name], name)
		}
	}
}

func waitOf(b *bucket.Bucket, now int64) (int64, bool) {
	var a bucket.Answer
	ok := b.Take(now, &a)
	return a.Wait, ok
}

// wait is how long a group has to wait, by the longest of those that deny.
func wait(table *bucket.Table, now int64, group ...bucket.Item) (int64, bool) {
	answers := make([]bucket.Answer, len(group))
	allowed := table.Decide(now, group, answers)
	longest := int64(0)
	for _, a := range answers {
		switch {
		case !a.Denied || longest == bucket.Never:
		case a.Wait == bucket.Never:
			longest = bucket.Never
		default:
			longest = max(longest, a.Wait)
		}
	}
	return longest, allowed
}

// Decisions at once are as if one came after the other: of buckets that gain
// nothing, every number that remains is told to exactly one caller, and the two
// of a pair fall together.
func TestDecisionsAtOnceHaveAnOrder(t *testing.T) {
	t.Parallel()
	const capacity, callers, each = 2000, 16, 200
	for round := range 5 {
		table := bucket.NewTable(8)
		a := item("a", bucket.NewTokenBucket(capacity*bucket.Token, 0))
		b := item("b", bucket.NewSlidingWindow(capacity-300, 3600*second))
		groups := [][]bucket.Item{{a, b}, {b, a}, {a}, {b}}
		told := make([][][2]int64, callers) // what remains of a and of b, unused if not asked
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := range each {
					group := groups[(c+i)%len(groups)]
					answers := make([]bucket.Answer, len(group))
					if !table.Decide(start, group, answers) {
						continue
					}
					left := [2]int64{unused, unused}
					for k, item := range group {
						left[item.Key[0]-'a'] = answers[k].Remaining
					}
					told[c] = append(told[c], left)
				}
			})
		}
		all.Wait()
		checkOrder(t, round, told, [2]int64{capacity, capacity - 300})
	}
}

const unused = -1

func checkOrder(t *testing.T, round int, told [][][2]int64, full [2]int64) {
	t.Helper()
	var seen [2]map[int64]bool
	partner := map[int64]int64{} // of a pair: what remained of b when this remained of a
	for of := range seen {
		seen[of] = map[int64]bool{}
	}
	for _, caller := range told {
		before := full
		for _, left := range caller {
			for of, n := range left {
				if n == unused {
					continue
				}
				if seen[of][n] || n < 0 || n >= before[of] {
					t.Fatalf("round %d: %d remaining of %c, before it %d: twice: %t", round, n, 'a'+of, before[of], seen[of][n])
				}
				seen[of][n], before[of] = true, n
			}
			if left[0] != unused && left[1] != unused {
				partner[left[0]] = left[1]
			}
		}
	}
	for of := range seen {
		for n := range int64(len(seen[of])) {
			if !seen[of][full[of]-1-n] {
				t.Fatalf("round %d: nobody was told that %d remain of %c", round, full[of]-1-n, 'a'+of)
			}
		}
	}
	last := int64(-1)
	for n := range full[0] {
		if with, ok := partner[n]; ok {
			if with <= last {
				t.Fatalf("round %d: a pair left %d and %d, an earlier one more of one and less of the other", round, n, with)
			}
			last = with
		}
	}
}

// Keys that come and go at once with others, in a table that has no room for
// all: dropping and sharing admit nobody twice.
func TestDroppingAtOnceGivesNothingAway(t *testing.T) {
	t.Parallel()
	const room, keys, callers, phases = 64, 200, 8, 40
	rule := bucket.NewTokenBucket(3*bucket.Token, 300*bucket.Token) // full again in 10 ms
	overflow := bucket.New(rule)
	table := bucket.NewTable(room)
	var now atomic.Int64
	now.Store(start)
	for phase := range phases {
		var admitted [keys]atomic.Int64
		from := now.Load()
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(phase), uint64(c)))
				for range 500 {
					k := r.IntN(keys)
					group := []bucket.Item{{Key: fmt.Sprint(k), Overflow: overflow}}
					if table.Decide(now.Add(r.Int64N(20)), group, nil) {
						admitted[k].Add(1)
					}
				}
			})
		}
		all.Wait()
		flown := (now.Load() - from) * 300 / second
		total := int64(0)
		for k := range admitted {
			n := admitted[k].Load()
			// At worst its own bucket and all of the shared one, each full at
			// first and with all that flowed in meanwhile.
			if most := 2 * (3 + flown + 1); n > most {
				t.Fatalf("phase %d: key %d was admitted %d times, at most %d flowed in", phase, k, n, most)
			}
			total += n
		}
		if most := (room + 1 + keys) * (3 + flown + 1); total > most || total == 0 {
			t.Fatalf("phase %d: %d admitted, want up to %d", phase, total, most)
		}
		if n := table.Len(); n > room {
			t.Fatalf("phase %d: %d keys in a table of %d", phase, n, room)
		}
		now.Add(int64(phase%2) * 5 * second) // long enough for all to be dropped
	}
}

// A crowd of strangers at a full table shares one quota, however many they are
// at once.
func TestStrangersAtOnceShareOneQuota(t *testing.T) {
	t.Parallel()
	const room, capacity, callers = 100, 50, 16
	table := bucket.NewTable(room)
	overflow := bucket.New(bucket.NewTokenBucket(capacity*bucket.Token, 0))
	for i := range room {
		table.Decide(start, []bucket.Item{{Key: fmt.Sprint("known", i), Overflow: overflow}}, nil)
	}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range 1000 {
				key := fmt.Sprint("stranger", c, "-", i)
				if table.Decide(start, []bucket.Item{{Key: key, Overflow: overflow}}, nil) {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n != capacity || table.Len() != room {
		t.Errorf("%d strangers admitted, want %d; %d keys, want %d", n, capacity, table.Len(), room)
	}
}

// An emergency bucket is asked by callers who read the clock at one time and
// reach the bucket at another: no instant is credited twice.
func TestCallersWithOldClocks(t *testing.T) {
	t.Parallel()
	const callers, rate, capacity = 16, 1000, 10
	b := bucket.New(bucket.NewTokenBucket(capacity*bucket.Token, rate*bucket.Token))
	var now atomic.Int64
	now.Store(start)
	var admitted atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(21, uint64(c)))
			for range 2000 {
				read := now.Add(r.Int64N(40)) - r.Int64N(5*second) // up to 5 s late
				if b.Take(read, nil) {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	// The first to come may read 5 s before the start.
	most := capacity + (now.Load()-start+5*second)*rate/second
	if n := admitted.Load(); n > most || n < capacity {
		t.Errorf("%d admitted, want %d to %d", n, capacity, most)
	}
}
