package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// soakNode is what is the edge's alone.
const soakNode = `server: {listen: "127.0.0.1:0", access_log: "off", request_timeout: 3s}
admin: {listen: "127.0.0.1:0"}
`

// soakConfiguration is what the control plane hands out. It has the paths that fail on purpose in a pool without a
// breaker, so that each failure has its own reason and no other. A check has a second: on a busy machine all three
// backends may be slow at once, and a dead one refuses at once.
const soakConfiguration = `routes:
  - {path: "/status/:code", backend: faulty}
  - {path: /rst0, backend: faulty}
  - {path: /hang, backend: faulty, timeout: 300ms}
  - {path: /limited, backend: web, rate_limit: {capacity: 5, refill_rate: 1}}
  - {path: /*rest, backend: web}
%[1]s
backends:
  - name: faulty
    urls: [%[2]s]
    breaker: {failures: "off"}
    health: {path: /health, interval: 1s, timeout: 1s, fall: 1, rise: 1}
  - name: web
    urls: [%[2]s]
    balance: power_of_two
    breaker: {failures: 3, open_for: 500ms}
    health: {path: /health, interval: 1s, timeout: 1s, fall: 1, rise: 1}
`

const (
	soakRate    = 300 // requests a second, sent at their time whether answers come or not
	soakWaiting = 500 // requests under way; beyond, the machine is too slow to say anything
	// shadow is how long after a kill an answer may still be its consequence: until a check
	// has failed, and a request that is under way then has ended.
	shadow = 1500 * time.Millisecond
	// standstill is how late a bare timer of this process is when the machine stands still:
	// what times out meanwhile, here or in the edge, says nothing of the edge.
	standstill = 500 * time.Millisecond
)

// soak has an edge work for a time, while backends and the control plane are killed
// and the configuration changes, and looks for what grows and for answers that nothing
// explains.
type soak struct {
	*stage
	killed  atomic.Int64 // when, in nanoseconds since began
	began   time.Time
	mu      sync.Mutex
	answers map[string]int // by status and reason
	strange []string       // answers that nothing explains
	excused []string       // answers that the machine explains, for it stood still
	still   []span         // when it did, since began
	kills   int
	swaps   int

	nodes, operator string // the control plane's addresses
	restarts        int    // of it
	away            int    // versions that could not be made
	skipped         int
	samples         []sample
}

// span is a time.
type span struct{ from, to time.Duration }

// sample is what the edge holds at a moment.
type sample struct{ at, memory, goroutines, descriptors float64 }

func runSoak(ctx context.Context, length time.Duration) (bool, error) {
	s, err := setUp(ctx, soakConfiguration)
	if err != nil {
		return false, err
	}
	defer s.tearDown()
	k := &soak{stage: s, answers: map[string]int{}}
	if err := k.begin(); err != nil {
		return false, err
	}
	k.began = time.Now()
	k.killed.Store(-int64(time.Hour))
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var all sync.WaitGroup
	for period, do := range map[time.Duration]func(){
		time.Second: func() { k.swap(); k.measure() }, 10 * time.Second: k.kill, 30 * time.Second: func() { k.say(); k.restart() },
	} {
		all.Go(func() {
			for tick := time.NewTicker(period); ; {
				select {
				case <-tick.C:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	all.Go(func() { k.watch(ctx) })
	k.load(ctx)
	all.Wait()
	if k.err != nil {
		return false, fmt.Errorf("%w\n%s", k.err, s.edge.said())
	}
	return k.judge(), nil
}

// begin starts the control plane and an edge that follows it.
func (k *soak) begin() error {
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	k.nodes, k.operator = ports[0], ports[1]
	if err := os.Setenv("SENTINEL_CONTROL_TOKEN", "of-this-soak-alone-0123456789abcdef"); err != nil {
		return err
	}
	if err := k.startControl(); err != nil {
		return err
	}
	k.swap()
	state := filepath.Join(k.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	node := os.WriteFile(filepath.Join(k.dir, "edge.yaml"), []byte(soakNode), 0o600)
	return errors.Join(k.err, node, k.startEdge("-control", k.nodes, "-state", state, "-reconnect", "1s"))
}

// freePorts are addresses that were free a moment ago: a process that is
// restarted wants the one that it had.
func freePorts(n int) ([]string, error) {
	var found []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
		if err != nil {
			return nil, err
		}
		defer l.Close()
		found = append(found, l.Addr().String())
	}
	return found, nil
}

func (k *soak) startControl() (err error) {
	k.control, err = k.start("sentinel-control", "serve", "-db", filepath.Join(k.dir, "control.db"), "-listen", k.nodes, "-admin", k.operator)
	if err != nil {
		return err
	}
	return k.control.until(k.ctx, func(line string) bool { return strings.Contains(line, `"msg":"listening"`) })
}

// restart kills the control plane, and starts it again a moment later.
func (k *soak) restart() {
	k.control.kill()
	k.sleep(time.Second)
	if err := k.startControl(); err != nil {
		k.failed(err)
	}
	k.mu.Lock()
	k.restarts++
	k.mu.Unlock()
}

// load sends requests at a fixed rate until the end, and waits for the answers.
func (k *soak) load(ctx context.Context) {
	var all sync.WaitGroup
	room := make(chan struct{}, soakWaiting)
	for tick := time.NewTicker(time.Second / soakRate); ctx.Err() == nil; {
		<-tick.C
		select {
		case room <- struct{}{}:
		default:
			k.mu.Lock()
			k.skipped++
			k.mu.Unlock()
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			k.ask()
		})
	}
	all.Wait()
}

// ask sends one request of the mixture: one in twenty fails on purpose.
func (k *soak) ask() {
	method, path, body := http.MethodGet, "/ok", []byte(nil)
	switch n := rand.IntN(100); { // #nosec G404 -- no secret
	case n < 2:
		path = "/status/503"
	case n < 4:
		path = "/rst0"
	case n < 5:
		path = "/hang"
	case n < 15:
		path = "/limited"
	case n < 30:
		method, path, body = http.MethodPost, "/echo", bytes.Repeat([]byte("x"), rand.IntN(8<<10)) // #nosec G404 -- no secret
	case n < 40:
		method, path, body = http.MethodPut, "/echo", []byte("hello")
	case n < 50:
		path = "/bytes?n=20000"
	case n < 55:
		path = "/sse?n=3&d=20ms"
	case n < 60:
		method = http.MethodHead
	}
	begun := time.Since(k.began)
	r, err := http.NewRequestWithContext(k.ctx, method, "http://"+k.traffic+path, bytes.NewReader(body))
	if err != nil {
		k.failed(err)
		return
	}
	status, reason := send(r, body)
	k.note(path, status, reason, begun)
}

// send returns the status and the reason of an answer of the edge's own; "ok"
// for a backend's. Status 0 is an answer that broke off.
func send(r *http.Request, sent []byte) (status int, reason string) {
	resp, err := client.Do(r)
	if err != nil {
		return 0, "no answer"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var problem struct{ Reason string }
	switch {
	case err != nil:
		return 0, "cut off"
	case resp.Header.Get("Content-Type") != "application/problem+json":
		if r.URL.Path == "/echo" && resp.StatusCode == http.StatusOK && !bytes.Equal(body, sent) {
			return 0, "another body"
		}
		return resp.StatusCode, "ok"
	case r.Method != http.MethodHead && json.Unmarshal(body, &problem) != nil:
		return resp.StatusCode, "no reason"
	}
	return resp.StatusCode, problem.Reason
}

// watch notes when the machine stands still.
func (k *soak) watch(ctx context.Context) {
	const tick = 20 * time.Millisecond
	for last := time.Since(k.began); ctx.Err() == nil; {
		time.Sleep(tick)
		now := time.Since(k.began)
		if now-last > tick+standstill {
			k.mu.Lock()
			k.still = append(k.still, span{last, now})
			k.mu.Unlock()
		}
		last = now
	}
}

// stood reports whether the machine stood still at some time from a moment on, or so
// shortly before that the checks of that time have just said so; the caller holds the lock.
func (k *soak) stood(begun time.Duration) bool {
	return len(k.still) > 0 && begun < k.still[len(k.still)-1].to+shadow
}

// hit reports whether a kill came between this moment, a while before it, and now.
func (k *soak) hit(begun time.Duration) bool {
	return int64(begun) < k.killed.Load()+int64(shadow)
}

// note counts the answer to a request that began then, and keeps it if nothing explains it.
func (k *soak) note(path string, status int, reason string, begun time.Duration) {
	explained := false
	switch {
	case status == http.StatusOK:
		explained = true
	case status == http.StatusTooManyRequests:
		explained = path == "/limited" && reason == "rate_limited"
	case path == "/status/503" && status == http.StatusServiceUnavailable && reason == "ok",
		path == "/rst0" && status == http.StatusBadGateway && reason == "upstream_reset",
		path == "/hang" && status == http.StatusGatewayTimeout && reason == "upstream_timeout":
		explained = true
	case k.hit(begun):
		explained = slices.Contains([]string{"upstream_unreachable", "upstream_reset", "cut off", "no answer", "no_backend", ""}, reason)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers[fmt.Sprintf("%d %s", status, reason)]++
	if explained {
		return
	}
	what := fmt.Sprintf("%s from %v to %v: %d %s", path, begun.Round(time.Millisecond), time.Since(k.began).Round(time.Millisecond), status, reason)
	late := slices.Contains([]string{"upstream_timeout", "no_backend", "breaker_open"}, reason)
	switch {
	case late && k.stood(begun) && len(k.excused) < 20:
		k.excused = append(k.excused, what)
	case len(k.strange) < 20:
		k.strange = append(k.strange, what)
	}
}

// kill kills a backend, and starts it again a moment later.
func (k *soak) kill() {
	k.mu.Lock()
	i := k.kills % len(k.backends)
	k.kills++
	k.mu.Unlock()
	k.killed.Store(int64(time.Since(k.began)))
	addr := k.backends[i].addr
	k.backends[i].kill()
	k.sleep(500 * time.Millisecond)
	back, err := k.backend(i, addr)
	if err != nil {
		k.failed(err)
		return
	}
	k.shared.Lock()
	k.backends[i] = back
	k.shared.Unlock()
	k.killed.Store(int64(time.Since(k.began)))
}

// swap makes a version of the configuration. While the control plane is away it
// cannot, and the next one is tried in a second.
func (k *soak) swap() {
	k.mu.Lock()
	n := k.swaps % 7 // a few that come again
	k.mu.Unlock()
	file := filepath.Join(k.dir, "shared.yaml")
	if err := k.write(file, fmt.Sprintf("  - {path: /swap%d, backend: web}", n)); err != nil {
		k.failed(err)
		return
	}
	cmd := exec.CommandContext(k.ctx, filepath.Join(k.dir, "sentinel-control"), "apply", "-admin", k.operator, file) // #nosec G204 -- our own
	out, err := cmd.CombinedOutput()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.swaps++
		return
	}
	if k.away++; k.away > 3*(k.restarts+1) {
		k.failed(fmt.Errorf("apply: %w\n%s", err, out))
	}
}

// measure takes a sample of the edge.
func (k *soak) measure() {
	pid := k.edge.cmd.Process.Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		k.failed(err)
		return
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		k.failed(err)
		return
	}
	r, err := http.NewRequestWithContext(k.ctx, http.MethodGet, "http://"+k.admin+"/metrics", http.NoBody)
	if err != nil {
		k.failed(err)
		return
	}
	resp, err := client.Do(r)
	if err != nil {
		k.failed(err)
		return
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil {
		k.failed(err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.samples = append(k.samples, sample{
		time.Since(k.began).Seconds(), number(string(status), "VmRSS:") * 1024, number(string(metrics), "go_goroutines "), float64(len(files)),
	})
}

// number is the one that follows a name at the beginning of a line.
func number(text, name string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n
		}
	}
	return 0
}

func (k *soak) say() {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.samples[len(k.samples)-1]
	fmt.Fprintf(os.Stderr, "%3.0f s: %.1f MiB, %.0f goroutines, %.0f descriptors, %d versions, %d kills, %d strange answers\n",
		last.at, last.memory/(1<<20), last.goroutines, last.descriptors, k.swaps, k.kills, len(k.strange))
}

// judge prints what came of it.
func (k *soak) judge() bool {
	half := k.samples[len(k.samples)/2:]
	held := len(k.strange) == 0 && k.skipped == 0
	fmt.Printf("%d s, %d requests a second, %d versions of the configuration, %d kills of a backend and %d of the control plane\n",
		int(time.Since(k.began).Seconds()), soakRate, k.swaps, k.kills, k.restarts)
	held = held && k.swaps > len(k.samples)/2
	for _, kind := range slices.Sorted(maps.Keys(k.answers)) {
		fmt.Printf("%8d  %s\n", k.answers[kind], kind)
	}
	for _, g := range []struct {
		name   string
		of     func(sample) float64
		may    float64 // grow over the half, beside a tenth
		divide float64
	}{
		{"memory, MiB", func(s sample) float64 { return s.memory }, 4 << 20, 1 << 20},
		{"goroutines", func(s sample) float64 { return s.goroutines }, 20, 1},
		{"descriptors", func(s sample) float64 { return s.descriptors }, 20, 1},
	} {
		mean, growth := fit(half, g.of)
		ok := growth <= g.may+mean/10
		held = held && ok
		fmt.Printf("%s: %.1f in the mean of the second half, grown by %.1f in it by linear fit: %s\n", g.name, mean/g.divide, growth/g.divide, map[bool]string{true: "held", false: "BROKEN"}[ok])
	}
	for _, s := range k.still {
		fmt.Printf("the machine stood still from %v to %v\n", s.from.Round(time.Millisecond), s.to.Round(time.Millisecond))
	}
	for _, s := range k.excused {
		fmt.Println("explained by that:", s)
	}
	if len(k.strange) > 0 {
		fmt.Println("the edge said:\n" + k.edge.said())
	}
	for _, s := range k.strange {
		fmt.Println("nothing explains:", s)
	}
	if k.skipped > 0 {
		fmt.Printf("%d requests were not sent, for %d were waiting\n", k.skipped, soakWaiting)
	}
	return held
}

// fit is the mean, and the growth from the first to the last sample on the line
// of least squares.
func fit(samples []sample, of func(sample) float64) (mean, growth float64) {
	var at float64
	for _, s := range samples {
		mean += of(s) / float64(len(samples))
		at += s.at / float64(len(samples))
	}
	var product, square float64
	for _, s := range samples {
		product += (s.at - at) * (of(s) - mean)
		square += (s.at - at) * (s.at - at)
	}
	if square == 0 {
		return mean, 0
	}
	return mean, product / square * (samples[len(samples)-1].at - samples[0].at)
}
