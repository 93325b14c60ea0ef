package proxy

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestABudgetAllowsAShareAndAFewInAnyCase(t *testing.T) {
	for _, c := range []struct{ active, percent, least, most int64 }{
		{0, 20, 3, 3}, {1, 20, 3, 3}, {15, 20, 3, 3}, {19, 20, 3, 3}, {20, 20, 3, 4}, {1000, 20, 3, 200}, {1000, 0, 0, 0}, {10, 100, 3, 10},
	} {
		var b Budget
		for range c.active {
			b.begin()
		}
		var taken atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for b.take(c.percent, c.least) {
					taken.Add(1)
				}
			})
		}
		all.Wait()
		if taken.Load() != c.most || b.underWay() != c.most {
			t.Errorf("%+v: %d", c, taken.Load())
		}
	}
}

// Whoever comes and goes, and however soon retries end: of many requests no more
// than a fifth are sent again.
func TestRetriesAreAShareOfAllRequests(t *testing.T) {
	for range 100 {
		var b Budget
		const requests = 1000
		for range requests {
			b.begin()
		}
		waiting, retries, taken := requests, 0, 0
		for waiting+retries > 0 {
			switch {
			case retries == 0 || waiting > 0 && rand.IntN(2) == 0:
				waiting--
				if b.take(20, 3) {
					retries++
					taken++
					break
				}
				b.end()
			default: // it fails, too, and asks once more
				retries--
				b.give()
				if b.take(20, 3) {
					retries++
					taken++
					break
				}
				b.end()
			}
		}
		if taken < 3 || taken > requests/5 {
			t.Fatalf("%d of %d", taken, requests)
		}
	}
}

func TestAFewRequestsMayAlwaysBeSentAgain(t *testing.T) {
	var b Budget
	b.begin() // for ever
	for range 100 {
		b.begin()
		for range 2 {
			if !b.take(20, 3) {
				t.Fatal("one of two requests may not be sent again")
			}
			b.give()
		}
		b.end()
	}
}

func TestACrowdIsForgotten(t *testing.T) {
	crowd := func(b *Budget) {
		for range 100 {
			b.begin()
		}
		for range 20 {
			if !b.take(20, 3) {
				t.Error("not even the first")
			}
			b.give()
		}
		if b.take(20, 3) {
			t.Error("more than a fifth of them")
		}
		for range 99 {
			b.end()
		}
		if b.take(20, 3) {
			t.Error("more than a fifth of them when they have gone")
		}
	}
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		crowd(&b)
		b.end() // all have gone
		b.begin()
		if !b.take(20, 3) {
			t.Error("the next request may not be sent again")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		crowd(&b)
		time.Sleep(budgetPeriod + 1)
		if !b.take(20, 3) {
			t.Error("after the period nothing may be sent again")
		}
	})
}

// A pool that was crowded once is no crowded one when it has had nothing to do.
func TestAPeriodThatIsOverCrowdsNoLaterOne(t *testing.T) {
	var b Budget
	for range 100 {
		b.begin()
	}
	if !b.take(20, 3) {
		t.Fatal("the first retry is refused")
	}
	b.give()
	for range 100 {
		b.end()
	}
	b.begin()
	for i := range 10 {
		if !b.take(20, 3) {
			t.Fatalf("retry %d of a pool with one request is refused", i)
		}
		b.give()
	}
}

// Retries that are under way when a period begins are of it.
func TestAPeriodBeginsWithTheRetriesThatAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		for range 100 {
			b.begin()
		}
		for range 20 {
			if !b.take(20, 3) {
				t.Fatal("a retry within the share is refused")
			}
		}
		time.Sleep(budgetPeriod + time.Second)
		taken := 0
		for range 20 {
			b.give()
			if !b.take(20, 3) {
				break
			}
			taken++
		}
		if taken != 1 {
			t.Errorf("%d retries were allowed besides those under way, want 1", taken)
		}
	})
}
