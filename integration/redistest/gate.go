package redistest

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
)

// gate stands in front of one port of a server in a topology, and cuts the
// server off from its peers while its clients pass. Whoever dials says in its
// first bytes what it is: a node of a cluster, a replica, a Redis Sentinel, or
// none of these, which is a client.
type gate struct {
	upstream string
	address  string
	running  sync.WaitGroup

	mu        sync.Mutex
	listener  net.Listener // nil while shut
	links     map[*crossing]struct{}
	cut       func(peer string) bool // whom to cut off; nil for nobody
	dropReply bool                   // of the next script call
	closed    bool
}

// crossing is one connection through a gate.
type crossing struct {
	client, server net.Conn
	peer           string // "" for a client; the sender's id for a node of a cluster
	cut            bool   // it has lost something
	dropping       bool   // its next reply is lost, and the connection with it
}

func newGate(t testing.TB, upstream string) *gate {
	t.Helper()
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{upstream: upstream, address: l.Addr().String(), listener: l, links: make(map[*crossing]struct{})}
	g.running.Go(func() { g.accept(l) })
	t.Cleanup(g.close)
	return g
}

func (g *gate) port() string {
	_, port, _ := net.SplitHostPort(g.address) // a listener's address has a port
	return port
}

// shut refuses connections, as the port of a dead server does.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		_ = g.listener.Close() // its only failure is to be closed already
		g.listener = nil
	}
}

// reopen ends shut.
func (g *gate) reopen() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil || g.closed {
		return nil
	}
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		return err
	}
	g.listener = l
	g.running.Go(func() { g.accept(l) })
	return nil
}

func (g *gate) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		g.running.Go(func() { g.cross(client) })
	}
}

// cross carries one connection until either side ends it.
func (g *gate) cross(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", g.upstream)
	if err != nil {
		if tcp, ok := client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as from a port that nobody listens at
		}
		return
	}
	defer server.Close()
	c := &crossing{client: client, server: server}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.links[c] = struct{}{}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.links, c)
		g.mu.Unlock()
	}()
	g.running.Go(func() {
		defer client.Close()
		_, _ = io.Copy(writerFunc(func(p []byte) (int, error) { return g.toClient(c, p) }), server)
	})
	_, _ = io.Copy(writerFunc(func(p []byte) (int, error) { return g.toServer(c, p) }), client)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (g *gate) toServer(c *crossing, p []byte) (int, error) {
	g.mu.Lock()
	if c.peer == "" {
		c.peer = peerOf(p)
	}
	c.cut = c.cut || c.peer != "" && g.cut != nil && g.cut(c.peer)
	if g.dropReply && c.peer == "" && bytes.Contains(bytes.ToLower(p), []byte("evalsha")) {
		g.dropReply, c.dropping = false, true
	}
	cut := c.cut
	g.mu.Unlock()
	if cut {
		return len(p), nil
	}
	return c.server.Write(p)
}

func (g *gate) toClient(c *crossing, p []byte) (int, error) {
	g.mu.Lock()
	cut, dropping := c.cut, c.dropping
	g.mu.Unlock()
	switch {
	case cut:
		return len(p), nil
	case dropping:
		return 0, io.ErrClosedPipe // the connection ends
	}
	return c.client.Write(p)
}

// peerOf says what first bytes belong to: the sender's id for a node of a
// cluster, "replica", "sentinel", or "" for what may be a client.
func peerOf(p []byte) string {
	const sender, length = 40, 40 // in the header of a message between nodes
	switch {
	case bytes.HasPrefix(p, []byte("RCmb")) && len(p) >= sender+length:
		return string(p[sender : sender+length])
	case bytes.Contains(p, []byte("REPLCONF")):
		return "replica"
	case bytes.Contains(p, []byte("sentinel-")): // CLIENT SETNAME
		return "sentinel"
	}
	return ""
}

// cutOff loses, from now on, all that the chosen peers send and are sent; nil
// ends it, and ends the connections that have lost something.
func (g *gate) cutOff(chosen func(peer string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut = chosen
	for c := range g.links {
		switch {
		case chosen == nil && c.cut:
			_, _ = c.client.Close(), c.server.Close()
		case chosen != nil && c.peer != "" && chosen(c.peer):
			c.cut = true
		}
	}
}

// dropNextReply lets the next script call of a client run, swallows the reply
// and ends the connection.
func (g *gate) dropNextReply() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropReply = true
}

func (g *gate) close() {
	g.shut()
	g.mu.Lock()
	g.closed = true
	for c := range g.links {
		_, _ = c.client.Close(), c.server.Close()
	}
	g.mu.Unlock()
	g.running.Wait()
}
