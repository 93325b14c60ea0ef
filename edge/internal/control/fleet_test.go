package control

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/control/follow"
	"github.com/sentinelgo/sentinel/edge/internal/control/mtls"
	"github.com/sentinelgo/sentinel/edge/internal/control/mtls/mtlstest"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
	feed "github.com/sentinelgo/sentinel/edge/internal/node"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// fleet are nodes that apply whatever comes.
type fleet struct {
	stop func()
}

func newFleet(t testing.TB, at string, files mtls.Files, names ...string) *fleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	for _, name := range names {
		f := follow.New(follow.Options{Address: at, TLS: files, Node: name, Spread: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		all.Go(func() { f.Run(ctx, func(context.Context, *feed.Shared) error { return nil }) })
	}
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return &fleet{stop}
}

// connected is how many nodes there are, and how many of them have the version.
func (p *plane) connected(version int64) (there, applied int) {
	for _, n := range p.Nodes() {
		if n.Connected {
			there++
			if n.Applied == version {
				applied++
			}
		}
	}
	return there, applied
}

func TestOnlyNodesWithCertificatesAreServed(t *testing.T) {
	ours, other := mtlstest.New(t), mtlstest.New(t)
	hour := time.Now().Add(time.Hour)
	p := serve(t, t.TempDir()+"/control.db", "", ours.Issue(t, "control", hour, ours).Server(), store.Options{})
	p.apply(shared(1))
	newFleet(t, p.nodes, mtls.Files{}, "plain")
	newFleet(t, p.nodes, other.Issue(t, "other", hour, ours), "other")
	newFleet(t, p.nodes, ours.Issue(t, "distrustful", hour, other), "distrustful")
	newFleet(t, p.nodes, ours.Issue(t, "the certificate of a", hour, ours), "a")
	got := p.status("a", "applied", func(s NodeStatus) bool { return s.Applied == 1 })
	if !strings.Contains(got.Certificate, "the certificate of a") {
		t.Errorf("%+v", got)
	}
	time.Sleep(300 * time.Millisecond) // the others have tried more than once
	if all := p.Nodes(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// Nodes lose the control plane at once, and it is back at once. All come back, and
// none is sent what it has.
func TestNodesComeBack(t *testing.T) {
	const nodes = 200
	names := make([]string, nodes)
	for i := range names {
		names[i] = time.Duration(i).String()
	}
	p := start(t, "", "")
	p.apply(shared(1))
	f := newFleet(t, p.nodes, mtls.Files{}, names...)
	edgetest.Soon(t, "all have the first version", func() bool { _, n := p.connected(1); return n == nodes })
	p.stop()
	p = start(t, p.db, p.nodes)
	edgetest.Soon(t, "all are back", func() bool { n, _ := p.connected(1); return n == nodes })
	for _, n := range p.Nodes() {
		if !n.SentAt.IsZero() {
			t.Fatalf("a node is sent what it has: %+v", n)
		}
	}
	p.apply(shared(2))
	edgetest.Soon(t, "all have the second version", func() bool { _, n := p.connected(2); return n == nodes })
	f.stop()
	edgetest.Soon(t, "all have left", func() bool { n, _ := p.connected(2); return n == 0 })
}

// A node may have thousands of faults to tell, as one for each route. It tells some of them, and
// goes on.
func TestANodeWithManyFaultsTellsSome(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f := follow.New(follow.Options{Address: p.nodes, Node: "a", Spread: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	faults := errors.New(strings.Repeat(strings.Repeat("x", 100)+"\n", 10_000) + strings.Repeat("y", 1<<20))
	var all sync.WaitGroup
	all.Go(func() { f.Run(ctx, func(context.Context, *feed.Shared) error { return faults }) })
	defer func() { cancel(); all.Wait() }()
	refused := func(s NodeStatus) bool { return s.Connected && s.Rejected == 1 }
	got := p.status("a", "refused", refused)
	if n := len(got.Errors); n != mostErrors || !strings.HasPrefix(got.Errors[0], "xxx") || got.Errors[n-1] != "and 9952 more" {
		t.Errorf("%d errors, the last is %q", n, got.Errors[n-1])
	}
	p.stop()
	p = start(t, p.db, p.nodes)
	p.status("a", "back, and says so again", refused)
}
