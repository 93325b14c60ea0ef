package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stage is what the scenes play on.
type stage struct {
	ctx     context.Context
	dir     string
	edge    *process
	control *process // of a soak
	traffic string   // the edge's address
	admin   string   // its operator's
	config  string   // what its file is made of

	shared   sync.Mutex  // by the goroutines of a soak:
	backends [3]*process // a, b and c
	err      error       // of the first thing that went wrong with the stage itself
}

// process is one that the demo has started.
type process struct {
	cmd  *exec.Cmd
	addr string // of a backend
	done chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

const configuration = `server: {listen: "127.0.0.1:0", access_log: "off", grace: 5s}
admin: {listen: "127.0.0.1:0"}
routes:
  - {path: /even, backend: even}
  - {path: /web, backend: web}
  - {path: /any, backend: any}
  - {path: /limited, backend: web, rate_limit: {capacity: 50, refill_rate: 10}}
%s
backends:
  - {name: even, urls: [%[2]s], health: {path: /health}}
  - name: web
    urls: [%[2]s]
    balance: least_connections
    health: {path: /health, interval: 200ms, timeout: 150ms, fall: 2, rise: 2}
    breaker: {failures: 3, open_for: 500ms}
  - {name: any, urls: [%[2]s], health: {path: /health}, retry: {scope: next_backend, budget: {min: 8}}}
`

func setUp(ctx context.Context, config string) (*stage, error) {
	dir, err := os.MkdirTemp("", "sentinel-demo-")
	if err != nil {
		return nil, err
	}
	s := &stage{ctx: ctx, dir: dir, config: config}
	for name, path := range map[string]string{"sentinel": "./edge/cmd/sentinel", "sentinel-control": "./edge/cmd/sentinel-control", "testbackend": "./edge/internal/testbackend"} {
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, name), path).CombinedOutput(); err != nil { // #nosec G204 -- our own
			s.tearDown()
			return nil, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	for i := range s.backends {
		if s.backends[i], err = s.backend(i, "127.0.0.1:0"); err != nil {
			s.tearDown()
			return nil, err
		}
	}
	return s, nil
}

func (s *stage) writeConfig(more string) error {
	return s.write(filepath.Join(s.dir, "edge.yaml"), more)
}

// write writes the stage's configuration, with more routes.
func (s *stage) write(file, more string) error {
	var urls []string
	s.shared.Lock()
	defer s.shared.Unlock()
	for _, b := range s.backends {
		urls = append(urls, "http://"+b.addr)
	}
	return os.WriteFile(file, fmt.Appendf(nil, s.config, more, strings.Join(urls, ", ")), 0o600)
}

func (s *stage) backend(i int, addr string) (*process, error) {
	p, err := s.start("testbackend", "-name", string(rune('a'+i)), "-listen", addr)
	if err != nil {
		return nil, err
	}
	return p, p.until(s.ctx, func(line string) bool {
		p.addr = line
		return strings.HasPrefix(line, "127.0.0.1:")
	})
}

// startEdge starts it with the file edge.yaml, and waits until it is ready.
func (s *stage) startEdge(args ...string) (err error) {
	if s.edge, err = s.start("sentinel", append([]string{"run", "-config", filepath.Join(s.dir, "edge.yaml")}, args...)...); err != nil {
		return err
	}
	var at struct{ Traffic, Admin string }
	err = s.edge.until(s.ctx, func(line string) bool {
		return strings.Contains(line, `"msg":"listening"`) && json.Unmarshal([]byte(line), &at) == nil
	})
	if err != nil {
		return err
	}
	s.traffic, s.admin = at.Traffic, at.Admin
	for range 500 {
		if s.get("http://"+at.Admin+"/readyz").status == http.StatusOK {
			return nil
		}
		s.sleep(10 * time.Millisecond)
	}
	return errors.New("the edge does not become ready")
}

func (s *stage) start(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(s.ctx, filepath.Join(s.dir, name), args...), done: make(chan struct{})} // #nosec G204 -- our own
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = write, write
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	_ = write.Close() // the child has its own
	go func() {
		for lines := bufio.NewScanner(read); lines.Scan(); {
			p.mu.Lock()
			p.text.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
		}
		_ = read.Close() // read to its end
		_ = p.cmd.Wait() // the exit code stays in ProcessState
		close(p.done)
	}()
	return p, nil
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// until waits for a line.
func (p *process) until(ctx context.Context, is func(string) bool) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(p.said()) {
			if is(strings.TrimSpace(line)) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s does not come up:\n%s", p.cmd.Path, p.said())
}

func (p *process) kill() {
	if p != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}

func (s *stage) tearDown() {
	s.edge.kill()
	s.control.kill()
	for _, b := range s.backends {
		b.kill()
	}
	_ = os.RemoveAll(s.dir)
}

// fault is what a backend does from now on.
func (s *stage) fault(i int, query string) {
	if r := s.get("http://" + s.backends[i].addr + "/_fault?" + query); r.status != http.StatusOK {
		s.failed(fmt.Errorf("backend %c takes no fault: %d", 'a'+i, r.status))
	}
}

func (s *stage) failed(err error) {
	s.shared.Lock()
	defer s.shared.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *stage) signal(sig syscall.Signal) {
	if err := s.edge.cmd.Process.Signal(sig); err != nil {
		s.failed(err)
	}
}

func (s *stage) sleep(d time.Duration) {
	select {
	case <-s.ctx.Done():
		s.failed(s.ctx.Err())
	case <-time.After(d):
	}
}

// answer is what a client got; status 0 is no answer.
type answer struct {
	status  int
	backend string
	retry   string
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (s *stage) get(url string) answer {
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return answer{}
	}
	resp, err := client.Do(r)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header.Get("X-Backend"), resp.Header.Get("Retry-After")}
}

// tally counts answers.
type tally struct {
	mu       sync.Mutex
	all      int
	status   map[int]int
	backends map[string]int
	retry    int // that say when to come again
}

func newTally() *tally { return &tally{status: map[int]int{}, backends: map[string]int{}} }

func (t *tally) add(a answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all++
	t.status[a.status]++
	t.backends[a.backend]++
	if a.retry != "" {
		t.retry++
	}
}

// failures is how many were answered by something else than 200.
func (t *tally) failures() int { return t.all - t.status[http.StatusOK] }

// revive starts a backend again that was killed.
func (s *stage) revive(i int, addr string) {
	back, err := s.backend(i, addr)
	if err != nil {
		s.failed(err)
		return
	}
	s.backends[i] = back
}

// crowd asks for a path from so many goroutines, each with a pause between its
// requests, until done is closed.
func (s *stage) crowd(path string, goroutines int, done <-chan struct{}) *tally {
	t := newTally()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for s.ctx.Err() == nil {
				select {
				case <-done:
					return
				default:
				}
				t.add(s.get("http://" + s.traffic + path))
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return t
}

// during runs a crowd while do is done.
func (s *stage) during(goroutines int, do func()) *tally { return s.duringAt("/web", goroutines, do) }

// duringAt is during for a path.
func (s *stage) duringAt(path string, goroutines int, do func()) *tally {
	done := make(chan struct{})
	result := make(chan *tally)
	go func() { result <- s.crowd(path, goroutines, done) }()
	do()
	close(done)
	return <-result
}
