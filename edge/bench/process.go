package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a process may take to begin or to end.
const patience = 20 * time.Second

// process is a backend or a proxy.
type process struct {
	name string
	addr string // where it serves
	cmd  *exec.Cmd
	said tail
	done chan struct{} // closed when it has ended
}

// tail is the last of what a process says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-2000):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// start runs a command, and returns when it answers at addr.
func start(ctx context.Context, name, addr string, args ...string) (*process, error) {
	p := &process{name: name, addr: addr, done: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), args[0], args[1:]...) // #nosec G204 -- our own words
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is told by what it said
		close(p.done)
	}()
	if err := p.answers(ctx); err != nil {
		p.stop()
		return nil, p.explain(err)
	}
	return p, nil
}

// answers waits until a request is answered.
func (p *process) answers(ctx context.Context) error {
	r := get(pathGet, small)
	for end := time.Now().Add(patience); ; {
		w := newWire(p.addr)
		ok, err := w.exchange(ctx, &r)
		w.hangUp()
		if ok {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fmt.Errorf("it does not answer: %w", err)
		}
	}
}

// explain adds to an error who it was, and what he said last.
func (p *process) explain(err error) error {
	if text := p.said.String(); text != "" {
		return fmt.Errorf("%s: %w; it said:\n%s", p.name, err, text)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// stop ends the process.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(2 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// cpu is the time that the process and its children have spent on CPUs, in steps
// of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	pid := strconv.Itoa(p.cmd.Process.Pid)
	total, err := cpuOf(pid)
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		return 0, err
	}
	for child := range strings.FieldsSeq(string(children)) {
		d, err := cpuOf(child)
		if err != nil {
			return 0, err
		}
		total += d
	}
	return total, nil
}

// tick is the unit of /proc/PID/stat: USER_HZ is 100 wherever Go runs on Linux.
const tick = 10 * time.Millisecond

func cpuOf(pid string) (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat") // #nosec G304 -- a number
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%s/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// freeAddresses are addresses on the loopback where nobody listens.
func freeAddresses(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all of them at the end, so that none is given twice
		addresses[i] = l.Addr().String()
	}
	return addresses, nil
}
