package sentinel

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// benchmarkAllow measures Allow on l, which must answer with reason.
func benchmarkAllow(b *testing.B, l *Limiter, tenants int, reason Reason) {
	b.Helper()
	names := make([]string, tenants)
	for i := range names {
		names[i] = fmt.Sprint("tenant-", i)
	}
	ctx := context.Background()
	for _, name := range names {
		if _, err := l.Allow(ctx, name, "jobs"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			d, err := l.Allow(ctx, names[i%len(names)], "jobs")
			if err != nil || d.Reason != reason {
				b.Errorf("%+v, %v", d, err)
				return
			}
		}
	})
}

func BenchmarkMemoryAllow(b *testing.B) {
	l := openMemory(b, memoryConfig(bucketPolicy("jobs", 1<<52, 1<<40)), WithRegisterer(prometheus.NewRegistry()))
	defer l.Close()
	benchmarkAllow(b, l, 1, ReasonAllowed)
}

func BenchmarkMemoryAllow1000Tenants(b *testing.B) {
	l := openMemory(b, memoryConfig(bucketPolicy("jobs", 1<<52, 1<<40)), WithRegisterer(prometheus.NewRegistry()))
	defer l.Close()
	benchmarkAllow(b, l, 1000, ReasonAllowed)
}

func BenchmarkMemoryDeny(b *testing.B) {
	l := emptyBucket(b)
	defer l.Close()
	benchmarkAllow(b, l, 1, ReasonRateLimited)
}

// oneToken is a limiter in memory whose buckets have one token, once.
func oneToken(tb testing.TB, opts ...Option) *Limiter {
	tb.Helper()
	return openMemory(tb, memoryConfig(bucketPolicy("jobs", Token, 0)), append([]Option{WithRegisterer(prometheus.NewRegistry())}, opts...)...)
}

// emptyBucket is a limiter in memory that denies tenant-0 for ever.
func emptyBucket(tb testing.TB, opts ...Option) *Limiter {
	tb.Helper()
	l := oneToken(tb, opts...)
	mustAllow(tb, l, "tenant-0", "jobs")
	return l
}

func BenchmarkKnownDenial(b *testing.B) {
	l := knownDenial(b)
	defer l.Close()
	benchmarkAllow(b, l, 1, ReasonRateLimited)
}

// knownDenial is a limiter that knows tenant-0 to be over quota for an hour.
func knownDenial(tb testing.TB, opts ...Option) *Limiter {
	tb.Helper()
	l := oneToken(tb, opts...)
	l.remembers = true
	until := l.now() + time.Hour
	l.subjects.of(l.setup.Load().endpoints["jobs"], "", "tenant-0").denial.Store(&denial{until: until, admits: until, full: never})
	return l
}

func BenchmarkBreakerOpen(b *testing.B) {
	l := breakerOpen(b)
	defer l.Close()
	benchmarkAllow(b, l, 1, ReasonCircuitOpen)
}

// breakerOpen is a limiter whose breaker is open.
func breakerOpen(tb testing.TB, opts ...Option) *Limiter {
	tb.Helper()
	l := oneToken(tb, opts...)
	s := &shard{redis: &redisStore{stop: func() {}}, epoch: l.epoch, breaker: breaker.New(breaker.Settings{Failures: 1, OpenFor: time.Hour})}
	pass, _ := s.breaker.Acquire(l.now())
	s.breaker.Report(l.now(), pass, breaker.Failure)
	l.store = s
	return l
}

func BenchmarkTenantKey(b *testing.B) {
	b.ReportAllocs()
	tenant := strings.Repeat("a", 20)
	for b.Loop() {
		tenantKey(tenant, "billing.export", 1)
	}
}

// What needs no Redis allocates nothing.
func TestDecisionsThatNeedNoRedisDoNotAllocate(t *testing.T) {
	ctx := context.Background()
	for name, l := range map[string]*Limiter{
		"memory":       openMemory(t, memoryConfig(bucketPolicy("jobs", 1<<52, 1<<40)), WithRegisterer(prometheus.NewRegistry())),
		"known denial": knownDenial(t),
		"breaker open": breakerOpen(t),
	} {
		mustAllow(t, l, "tenant-0", "jobs")
		for range 2 * denialLinesPerSecond { // the log has had its lines
			mustAllow(t, l, "tenant-0", "jobs")
		}
		n := testing.AllocsPerRun(100, func() {
			if _, err := l.Allow(ctx, "tenant-0", "jobs"); err != nil {
				t.Error(err)
			}
		})
		// A new second may have begun, and with it new lines of the log.
		if n >= 1 {
			t.Errorf("%s: %v allocations a decision", name, n)
		}
		l.Close()
	}
}
