package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server of our own, on a private port of 127.0.0.1.
type server struct {
	addr   string
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
	client *redis.Client // for questions about the server, not for contestants
	bus    string        // the port of its cluster; "" for none
	others []*server     // of its cluster
}

// all are the servers of a cluster, or the one that there is.
func (s *server) all() []*server { return append([]*server{s}, s.others...) }

func (s *server) addrs() []string {
	var addrs []string
	for _, one := range s.all() {
		addrs = append(addrs, one.addr)
	}
	return addrs
}

// startRedis starts a server with the settings that a quota needs: no eviction,
// a bound on memory, nothing written to disk.
func startRedis(ctx context.Context, binary string, flags ...string) (*server, error) {
	var err error
	for range 5 { // a port that was free may be taken when the server gets there
		var s *server
		if s, err = tryRedis(ctx, binary, flags...); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func tryRedis(ctx context.Context, binary string, flags ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sentinel-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{addr: "127.0.0.1:" + port, dir: dir, exited: make(chan struct{})}
	s.cmd = exec.Command(binary, append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--daemonize", "no",
		"--logfile", filepath.Join(dir, "log"), "--save", "", "--appendonly", "no",
		"--maxmemory", "256mb", "--maxmemory-policy", "noeviction",
	}, flags...)...)
	// A terminal's interrupt is for us: the server ends when we have ended.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("%w; install Redis, or name its server with -redis-server", err)
	}
	go func() {
		_ = s.cmd.Wait() // how it ended is in its log
		close(s.exited)
	}()
	s.client = redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	if err := s.waitReady(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return nil, errors.Join(fmt.Errorf("redis-server: %w; its log:\n%s", err, log), s.stop())
	}
	return s, nil
}

func (s *server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = conn.Close()
			return s.client.Ping(ctx).Err()
		}
		select {
		case <-s.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *server) stop() error {
	_ = s.client.Close()
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.exited
	errs := []error{os.RemoveAll(s.dir)}
	for _, other := range s.others {
		errs = append(errs, other.stop())
	}
	return errors.Join(errs...)
}

// freeze stops the server in the middle of whatever it does: connections stay,
// the kernel accepts new ones, nothing is answered until thaw.
func (s *server) freeze() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

func (s *server) thaw() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

func (s *server) flush(ctx context.Context) error {
	var errs []error
	for _, one := range s.all() {
		errs = append(errs, one.client.FlushAll(ctx).Err())
	}
	return errors.Join(errs...)
}

// cpu is the time that the server, or its whole cluster, has spent on a CPU.
func (s *server) cpu(ctx context.Context) (sum time.Duration, err error) {
	for _, one := range s.all() {
		spent, err := one.cpuOfOne(ctx)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

func (s *server) cpuOfOne(ctx context.Context) (time.Duration, error) {
	info, err := s.client.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	user, err1 := strconv.ParseFloat(infoField(info, "used_cpu_user"), 64)
	system, err2 := strconv.ParseFloat(infoField(info, "used_cpu_sys"), 64)
	return time.Duration((user + system) * float64(time.Second)), errors.Join(err1, err2)
}

// scriptCalls is how often a script was run by its digest.
func (s *server) scriptCalls(ctx context.Context) (int64, error) {
	info, err := s.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	calls, _, _ := strings.Cut(strings.TrimPrefix(infoField(info, "cmdstat_evalsha"), "calls="), ",")
	return strconv.ParseInt(calls, 10, 64)
}

func (s *server) version(ctx context.Context) string {
	info, err := s.client.Info(ctx, "server").Result()
	if err != nil {
		return err.Error()
	}
	return infoField(info, "redis_version")
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	return port, errors.Join(err, ln.Close())
}
