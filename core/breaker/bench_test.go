package breaker

import (
	"testing"
	"time"
)

// A call that passes and is well: what every decision on Redis pays.
func BenchmarkPass(b *testing.B) {
	br := New(Settings{Failures: 5, OpenFor: time.Minute})
	const now = time.Second
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, ok := br.Acquire(now)
			if !ok {
				b.Error("a closed breaker lets nobody pass")
				return
			}
			br.Report(now, p, Success)
		}
	})
}

// A call that is turned away.
func BenchmarkOpen(b *testing.B) {
	br := New(Settings{Failures: 1, OpenFor: time.Minute})
	const now = time.Second
	p, _ := br.Acquire(now)
	br.Report(now, p, Failure)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := br.Acquire(now); ok {
				b.Error("an open breaker lets somebody pass")
				return
			}
		}
	})
}
