package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Node is one server of a topology, a process of this machine. Clients and
// peers reach it through a gate of its own, whose address it tells them. A
// restarted node finds its files again, so what it has written is there.
type Node struct {
	Server
	gate *gate
	bus  *gate // of a cluster's node; nil otherwise
	// secure is the port at which a node with TLS is reached, by all and without a
	// gate; "" for one without. It cannot be cut off, nor lose a reply.
	secure string
	// ID is what its cluster calls it; "" outside one.
	ID string
}

// Addr is the address that the topology knows the node by: that of its gate, or
// where it takes TLS.
func (n *Node) Addr() string {
	if n.secure != "" {
		return net.JoinHostPort("127.0.0.1", n.secure)
	}
	return n.gate.address
}

func (n *Node) port() string {
	_, port, _ := net.SplitHostPort(n.Addr()) // it has a port
	return port
}

// tls are the flags that have the node talk TLS to everybody; none without an
// authority. Its plain port stays, for the test itself.
func (n *Node) tls(ca *CA) []string {
	if ca == nil {
		return nil
	}
	n.secure = freePair(n.t)
	return append(ca.TLSFlags(n.t, n.secure, true, "127.0.0.1"), "--tls-replication", "yes")
}

// URL is the node's redis:// address, through its gate.
func (n *Node) URL() string { return "redis://" + n.Addr() }

// Client returns a client that goes past the gate, closed when t ends.
func (n *Node) Client(t testing.TB) *redis.Client {
	t.Helper()
	return clientFor(t, n.Server.URL())
}

// DropNextReply lets the next script call that comes through the gate run,
// swallows its reply and ends the connection.
func (n *Node) DropNextReply() { n.gate.dropNextReply() }

// Kill ends the node at once, as a crash would; its gate is shut with it.
func (n *Node) Kill() {
	n.t.Helper()
	n.gate.shut()
	if n.bus != nil {
		n.bus.shut()
	}
	n.Server.Kill()
}

// WaitReplicated waits until what the node has written so far is at every replica
// that follows it, of which there is at least one.
func (n *Node) WaitReplicated() {
	n.t.Helper()
	client := n.Client(n.t)
	upTo := ""
	eventually(n.t, 20*time.Second, func() string {
		info, err := client.Info(n.t.Context(), "replication").Result()
		if err != nil {
			return err.Error()
		}
		written := field(info, "master_repl_offset:", "\r\n")
		if upTo == "" {
			upTo = written
		}
		replicas := 0
		for line := range strings.Lines(info) {
			if !strings.HasPrefix(line, "slave") || !strings.Contains(line, "state=online") {
				continue
			}
			if at := field(line, "offset=", ","); len(at) < len(upTo) || len(at) == len(upTo) && at < upTo {
				return fmt.Sprintf("written until %s:\n%s", upTo, info)
			}
			replicas++
		}
		if replicas == 0 {
			return "no replica follows:\n" + info
		}
		return ""
	})
}

// field is what stands in text after name and before end.
func field(text, name, end string) string {
	_, rest, _ := strings.Cut(text, name)
	value, _, _ := strings.Cut(rest, end)
	return value
}

// Restart starts a node that was killed anew, with the files that it has.
func (n *Node) Restart() {
	n.t.Helper()
	n.Server.Restart()
	err := n.gate.reopen()
	if n.bus != nil {
		err = errors.Join(err, n.bus.reopen())
	}
	if err != nil {
		n.t.Fatalf("redistest: %v", err)
	}
}

// portsBelow is the first port from which a cluster's bus, 10000 above, would
// lie where outgoing connections take their ports from: see listen.
const portsBelow = 22700

// startNode starts a process behind a gate. The flags may need the gate's port;
// config is a file that stands before them.
func startNode(t testing.TB, clustered bool, config func(dir string) string, flags func(*Node) []string) *Node {
	t.Helper()
	binary, err := serverBinary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sentinel-redis-") //nolint:usetesting // the proof is no test and has no TempDir
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		port := freePair(t)
		s := &process{binary: binary, dir: dir, port: port}
		n := &Node{Server: Server{t: t, inst: s}, gate: newGate(t, s.addr())}
		if clustered {
			number, _ := strconv.Atoi(port) // freePair's
			n.bus = newGate(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(number+10000)))
		}
		if config != nil {
			s.config = config(dir)
		}
		s.flags = flagsFor(flags(n))
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		err = s.restart(ctx)
		cancel()
		if err == nil {
			t.Cleanup(func() { n.do("remove", s.remove) })
			return n
		}
		if !strings.Contains(err.Error(), "in use") {
			break
		}
	}
	_ = os.RemoveAll(dir) // the error is what counts
	t.Fatal(err)
	return nil
}

// freePair returns a port that is free, as is the one 10000 above it.
func freePair(t testing.TB) string {
	t.Helper()
	free := func(port int) bool {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		return err == nil && l.Close() == nil
	}
	for range 200 {
		port := 20000 + rand.IntN(portsBelow-20000)
		if free(port) && free(port+10000) {
			return strconv.Itoa(port)
		}
	}
	t.Fatal("redistest: no free pair of ports")
	return ""
}

// eventually waits until ok says "", and fails with what it said last.
func eventually(t testing.TB, limit time.Duration, ok func() string) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		wrong := ok()
		if wrong == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("redistest: not within %v: %s", limit, wrong)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// together does one thing for all nodes at once.
func together(nodes []*Node, do func(*Node) error) error {
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { errs <- do(n) }()
	}
	var first error
	for range nodes {
		if err := <-errs; err != nil && first == nil {
			first = fmt.Errorf("redistest: %w", err)
		}
	}
	return first
}
