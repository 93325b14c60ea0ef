package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// redisServer is a Redis of the tour's own: on a private port, with nothing on
// disk, and with the two settings that Sentinel asks of every Redis.
type redisServer struct {
	path string
	dir  string
	port int
	cmd  *exec.Cmd // nil while it is down
}

// startRedis starts a redis-server from the PATH and waits until it answers.
func startRedis(ctx context.Context) (*redisServer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("there is no redis-server on the PATH: install one (apt-get install redis-server), or take the tour without -redis-server")
	}
	dir, err := os.MkdirTemp("", "sentinel-tour-")
	if err != nil {
		return nil, err
	}
	s := &redisServer{path: path, dir: dir}
	// Another process may take the port between our look and the server's.
	for range 3 {
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.start(ctx); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

// freePort returns a free port below those that systems give to outgoing
// connections (32768 and up): one of these could take it while the server is down.
func freePort() (int, error) {
	var err error
	for range 50 {
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000)))); err == nil {
			return ln.Addr().(*net.TCPAddr).Port, ln.Close()
		}
	}
	return 0, err
}

func (s *redisServer) addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// start starts the server on its port, empty.
func (s *redisServer) start(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, s.path,
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "no",
		"--maxmemory", "256mb", "--maxmemory-policy", "noeviction")
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("redis-server: %w", err)
	}
	s.cmd = cmd
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if ctx.Err() != nil {
			break
		}
		if s.ping() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.kill()
	return errors.Join(fmt.Errorf("redis-server did not answer on %s", s.addr()), ctx.Err())
}

// ping reports whether the server answers.
func (s *redisServer) ping() bool {
	conn, err := net.DialTimeout("tcp", s.addr(), time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && line == "+PONG\r\n"
}

// kill ends the server as a power cut would.
func (s *redisServer) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended by itself
	_ = s.cmd.Wait()         // "signal: killed" is what we asked for
	s.cmd = nil
}

// close ends the server and removes its folder.
func (s *redisServer) close() error {
	s.kill()
	return os.RemoveAll(s.dir)
}
