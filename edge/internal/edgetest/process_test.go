package edgetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is where the commands are, built once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "edgetest-")
	if err != nil {
		return "", err
	}
	for name, path := range map[string]string{"sentinel": "../../cmd/sentinel", "sentinel-control": "../../cmd/sentinel-control", "testbackend": "../testbackend"} {
		out, err := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(dir, name), path).CombinedOutput() // #nosec G204 -- our own
		if err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return dir, nil
})

// command is the path of one of them.
func command(t testing.TB, name string) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := built(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// process is a child whose output is kept.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of its end

	mu     sync.Mutex
	lines  []string
	change chan struct{} // closed at the next line
}

// start runs one of our commands until the test ends.
func start(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return startProgram(t, name, command(t, name), args...)
}

// startProgram is start for any program.
func startProgram(t testing.TB, name, path string, args ...string) *process {
	t.Helper()
	p := &process{
		t: t, done: make(chan struct{}), change: make(chan struct{}),
		cmd: exec.CommandContext(context.WithoutCancel(t.Context()), path, args...), // #nosec G204 -- the tests' own
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = write, write
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	var all sync.WaitGroup
	all.Go(func() { p.read(read) })
	go func() {
		p.err = p.cmd.Wait()
		all.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("what %s said:\n%s", name, p.output())
		}
	})
	return p
}

func (p *process) read(from io.ReadCloser) {
	defer from.Close()
	for scanner := bufio.NewScanner(from); scanner.Scan(); {
		p.mu.Lock()
		p.lines = append(p.lines, scanner.Text())
		close(p.change)
		p.change = make(chan struct{})
		p.mu.Unlock()
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all bytes.Buffer
	for _, line := range p.lines {
		all.WriteString(line + "\n")
	}
	return all.String()
}

// line waits for the first line for which is returns true, and returns it.
func (p *process) line(is func(string) bool) string {
	p.t.Helper()
	deadline := time.After(limit)
	for at := 0; ; {
		p.mu.Lock()
		change := p.change
		lines := p.lines[at:]
		at = len(p.lines)
		p.mu.Unlock()
		for _, line := range lines {
			if is(line) {
				return line
			}
		}
		select {
		case <-change:
		case <-p.done:
			if p.mu.Lock(); at == len(p.lines) {
				p.mu.Unlock()
				p.t.Fatalf("it has ended (%v) and never said what was waited for:\n%s", p.err, p.output())
			}
			p.mu.Unlock()
		case <-deadline:
			p.t.Fatalf("it did not say what was waited for:\n%s", p.output())
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends it, stopped or not, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.done
}

// wait waits for its end by itself, and returns its exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("it does not end:\n%s", p.output())
	}
	var exit *exec.ExitError
	switch {
	case p.err == nil:
		return 0
	case errors.As(p.err, &exit):
		return exit.ExitCode()
	default:
		p.t.Fatal(p.err)
		return -1
	}
}

// descriptors is how many it has open.
func (p *process) descriptors() int {
	p.t.Helper()
	return Descriptors(p.t, p.cmd.Process.Pid)
}
