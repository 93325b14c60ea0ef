package sentinel

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/breaker"
)

const (
	// maxRedirects bounds how often one question is sent on: by a map that is
	// old, then into a slot that is on its way.
	maxRedirects = 3
	// retireAfter is how long a master that the map does not name is kept.
	retireAfter = 10 * time.Second
	// maxShards is more than a cluster has; what is beyond it is nonsense.
	maxShards = 1000
)

// cluster is the masters of a Redis Cluster. Each is a shard with connections,
// a queue and a breaker of its own, so that one that is dead costs only those
// whose slots it had. Which has which slot is in a map that is kept up to date
// beside the decisions (clustermap.go).
type cluster struct {
	health   // of what no master could be asked
	log      *slog.Logger
	oneByOne bool
	// client makes the client of a node.
	client func(addr string) (*redis.Client, *handoff)
	// shard makes the shard of a master, with the key of its start check; quiet
	// as in newShard.
	shard func(addr, checkKey string, quiet bool) *shard
	seeds []string // the addresses that were given
	// slots is the application's own way to learn the map; nil: ask the nodes.
	slots func(context.Context) ([]redis.ClusterSlot, error)

	table  atomic.Pointer[slotTable]    // nil before the first map
	failed atomic.Pointer[storeFailure] // why there is no map, or no newer one
	wake   chan struct{}                // asks for a newer map

	mu     sync.Mutex
	shards map[string]*shard // by address: of the map, and those named of late
	askers map[string]*asker // by address
	quiet  bool              // Open waits for the first map, and reports
	closed bool

	known   chan struct{} // closed when the first look is over
	stop    context.CancelFunc
	running sync.WaitGroup
}

// slotTable says which shard has which slot; nil: none has it. It is never
// changed.
type slotTable struct {
	of     [clusterSlots]*shard
	shards []*shard // each once, in the order of their slots
	gaps   bool     // some slot has none
}

// start begins to look for the map.
func (c *cluster) start() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.wake, c.known = stop, make(chan struct{}, 1), make(chan struct{})
	c.shards, c.askers, c.quiet = make(map[string]*shard), make(map[string]*asker), true
	c.failed.Store(&storeFailure{kind: kindConnection, detail: "connecting"})
	c.running.Go(func() { c.follow(ctx) })
}

// decide implements store.
func (c *cluster) decide(ctx context.Context, q question) (verdict, *storeFailure, error) {
	slot := q.group.of[0].slot
	for _, of := range q.group.of[1:q.group.n] {
		if of.slot != slot {
			return c.apart(ctx, q)
		}
	}
	return c.ask(ctx, q)
}

// ask asks the master of the slot that all keys of the group are in. A node that
// redirects has executed nothing, so the question goes on to where it says,
// within the same budget.
func (c *cluster) ask(ctx context.Context, q question) (verdict, *storeFailure, error) {
	q.slot = q.group.of[0].slot
	s, failure := c.owner(q.slot)
	if failure != nil {
		c.note(nil, failure)
		return verdict{}, failure, ctx.Err()
	}
	for redirects := 0; ; redirects++ {
		v, failure, err := s.decide(ctx, q)
		if failure == nil || err != nil {
			return v, failure, err
		}
		to := failure.redirect
		if to == nil {
			if failure != circuitOpen {
				c.look()
			}
			return v, failure, nil
		}
		next := c.target(s, &q, to)
		if next == nil || redirects == maxRedirects {
			s.note(nil, failure)
			return v, failure, nil
		}
		s = next
	}
}

// target is where a redirected question goes, nil if that leads nowhere.
func (c *cluster) target(from *shard, q *question, to *redirect) *shard {
	q.asking = to.asking
	switch {
	case to.addr == "" && q.alone: // it was alone already
		return nil
	case to.addr == "":
		q.alone = true
		return from
	case to.asking:
		q.alone = true
	default:
		c.look() // the map is old
	}
	return c.named(resolveNode(to.addr, from.redis.client.Options().Addr), nil)
}

// apart decides on a group whose keys are in several slots, which no script may
// read together. So that a denial charges nothing, all slots but the first are
// looked at before any is charged, and the first, if it denies, ends it.
//
// What remains is a bucket that was emptied by others between the look and the
// charge: then the slots before it have been charged for a request that is
// denied, one token each. Nothing is ever given back, for only time may add
// tokens: known denials rest on that.
func (c *cluster) apart(ctx context.Context, q question) (verdict, *storeFailure, error) {
	q.beside = nil // a candidate never takes steps of its own: it stays unanswered
	v := newVerdict(q.group.n)
	v.allowed = true
	parts := q.group.bySlot()
	charge := q.mode
	if q.mode == modeDecide {
		for _, p := range parts[1:] {
			if failure, err := c.askPart(ctx, q, modePeek, p, &v); failure != nil || err != nil {
				return verdict{}, failure, err
			}
		}
		if !v.allowed { // the first still says how long it would deny
			charge, parts = modePeek, parts[:1]
		}
	}
	for _, p := range parts {
		failure, err := c.askPart(ctx, q, charge, p, &v)
		if failure != nil || err != nil {
			return verdict{}, failure, err
		}
		if !v.allowed && charge == modeDecide {
			break
		}
	}
	return v, nil, nil
}

// askPart asks for the buckets of one slot, and writes the answers to where they
// belong in v.
func (c *cluster) askPart(ctx context.Context, q question, m mode, p slotPart, v *verdict) (*storeFailure, error) {
	if q.mode == modeDecide { // what goes in several steps may gather in each
		q.alone = c.oneByOne
	}
	q.mode, q.group = m, p.group
	got, failure, err := c.ask(ctx, q)
	if failure != nil || err != nil {
		return failure, err
	}
	for i, a := range got.buckets() {
		v.buckets()[p.at[i]] = a
	}
	v.allowed = v.allowed && got.allowed
	return nil, nil
}

// slotPart is the buckets of a group that share a slot, and their numbers there.
type slotPart struct {
	group group
	at    [maxGroup]int
}

// bySlot returns the group in parts, each of one slot, in order.
func (g *group) bySlot() []slotPart {
	var parts []slotPart
	for i, s := range g.of[:g.n] {
		var p *slotPart
		for j := range parts {
			if parts[j].group.of[0].slot == s.slot {
				p = &parts[j]
			}
		}
		if p == nil {
			parts = append(parts, slotPart{})
			p = &parts[len(parts)-1]
		}
		p.at[p.group.n] = i
		p.group.cost = g.cost
		p.group.push(s)
	}
	return parts
}

// current returns the map, or why there is none.
func (c *cluster) current() (*slotTable, *storeFailure) {
	if t := c.table.Load(); t != nil {
		return t, nil
	}
	// In this order: the first map is there before the failure goes.
	failure := c.failed.Load()
	return c.table.Load(), failure
}

// owner returns the shard that has the slot by the map.
func (c *cluster) owner(slot uint16) (*shard, *storeFailure) {
	t, failure := c.current()
	if t == nil {
		return nil, failure
	}
	if s := t.of[slot]; s != nil {
		return s, nil
	}
	c.look()
	return nil, noOwner
}

// noOwner is never changed.
var noOwner = &storeFailure{kind: kindConnection, detail: "no master of the cluster has this slot"}

// named returns the shard at an address that a node has named, nil after close.
// checkKey gives the key of the start check of a new one; nil: it has no slot
// that we know of.
func (c *cluster) named(addr string, checkKey func() string) *shard {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.shards[addr]
	switch {
	case c.closed, s == nil && len(c.shards) >= maxShards:
		return nil
	case s == nil && checkKey == nil:
		s = c.shard(addr, startCheck, c.quiet)
	case s == nil:
		s = c.shard(addr, checkKey(), c.quiet)
	}
	c.shards[addr] = s
	s.named.Store(time.Now().UnixNano())
	return s
}

// breakerState implements store: the worst there is.
func (c *cluster) breakerState() string {
	worst := breaker.Closed
	for _, s := range c.masters() {
		worst = max(worst, s.breaker.State())
	}
	return worst.String()
}

// masters are the shards of the map.
func (c *cluster) masters() []*shard {
	if t := c.table.Load(); t != nil {
		return t.shards
	}
	return nil
}

// status implements store. One master that decides makes the store ready, one
// that does not makes it degraded.
func (c *cluster) status() Status {
	all := Status{Store: "redis", Breaker: c.breakerState(), LastError: c.lastError()}
	t, f := c.current()
	if t == nil {
		all.Degraded, all.Detail, all.LastError = true, f.detail, string(f.kind)
		return all
	}
	bad := 0
	for _, s := range t.shards {
		one := s.status()
		all.Ready = all.Ready || one.Ready
		if one.LastError != "" {
			all.LastError = one.LastError
		}
		if one.Degraded {
			bad++
			all.Degraded, all.Detail = true, one.Detail
		}
	}
	switch {
	case bad > 0:
		all.Detail = strconv.Itoa(bad) + " of " + strconv.Itoa(len(t.shards)) + " masters: " + all.Detail
	case t.gaps:
		all.Degraded, all.Detail = true, "some slots of the cluster have no master"
	}
	return all
}

// first waits for the first map and the first connection to each master in it,
// and returns what came of it: nil, a *refusal, or an error that may pass.
func (c *cluster) first(ctx context.Context) error {
	defer func() {
		c.mu.Lock()
		c.quiet = false
		c.mu.Unlock()
	}()
	select {
	case <-c.known:
	case <-ctx.Done():
		return errors.New("sentinel: redis_url: no answer in time")
	}
	t, f := c.current()
	switch {
	case t != nil:
	case f.kind == kindRefused:
		return &refusal{f.detail}
	default:
		return errors.New("sentinel: redis_url: " + f.detail)
	}
	var worst error
	for _, s := range t.shards {
		worst = telling(worst, s.first(ctx))
	}
	return worst
}

// close implements store.
func (c *cluster) close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.stop()
	c.running.Wait()
	c.failed.Store(&storeFailure{kind: kindClosed, detail: "the limiter is closed"})
	// The map stays: whoever comes now is told by a closed shard.
	var errs []error
	for _, s := range c.shards {
		errs = append(errs, s.close())
	}
	for _, a := range c.askers {
		errs = append(errs, a.close())
	}
	return errors.Join(errs...)
}
