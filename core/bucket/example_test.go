package bucket_test

import (
	"fmt"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// A bucket of two requests that refills one per second. Time is a parameter,
// here microseconds since nothing in particular.
func Example() {
	b := bucket.New(bucket.NewTokenBucket(2*bucket.Token, bucket.Token))
	var a bucket.Answer
	for _, now := range []int64{0, 100_000, 200_000, 999_999, 1_000_000} {
		if b.Take(now, &a) {
			fmt.Printf("at %7d: admitted, %d left\n", now, a.Remaining)
		} else {
			fmt.Printf("at %7d: denied, ask again in %d microseconds\n", now, a.Wait)
		}
	}
	// Output:
	// at       0: admitted, 1 left
	// at  100000: admitted, 0 left
	// at  200000: denied, ask again in 800000 microseconds
	// at  999999: denied, ask again in 1 microseconds
	// at 1000000: admitted, 0 left
}

// The decision itself is a pure function of the rule, the stored state and the
// time. The text is what Redis stores.
func ExampleRule_Decide() {
	rule := bucket.NewSlidingWindow(10, 60_000_000)
	state, _ := rule.Parse("3:8:1790000000000000")
	next, answer := rule.Decide(state, 1790000045000000, true)
	fmt.Println(rule.Format(next), "remaining", answer.Remaining)
	// Output:
	// 4:8:1790000000000000 remaining 4
}

// A Table decides about several buckets at once: all are charged, or none.
func ExampleTable() {
	table := bucket.NewTable(1_000_000)
	cookie := bucket.Item{Key: "cookie", Overflow: bucket.New(bucket.NewTokenBucket(5*bucket.Token, 0))}
	ip := bucket.Item{Key: "ip", Overflow: bucket.New(bucket.NewTokenBucket(1*bucket.Token, 0))}
	answers := make([]bucket.Answer, 2)
	for range 2 {
		allowed := table.Decide(0, []bucket.Item{cookie, ip}, answers)
		fmt.Println(allowed, answers[0].Remaining, answers[1].Remaining)
	}
	// Output:
	// true 4 0
	// false 4 0
}
