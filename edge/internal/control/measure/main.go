// Command measure says what a control plane costs and how quick it is: it starts one
// as a process, has nodes follow it, and prints what it sees.
//
// The nodes are in this process. Each has a connection of its own and checks what
// comes as a real one does, but builds no snapshot of it: a thousand of those on one
// machine would measure that machine.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/control/follow"
	"github.com/sentinelgo/sentinel/edge/internal/node"
)

const (
	token  = "a-token-to-measure-with" // #nosec G101 -- of a database that is thrown away
	bucket = 100 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nodes := flag.Int("nodes", 2000, "how many nodes lose the control plane at once")
	rounds := flag.Int("rounds", 20, "how many edits are timed; 0: none")
	var away []time.Duration
	flag.Func("away", "the control plane is away for these `TIMES` (default 1s,10s,1m)", func(text string) error {
		for one := range strings.SplitSeq(text, ",") {
			d, err := time.ParseDuration(one)
			if err != nil {
				return err
			}
			away = append(away, d)
		}
		return nil
	})
	flag.Parse()
	if away == nil {
		away = []time.Duration{time.Second, 10 * time.Second, time.Minute}
	}
	if err := run(ctx, *nodes, *rounds, away); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context, nodes, rounds int, away []time.Duration) error {
	p, err := setUp(ctx)
	if err != nil {
		return err
	}
	defer p.tearDown()
	for _, n := range []int{1, 100, 1000} {
		if rounds == 0 {
			break
		}
		if err := p.propagation(ctx, n, rounds); err != nil {
			return err
		}
	}
	for _, d := range away {
		if err := p.storm(ctx, nodes, d); err != nil {
			return err
		}
	}
	return nil
}

// plane is a control plane in a process of its own.
type plane struct {
	dir, nodes, admin string
	cmd               *exec.Cmd
	edits             int
}

func setUp(ctx context.Context) (*plane, error) {
	dir, err := os.MkdirTemp("", "sentinel-measure-")
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, nodes: "127.0.0.1:0", admin: "127.0.0.1:0"}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./edge/cmd/sentinel-control").CombinedOutput() // #nosec G204 -- our own
	if err != nil {
		err = fmt.Errorf("build: %w\n%s", err, out)
	} else {
		err = p.start(ctx)
	}
	if err != nil {
		p.tearDown()
		return nil, err
	}
	return p, nil
}

// start starts it where it was before, and waits until it listens.
func (p *plane) start(ctx context.Context) error {
	p.cmd = exec.CommandContext(ctx, filepath.Join(p.dir, "sentinel-control"), "serve", // #nosec G204 -- our own
		"-db", filepath.Join(p.dir, "control.db"), "-listen", p.nodes, "-admin", p.admin)
	p.cmd.Env = append(os.Environ(), "SENTINEL_CONTROL_TOKEN="+token)
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	p.cmd.Stderr = log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	for range 1000 {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			return err
		}
		line, _, _ := bytes.Cut(text, []byte("\n"))
		var at struct{ Nodes, Admin string }
		if json.Unmarshal(line, &at) == nil && at.Nodes != "" {
			p.nodes, p.admin = at.Nodes, at.Admin
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("the control plane does not listen")
}

func (p *plane) kill() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()
	}
}

func (p *plane) tearDown() {
	p.kill()
	_ = os.RemoveAll(p.dir)
}

// edit makes a version, and returns its number.
func (p *plane) edit(ctx context.Context) (int64, error) {
	p.edits++
	text := fmt.Sprintf("routes:\n  - {path: /r%d-%d, backend: web}\nbackends:\n  - {name: web, url: \"http://127.0.0.1:1\"}\n", p.edits, time.Now().UnixNano())
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+p.admin+"/v1/config", strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("If-Match", "*")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var o struct{ Version int64 }
	if err := json.Unmarshal(body, &o); err != nil || resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", resp.Status, body)
	}
	return o.Version, nil
}

// fleet are nodes that follow.
type fleet struct {
	stop    context.CancelFunc
	all     sync.WaitGroup
	nodes   int
	applied atomic.Int64 // how many have the version
	want    atomic.Int64
	done    chan struct{} // gets one when all have it
}

func newFleet(ctx context.Context, at string, nodes int, want int64) *fleet {
	f := &fleet{nodes: nodes, done: make(chan struct{}, 1)}
	f.want.Store(want)
	ctx, f.stop = context.WithCancel(ctx)
	for i := range nodes {
		follower := follow.New(follow.Options{Address: at, Node: "n" + strconv.Itoa(i), Logger: slog.New(slog.DiscardHandler)})
		f.all.Go(func() { follower.Run(ctx, f.apply) })
	}
	return f
}

func (f *fleet) apply(_ context.Context, s *node.Shared) error {
	if s.Version == f.want.Load() && f.applied.Add(1) == int64(f.nodes) {
		f.done <- struct{}{}
	}
	return nil
}

func (f *fleet) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("%d of %d nodes have the version", f.applied.Load(), f.nodes)
	}
}

func (f *fleet) end() {
	f.stop()
	f.all.Wait()
}

// propagation times edits until all nodes have them, and looks at the memory.
func (p *plane) propagation(ctx context.Context, nodes, rounds int) error {
	version, err := p.edit(ctx)
	if err != nil {
		return err
	}
	before := p.memory()
	f := newFleet(ctx, p.nodes, nodes, version)
	defer f.end()
	if err := f.wait(ctx); err != nil {
		return err
	}
	var took, answered []time.Duration
	for range rounds {
		f.applied.Store(0)
		f.want.Store(version + 1)
		begin := time.Now()
		if version, err = p.edit(ctx); err != nil {
			return err
		}
		answered = append(answered, time.Since(begin))
		if err := f.wait(ctx); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	slices.Sort(answered)
	memory := fmt.Sprintf("memory %d KiB", p.memory())
	if nodes > 1 { // of one it is that of the program
		memory += fmt.Sprintf(", %d KiB a node", (p.memory()-before)/nodes)
	}
	fmt.Printf("%4d nodes: from the edit to applied on all: median %s, worst %s of %d; the edit itself is answered after %s; %s\n",
		nodes, round(took[rounds/2]), round(took[rounds-1]), rounds, round(answered[rounds/2]), memory)
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// storm has the control plane be away for a time, and looks at how its nodes come back.
// It fails if they do not come as evenly as they should.
func (p *plane) storm(ctx context.Context, nodes int, away time.Duration) error {
	version, err := p.edit(ctx)
	if err != nil {
		return err
	}
	f := newFleet(ctx, p.nodes, nodes, version)
	defer f.end()
	if err := f.wait(ctx); err != nil {
		return err
	}
	p.kill()
	time.Sleep(away)
	if err := p.start(ctx); err != nil {
		return err
	}
	begin, cpu := time.Now(), p.cpu()
	var came []time.Duration
	for len(came) < nodes {
		time.Sleep(time.Second)
		if time.Since(begin) > 2*time.Minute {
			return fmt.Errorf("%d of %d nodes are back", len(came), nodes)
		}
		if came, err = p.came(ctx, begin); err != nil {
			return err
		}
	}
	last := slices.Max(came)
	counts := make([]int, last/bucket+1)
	for _, at := range came {
		counts[max(at, 0)/bucket]++
	}
	window := windowOf(away)
	mean := float64(nodes) * float64(bucket) / float64(window)
	fmt.Printf("%d nodes after %s without: the last is back after %s; in 100 ms %.0f in the mean of the window of %s, %d at most, %.1f times as many; %s of CPU for all, and nothing is sent\n",
		nodes, away, last.Round(bucket), mean, window, slices.Max(counts), float64(slices.Max(counts))/mean, p.cpu()-cpu)
	if float64(slices.Max(counts)) > 3*mean {
		return errors.New("in 100 ms more than three times the mean come")
	}
	return nil
}

// windowOf is the window of reconnects in which a control plane is back that was away for
// so long.
func windowOf(away time.Duration) time.Duration {
	window := follow.DefaultSpread
	for end := window; end < away; end += window {
		window = min(2*window, follow.MostSpread)
	}
	return window
}

// came is when each node came, of those that are there.
func (p *plane) came(ctx context.Context, since time.Time) ([]time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+"/v1/nodes", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var all []struct {
		Connected bool
		Since     time.Time
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, err
	}
	var came []time.Duration
	for _, n := range all {
		if n.Connected {
			came = append(came, n.Since.Sub(since))
		}
	}
	return came, nil
}

// memory is what the process has in memory, in KiB.
func (p *plane) memory() int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)) // 0 on another system
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), " kB"))
	return n
}

// cpu is the time that the process has computed.
func (p *plane) cpu() time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)) // 0 on another system
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // a tick is a hundredth of a second
}
