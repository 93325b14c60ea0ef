package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/juju/ratelimit"
	"github.com/sethvargo/go-limiter/memorystore"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// memoryPeer is a contestant that keeps its buckets in this process.
type memoryPeer struct {
	name string
	open func(l *lab, q quota) (func(key string) bool, func(), error)
	// paces says that it makes callers wait and denies nobody.
	paces bool
}

const (
	nameTable     = "Sentinel, buckets in process"
	nameMemory    = "Sentinel, memory:// through Limiter.Allow"
	nameXTime     = "x/time/rate in a sync.Map"
	nameGoLimiter = "sethvargo/go-limiter memorystore"
	nameJuju      = "juju/ratelimit in a sync.Map"
	nameUber      = "uber-go/ratelimit in a sync.Map"
)

var memoryPeers = []memoryPeer{
	{name: nameXTime, open: inMap(func(q quota) *rate.Limiter {
		return rate.NewLimiter(rate.Every(q.every), int(q.burst))
	}, (*rate.Limiter).Allow)},
	{name: nameGoLimiter, open: openMemorystore},
	{name: nameJuju, open: inMap(func(q quota) *ratelimit.Bucket {
		return ratelimit.NewBucket(q.every, q.burst)
	}, func(b *ratelimit.Bucket) bool { return b.TakeAvailable(1) == 1 })},
	{name: nameUber, paces: true, open: inMap(func(quota) uber.Limiter {
		return uber.New(int(time.Second)) // one in a nanosecond: it never has to wait
	}, func(u uber.Limiter) bool { return !u.Take().IsZero() })},
	{name: nameTable, open: openTable},
	{name: nameMemory, open: openMemoryAllow},
}

// lasting denies nobody as long as a run lasts, and comes back so slowly that
// no bucket is full again meanwhile: a store that drops full ones has none to
// drop.
var lasting = quota{burst: 1_000_000_000, every: time.Minute}

// inMap keeps one limiter for each key in a sync.Map, as their users do.
func inMap[T any](fresh func(quota) T, take func(T) bool) func(*lab, quota) (func(string) bool, func(), error) {
	return func(_ *lab, q quota) (func(string) bool, func(), error) {
		var m sync.Map
		return func(key string) bool {
			v, ok := m.Load(key)
			if !ok {
				v, _ = m.LoadOrStore(key, fresh(q))
			}
			return take(v.(T))
		}, func() {}, nil
	}
}

func openMemorystore(l *lab, q quota) (func(string) bool, func(), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(q.burst), Interval: time.Hour})
	if err != nil {
		return nil, nil, err
	}
	return func(key string) bool {
		_, _, _, ok, err := store.Take(l.ctx, key)
		return ok && err == nil
	}, func() { _ = store.Close(context.WithoutCancel(l.ctx)) }, nil
}

// openTable is memory:// without the limiter around it: what the peers are.
func openTable(_ *lab, q quota) (func(string) bool, func(), error) {
	table := bucket.NewTable(2_000_000)
	overflow := bucket.New(bucket.NewTokenBucket(q.microCapacity(), q.microRate()))
	base := time.Now()
	return func(key string) bool {
		group := [1]bucket.Item{{Key: key, Overflow: overflow}}
		return table.Decide(time.Since(base).Microseconds(), group[:], nil)
	}, func() {}, nil
}

func openMemoryAllow(l *lab, q quota) (func(string) bool, func(), error) {
	limiter, err := openMemory(l, q)
	if err != nil {
		return nil, nil, err
	}
	return func(key string) bool {
		d, err := limiter.Allow(l.ctx, key, endpoint)
		return d.Allowed && err == nil
	}, closing(limiter), nil
}

// provePace shows that a contestant which paces does: the takes that its slack
// does not cover are a token's time apart.
func provePace() error {
	const takes = 20
	u := uber.New(1000, uber.WithoutSlack)
	start := time.Now()
	for range takes {
		u.Take()
	}
	if d := time.Since(start); d < (takes-1)*time.Millisecond {
		return fmt.Errorf("%s: %d takes at 1000 a second in %s", nameUber, takes, d)
	}
	return nil
}

// proveMemory is prove for a contestant in this process.
func proveMemory(l *lab, p memoryPeer) error {
	if p.paces {
		return provePace()
	}
	decide, done, err := p.open(l, scarce)
	if err != nil {
		return err
	}
	defer done()
	return prove(l.ctx, p.name, func(_ context.Context, key string) (bool, error) { return decide(key), nil })
}
