package sentinel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/breaker"
)

const (
	// lookEvery is how often the map is looked at while all is well, and
	// lookAgain while it is not: a failover shows in nothing else where the
	// breaker keeps decisions from asking.
	lookEvery, lookAgain = 10 * time.Second, 250 * time.Millisecond
	// lookApart is the least between two looks, however many decisions are
	// redirected.
	lookApart = 50 * time.Millisecond
)

// clusterRights are what a user needs beside those of a lone server.
const clusterRights = " +cluster|slots +cluster|info +asking"

// look asks for a newer map; no decision waits for it.
func (c *cluster) look() {
	select {
	case c.wake <- struct{}{}:
	default: // it has been asked for
	}
}

// follow keeps the map up to date until the store is closed.
func (c *cluster) follow(ctx context.Context) {
	first := true
	for {
		refused := c.update(ctx)
		if first {
			close(c.known)
			first = false
		}
		c.retire()
		wait := lookEvery
		switch {
		case refused:
			wait = recheckAfter
		case c.unwell():
			wait = lookAgain
		}
		if !sleep(ctx, lookApart) {
			return
		}
		select {
		case <-c.wake:
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return
		}
	}
}

// sleep reports whether ctx still lasts after d.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// unwell reports whether something may mend itself that the map would show.
func (c *cluster) unwell() bool {
	t := c.table.Load()
	if t == nil || t.gaps || c.failed.Load() != nil {
		return true
	}
	return slices.ContainsFunc(t.shards, func(s *shard) bool {
		return s.breaker.State() != breaker.Closed || s.redis.ready() != nil
	})
}

// update looks at the map once. refused: nobody will give it, as things are.
func (c *cluster) update(ctx context.Context) (refused bool) {
	ranges, err := c.findMap(ctx)
	if ctx.Err() != nil {
		return false
	}
	if err == nil {
		c.publish(ranges)
		return false
	}
	_, refused = errors.AsType[*refusal](err)
	was := c.failed.Swap(setupFailure(err))
	now := c.failed.Load()
	c.mu.Lock()
	quiet := c.quiet
	c.mu.Unlock()
	if c.table.Load() == nil && !quiet && (was == nil || was.detail != now.detail) {
		c.log.Error("sentinel: Redis is away; every check takes its failure row", "kind", string(now.kind), "detail", now.detail)
	}
	return refused
}

// clusterView is what one node says of its cluster.
type clusterView struct {
	from   string // whom we asked
	well   bool   // it says that the cluster is well
	epoch  int64  // the newest configuration that it has heard of
	ranges []slotRange
	err    error
}

// findMap asks all masters, and the nodes that were given, at once, and believes
// the newest configuration of those that hold the cluster to be well: a master
// that was cut off from its peers goes on naming itself.
func (c *cluster) findMap(ctx context.Context) ([]slotRange, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if c.slots != nil {
		return c.givenMap(ctx)
	}
	askers := c.chooseAskers()
	views := make(chan clusterView, len(askers))
	for addr, a := range askers {
		go func() { views <- askNode(ctx, a, addr) }()
	}
	var best clusterView
	var worst error
	var enough <-chan time.Time
	for asked := 0; asked < len(askers); asked++ {
		select {
		case v := <-views:
			if v.err != nil {
				worst = telling(worst, v.err)
				continue
			}
			c.mended(v)
			if best.ranges == nil || v.newer(best) {
				best = v
			}
			if enough == nil && v.well {
				enough = time.After(watchPatience)
			}
		case <-enough:
			asked = len(askers)
		}
	}
	switch {
	case best.ranges == nil && worst == nil:
		return nil, &dialError{kind: kindConnection, detail: "no node of the cluster knows of a slot"}
	case best.ranges == nil:
		return nil, worst
	case !best.well && c.table.Load() != nil:
		return nil, &dialError{kind: kindErrorReply, detail: "the cluster is down, by all of its nodes that answer"}
	}
	return best.ranges, nil
}

func (v *clusterView) newer(than clusterView) bool {
	if v.well != than.well {
		return v.well
	}
	return v.epoch > than.epoch
}

// mended tells a shard whose breaker opened because its cluster was down that it
// is not.
func (c *cluster) mended(v clusterView) {
	if !v.well {
		return
	}
	for _, s := range c.masters() {
		if s.redis.client.Options().Addr == v.from && s.breaker.State() == breaker.Open && s.redis.ready() == nil {
			s.mended()
		}
	}
}

// chooseAskers returns the connections to those who are asked, and closes those
// to others.
func (c *cluster) chooseAskers() map[string]*asker {
	chosen := make(map[string]*asker)
	addrs := slices.Clone(c.seeds)
	for _, s := range c.masters() {
		addrs = append(addrs, s.redis.client.Options().Addr)
	}
	var gone []*asker
	c.mu.Lock()
	for _, addr := range addrs {
		if c.askers[addr] == nil {
			a := &asker{}
			a.client, a.dialer = c.client(addr)
			c.askers[addr] = a
		}
		chosen[addr] = c.askers[addr]
	}
	for addr, a := range c.askers {
		if chosen[addr] == nil {
			delete(c.askers, addr)
			gone = append(gone, a)
		}
	}
	c.mu.Unlock()
	for _, a := range gone { // which may wait for a node that hangs, and decisions for the lock
		_ = a.close()
	}
	return chosen
}

// askNode returns what the node at addr says of its cluster.
func askNode(ctx context.Context, a *asker, addr string) clusterView {
	v := clusterView{from: addr}
	err := a.ask(ctx, func(conn *redis.Conn) error {
		pipe := conn.Pipeline()
		info := pipe.ClusterInfo(ctx)
		slots := redis.NewSliceCmd(ctx, "cluster", "slots")
		_ = pipe.Process(ctx, slots) // only queues
		if _, err := pipe.Exec(ctx); err != nil {
			if fault := unfitNode(err); fault != "" {
				return &refusal{fault}
			}
			return err
		}
		var err error
		v.well, v.epoch = parseClusterInfo(info.Val())
		v.ranges, err = parseSlots(slots.Val(), addr)
		return err
	})
	if err != nil {
		v.err = failing("a node of the cluster", err)
	}
	return v
}

// parseClusterInfo reads CLUSTER INFO.
func parseClusterInfo(text string) (well bool, epoch int64) {
	for line := range strings.SplitSeq(text, "\n") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "cluster_state":
			well = value == "ok"
		case "cluster_current_epoch":
			epoch, _ = strconv.ParseInt(value, 10, 64) // 0 is the oldest
		}
	}
	return well, epoch
}

// unfitNode returns what to change where a node answers and will not change its
// mind, "" if the error may pass.
func unfitNode(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) && strings.Contains(reply.Error(), "cluster support disabled") {
		return "redis_url names a server that is in no cluster; for one server write redis://"
	}
	return unfit(err, 0, true)
}

// givenMap asks the application's client.
func (c *cluster) givenMap(ctx context.Context) ([]slotRange, error) {
	slots, err := c.slots(ctx)
	if err != nil {
		return nil, failing("ClusterSlots", err)
	}
	if len(slots) == 0 {
		return nil, &dialError{kind: kindBadReply, detail: "ClusterSlots: no slots"}
	}
	var ranges []slotRange
	for _, s := range slots {
		if len(s.Nodes) == 0 || s.Start < 0 || s.End < s.Start || s.End >= clusterSlots {
			return nil, &dialError{kind: kindBadReply, detail: fmt.Sprintf("ClusterSlots: slots %d to %d of nobody", s.Start, s.End)}
		}
		ranges = append(ranges, slotRange{low: s.Start, high: s.End, master: s.Nodes[0].Addr})
	}
	return ranges, nil
}

// publish makes the ranges the map that decisions go by.
func (c *cluster) publish(ranges []slotRange) {
	slices.SortFunc(ranges, func(a, b slotRange) int { return a.low - b.low })
	t := &slotTable{}
	for _, r := range ranges {
		s := c.named(r.master, r.checkKey)
		if s == nil {
			return // closed
		}
		if !slices.Contains(t.shards, s) {
			t.shards = append(t.shards, s)
		}
		for slot := r.low; slot <= r.high; slot++ {
			t.of[slot] = s
		}
	}
	t.gaps = slices.Contains(t.of[:], nil)
	old := c.table.Load()
	if old == nil || old.of != t.of {
		c.table.Store(t)
	}
	c.failed.Store(nil) // after the map is there
	if old != nil && !sameShards(old.shards, t.shards) {
		c.log.Info("sentinel: the cluster has other masters", "masters", len(t.shards))
	}
}

func sameShards(a, b []*shard) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(s *shard) bool { return !slices.Contains(b, s) })
}

// retire closes the shards that are masters no more.
func (c *cluster) retire() {
	masters := c.masters()
	var gone []*shard
	c.mu.Lock()
	for addr, s := range c.shards {
		if !slices.Contains(masters, s) && time.Since(time.Unix(0, s.named.Load())) > retireAfter {
			delete(c.shards, addr)
			gone = append(gone, s)
		}
	}
	c.mu.Unlock()
	for _, s := range gone {
		_ = s.close()
	}
}

// slotsOf names the slots of a shard, for the log.
func (c *cluster) slotsOf(s *shard) string {
	t := c.table.Load()
	if t == nil {
		return ""
	}
	var text []string
	for low := 0; low < clusterSlots; {
		high := low + 1
		for high < clusterSlots && t.of[high] == t.of[low] {
			high++
		}
		if t.of[low] == s {
			text = append(text, strconv.Itoa(low)+"-"+strconv.Itoa(high-1))
		}
		low = high
	}
	if len(text) > 3 {
		text = append(text[:3], "...")
	}
	return strings.Join(text, ",")
}
