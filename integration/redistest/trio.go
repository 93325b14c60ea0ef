package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Trio is three Redis Sentinels that watch a master with two replicas, all of
// one test.
type Trio struct {
	t testing.TB
	// Sentinels watch; their Addr is what clients are given.
	Sentinels []*Node
	// Nodes are the servers: the master first, as the trio began.
	Nodes []*Node
}

// MasterName is what the Sentinels of a [Trio] call their master.
const MasterName = "quotas"

// StartTrio starts the trio and returns when every Sentinel knows the two
// others and both replicas. Flags are for the servers. A silent master is taken
// for dead after a second.
func StartTrio(t testing.TB, flags ...string) *Trio {
	t.Helper()
	return startTrio(t, nil, flags)
}

// StartTLSTrio is StartTrio with TLS on every connection, the Sentinels' among
// them; clients need a certificate of the authority.
func StartTLSTrio(t testing.TB, ca *CA, flags ...string) *Trio {
	t.Helper()
	return startTrio(t, ca, flags)
}

func startTrio(t testing.TB, ca *CA, flags []string) *Trio {
	t.Helper()
	trio := &Trio{t: t}
	for i := range 3 {
		trio.Nodes = append(trio.Nodes, startNode(t, false, nil, func(n *Node) []string {
			own := n.tls(ca)
			own = append(own,
				"--replica-announce-ip", "127.0.0.1", "--replica-announce-port", n.port(),
				"--repl-diskless-sync-delay", "0")
			if i > 0 {
				own = append(own, "--replicaof", "127.0.0.1", trio.Nodes[0].port())
			}
			return append(own, flags...)
		}))
	}
	for range 3 {
		trio.Sentinels = append(trio.Sentinels, startNode(t, false, trio.config, func(n *Node) []string {
			own := n.tls(ca)
			return append(own, "--sentinel", "announce-ip", "127.0.0.1", "--sentinel", "announce-port", n.port())
		}))
	}
	trio.WaitWell()
	return trio
}

// config writes the file without which no Sentinel starts.
func (trio *Trio) config(dir string) string {
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf(`sentinel monitor %[1]s 127.0.0.1 %[2]s 2
sentinel down-after-milliseconds %[1]s 1000
sentinel failover-timeout %[1]s 2000
`, MasterName, trio.Nodes[0].port())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		trio.t.Fatal(err)
	}
	return file
}

// Addrs are the addresses of the Sentinels.
func (trio *Trio) Addrs() []string {
	var addrs []string
	for _, n := range trio.Sentinels {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// WaitWell waits until every Sentinel knows two others and two replicas, all of
// them up, and both replicas follow the master.
func (trio *Trio) WaitWell() {
	trio.t.Helper()
	var clients []*redis.SentinelClient
	for _, n := range trio.Sentinels {
		c := redis.NewSentinelClient(&redis.Options{Addr: n.Server.Addr()})
		defer c.Close()
		clients = append(clients, c)
	}
	eventually(trio.t, 30*time.Second, func() string {
		for i, c := range clients {
			m, err := c.Master(trio.t.Context(), MasterName).Result()
			if err != nil {
				return err.Error()
			}
			if m["flags"] != "master" || m["num-slaves"] != "2" || m["num-other-sentinels"] != "2" {
				return fmt.Sprintf("Sentinel %d: flags %s, %s replicas, %s others", i, m["flags"], m["num-slaves"], m["num-other-sentinels"])
			}
		}
		master := trio.Master().Client(trio.t)
		defer master.Close()
		info, err := master.Info(trio.t.Context(), "replication").Result()
		if n := strings.Count(info, "state=online"); err != nil || n != 2 {
			return fmt.Sprintf("%d replicas online, %v", n, err)
		}
		return ""
	})
}

// Master returns the node that the first Sentinel which answers takes for the
// master.
func (trio *Trio) Master() *Node {
	trio.t.Helper()
	for _, n := range trio.Sentinels {
		c := redis.NewSentinelClient(&redis.Options{Addr: n.Server.Addr(), DialTimeout: time.Second, ReadTimeout: time.Second})
		addr, err := c.GetMasterAddrByName(trio.t.Context(), MasterName).Result()
		_ = c.Close()
		if err != nil {
			continue
		}
		for _, node := range trio.Nodes {
			if node.Addr() == strings.Join(addr, ":") {
				return node
			}
		}
	}
	trio.t.Fatal("redistest: no Sentinel names a master")
	return nil
}

// CutOff has the server lose all that its replicas and the Sentinels send it;
// clients still reach it. It lasts until Heal.
func (trio *Trio) CutOff(n *Node) { n.gate.cutOff(func(string) bool { return true }) }

// Heal ends CutOff.
func (trio *Trio) Heal() {
	for _, n := range trio.Nodes {
		n.gate.cutOff(nil)
	}
}
