package upstream

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

func numbered(i int) *url.URL { return &url.URL{Scheme: "http", Host: fmt.Sprintf("b%d:80", i)} }

// A whole lease, by strategy and number of backends.
func BenchmarkAcquire(b *testing.B) {
	for _, balance := range balances {
		for _, n := range []int{3, 30, 300} {
			b.Run(fmt.Sprintf("%s/%d", balance, n), func(b *testing.B) {
				c := config.Pool{Name: "pool", Balance: balance, Breaker: config.Breaker{Failures: 5, OpenFor: 1e9}}
				for i := range n {
					c.Backends = append(c.Backends, config.Backend{URL: numbered(i), Weight: 1 + i%2})
				}
				r := NewRegistry(Options{})
				p := r.Generation([]config.Pool{c}, requestTimeout).Pool("pool")
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						l, _, _ := p.Acquire()
						l.Report(breaker.Success)
						l.Done()
					}
				})
			})
		}
	}
}

// What an outage costs: every breaker is open.
func BenchmarkRefusal(b *testing.B) {
	c := config.Pool{Name: "pool", Breaker: config.Breaker{Failures: 1, OpenFor: 1e12}}
	for i := range 3 {
		c.Backends = append(c.Backends, config.Backend{URL: numbered(i), Weight: 1})
	}
	p := NewRegistry(Options{}).Generation([]config.Pool{c}, requestTimeout).Pool("pool")
	for range 3 {
		l, _, _ := p.Acquire()
		l.Report(breaker.Failure)
		l.Done()
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if l, _, _ := p.Acquire(); l != nil {
				b.Error("open, and a lease")
				return
			}
		}
	})
}
