package wiretest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/node"
)

// patience ends a test that hangs; nothing is timed by it.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is a whole one, as `sentinel run` has it, in this process.
type edge struct {
	addr, admin string
	access      *lines // its access log
}

// startEdge starts one before a backend until the test ends. more is of the
// section server. A single failure of the backend opens its breaker, so that
// whatever a client does wrong and is put down to the backend shows at once.
func startEdge(tb testing.TB, backend, more string) *edge {
	tb.Helper()
	return startEdgeWith(tb, backend, more, "breaker: {failures: 1, open_for: 1h}, health: {type: off}")
}

// startEdgeWith is startEdge with what the pool has.
func startEdgeWith(tb testing.TB, backend, more, pool string) *edge {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "edge.yaml")
	text := fmt.Sprintf(`
server: {listen: "127.0.0.1:0", max_body_bytes: 65536%s}
admin: {listen: "127.0.0.1:0"}
routes:
  - {path: /, backend: a}
  - {path: /a/*rest, backend: a}
  - {path: /smuggled, backend: a}
  - {path: /get, methods: [GET], backend: a}
backends:
  - {name: a, url: %q, %s}
`, more, backend, pool)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		tb.Fatal(err)
	}
	e := &edge{access: newLines()}
	messages := newLines()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if code := node.Run(ctx, cfg, node.Options{File: file, Stdout: e.access, Stderr: messages}); code == 2 {
			tb.Errorf("the edge does not start: %s", messages)
		}
	}()
	tb.Cleanup(func() {
		stop()
		<-ended
	})
	messages.wait(tb, func(all [][]byte) bool {
		var said struct{ Msg, Traffic, Admin string }
		for _, line := range all {
			if json.Unmarshal(line, &said) == nil && said.Msg == "listening" {
				e.addr, e.admin = said.Traffic, said.Admin
				return true
			}
		}
		return false
	})
	return e
}

// record is a line of the access log.
type record struct {
	ID, Method, Path, Reason, Backend string
	Status, Attempts                  int
	BytesIn                           int64 `json:"bytes_in"`
}

// records takes those that there are since the last time, when there are n of them.
func (e *edge) records(tb testing.TB, n int) []record {
	tb.Helper()
	e.access.wait(tb, func(lines [][]byte) bool { return len(lines) >= n })
	var all []record
	for _, line := range e.access.take() {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			tb.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

// lines keeps what is written to it. It is safe for concurrent use.
type lines struct {
	mu     sync.Mutex
	all    [][]byte
	rest   []byte
	change chan struct{} // closed at the next line
}

func newLines() *lines { return &lines{change: make(chan struct{})} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			break
		}
		l.all, l.rest = append(l.all, bytes.Clone(line)), rest
	}
	close(l.change)
	l.change = make(chan struct{})
	return len(p), nil
}

// wait waits until the lines are as they should be.
func (l *lines) wait(tb testing.TB, is func(all [][]byte) bool) {
	tb.Helper()
	for late := time.After(patience); ; {
		l.mu.Lock()
		all, change := l.all, l.change
		l.mu.Unlock()
		if is(all) {
			return
		}
		select {
		case <-change:
		case <-late:
			tb.Fatalf("it was not said: %s", l)
		}
	}
}

// take returns the lines since the last time.
func (l *lines) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, line := range l.all[max(0, len(l.all)-20):] {
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}
