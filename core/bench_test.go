package sentinel

import (
	"context"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// BenchmarkCheckTenant is a whole check without Redis: the token, the key, the
// decision.
func BenchmarkCheckTenant(b *testing.B) {
	l := openMemory(b, memoryConfig(bucketPolicy("jobs", bucket.MaxExact, bucket.MaxExact)))
	defer l.Close()
	l.setup.Load().tenants = testVerifier("HS256")
	req := Request{EndpointID: "jobs", Authorization: []string{"Bearer " + hs256(`{"sub":"acme","exp":4000000000}`)}}
	benchmarkCheck(b, l, req)
}

// BenchmarkCheckAnonymous is a client with a valid cookie: its MAC, both keys,
// both buckets.
func BenchmarkCheckAnonymous(b *testing.B) {
	p := bucketPolicy("page", bucket.MaxExact, bucket.MaxExact)
	p.Identity = Anonymous
	l := openMemory(b, memoryConfig(p))
	defer l.Close()
	c := l.setup.Load().anonymous.mint(time.Now())
	benchmarkCheck(b, l, Request{EndpointID: "page", Cookies: []string{c.Name + "=" + c.Value}, Peer: "192.0.2.1:1234"})
}

func benchmarkCheck(b *testing.B, l *Limiter, req Request) {
	b.Helper()
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if d, err := l.Check(ctx, req); err != nil || !d.Allowed {
				b.Errorf("%+v, %v", d, err)
				return
			}
		}
	})
}

func BenchmarkAnonymousKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		anonymousKey(peerIdentityOf("192.0.2.1:1234", 64), "billing.export", 1)
	}
}

func BenchmarkMint(b *testing.B) {
	l := openMemory(b, memoryConfig(bucketPolicy("jobs", bucket.Token, 0)))
	defer l.Close()
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		l.setup.Load().anonymous.mint(now)
	}
}
