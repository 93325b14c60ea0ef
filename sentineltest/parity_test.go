package sentineltest_test

import (
	"math/rand/v2"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/sentineltest"
)

// The stand-in runs the script on another interpreter than Redis's: it must
// come to the answers of package bucket all the same.
func TestStandInAgreesWithTheArithmetic(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	for range 40 {
		var p sentinel.Policy
		var rule bucket.Rule
		if random.IntN(2) == 0 {
			p = ten(sentinel.FailClosed)
			p.Capacity = sentinel.Micro(1+random.IntN(5))*sentinel.Token + sentinel.Micro(random.IntN(1000))
			p.RefillRate = sentinel.Micro(1 + random.Int64N(1<<random.IntN(40)))
			rule = bucket.NewTokenBucket(int64(p.Capacity), int64(p.RefillRate))
		} else {
			p = perDay()
			p.Limit, p.Window = 1+random.Int64N(5), time.Duration(1000+random.IntN(1e9))*time.Microsecond
			rule = bucket.NewSlidingWindow(p.Limit, p.Window.Microseconds())
		}
		redis := sentineltest.NewRedis(t)
		l := sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), p))
		var state bucket.State
		var clock time.Duration
		for step := range 60 {
			d := ask(t, l)
			var want bucket.Answer
			state, want = rule.Decide(state, int64(time.Hour/time.Microsecond)+clock.Microseconds(), true)
			wait := time.Duration(max(want.Wait, 0)) * time.Microsecond
			if d.Allowed == want.Denied || d.Remaining != want.Remaining || d.NextAfter != wait ||
				d.ResetAfter != time.Duration(max(want.Reset, 0))*time.Second {
				t.Fatalf("%+v, step %d at %v: %+v, want %+v", p, step, clock, d, want)
			}
			advance := time.Duration(random.IntN(3)) * time.Microsecond
			if random.IntN(2) == 0 && wait < time.Hour { // aim at the next instant that changes something
				advance = max(0, wait-time.Microsecond+advance)
			}
			redis.Advance(advance)
			clock += advance
		}
	}
}
