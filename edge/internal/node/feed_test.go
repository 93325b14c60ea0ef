package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// fakeFeed is a control plane that does what the test says.
type fakeFeed struct {
	last    *Shared
	dropped atomic.Bool
	run     func(ctx context.Context, apply func(context.Context, *Shared) error)
	ended   atomic.Bool
}

func (f *fakeFeed) LastGood() *Shared { return f.last }
func (f *fakeFeed) Drop()             { f.dropped.Store(true) }
func (f *fakeFeed) Run(ctx context.Context, apply func(context.Context, *Shared) error) {
	f.run(ctx, apply)
	f.ended.Store(true)
}

func (f *fakeFeed) Status() FeedStatus { return FeedStatus{Connected: true, Text: "a test's"} }

func version(n int64) *Shared {
	text := fmt.Sprintf("routes: [{path: /r%d, backend: web}]\nbackends: [{name: web, url: 'http://127.0.0.1:1', health: {interval: 10ms, timeout: 10ms}}]\n", n)
	return &Shared{Name: "test", Version: n, Content: []byte(text), Since: time.Now()}
}

// fed runs a node with this feed until ctx ends, and returns its exit code and its log.
func fed(t *testing.T, ctx context.Context, f *fakeFeed) (code func() int, log *safe) { //nolint:revive // the test comes first
	t.Helper()
	file := filepath.Join(t.TempDir(), "edge.yaml")
	if err := os.WriteFile(file, []byte("server: {listen: '127.0.0.1:0', access_log: off}\nadmin: {listen: '127.0.0.1:0'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadLocal(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	log = &safe{}
	result := make(chan int, 1)
	go func() { result <- Run(ctx, cfg, Options{File: file, Stdout: io.Discard, Stderr: log, Feed: f}) }()
	return func() int { return <-result }, log
}

// What the feed brings while the node stops finds everything that it needs.
func TestAFeedThatGoesOnDuringAStopHurtsNothing(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		var applied atomic.Int64
		f := &fakeFeed{run: func(ctx context.Context, apply func(context.Context, *Shared) error) {
			for ctx.Err() == nil {
				if err := apply(ctx, version(applied.Add(1))); err != nil {
					t.Error(err)
				}
			}
		}}
		code, _ := fed(t, ctx, f)
		for applied.Load() < 3 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if got := code(); got != 0 || !f.ended.Load() {
			t.Fatalf("exit code %d, the feed has ended: %v", got, f.ended.Load())
		}
	}
}

func TestALastGoodThatIsOfNoUseIsDropped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan error, 1)
	f := &fakeFeed{
		last: &Shared{Name: "the last", Version: 7, Content: []byte("routes: [{path: nonsense, backend: b}]\n")},
		run: func(ctx context.Context, apply func(context.Context, *Shared) error) {
			refused <- apply(ctx, &Shared{Name: "version 8", Version: 8, Content: []byte("routes: nonsense\n")})
			<-ctx.Done()
		},
	}
	code, log := fed(t, ctx, f)
	if err := <-refused; err == nil || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "version 8:1: routes") {
		t.Errorf("got %v", err)
	}
	cancel()
	if got := code(); got != 0 || !f.dropped.Load() {
		t.Errorf("exit code %d, dropped: %v", got, f.dropped.Load())
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if !bytes.Contains(log.text.Bytes(), []byte("is not used")) || !bytes.Contains(log.text.Bytes(), []byte("routes[0].path: nonsense must begin with /")) {
		t.Errorf("it says %s", log.text.String())
	}
}
