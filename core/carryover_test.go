package sentinel

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// raised is p as version 2, which begins with the buckets of version 1.
func raised(p Policy) Policy {
	p.Version, p.CarryOver = 2, 1
	return p
}

// memory:// carries over what the process has: under every plan and limit, and not
// from another identity.
func TestCarryOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bucketPolicy("jobs", 10*Token, 0)
		p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 7, Window: time.Hour}}
		p.Tenants = map[string]Plan{"vip": {Numbers: Numbers{Capacity: 100 * Token}, Also: []Numbers{{Limit: 50}}}}
		before := openMemory(t, memoryConfig(p))
		now := openMemory(t, memoryConfig(raised(p)))
		defer before.Close()
		defer now.Close()
		now.store, now.epoch = before.store, before.epoch
		for range 4 {
			mustAllow(t, before, "acme", "jobs")
			mustAllow(t, before, "vip", "jobs")
		}
		if d := mustAllow(t, now, "acme", "jobs"); !d.Allowed || d.Remaining != 2 { // in the window; 5 in the bucket
			t.Errorf("%+v", d)
		}
		if d := mustAllow(t, now, "vip", "jobs"); !d.Allowed || d.Remaining != 45 {
			t.Errorf("%+v", d)
		}
		if d := mustAllow(t, before, "acme", "jobs"); d.Remaining != 2 {
			t.Errorf("%+v: the old version has been charged", d)
		}
		time.Sleep(2 * time.Hour) // the windows are over; the buckets never refill
		if d := mustAllow(t, now, "acme", "jobs"); d.Remaining != 4 {
			t.Errorf("%+v", d)
		}
	})
}

// A running limiter carries over what it has in memory.
func TestUpdateCarriesOver(t *testing.T) {
	t.Parallel()
	p := bucketPolicy("jobs", 5*Token, 0)
	l := openMemory(t, memoryConfig(p))
	defer l.Close()
	for range 3 {
		mustAllow(t, l, "acme", "jobs")
	}
	p = raised(p)
	if err := l.Update(memoryConfig(p)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if d := mustAllow(t, l, "acme", "jobs"); d.Allowed != (i < 2) || d.Remaining != int64(max(1-i, 0)) {
			t.Errorf("%d: %+v", i, d)
		}
	}
	p.Version, p.CarryOver = 3, 0
	if err := l.Update(memoryConfig(p)); err != nil {
		t.Fatal(err)
	}
	if d := mustAllow(t, l, "acme", "jobs"); d.Remaining != 4 {
		t.Errorf("%+v: nothing is carried over unless it is asked for", d)
	}
}

// A cluster that the application brought is known to Update only by the limiter.
func TestUpdateCarriesNothingOverInACluster(t *testing.T) {
	t.Parallel()
	p := bucketPolicy("jobs", Token, 0)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer client.Close()
	l, err := New(t.Context(), client, memoryConfig(p), WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Update(memoryConfig(raised(p))); err == nil || !strings.HasPrefix(err.Error(), `policies["jobs"].carry_over: not in a Redis Cluster`) {
		t.Errorf("%v", err)
	}
}

// Both keys of each bucket are in the call, the old ones last, and no other call
// has any of it.
func TestEncodeCallThatCarriesOver(t *testing.T) {
	t.Parallel()
	p := bucketPolicy("jobs", 5*Token, 1000)
	p.Version, p.CarryOver = 3, 1
	p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 10, Window: time.Minute}}
	var carried, plain group
	carried.add(newSubject(newEndpoint(p, 0), newEndpoint(p, 0).rule, "", "acme"))
	p.CarryOver = 0
	plain.add(newSubject(newEndpoint(p, 0), newEndpoint(p, 0).rule, "", "acme"))
	key := p.RedisKey("acme")
	old := strings.TrimSuffix(key, "3") + "1"
	numbers := []any{int64(5_000_000), int64(1000), int64(10), int64(60_000_000)}
	for _, tc := range []struct {
		group group
		want  []any
	}{
		{carried, []any{4, key, "sentinel:{" + key + "}:2", old, "sentinel:{" + old + "}:2", "d", 1, "BW"}},
		{plain, []any{2, key, "sentinel:{" + key + "}:2", "d", 1, "bw"}},
	} {
		args := encodeCall(nil, modeDecide, []group{tc.group})[2:]
		for i, a := range args {
			if s, ok := a.(*string); ok {
				args[i] = *s
			}
		}
		if want := append(tc.want, numbers...); !slices.Equal(args, want) {
			t.Errorf("%v\nwant %v", args, want)
		}
	}
}

func TestEncodeCallThatCarriesOverAllocations(t *testing.T) {
	s := &subject{key: "new", previous: "old", rule: newRule(bucket.NewTokenBucket(bucket.Token, 0), 0)}
	groups := []group{groupOf(s)}
	args := make([]any, 0, 32)
	if n := testing.AllocsPerRun(100, func() { args = encodeCall(args[:0], modeDecide, groups) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// In a cluster the keys of two versions are in two slots, whoever brings it.
func TestCarryOverInACluster(t *testing.T) {
	t.Parallel()
	cfg := memoryConfig(raised(bucketPolicy("jobs", Token, 0)), raised(bucketPolicy("b", Token, 0)), bucketPolicy("c", Token, 0))
	cfg.App.RedisURL = NewSecret("redis-cluster://127.0.0.1:1")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer client.Close()
	inCode := *cfg
	inCode.App.RedisURL = Secret{}
	_, byNew := New(t.Context(), client, &inCode)
	for name, err := range map[string]error{"Validate": cfg.Validate(), "New": byNew} {
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], `policies["b"].carry_over: not in a Redis Cluster`) || !strings.HasPrefix(lines[1], `policies["jobs"].carry_over: `) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCarryOverRange(t *testing.T) {
	t.Parallel()
	for from, ok := range map[int64]bool{-1: false, 0: true, 1: true, 2: true, 3: false, 4: false} {
		p := bucketPolicy("jobs", Token, 0)
		p.Version, p.CarryOver = 3, from
		if err := memoryConfig(p).Validate(); (err == nil) != ok {
			t.Errorf("version 3 carries %d over: %v", from, err)
		}
	}
}
