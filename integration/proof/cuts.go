package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// cuts are faults of the network itself: the service runs in a network of its
// own, joined to Redis by one cable, and the kernel drops what goes over it.
func cuts() []*fault {
	cut := func(name string, lossy bool, chains ...string) *fault {
		return &fault{
			name: name, build: buildNetwork,
			begin:  func(a *arena) { a.cut(chains...) },
			end:    func(a *arena) { a.mend() },
			reason: timeoutReason, lossy: lossy, endsLate: true,
		}
	}
	return []*fault{
		cut("network cut, both ways", true, "input", "output"),
		cut("network cut from the service to Redis", true, "output"),
		cut("network cut from Redis to the service", true, "input"),
	}
}

// networks counts the networks of this process.
var networks atomic.Int32

// cable is where a network of its own is joined to this machine's.
type cable struct {
	space   string // the name of the network
	outside string // the interface here
	inside  string // the one there
}

// buildNetwork makes the service's network, and a server that can be reached
// from there.
func buildNetwork(a *arena) {
	n := networks.Add(1)
	c := &cable{
		space:   fmt.Sprintf("proof-%d-%d", os.Getpid(), n),
		outside: fmt.Sprintf("prf%d-%d", os.Getpid()%100000, n), // an interface has up to 15 letters
		inside:  "redis0",
	}
	here, there := fmt.Sprintf("10.211.%d.1", n), fmt.Sprintf("10.211.%d.2", n)
	a.Cleanup(func() {
		// The cable goes with the network. What is half made cannot all be undone.
		_ = exec.Command("ip", "netns", "del", c.space).Run()
		_ = exec.Command("ip", "link", "del", c.outside).Run()
	})
	a.ip("netns", "add", c.space)
	a.ip("link", "add", c.outside, "type", "veth", "peer", "name", c.inside, "netns", c.space)
	a.ip("addr", "add", here+"/30", "dev", c.outside)
	a.ip("link", "set", c.outside, "up")
	a.ip("-n", c.space, "addr", "add", there+"/30", "dev", c.inside)
	a.ip("-n", c.space, "link", "set", c.inside, "up")
	a.ip("-n", c.space, "link", "set", "lo", "up")
	a.cable = c
	a.command = []string{"ip", "netns", "exec", c.space}
	a.serve("--bind", "127.0.0.1 "+here, "--protected-mode", "no")
	_, port, err := net.SplitHostPort(a.server.Addr())
	a.must(err)
	a.url = func(seat) string { return "redis://" + net.JoinHostPort(here, port) }
}

// ip runs a command of iproute2.
func (a *arena) ip(args ...string) { a.tool("ip", args...) }

func (a *arena) tool(name string, args ...string) {
	out, err := exec.CommandContext(a.ctx, name, args...).CombinedOutput()
	if err != nil {
		a.Fatalf("%s: %s %s: %v: %s; the faults of the network need root, iproute2 and nftables", a.fault.name, name, strings.Join(args, " "), err, out)
	}
}

// cut has the kernel drop, in the service's network, what comes over the cable
// (input) or goes there (output).
func (a *arena) cut(chains ...string) {
	var rules strings.Builder
	rules.WriteString("table inet proof {\n")
	for _, chain := range chains {
		by := map[string]string{"input": "iifname", "output": "oifname"}[chain]
		fmt.Fprintf(&rules, "chain %s { type filter hook %s priority 0; %s %q drop; }\n", chain, chain, by, a.cable.inside)
	}
	a.tool("ip", "netns", "exec", a.cable.space, "nft", rules.String()+"}")
}

// mend ends the cut.
func (a *arena) mend() {
	a.tool("ip", "netns", "exec", a.cable.space, "nft", "delete table inet proof")
}
