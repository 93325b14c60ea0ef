package follow

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math/rand/v2"
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
	return New(Options{Address: at, Node: "a", Dir: dir, Spread: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
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

// A control plane that takes the stream, and never says anything, is left alone.
func TestAControlPlaneThatSaysNothingIsLeft(t *testing.T) {
	p := listen(t, "127.0.0.1:0")
	f := follower(p.addr, "")
	f.patience = 50 * time.Millisecond
	run(t, f, &applier{})
	p.next(t)
	c := p.next(t)
	if s := f.Status(); s.Connected || !strings.Contains(s.Text, "says nothing for 50ms") {
		t.Errorf("%+v", s)
	}
	c.welcome(t, "e", 0)
	for end := time.Now().Add(20 * time.Second); !f.Status().Connected; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", f.Status())
		}
	}
	time.Sleep(3 * f.patience) // which is for the welcome alone
	if s := f.Status(); !s.Connected {
		t.Errorf("%+v", s)
	}
}

func TestWhatIsToldOfARefusalIsBounded(t *testing.T) {
	for text, want := range map[string][]string{
		"one":                                    {"one"},
		"one\ntwo":                               {"one", "two"},
		"a\xffb":                                 {"a\ufffdb"},
		strings.Repeat("x", mostLine+1):          {strings.Repeat("x", mostLine) + "..."},
		strings.Repeat("x\n", mostLines-1) + "x": slices.Repeat([]string{"x"}, mostLines),
		strings.Repeat("x\n", mostLines) + strings.Repeat("y", 9999): append(slices.Repeat([]string{"x"}, mostLines-1), "and 2 more"),
	} {
		if got := told(errors.New(text)); !slices.Equal(got, want) {
			t.Errorf("%.20q: %q", text, got)
		}
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

// A node tries once in each window, always at the same part of it.
func TestANodeTriesOnceInEachWindow(t *testing.T) {
	windows := []time.Duration{5, 10, 20, 30, 30, 30}
	for place := 0.0; place < 1; place += 0.125 {
		b := backoff{first: DefaultSpread, place: place}
		var at, begin time.Duration
		for i, window := range windows {
			window *= time.Second
			at += b.next(0)
			if want := begin + time.Duration(place*float64(window)); at != want {
				t.Errorf("try %d is after %s, want %s", i, at, want)
			}
			begin += window
		}
		if w, want := b.next(healthy), time.Duration(place*float64(DefaultSpread)); w != want {
			t.Errorf("after a healthy stream it waits %s, want %s", w, want)
		}
		if w := b.next(healthy - 1); w != DefaultSpread-time.Duration(place*float64(DefaultSpread))+time.Duration(place*float64(2*DefaultSpread)) {
			t.Errorf("after a stream that lasted too short it waits %s", w)
		}
	}
}

func TestEachNodeHasItsOwnPlace(t *testing.T) {
	const nodes, parts = 4000, 10
	var counts [parts]int
	for range nodes {
		b := newBackoff(DefaultSpread)
		counts[b.next(0)*parts/DefaultSpread]++
	}
	for i, n := range counts {
		if n < nodes/parts*3/4 || n > nodes/parts*5/4 {
			t.Errorf("%d of %d wait from %d to %d tenths of the window", n, nodes, i, i+1)
		}
	}
}

// A control plane is away for a time, and 2000 nodes lose it at once. When it is back,
// no 100 ms have more than three times the mean over the window in which it is back, nor
// over all of the time until the last node is there.
func TestTwoThousandNodesDoNotComeBackAtOnce(t *testing.T) {
	const nodes, bucket = 2000, 100 * time.Millisecond
	for away, window := range map[time.Duration]time.Duration{
		0:                      5 * time.Second,
		300 * time.Millisecond: 5 * time.Second,
		time.Second:            5 * time.Second,
		4 * time.Second:        5 * time.Second,
		10 * time.Second:       10 * time.Second,
		time.Minute:            MostSpread,
		10 * time.Minute:       MostSpread,
	} {
		t.Run(away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				came := comeBack(nodes, away)
				last := slices.Max(came)
				counts := make([]int, last/bucket+1)
				for _, at := range came {
					counts[at/bucket]++
				}
				largest, mean, overall := slices.Max(counts), nodes*float64(bucket)/float64(window), nodes/float64(len(counts))
				t.Logf("the last comes after %s; in 100 ms at most %d, %.1f times the mean over the window, %.1f times that over all of the time",
					last.Round(bucket), largest, float64(largest)/mean, float64(largest)/overall)
				if float64(largest) > 3*mean || float64(largest) > 3*overall {
					t.Errorf("%d come in 100 ms, and the mean is %.1f and %.1f", largest, mean, overall)
				}
				if last > 2*window {
					t.Errorf("the last comes after %s, and the window is %s", last, window)
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
	random := rand.New(rand.NewPCG(1, 2)) // #nosec G404 -- the same at each run
	var all sync.WaitGroup
	for i := range came {
		b := backoff{first: DefaultSpread, place: random.Float64()}
		all.Go(func() {
			for came[i] = -1; came[i] < 0; came[i] = time.Since(back) {
				time.Sleep(b.next(0))
			}
		})
	}
	all.Wait()
	return came
}
