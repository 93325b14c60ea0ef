package bucket

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkTake is the emergency bucket: one for all callers of an endpoint.
func BenchmarkTake(b *testing.B) {
	for name, bucket := range map[string]*Bucket{
		"allow": New(NewTokenBucket(MaxExact, MaxExact)),
		"deny":  emptied(New(NewTokenBucket(Token, 1))),
	} {
		b.Run(name, func(b *testing.B) {
			start := time.Now()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if bucket.Take(epoch+time.Since(start).Microseconds(), nil) != (name == "allow") {
						b.Error(name)
						return
					}
				}
			})
		})
	}
}

func emptied(b *Bucket) *Bucket {
	b.Take(epoch, nil)
	return b
}

// BenchmarkTableParallel is memory:// on all cores: one key, and many.
func BenchmarkTableParallel(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			table := NewTable(keys)
			groups := make([][]Item, keys)
			for i := range groups {
				groups[i] = []Item{item(fmt.Sprintf("sentinel:v1:%064x:billing.export:1", i), NewTokenBucket(MaxExact, Token))}
				table.Decide(epoch, groups[i], nil)
			}
			start := time.Now()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				answers := make([]Answer, 1)
				for i := uint64(0); pb.Next(); i++ {
					group := groups[i*0x9e3779b97f4a7c15>>32*uint64(keys)>>32]
					if !table.Decide(epoch+time.Since(start).Microseconds(), group, answers) {
						b.Error("denied")
						return
					}
				}
			})
		})
	}
}

// BenchmarkText is what a test of the script's state pays, and whoever reads it
// in Go.
func BenchmarkText(b *testing.B) {
	rule := NewTokenBucket(100*Token, Token)
	state, _ := rule.Decide(State{}, epoch, true)
	text := rule.Format(state)
	b.Run("format", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			rule.Format(state)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := rule.Parse(text); !ok {
				b.Fatalf("%q does not parse", text)
			}
		}
	})
}
