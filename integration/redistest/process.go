package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// processes starts the machine's own redis-server.
type processes struct {
	binary string
	env    []string // added to the environment of a server
}

func newProcesses() (provider, error) {
	binary, err := serverBinary()
	if err != nil {
		return nil, err
	}
	return processes{binary: binary}, nil
}

// start tries a few ports: one that was free may be taken when the server gets
// there.
func (p processes) start(ctx context.Context, flags []string) (instance, error) {
	dir, err := os.MkdirTemp("", "sentinel-redis-")
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	for range 5 {
		var port string
		if port, err = freePort(); err != nil {
			break
		}
		s := &process{binary: p.binary, env: p.env, dir: dir, port: port, flags: flags}
		if err = s.restart(ctx); err == nil {
			return s, nil
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "Address already in use") {
			break
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

// process is a redis-server on a private port of 127.0.0.1, in a folder of its
// own.
type process struct {
	binary, dir, port string
	config            string // a file of the configuration, "" for none
	env, flags        []string
	cmd               *exec.Cmd
	exited            chan struct{} // closed when cmd has ended
}

func (s *process) addr() string { return net.JoinHostPort("127.0.0.1", s.port) }

func (s *process) logFile() string { return filepath.Join(s.dir, "log") }

func (s *process) restart(ctx context.Context) error {
	if s.running() {
		return errors.New("the server is running; Kill or Stop it first")
	}
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--bind", "127.0.0.1", "--port", s.port, "--dir", s.dir, "--daemonize", "no"}
	if s.config != "" {
		args = append([]string{s.config}, args...) // it must stand first
	}
	s.cmd = exec.Command(s.binary, append(args, s.flags...)...)
	s.cmd.Env = append(append(os.Environ(), "LC_ALL=C"), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := spawn(s.cmd); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	s.exited = make(chan struct{})
	go func() {
		_ = s.cmd.Wait() // how it ended is in its log
		close(s.exited)
	}()
	if err := waitReady(ctx, s.addr(), s.exited); err != nil {
		err = fmt.Errorf("redistest: %s: %w; its log:\n%s", s.binary, err, s.tail())
		return errors.Join(err, s.kill(ctx))
	}
	return nil
}

// tail is the end of the server's log.
func (s *process) tail() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

func (s *process) running() bool {
	if s.exited == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

func (s *process) kill(ctx context.Context) error { return s.end(ctx, syscall.SIGKILL) }

func (s *process) stop(ctx context.Context) error { return s.end(ctx, syscall.SIGTERM) }

// end sends a signal and waits for the process to be gone; one that is gone
// already is fine.
func (s *process) end(ctx context.Context, sig os.Signal) error {
	if !s.running() {
		return nil
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the server does not end: %w", ctx.Err())
	}
}

func (s *process) pause(context.Context) error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

func (s *process) resume(context.Context) error { return s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *process) remove(ctx context.Context) error {
	return errors.Join(s.kill(ctx), os.RemoveAll(s.dir))
}

// spawn starts a command that dies with this process, however that ends (see
// dieWithParent). The kernel ties that to the thread that started the child, so
// all children are started from one thread that lives to the end.
func spawn(cmd *exec.Cmd) error {
	dieWithParent(cmd)
	result := make(chan error)
	spawner() <- func() { result <- cmd.Start() }
	return <-result
}

var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})
