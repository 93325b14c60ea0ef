package follow

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/sentinelgo/sentinel/edge/internal/node"
	pb "github.com/sentinelgo/sentinel/edge/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is a control plane that does what the test says.
type plane struct {
	pb.UnimplementedControlServer
	server  *grpc.Server
	addr    string
	streams chan *conversation
}

// conversation is one stream, whose messages the test sends.
type conversation struct {
	grpc.BidiStreamingServer[pb.FromNode, pb.ToNode]
	hello *pb.Hello
	end   chan error
}

func (p *plane) Follow(s grpc.BidiStreamingServer[pb.FromNode, pb.ToNode]) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	c := &conversation{s, m.GetHello(), make(chan error, 1)}
	p.streams <- c
	select {
	case err := <-c.end:
		return err
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func listen(t testing.TB, at string) *plane {
	t.Helper()
	l, err := net.Listen("tcp", at) //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{server: grpc.NewServer(), addr: l.Addr().String(), streams: make(chan *conversation, 100)}
	pb.RegisterControlServer(p.server, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.server.Serve(l) }()
	t.Cleanup(func() { p.server.Stop(); <-done })
	return p
}

// next waits for a stream.
func (p *plane) next(t testing.TB) *conversation {
	t.Helper()
	select {
	case c := <-p.streams:
		return c
	case <-time.After(20 * time.Second):
		t.Fatal("nobody comes")
		return nil
	}
}

func (c *conversation) welcome(t testing.TB, epoch string, version int64) {
	t.Helper()
	if err := c.Send(&pb.ToNode{Kind: &pb.ToNode_Welcome{Welcome: &pb.Welcome{Epoch: epoch, Version: version}}}); err != nil {
		t.Fatal(err)
	}
}

// offer sends a snapshot, and returns the answer.
func (c *conversation) offer(t testing.TB, s *pb.Snapshot) *pb.FromNode {
	t.Helper()
	if err := c.Send(&pb.ToNode{Kind: &pb.ToNode_Snapshot{Snapshot: s}}); err != nil {
		t.Fatal(err)
	}
	m, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func snapshot(epoch string, version int64, text string) *pb.Snapshot {
	sum := sha256.Sum256([]byte(text))
	return &pb.Snapshot{Epoch: epoch, Version: version, Nonce: "n", Sha256: sum[:], Config: []byte(text)}
}

// applier remembers what it has applied, and refuses what has "bad" in it.
type applier struct {
	mu  sync.Mutex
	all []int64
}

func (a *applier) apply(_ context.Context, s *node.Shared) error {
	if strings.Contains(string(s.Content), "bad") {
		return errors.New("one thing\nand another")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, s.Version)
	return nil
}

func follower(at, dir string) *Follower {
	return New(Options{Address: at, Node: "a", Dir: dir, Logger: slog.New(slog.DiscardHandler)})
}

// run has a follower run until the test ends.
func run(t testing.TB, f *Follower, a *applier) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx, a.apply) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

func TestWhatComesIsAppliedAndAnswered(t *testing.T) {
	p, a, dir := listen(t, "127.0.0.1:0"), &applier{}, t.TempDir()
	f := follower(p.addr, dir)
	stop := run(t, f, a)
	c := p.next(t)
	if c.hello.GetNode() != "a" || c.hello.GetInstance() == "" || c.hello.GetVersion() != 0 {
		t.Errorf("hello %v", c.hello)
	}
	c.welcome(t, "e", 0)
	for _, step := range []struct {
		snapshot *pb.Snapshot
		errors   []string // nil: it is acknowledged
	}{
		{snapshot("e", 1, "good"), nil},
		{snapshot("e", 3, "good"), nil},
		{snapshot("e", 4, "bad"), []string{"one thing", "and another"}},
		{snapshot("e", 2, "good"), []string{"version 3 is in force, and nothing goes back within an epoch"}},
		{&pb.Snapshot{Epoch: "e", Version: 5, Nonce: "n", Sha256: make([]byte, 32), Config: []byte("good")}, []string{"the content does not have the hash that came with it"}},
		{snapshot("", 5, "good"), []string{"the snapshot has no epoch or no version"}},
		{snapshot("e", 0, "good"), []string{"the snapshot has no epoch or no version"}},
		{snapshot("e", 6, "good"), nil},
		{snapshot("another", 1, "good"), nil},
	} {
		m := c.offer(t, step.snapshot)
		switch {
		case step.errors == nil:
			if m.GetAck().GetNonce() != "n" || m.GetAck().GetVersion() != step.snapshot.GetVersion() {
				t.Errorf("%v is answered %v", step.snapshot, m)
			}
		case m.GetNack().GetNonce() != "n" || strings.Join(m.GetNack().GetErrors(), "|") != strings.Join(step.errors, "|"):
			t.Errorf("%v is answered %v", step.snapshot, m)
		}
	}
	if s := f.Status(); !s.Connected || !s.Current {
		t.Errorf("%+v", s)
	}
	stop()
	if want := []int64{1, 3, 6, 1}; len(a.all) != len(want) || a.all[3] != 1 || a.all[2] != 6 {
		t.Errorf("applied %v, want %v", a.all, want)
	}
	again := follower(p.addr, dir)
	if last := again.LastGood(); last == nil || last.Version != 1 || string(last.Content) != "good" || time.Since(last.Since) > time.Minute {
		t.Errorf("on the disk is %+v", last)
	}
}

// Whatever comes after the stream is lost, nothing goes back, and the node says what it has.
func TestAfterItWasAwayItGoesOn(t *testing.T) {
	p, a := listen(t, "127.0.0.1:0"), &applier{}
	run(t, follower(p.addr, ""), a)
	c := p.next(t)
	c.welcome(t, "e", 1)
	c.offer(t, snapshot("e", 1, "good"))
	c.offer(t, snapshot("e", 2, "bad"))
	c.end <- errors.New("lost")
	c = p.next(t)
	if c.hello.GetVersion() != 1 || c.hello.GetEpoch() != "e" || c.hello.GetRejected().GetVersion() != 2 || c.hello.GetRejectedEpoch() != "e" || len(c.hello.GetSha256()) != 32 {
		t.Errorf("hello %v", c.hello)
	}
	c.welcome(t, "e", 3)
	if m := c.offer(t, snapshot("e", 3, "good 3")); m.GetAck() == nil {
		t.Errorf("got %v", m)
	}
	c.end <- nil
	c = p.next(t)
	if c.hello.GetVersion() != 3 || c.hello.GetRejected() != nil {
		t.Errorf("hello %v", c.hello)
	}
	c.welcome(t, "e", 1)
	if m := c.offer(t, snapshot("e", 1, "good")); m.GetNack() == nil {
		t.Errorf("it goes back: %v", m)
	}
	if m := c.offer(t, snapshot("e", 4, "")); m.GetAck() == nil { // the applier's matter
		t.Errorf("got %v", m)
	}
}

func TestADamagedFileIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	f := file{dir}
	if last, err := f.read(); last != nil || err != nil {
		t.Fatalf("%v %v", last, err)
	}
	if err := f.write(&pb.LastGood{Snapshot: snapshot("e", 7, "text"), AppliedMs: 5}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(f.path())
	if err != nil {
		t.Fatal(err)
	}
	if last, err := f.read(); err != nil || last.GetSnapshot().GetVersion() != 7 || last.GetAppliedMs() != 5 {
		t.Fatalf("%v %v", last, err)
	}
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 0x10
		if last, err := decode(bad); err == nil {
			t.Errorf("byte %d: %v", i, last)
		}
		if last, err := decode(good[:i]); err == nil {
			t.Errorf("%d bytes: %v", i, last)
		}
	}
	if err := os.WriteFile(f.path(), good[:50], 0o600); err != nil {
		t.Fatal(err)
	}
	if last := follower("", dir).LastGood(); last != nil {
		t.Errorf("it is used: %v", last)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func FuzzDecode(f *testing.F) {
	dir := f.TempDir()
	if err := (file{dir}).write(&pb.LastGood{Snapshot: snapshot("e", 7, "text")}); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile((file{dir}).path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[sha256.Size:])
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		last, err := decode(append(sum[:], body...))
		if err == nil && (last.GetSnapshot().GetVersion() <= 0 || last.GetSnapshot().GetEpoch() == "") {
			t.Errorf("got %v", last)
		}
	})
}

func TestWaitsAreSpreadUpToABoundThatDoubles(t *testing.T) {
	bounds := []time.Duration{200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000}
	const tries = 4000
	sums, most := make([]time.Duration, len(bounds)), make([]time.Duration, len(bounds))
	for range tries {
		var b backoff
		for i := range bounds {
			w := b.next(0)
			sums[i] += w
			most[i] = max(most[i], w)
		}
	}
	for i, bound := range bounds {
		bound *= time.Millisecond
		if most[i] >= bound || most[i] < bound*9/10 {
			t.Errorf("wait %d: at most %s of %s", i, most[i], bound)
		}
		if mean := sums[i] / tries; mean < bound*45/100 || mean > bound*55/100 {
			t.Errorf("wait %d: %s in the mean, of %s", i, mean, bound)
		}
	}
	b := backoff{bound: lastBound}
	if w := b.next(healthy); w >= firstBound {
		t.Errorf("after a healthy stream it waits %s", w)
	}
	b = backoff{bound: lastBound}
	b.next(healthy - 1)
	if b.bound != lastBound {
		t.Error("a stream that lasted too short has it begin anew")
	}
}

// A control plane is away for a time, and 2000 nodes lose it at once. They do not
// come back at once: no 100 ms have more than three times the mean over the time in
// which nine of ten come. The last tenth comes much later, since each wait may be short
// or long: over all of the time the mean would be of nearly nobody.
func TestTwoThousandNodesDoNotComeBackAtOnce(t *testing.T) {
	for _, away := range []time.Duration{0, 300 * time.Millisecond, time.Second, 10 * time.Second, 2 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const nodes = 2000
				came := comeBack(nodes, away)
				slices.Sort(came)
				const bucket = 100 * time.Millisecond
				window := came[nodes*9/10-1]/bucket + 1
				counts := make([]int, came[nodes-1]/bucket+1)
				for _, at := range came {
					counts[at/bucket]++
				}
				largest, mean := slices.Max(counts), nodes*0.9/float64(window)
				t.Logf("nine of ten came within %s, the last after %s; in 100 ms %.1f in the mean, %d at most", window*bucket, came[nodes-1], mean, largest)
				if float64(largest) > 3*mean+3*math.Sqrt(mean) { // the second is chance
					t.Errorf("%d come in 100 ms, and the mean is %.1f", largest, mean)
				}
			})
		})
	}
}

// comeBack is when each of so many nodes comes, counted from the end of the time for
// which the control plane is away.
func comeBack(nodes int, away time.Duration) []time.Duration {
	back := time.Now().Add(away)
	came := make([]time.Duration, nodes)
	var all sync.WaitGroup
	for i := range came {
		all.Go(func() {
			var b backoff
			for came[i] = -1; came[i] < 0; came[i] = time.Since(back) {
				time.Sleep(b.next(0))
			}
		})
	}
	all.Wait()
	return came
}
