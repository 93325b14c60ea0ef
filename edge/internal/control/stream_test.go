package control

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// peerNode is the other side of a stream, which does what the test says.
type peerNode struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[pb.FromNode, pb.ToNode]
	leave  func()
	got    chan *pb.ToNode
	hello  *pb.Welcome
}

// dial connects a node that has nothing.
func dial(t testing.TB, p *plane, name string) *peerNode {
	t.Helper()
	return greet(t, p, &pb.Hello{Node: name, Instance: name})
}

func greet(t testing.TB, p *plane, hello *pb.Hello) *peerNode {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.nodes, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	n := &peerNode{t: t, got: make(chan *pb.ToNode, 1000), leave: func() { cancel(); _ = conn.Close() }}
	t.Cleanup(n.leave)
	if n.stream, err = pb.NewControlClient(conn).Follow(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.stream.Send(&pb.FromNode{Kind: &pb.FromNode_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(n.got)
		for {
			m, err := n.stream.Recv()
			if err != nil {
				return
			}
			n.got <- m
		}
	}()
	if n.hello = n.next().GetWelcome(); n.hello == nil {
		t.Fatal("there is no welcome")
	}
	return n
}

func (n *peerNode) next() *pb.ToNode {
	n.t.Helper()
	select {
	case m, ok := <-n.got:
		if !ok {
			n.t.Fatal("the stream has ended")
		}
		return m
	case <-time.After(20 * time.Second):
		n.t.Fatal("nothing comes")
	}
	return nil
}

// snapshot waits for one, and holds it to its hash.
func (n *peerNode) snapshot() *pb.Snapshot {
	n.t.Helper()
	s := n.next().GetSnapshot()
	if s == nil || sha256.Sum256(s.GetConfig()) != [32]byte(s.GetSha256()) {
		n.t.Fatalf("got %v", s)
	}
	return s
}

// nothing is that no message comes for a while.
func (n *peerNode) nothing() {
	n.t.Helper()
	select {
	case m, ok := <-n.got:
		n.t.Fatalf("there comes %v, %v", m, ok)
	case <-time.After(200 * time.Millisecond):
	}
}

func (n *peerNode) send(m *pb.FromNode) {
	n.t.Helper()
	if err := n.stream.Send(m); err != nil {
		n.t.Fatal(err)
	}
}

func (n *peerNode) ack(s *pb.Snapshot) {
	n.t.Helper()
	n.send(&pb.FromNode{Kind: &pb.FromNode_Ack{Ack: &pb.Ack{Nonce: s.GetNonce(), Version: s.GetVersion()}}})
}

func (n *peerNode) nack(s *pb.Snapshot, why ...string) {
	n.t.Helper()
	n.send(&pb.FromNode{Kind: &pb.FromNode_Nack{Nack: &pb.Nack{Nonce: s.GetNonce(), Version: s.GetVersion(), Errors: why}}})
}

// status waits until a node's status is so.
func (p *plane) status(name, what string, is func(NodeStatus) bool) NodeStatus {
	p.t.Helper()
	var last NodeStatus
	edgetest.Soon(p.t, name+": "+what, func() bool {
		for _, n := range p.Nodes() {
			if n.Name == name {
				last = n
				return is(n)
			}
		}
		return false
	})
	return last
}

func TestANodeGetsWhatIsNewest(t *testing.T) {
	p := start(t, "", "")
	n := dial(t, p, "a")
	if n.hello.GetVersion() != 0 || n.hello.GetEpoch() == "" {
		t.Errorf("welcome %v", n.hello)
	}
	n.nothing()
	p.apply(shared(1))
	s := n.snapshot()
	if s.GetVersion() != 1 || s.GetEpoch() != n.hello.GetEpoch() || s.GetNonce() == "" || string(s.GetConfig()) == "" {
		t.Errorf("got %v", s)
	}
	p.status("a", "waiting", func(s NodeStatus) bool { return s.Waiting == 1 && s.Connected })
	n.ack(s)
	p.status("a", "applied", func(s NodeStatus) bool { return s.Applied == 1 && s.Waiting == 0 && s.Errors == nil })
	n.nothing()
	n.leave()
	p.status("a", "gone", func(s NodeStatus) bool { return !s.Connected })
}

func TestARefusedVersionIsNotSentAgain(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	n := dial(t, p, "a")
	n.nack(n.snapshot(), "routes[0]: one thing", "and another")
	got := p.status("a", "refused", func(s NodeStatus) bool { return s.Rejected == 1 })
	if got.Applied != 0 || len(got.Errors) != 2 || got.Errors[1] != "and another" {
		t.Errorf("got %+v", got)
	}
	if status, page := p.ask("GET", "/status", ""); status != 200 || !strings.Contains(page, "a refuses version 1") || !strings.Contains(page, "routes[0]: one thing") {
		t.Errorf("the page does not say so: %d %s", status, page)
	}
	n.nothing()
	n.leave()
	// It says so itself when it comes again, also to a control plane that was restarted.
	again := greet(t, p, &pb.Hello{Node: "a", Instance: "a", Rejected: &pb.Nack{Version: 1, Errors: []string{"one thing"}}, RejectedEpoch: n.hello.GetEpoch()})
	again.nothing()
	p.status("a", "still refused", func(s NodeStatus) bool { return s.Connected && s.Rejected == 1 && s.Errors[0] == "one thing" })
	p.apply(shared(2))
	s := again.snapshot()
	if s.GetVersion() != 2 {
		t.Fatalf("got %v", s)
	}
	again.ack(s)
	p.status("a", "well again", func(s NodeStatus) bool { return s.Applied == 2 && s.Rejected == 0 && s.Errors == nil })
}

// A node that is slow gets one version for a hundred edits, and the edits do not wait.
func TestASlowNodeGetsTheLastOfManyVersions(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(0))
	slow, quick := dial(t, p, "slow"), dial(t, p, "quick")
	held := slow.snapshot()
	quick.ack(quick.snapshot())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range quick.got {
			quick.ack(m.GetSnapshot())
			if m.GetSnapshot().GetVersion() == 101 {
				return
			}
		}
	}()
	begin := time.Now()
	for i := range 100 {
		p.apply(shared(i + 1))
	}
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("the edits took %s", d)
	}
	<-done
	slow.nothing()
	slow.ack(held)
	if s := slow.snapshot(); s.GetVersion() != 101 {
		t.Errorf("it gets %d", s.GetVersion())
	} else {
		slow.ack(s)
	}
	slow.nothing()
}

// One that reads nothing at all, not even from its socket, holds nobody up.
func TestANodeThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	p := start(t, "", "")
	conn, err := grpc.NewClient("passthrough:///"+p.nodes, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); _ = conn.Close() }()
	deaf, err := pb.NewControlClient(conn).Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := deaf.Send(&pb.FromNode{Kind: &pb.FromNode_Hello{Hello: &pb.Hello{Node: "deaf", Instance: "deaf"}}}); err != nil {
		t.Fatal(err)
	}
	n := dial(t, p, "a")
	large := shared(0)
	for len(large) < 150<<10 { // more than the stream's window
		large += "# nothing but a comment that takes its place, to have the stream's window filled at once\n"
	}
	for i := range 5 {
		p.apply(large + "# " + string(rune('a'+i)) + "\n")
		n.ack(n.snapshot())
	}
	p.status("deaf", "is waited for", func(s NodeStatus) bool { return s.Waiting == 1 })
	p.status("a", "has the last", func(s NodeStatus) bool { return s.Applied == 5 })
}

func TestANodeThatIsAheadIsNotSetBack(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	n := greet(t, p, &pb.Hello{Node: "a", Instance: "a", Epoch: p.store.Epoch(), Version: 3, Sha256: []byte("x")})
	n.nothing()
	other := greet(t, p, &pb.Hello{Node: "b", Instance: "b", Epoch: "another", Version: 3, Sha256: []byte("x")})
	if s := other.snapshot(); s.GetVersion() != 1 {
		t.Errorf("of another epoch it gets %v", s)
	}
}

func TestANodeThatHasTheNewestGetsNothing(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	s := dial(t, p, "a").snapshot()
	greet(t, p, &pb.Hello{Node: "b", Instance: "b", Epoch: s.GetEpoch(), Version: 1, Sha256: s.GetSha256()}).nothing()
	if got := greet(t, p, &pb.Hello{Node: "c", Instance: "c", Epoch: s.GetEpoch(), Version: 1, Sha256: []byte("other")}).snapshot(); got.GetVersion() != 1 {
		t.Errorf("with another content it gets %v", got)
	}
}

func TestAStreamThatKeepsNoRuleEnds(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	for name, m := range map[string]func(*pb.Snapshot) *pb.FromNode{
		"another nonce": func(s *pb.Snapshot) *pb.FromNode {
			return &pb.FromNode{Kind: &pb.FromNode_Ack{Ack: &pb.Ack{Nonce: s.GetNonce() + "0"}}}
		},
		"nothing": func(*pb.Snapshot) *pb.FromNode { return &pb.FromNode{} },
		"a second hello": func(*pb.Snapshot) *pb.FromNode {
			return &pb.FromNode{Kind: &pb.FromNode_Hello{Hello: &pb.Hello{Node: "x", Instance: "x"}}}
		},
		"a nack, unasked": func(*pb.Snapshot) *pb.FromNode { return &pb.FromNode{Kind: &pb.FromNode_Nack{Nack: &pb.Nack{}}} },
	} {
		t.Run(name, func(t *testing.T) {
			n := dial(t, p, name)
			n.send(m(n.snapshot()))
			select {
			case m, ok := <-n.got:
				if ok {
					t.Errorf("there comes %v", m)
				}
			case <-time.After(20 * time.Second):
				t.Error("it goes on")
			}
		})
	}
}

// The first stream of a process gives way to its second, as its end may be noticed late.
func TestAProcessHasOneStream(t *testing.T) {
	p := start(t, "", "")
	first := dial(t, p, "a")
	dial(t, p, "a").nothing()
	if m, ok := <-first.got; ok {
		t.Errorf("there comes %v", m)
	}
	if got := p.Nodes(); len(got) != 1 || !got[0].Connected {
		t.Errorf("got %+v", got)
	}
}

// What has left is remembered, but not without bound.
func TestNodesThatHaveLeftAreForgottenInTheEnd(t *testing.T) {
	p := start(t, "", "")
	for i := range mostGone + 50 {
		name := string(rune('a'+i%26)) + time.Duration(i).String()
		p.part(p.join(&pb.Hello{Node: name, Instance: name}, "", ""))
	}
	if got := len(p.Nodes()); got != mostGone {
		t.Errorf("%d are remembered", got)
	}
}

// What a node says goes to a page, a log and a terminal.
func TestWhatNodesSayIsBoundedAndPlain(t *testing.T) {
	for text, want := range map[string]string{
		"fra-1": "fra-1", "é ↑": "é ↑", "\x1b[31mred\n": "\ufffd[31mred\ufffd", "\u009b31m": "\ufffd31m", "\xff": "\ufffd",
		strings.Repeat("x", 600): strings.Repeat("x", mostText) + "...",
	} {
		if got := cut(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	p := start(t, "", "")
	p.apply(shared(1))
	n := dial(t, p, "a\x1b")
	n.nack(n.snapshot(), append(slices.Repeat([]string{"\x1b]0;x\a"}, 60), "last")...)
	got := p.status("a\ufffd", "refused", func(s NodeStatus) bool { return s.Rejected == 1 })
	if len(got.Errors) != mostErrors+1 || got.Errors[0] != "\ufffd]0;x\ufffd" || got.Errors[mostErrors] != "and 11 more" {
		t.Errorf("%q", got.Errors)
	}
}

// Two edits may be handed out in the other order than they were written in.
func TestALaterVersionIsNotReplacedByAnEarlierOne(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	p.apply(shared(2))
	first, err := p.store.Version(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	p.publish(first)
	if s := dial(t, p, "a").snapshot(); s.GetVersion() != 2 {
		t.Errorf("a node gets %d", s.GetVersion())
	}
}
