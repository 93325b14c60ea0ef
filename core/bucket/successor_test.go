package bucket

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// take is Table.Take with its answer.
func take(t *Table, now int64, key string, b *Bucket) Answer {
	var a Answer
	if t.Take(now, []byte(key), b, &a) == a.Denied {
		panic("bucket: Take and its answer disagree")
	}
	return a
}

// Take decides like Decide where the rule stays the same.
func TestTakeIsDecide(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(41, 42))
	taken, decided := NewTable(20), NewTable(20)
	rules := []Rule{NewTokenBucket(3*Token, Token), NewTokenBucket(Token, 2*Token+1), NewSlidingWindow(3, second), NewTokenBucket(2*Token, 0)}
	var forTake, forDecide []*Bucket
	for _, rule := range rules {
		forTake, forDecide = append(forTake, New(rule)), append(forDecide, New(rule))
	}
	now := int64(epoch)
	for range 50_000 {
		now += r.Int64N(second / 10)
		of := r.IntN(len(rules))
		key := fmt.Sprint(of, " ", r.IntN(10))
		got := take(taken, now, key, forTake[of])
		want, _ := answered(decided.Decide, now, Item{Key: key, Overflow: forDecide[of]})
		if got != want[0] || taken.Len() != decided.Len() || taken.Overflowed() != decided.Overflowed() {
			t.Fatalf("%+v, want %+v; %d keys, %d", got, want[0], taken.Len(), decided.Len())
		}
	}
	if taken.Overflowed() < 100 {
		t.Errorf("overflowed %d times: the generator misses its aim", taken.Overflowed())
	}
	checkTable(t, now, taken)
}

func TestTakeAllocatesNothing(t *testing.T) {
	table, b := NewTable(10), New(NewTokenBucket(MaxExact, Token))
	key := []byte("0123456789abcdef0123456789abcdef")
	if n := testing.AllocsPerRun(100, func() {
		var a Answer
		table.Take(epoch, key, b, &a)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRefusedTakesStoreNothing(t *testing.T) {
	t.Parallel()
	table, b := NewTable(1), New(NewTokenBucket(Token, Token))
	table.Take(epoch, []byte("a"), b, nil)
	before := table.lookup("a").cell.word.Load()
	for range 100 {
		table.Take(epoch, []byte("a"), b, nil)
	}
	if table.lookup("a").cell.word.Load() != before {
		t.Error("a refusal has written")
	}
	refuses := new(Bucket)
	if table := NewTable(1); table.Take(epoch, []byte("a"), refuses, nil) || table.Len() != 0 {
		t.Error("the zero bucket admits, or its refusal is stored")
	}
}

// Where there is no room, newcomers share one bucket, and are counted.
func TestTakeOverflows(t *testing.T) {
	t.Parallel()
	table, b := NewTable(2), New(NewTokenBucket(3*Token, Token))
	admitted := 0
	for i := range 100 {
		if table.Take(epoch, fmt.Append(nil, i), b, nil) {
			admitted++
		}
	}
	if admitted != 2+3 || table.Len() != 2 || table.Overflowed() != 98 {
		t.Errorf("admitted %d, %d keys, %d overflowed", admitted, table.Len(), table.Overflowed())
	}
}

// A changed rule keeps the fraction that is missing, of known buckets as of the
// overflow bucket, and what flows in afterwards flows by the new rule.
func TestSuccessorKeepsTheFraction(t *testing.T) {
	t.Parallel()
	table, old := NewTable(1), New(NewTokenBucket(10*Token, Token))
	for _, key := range []string{"a", "overflows"} {
		for range 6 {
			take(table, epoch, key, old)
		}
	}
	change := int64(epoch + second) // 5 of 10 are missing
	now := old.Successor(NewTokenBucket(100*Token, 5*Token), change)
	for _, key := range []string{"a", "overflows"} {
		if a := take(table, change+2*second, key, now); a.Remaining != 50+2*5-1 {
			t.Errorf("%s: %+v, want 59 to remain", key, a)
		}
	}
	smaller := now.Successor(NewTokenBucket(2*Token, Token), change+2*second) // 41 of 100 are missing
	for _, key := range []string{"a", "overflows"} {
		if a := take(table, change+2*second, key, smaller); a.Denied || a.Remaining != 0 {
			t.Errorf("%s: %+v, want one of 1.18 to be taken", key, a)
		}
		if a := take(table, change+2*second, key, smaller); !a.Denied || a.Wait != 820_000 {
			t.Errorf("%s: %+v, want to wait for 0.82", key, a)
		}
	}
	full := smaller.Successor(NewTokenBucket(7*Token, 0), change+100*second)
	if a := take(table, change+100*second, "a", full); a.Remaining != 6 {
		t.Errorf("%+v: what was full is full", a)
	}
}

// The same numbers once more change nothing.
func TestSuccessorWithTheSameNumbers(t *testing.T) {
	t.Parallel()
	rule := NewTokenBucket(10*Token, 7)
	table, other, b := NewTable(5), NewTable(5), New(rule)
	first := b
	now := int64(epoch)
	for range 20 {
		if got, want := take(table, now, "a", b), take(other, now, "a", first); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		now += second
		b = b.Successor(rule, now-second)
	}
}

func TestSuccessorOfASlidingWindow(t *testing.T) {
	t.Parallel()
	table, old := NewTable(5), New(NewSlidingWindow(5, second))
	for range 4 {
		take(table, epoch, "a", old)
	}
	more := old.Successor(NewSlidingWindow(10, second), epoch)
	if a := take(table, epoch, "a", more); a.Remaining != 5 {
		t.Errorf("%+v: four are counted, and this one", a)
	}
	tokens := more.Successor(NewTokenBucket(3*Token, Token), epoch)
	if a := take(table, epoch, "a", tokens); a.Remaining != 2 || a.Corrupt {
		t.Errorf("%+v: nothing of a window is left in a bucket of tokens", a)
	}
	if again := tokens.Successor(NewSlidingWindow(3, second), epoch); take(table, epoch, "a", again).Remaining != 2 {
		t.Error("nor the other way round")
	}
	if table.Len() != 1 {
		t.Errorf("%d keys", table.Len())
	}
	checkTable(t, epoch, table)
}

// A key that slept through several changes has refilled by each rule as long as it
// was in force, as a key that asked all the time.
func TestSuccessorsInAChain(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(43, 44))
	for round := range 500 {
		table, now := NewTable(10), int64(epoch)
		rule := NewTokenBucket((1+r.Int64N(20))*Token, 1+r.Int64N(3*Token))
		b := New(rule)
		var level, size big.Rat // of the sleeper, exactly
		size.SetInt64(1)
		for range 1 + r.IntN(20) {
			take(table, now, "sleeper", b)
		}
		s, _ := table.lookup("sleeper").cell.read(&b.rule)
		level.SetFrac64(s.count, rule.size)
		for range r.IntN(mostPast) {
			elapsed := r.Int64N(5 * second)
			now += elapsed
			grow(&level, rule, elapsed)
			rule = NewTokenBucket((1+r.Int64N(20))*Token, 1+r.Int64N(3*Token))
			b = b.Successor(rule, now)
		}
		elapsed := r.Int64N(5 * second)
		now += elapsed
		grow(&level, rule, elapsed)
		if e := table.lookup("sleeper"); e != nil {
			s = b.inherit(readOf(e))
		}
		var got, most, slack big.Rat
		got.SetFrac64(rule.level(s, now), rule.size)
		if got.Cmp(&level) > 0 {
			t.Fatalf("round %d: %v of the capacity, but %v have flowed in", round, got.FloatString(9), level.FloatString(9))
		}
		slack.SetFrac64(3*mostPast, Token) // each change rounds down a few microtokens, of one token at least
		if most.Add(&got, &slack).Cmp(&level) < 0 {
			t.Fatalf("round %d: %v of the capacity, want %v", round, got.FloatString(9), level.FloatString(9))
		}
	}
}

func readOf(e *entry) (State, *Rule) {
	r := e.rule.Load()
	s, _ := e.cell.read(r)
	return s, r
}

// grow adds to a level, as a fraction, what flows in.
func grow(level *big.Rat, r Rule, elapsed int64) {
	var gain, size big.Rat
	gain.SetFrac(new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(r.pace)), big.NewInt(second))
	size.SetInt64(r.size)
	gain.Quo(&gain, &size)
	if level.Add(level, &gain).Cmp(big.NewRat(1, 1)) > 0 {
		level.SetInt64(1)
	}
}

// One who still has the rule before, or one of long ago, gets nothing for it.
func TestBucketsOfOtherTimesAreNoWayRound(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	generations := []*Bucket{New(NewTokenBucket(8*Token, 1))}
	for i := range 3 * mostPast {
		last := generations[len(generations)-1]
		generations = append(generations, last.Successor(NewTokenBucket(int64(1+i%8)*Token, 1), epoch))
		if len(last.past) > mostPast {
			t.Fatalf("%d rules are remembered", len(last.past))
		}
	}
	for range 8 {
		take(table, epoch, "a", generations[0])
	}
	r := rand.New(rand.NewPCG(45, 46))
	for range 1000 {
		if a := take(table, epoch, "a", generations[r.IntN(len(generations))]); !a.Denied {
			t.Fatalf("%+v", a)
		}
	}
	checkTable(t, epoch, table)
}

// What was charged after the change, by who did not know of it, counts from then.
func TestAChargeAfterTheChange(t *testing.T) {
	t.Parallel()
	table, old := NewTable(10), New(NewTokenBucket(10*Token, Token))
	now := old.Successor(NewTokenBucket(10*Token, Token), epoch)
	for range 10 {
		take(table, epoch+5*second, "a", old)
	}
	if a := take(table, epoch+5*second, "a", now); !a.Denied || a.Wait != second {
		t.Errorf("%+v: the five seconds before flow in twice", a)
	}
}

// Half a capacity is left; by whatever rules it is taken meanwhile, it is not more.
func TestConcurrentSuccessionAdmitsNoMore(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	rule := NewTokenBucket(1000*Token, 0)
	var current atomic.Pointer[Bucket]
	current.Store(New(rule))
	for range 500 {
		table.Take(epoch, []byte("a"), current.Load(), nil)
	}
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				current.Store(current.Load().Successor(rule, epoch))
			}
		}
	})
	n := atOnce(func() bool { return table.Take(epoch, []byte("a"), current.Load(), nil) })
	close(stop)
	changes.Wait()
	if n != 500 {
		t.Errorf("admitted %d, want 500", n)
	}
}

func BenchmarkTableTake(b *testing.B) {
	table, bucket := NewTable(100_000), New(NewTokenBucket(MaxExact, Token))
	keys := make([][]byte, 100_000)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%012d", i)
		table.Take(epoch, keys[i], bucket, nil)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		var a Answer
		table.Take(epoch, keys[i%1000], bucket, &a)
	}
}
