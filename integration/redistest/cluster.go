package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
	// nodeTimeout is cluster-node-timeout: after it a silent master is taken for
	// dead, and a master that hears no majority stops.
	nodeTimeout = time.Second
)

// Cluster is a Redis Cluster of three masters with a replica each, which
// belongs to one test.
type Cluster struct {
	t testing.TB
	// Nodes are the masters, in the order of their slots, then their replicas in
	// the same order, as the cluster began.
	Nodes []*Node
}

// StartCluster starts a cluster and returns when all six nodes agree that it
// is well and all replicas are up to date. Flags are for every node. It notices
// a dead master after a second.
func StartCluster(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	return startCluster(t, nil, flags)
}

// StartTLSCluster is StartCluster with TLS on every connection: of clients, which
// need a certificate of the authority, of replicas and between the nodes.
func StartTLSCluster(t testing.TB, ca *CA, flags ...string) *Cluster {
	t.Helper()
	return startCluster(t, ca, flags)
}

func startCluster(t testing.TB, ca *CA, flags []string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range 2 * clusterMasters {
		c.Nodes = append(c.Nodes, startNode(t, true, nil, func(n *Node) []string {
			own := []string{
				"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
				"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
				"--cluster-announce-ip", "127.0.0.1",
				"--repl-diskless-sync-delay", "0",
			}
			if ca == nil {
				own = append(own, "--cluster-announce-port", n.gate.port(), "--cluster-announce-bus-port", n.bus.port())
			} else {
				own = append(append(own, "--tls-cluster", "yes"), n.tls(ca)...)
			}
			return append(own, flags...)
		}))
	}
	c.meet()
	c.WaitWell(c.Nodes...)
	for i, replica := range c.Nodes[clusterMasters:] {
		c.must(replica.Client(t).ClusterReplicate(t.Context(), c.Nodes[i].ID).Err())
	}
	c.WaitWell(c.Nodes...)
	return c
}

// meet gives the masters their slots, and has all nodes know one another.
func (c *Cluster) meet() {
	c.t.Helper()
	first := c.Nodes[0]
	c.must(together(c.Nodes, func(n *Node) (err error) {
		n.ID, err = n.Client(c.t).ClusterMyID(c.t.Context()).Result()
		return err
	}))
	for i, n := range c.Nodes {
		client := n.Client(c.t)
		c.must(client.Do(c.t.Context(), "cluster", "set-config-epoch", i+1).Err())
		if i < clusterMasters {
			low, high := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
			c.must(client.ClusterAddSlotsRange(c.t.Context(), low, high).Err())
		}
		if n != first {
			c.must(client.Do(c.t.Context(), first.meet()...).Err())
		}
	}
}

// meet is what brings another node to this one.
func (n *Node) meet() []any {
	if n.secure != "" {
		return []any{"cluster", "meet", "127.0.0.1", n.secure} // and the bus 10000 above
	}
	return []any{"cluster", "meet", "127.0.0.1", n.gate.port(), n.bus.port()}
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// WaitWell waits until each of the nodes says that the cluster is well, knows
// all that the test began with, and, if it is a replica, follows its master.
func (c *Cluster) WaitWell(nodes ...*Node) {
	c.t.Helper()
	clients := make([]*redis.Client, len(nodes))
	for i, n := range nodes {
		clients[i] = n.Client(c.t)
	}
	eventually(c.t, 30*time.Second, func() string {
		for i, client := range clients {
			if wrong := unwell(c.t.Context(), client, len(c.Nodes)); wrong != "" {
				return fmt.Sprintf("node %d: %s", i, wrong)
			}
		}
		return ""
	})
}

func unwell(ctx context.Context, client *redis.Client, nodes int) string {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil {
		return err.Error()
	}
	for _, want := range []string{
		"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d\r", nodes), fmt.Sprintf("cluster_slots_assigned:%d\r", clusterSlots),
	} {
		if !strings.Contains(info, want) {
			return "lacks " + strings.TrimSpace(want) + ":\n" + info
		}
	}
	if replication, err := client.Info(ctx, "replication").Result(); err != nil || strings.Contains(replication, "master_link_status:down") {
		return fmt.Sprintf("%s %v", replication, err)
	}
	return ""
}

// Master returns the node that serves the key by the word of the nodes that
// answer: of two that both claim it, the one with the newer claim; nil if none
// does, as between the death of a master and its replica's election.
func (c *Cluster) Master(key string) *Node {
	c.t.Helper()
	var newest *Node
	best := int64(-1)
	var errs []error
	for _, n := range c.Nodes {
		epoch, err := n.claims(key)
		errs = append(errs, err)
		if epoch > best {
			newest, best = n, epoch
		}
	}
	if newest == nil && errors.Join(errs...) != nil {
		c.t.Fatalf("redistest: no node that answers serves %s: %v", key, errors.Join(errs...))
	}
	return newest
}

// claims returns the epoch by which the node says that it serves the key, -1 if
// it does not say so.
func (n *Node) claims(key string) (epoch int64, err error) {
	if p, isProcess := n.inst.(*process); !isProcess || !p.running() {
		return -1, nil
	}
	client := redis.NewClient(&redis.Options{Addr: n.Server.Addr(), MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	slot, err := client.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return -1, err
	}
	text, err := client.ClusterNodes(ctx).Result()
	if err != nil {
		return -1, err
	}
	for line := range strings.Lines(text) {
		// id addr flags master ping pong epoch link slots...
		f := strings.Fields(line)
		if len(f) > 8 && strings.Contains(f[2], "myself") && strings.Contains(f[2], "master") && holds(f[8:], slot) {
			return strconv.ParseInt(f[6], 10, 64)
		}
	}
	return -1, nil
}

// holds reports whether slots, as CLUSTER NODES writes them, contain slot.
func holds(slots []string, slot int64) bool {
	for _, text := range slots {
		low, high, isRange := strings.Cut(text, "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.ParseInt(low, 10, 64)
		to, err2 := strconv.ParseInt(high, 10, 64)
		if err1 == nil && err2 == nil && from <= slot && slot <= to {
			return true
		}
	}
	return false
}

// CutOff has a master lose all that its peers send it and that it sends them;
// clients still reach it. It lasts until Heal.
func (c *Cluster) CutOff(master *Node) {
	for _, n := range c.Nodes {
		chosen := func(peer string) bool { return n == master || peer == master.ID }
		n.gate.cutOff(chosen)
		n.bus.cutOff(chosen)
	}
}

// Heal ends CutOff.
func (c *Cluster) Heal() {
	for _, n := range c.Nodes {
		n.gate.cutOff(nil)
		n.bus.cutOff(nil)
	}
}

// BeginMove opens the migration of the key's slot to another master: until
// FinishMove, keys that are not at the old one any more are asked for at the new
// one.
func (c *Cluster) BeginMove(key string, to *Node) {
	c.t.Helper()
	from, slot := c.Master(key), c.slot(key)
	c.must(to.Client(c.t).Do(c.t.Context(), "cluster", "setslot", slot, "importing", from.ID).Err())
	c.must(from.Client(c.t).Do(c.t.Context(), "cluster", "setslot", slot, "migrating", to.ID).Err())
}

// MoveKeys carries the keys of the slot that the key is in over to the new
// master, as redis-cli does: each atomically.
func (c *Cluster) MoveKeys(key string, to *Node) {
	c.t.Helper()
	from, slot := c.Master(key).Client(c.t), c.slot(key)
	_, port, _ := strings.Cut(to.Server.Addr(), ":")
	for {
		keys, err := from.ClusterGetKeysInSlot(c.t.Context(), int(slot), 10).Result()
		c.must(err)
		if len(keys) == 0 {
			return
		}
		for _, each := range keys {
			c.must(from.Migrate(c.t.Context(), "127.0.0.1", port, each, 0, 5*time.Second).Err())
		}
	}
}

// FinishMove ends the migration: the new master serves the slot.
func (c *Cluster) FinishMove(key string, to *Node) {
	c.t.Helper()
	from, slot := c.Master(key), c.slot(key)
	for _, n := range []*Node{to, from} {
		c.must(n.Client(c.t).Do(c.t.Context(), "cluster", "setslot", slot, "node", to.ID).Err())
	}
}

// SlotOf is the slot of a key without a hash tag, by the arithmetic of the
// specification; it asks no server, so that many keys can be tried.
func SlotOf(key string) (crc uint16) {
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
	}
	return crc % clusterSlots
}

func (c *Cluster) slot(key string) int64 {
	c.t.Helper()
	slot, err := c.Nodes[0].Client(c.t).ClusterKeySlot(c.t.Context(), key).Result()
	c.must(err)
	return slot
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("redistest: %v", err)
	}
}
