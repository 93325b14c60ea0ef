package bucket

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// after is a key that begins with another's bucket.
func after(previous, key string, rule Rule) Item {
	it := item(key, rule)
	it.Previous = previous
	return it
}

func TestCarriedOver(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	v1, v2 := item("v1", NewTokenBucket(10*Token, 0)), after("v1", "v2", NewTokenBucket(5*Token, 0))
	for range 7 {
		table.Decide(epoch, []Item{v1}, nil)
	}
	if answers, ok := answered(table.Peek, epoch, v2); !ok || answers[0].Remaining != 3 || table.Len() != 1 {
		t.Errorf("allowed %t, %+v, and %d keys after a look", ok, answers, table.Len())
	}
	for left := int64(2); left >= 0; left-- {
		if answers, ok := answered(table.Decide, epoch, v2); !ok || answers[0].Remaining != left || answers[0].Corrupt {
			t.Errorf("allowed %t, %+v, want %d to remain", ok, answers, left)
		}
	}
	if answers, ok := answered(table.Decide, epoch, v2); ok || answers[0].Wait != Never {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
	if answers, _ := answered(table.Peek, epoch, v1); answers[0].Remaining != 3 {
		t.Errorf("%+v: the old bucket has been charged", answers)
	}
}

// What is above the new capacity is cut, and the new rate counts from when the old
// bucket was last charged.
func TestCarriedOverByTheNewNumbers(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	table.Decide(epoch, []Item{item("v1", NewTokenBucket(10*Token, 0))}, nil)
	if answers, _ := answered(table.Decide, epoch, after("v1", "cut", NewTokenBucket(4*Token, 0))); answers[0].Remaining != 3 {
		t.Errorf("%+v, want 4 - 1", answers)
	}
	if answers, _ := answered(table.Decide, epoch+2*second, after("v1", "more", NewTokenBucket(100*Token, Token))); answers[0].Remaining != 10 {
		t.Errorf("%+v, want 9 + 2 - 1", answers)
	}
}

// A denial stores nothing under either key, nor at an innocent partner's.
func TestCarriedDenial(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	table.Decide(epoch, []Item{item("v1", NewTokenBucket(Token, 1000))}, nil)
	for range 3 {
		answers, ok := answered(table.Decide, epoch, item("partner", NewTokenBucket(Token, 0)), after("v1", "v2", NewTokenBucket(Token, 1000)))
		if ok || answers[0].Denied || !answers[1].Denied || answers[1].Wait != 1000*second || table.Len() != 1 {
			t.Fatalf("allowed %t, %+v, %d keys", ok, answers, table.Len())
		}
	}
	if _, ok := answered(table.Decide, epoch+1000*second-1, after("v1", "v2", NewTokenBucket(Token, 1000))); ok {
		t.Error("admitted before its wait")
	}
	if _, ok := answered(table.Decide, epoch+1000*second, after("v1", "v2", NewTokenBucket(Token, 1000))); !ok {
		t.Error("denied after its wait")
	}
}

// A bucket of another algorithm is corrupt, and so fresh.
func TestCarriedOverToAnotherAlgorithm(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	table.Decide(epoch, []Item{item("v1", NewTokenBucket(Token, 0))}, nil)
	v2 := after("v1", "v2", NewSlidingWindow(2, second))
	if answers, ok := answered(table.Decide, epoch, v2); !ok || !answers[0].Corrupt || answers[0].Remaining != 1 {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
	if answers, ok := answered(table.Decide, epoch, v2); !ok || answers[0].Corrupt || answers[0].Remaining != 0 {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
}

// A reset holds: what came before does not come back when the fresh bucket has
// been dropped, for it is full.
func TestResetOfWhatIsCarriedOver(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	rule := NewTokenBucket(3*Token, 1)
	v1, v2 := item("v1", rule), after("v1", "v2", rule)
	for range 3 {
		table.Decide(epoch, []Item{v1}, nil)
	}
	if answers, ok := answered(table.Reset, epoch, v2); !ok || answers[0].Remaining != 3 {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
	if answers, ok := answered(table.Decide, epoch+60*second, v2); !ok || answers[0].Remaining != 2 {
		t.Errorf("allowed %t, %+v", ok, answers)
	}
}

// What does not fit shares the overflow bucket, whatever it was.
func TestCarriedOverInAFullTable(t *testing.T) {
	t.Parallel()
	table := NewTable(1)
	table.Decide(epoch, []Item{item("v1", NewTokenBucket(5*Token, 0))}, nil)
	if answers, ok := answered(table.Decide, epoch, after("v1", "v2", NewTokenBucket(2*Token, 0))); !ok || answers[0].Remaining != 1 || table.Len() != 1 {
		t.Errorf("allowed %t, %+v, %d keys", ok, answers, table.Len())
	}
}

func TestConcurrentCarryingAdmitsExactlyWhatIsLeft(t *testing.T) {
	t.Parallel()
	table := NewTable(10)
	table.Decide(epoch, []Item{{Key: "v1", Overflow: New(NewTokenBucket(1235*Token, 0)), Cost: 1000}}, nil)
	v2 := []Item{after("v1", "v2", NewTokenBucket(2000*Token, 0))}
	if n := atOnce(func() bool { return table.Decide(epoch, v2, nil) }); n != 235 {
		t.Errorf("admitted %d, want 235", n)
	}
}

// Over any time and any two rules the new key decides as the old state would by the
// new rule, also after one of the two has been dropped; a fresh one once the old
// one has expired.
func TestCarriedOverAgainstTheArithmetic(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(31, 32))
	random := func() Rule {
		if r.IntN(2) == 0 {
			return NewSlidingWindow(1+r.Int64N(5), 1+r.Int64N(3*second))
		}
		return NewTokenBucket((1+r.Int64N(5))*Token, r.Int64N(4)*r.Int64N(Token))
	}
	table, now := NewTable(100_000), int64(epoch)
	expired, denied := 0, 0
	for round := range 5000 {
		was, is := random(), random()
		old := item(fmt.Sprint("old", round), was)
		var before, state State
		for range r.IntN(6) {
			before, _ = was.Decide(before, now, true)
			table.Decide(now, []Item{old}, nil)
			now += r.Int64N(second)
		}
		it := after(old.Key, fmt.Sprint("new", round), is)
		for step := range 10 {
			if state == (State{}) {
				switch at := was.expiry(before); {
				case before == (State{}):
				case at > 0 && at <= now/second:
					before, expired = State{}, expired+1
				case was.sliding != is.sliding:
					state = State{stamp: corrupt}
				default:
					state = before
				}
			}
			cost := 1 + r.Int64N(2)
			it.Cost = cost
			next, want := is.DecideCost(state, now, cost, true)
			got, ok := answered(table.Decide, now, it)
			if ok == want.Denied || got[0] != want {
				t.Fatalf("round %d, step %d: %+v after %+v, %+v: %+v, want %+v", round, step, is, was, state, got[0], want)
			}
			if state = next; want.Denied { // nothing was stored: the old one decides again
				state, denied = State{}, denied+1
				if table.lookup(it.Key) != nil {
					state = next
				}
			}
			now += r.Int64N(second)
		}
	}
	if expired < 100 || denied < 100 {
		t.Errorf("%d have expired, %d were denied: the generator misses its aim", expired, denied)
	}
}
