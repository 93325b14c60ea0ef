package sentineltest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/sentineltest"
)

// ten admits ten requests at once and two a second.
func ten(mode sentinel.FailMode) sentinel.Policy {
	return sentinel.Policy{
		EndpointID: "billing.export", Algorithm: sentinel.TokenBucket, FailMode: mode,
		FallbackRate: 100 * sentinel.Token, Version: 1, Capacity: 10 * sentinel.Token, RefillRate: 2 * sentinel.Token,
	}
}

func perDay() sentinel.Policy {
	return sentinel.Policy{
		EndpointID: "billing.export", Algorithm: sentinel.SlidingWindow, FailMode: sentinel.FailClosed,
		FallbackRate: sentinel.Token, Version: 1, Limit: 10, Window: 24 * time.Hour,
	}
}

func ask(t *testing.T, l *sentinel.Limiter) sentinel.Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), "acme", "billing.export")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// spend takes everything that is there and returns the denial.
func spend(t *testing.T, l *sentinel.Limiter) (admitted int, denial sentinel.Decision) {
	t.Helper()
	for d := ask(t, l); ; d = ask(t, l) {
		if !d.Allowed {
			return admitted, d
		}
		admitted++
	}
}

// Waiting exactly Retry-After admits, and a microsecond less does not.
func exactly(t *testing.T, l *sentinel.Limiter, wait func(time.Duration)) {
	t.Helper()
	n, d := spend(t, l)
	if n != 10 || d.Reason != sentinel.ReasonRateLimited || d.RetryAfter <= 0 {
		t.Fatalf("%d admitted, then %+v", n, d)
	}
	wait(d.RetryAfter - time.Microsecond)
	if d := ask(t, l); d.Allowed || d.RetryAfter != time.Microsecond {
		t.Errorf("a microsecond early: %+v", d)
	}
	wait(time.Microsecond)
	if d := ask(t, l); !d.Allowed {
		t.Errorf("in time: %+v", d)
	}
}

func TestVirtualTime(t *testing.T) {
	for name, p := range map[string]sentinel.Policy{"token bucket": ten(sentinel.FailClosed), "sliding window": perDay()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { exactly(t, sentineltest.Open(t, p), time.Sleep) })
		})
	}
}

func TestRedisTime(t *testing.T) {
	for name, p := range map[string]sentinel.Policy{"token bucket": ten(sentinel.FailClosed), "sliding window": perDay()} {
		t.Run(name, func(t *testing.T) {
			redis := sentineltest.NewRedis(t)
			exactly(t, sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), p)), redis.Advance)
		})
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []sentineltest.Fault
		reason sentinel.Reason // of the decision that fails open
		calls  int
		left   int64 // of ten tokens, after the next decision
	}{
		{"well", []sentineltest.Fault{sentineltest.Well}, sentinel.ReasonAllowed, 1, 8},
		{"silent", []sentineltest.Fault{sentineltest.Silent}, sentinel.ReasonRedisTimeout, 1, 9},
		{"late", []sentineltest.Fault{sentineltest.Late(250 * time.Millisecond)}, sentinel.ReasonRedisTimeout, 1, 8},
		{"lost", []sentineltest.Fault{sentineltest.Lost}, sentinel.ReasonRedisConnectionError, 1, 8},
		{"hung up", []sentineltest.Fault{sentineltest.HungUp}, sentinel.ReasonRedisConnectionError, 1, 9},
		{"one NOSCRIPT", []sentineltest.Fault{sentineltest.NoScript}, sentinel.ReasonAllowed, 2, 8},
		{"two NOSCRIPT", []sentineltest.Fault{sentineltest.NoScript, sentineltest.NoScript}, sentinel.ReasonRedisNoScriptRetry, 2, 9},
		{"loading", []sentineltest.Fault{sentineltest.Loading}, sentinel.ReasonRedisConnectionError, 1, 9},
		{"read only", []sentineltest.Fault{sentineltest.ReadOnly}, sentinel.ReasonRedisConnectionError, 1, 9},
		{"out of memory", []sentineltest.Fault{sentineltest.OutOfMemory}, sentinel.ReasonRedisConnectionError, 1, 9},
	} {
		for _, mode := range []sentinel.FailMode{sentinel.FailOpen, sentinel.FailClosed} {
			t.Run(tt.name+", "+string(mode), func(t *testing.T) {
				redis := sentineltest.NewRedis(t)
				l := sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), ten(mode)))
				redis.Play(tt.faults...)
				want := tt.reason
				if mode == sentinel.FailClosed && want != sentinel.ReasonAllowed {
					want = sentinel.ReasonFailClosed
				}
				if d := ask(t, l); d.Reason != want || d.Allowed != (want != sentinel.ReasonFailClosed) {
					t.Errorf("%+v, want %s", d, want)
				}
				if redis.Calls() != tt.calls {
					t.Errorf("%d calls, want %d", redis.Calls(), tt.calls)
				}
				time.Sleep(150 * time.Millisecond) // the late one is executed, and a connection is back
				if d := ask(t, l); !d.FromStore || d.Remaining != tt.left {
					t.Errorf("then %+v, want %d left", d, tt.left)
				}
			})
		}
	}
}

func TestStay(t *testing.T) {
	redis := sentineltest.NewRedis(t)
	l := sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), ten(sentinel.FailClosed)))
	redis.Stay(sentineltest.OutOfMemory)
	for range 5 {
		if d := ask(t, l); d.Reason != sentinel.ReasonFailClosed {
			t.Errorf("%+v", d)
		}
		time.Sleep(20 * time.Millisecond) // until a connection is back
	}
	if d := ask(t, l); d.Reason != sentinel.ReasonCircuitOpen {
		t.Errorf("after five failures %+v, breaker %s", d, l.Status().Breaker)
	}

	redis = sentineltest.NewRedis(t)
	redis.Stay(sentineltest.Loading)
	l = sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), ten(sentinel.FailClosed)))
	if s := l.Status(); !s.Degraded {
		t.Errorf("opened on a Redis that is loading: %+v", s)
	}
	redis.Stay(sentineltest.Well)
	for range 100 {
		if ask(t, l).Allowed {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("two seconds after the fault: %+v", l.Status())
}

func TestStop(t *testing.T) {
	redis := sentineltest.NewRedis(t)
	l := sentineltest.OpenConfig(t, sentineltest.Config(redis.URL(), ten(sentinel.FailOpen)))
	ask(t, l)
	redis.Stop()
	if d := ask(t, l); !d.Allowed || d.FromStore {
		t.Errorf("without a Redis: %+v", d)
	}
	if err := redis.Start(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if d := ask(t, l); d.FromStore {
			if d.Remaining != 8 {
				t.Errorf("%d left, want 8: nothing was lost and nothing charged meanwhile", d.Remaining)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("two seconds after the start: %+v", l.Status())
}

func TestBearer(t *testing.T) {
	l := sentineltest.Open(t, ten(sentinel.FailClosed))
	d, err := l.Check(t.Context(), sentinel.Request{
		EndpointID: "billing.export", Authorization: []string{sentineltest.Bearer(t, "acme")},
	})
	if err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	if d := ask(t, l); d.Remaining != 8 {
		t.Errorf("the token is another tenant's: %+v", d)
	}
}
