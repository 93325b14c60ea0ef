package sentinel

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// A request of cost 3 takes three tokens or none, and waits until there are
// three; what is known of one cost is not believed of another.
func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bucketPolicy("jobs", 10*Token, Token)
		p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 12, Window: time.Hour}}
		l := openMemory(t, memoryConfig(p))
		defer l.Close()
		l.remembers = true
		check := func(cost Cost, allowed bool, remaining int64, wait time.Duration) {
			t.Helper()
			d, err := l.Allow(t.Context(), "acme", "jobs", cost)
			if err != nil || d.Allowed != allowed || allowed && d.Remaining != remaining || d.RetryAfter != wait {
				t.Fatalf("cost %d: %+v, %v", cost, d, err)
			}
		}
		check(4, true, 6, 0)
		check(4, true, 2, 0)
		check(3, false, 2, time.Second)
		check(4, false, 2, 2*time.Second)
		check(11, false, 2, 0) // never: more than the bucket holds
		check(2, true, 0, 0)
		check(1, false, 0, time.Second)
		time.Sleep(2 * time.Second)
		check(1, true, 1, 0)
		time.Sleep(time.Minute)
		check(1, true, 0, 0) // the window's twelfth
		for _, bad := range []Cost{-1, bucket.MaxCost, 1 << 62} {
			check(bad, false, 0, 0)
		}
		if d, err := l.Allow(t.Context(), "other", "jobs", 1, 2); err != nil || d.Allowed {
			t.Errorf("two costs: %+v, %v", d, err)
		}
	})
}

// The emergency bucket takes the cost, too.
func TestCostWhileTheStoreIsAway(t *testing.T) {
	p := bucketPolicy("jobs", 100*Token, 0)
	p.FailMode, p.FallbackRate = FailOpen, 5*Token
	l := openMemory(t, memoryConfig(p))
	l.Close()
	for i, cost := range []Cost{3, 3, 2} {
		d, err := l.Allow(t.Context(), "acme", "jobs", cost)
		if err != nil || d.Allowed != (i != 1) {
			t.Errorf("cost %d: %+v, %v", cost, d, err)
		}
	}
}

func TestRequireCost(t *testing.T) {
	p := bucketPolicy("jobs", 10*Token, 0)
	p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 8, Window: time.Hour}}
	p.Plans = map[string]Plan{"trial": {Numbers: Numbers{Capacity: 6 * Token}}}
	p.Tenants = map[string]Plan{"tiny": {Numbers: Numbers{Capacity: 5 * Token}}}
	open := bucketPolicy("open", 10*Token, 0)
	open.FailMode, open.FallbackRate = FailOpen, 2*Token
	l := openMemory(t, memoryConfig(p, open))
	defer l.Close()
	for _, tc := range []struct {
		id   string
		cost Cost
		want string // "" means that it is fine
	}{
		{"jobs", 5, ""},
		{"jobs", 1, ""},
		{"jobs", 6, `policies["jobs"].tenants["tiny"]: a cost of 6 can never be admitted, for a limit is 5`},
		{"jobs", 7, `policies["jobs"].plans["trial"]: a cost of 7`},
		{"jobs", 9, `policies["jobs"]: a cost of 9 can never be admitted, for a limit is 8`},
		{"jobs", -1, "it must be 1 to 4503599627"},
		{"open", 2, ""},
		{"open", 3, `policies["open"].fallback_per_second: while Redis is away`},
		{"none", 1, "no policy"},
	} {
		err := l.RequireCost(tc.id, tc.cost)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s, %d: %v", tc.id, tc.cost, err)
		}
	}
}

// Only a call in which something costs more than 1 says so.
func TestEncodeCallWithCosts(t *testing.T) {
	cheap, dear := groupOf(cookieSubject), groupOf(cookieSubject)
	dear.cost = 5
	args := encodeCall(nil, modeDecide, []group{cheap, dear, dear})
	want := []any{"D", 1, "b", int64(1), int64(5_000_000), int64(1000), 2, "b", int64(5), int64(5_000_000), int64(1000)}
	if !slices.Equal(args[6:], want) {
		t.Errorf("%v, want %v after three keys", args, want)
	}
	if args := encodeCall(nil, modePeek, []group{dear}); args[4] != "P" {
		t.Errorf("%v", args)
	}
}
