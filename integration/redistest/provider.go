package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// A provider starts servers of one kind.
type provider interface {
	// start returns when the server answers.
	start(ctx context.Context, flags []string) (instance, error)
}

// An instance is one running server. Its methods are called one at a time.
type instance interface {
	addr() string // host:port, the same for the whole life, restarts included
	kill(ctx context.Context) error
	stop(ctx context.Context) error
	restart(ctx context.Context) error // after kill or stop; returns when it answers
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	remove(ctx context.Context) error // ends it in any state, with all it left behind
}

// errNoRedis is the one line for a machine that has nothing to test against.
var errNoRedis = errors.New("redistest: no Redis to test against: install redis-server, or start Docker, or set SENTINEL_REDIS_URL")

// findProvider looks for a way to start servers, once for the whole run.
var findProvider = sync.OnceValues(func() (provider, error) {
	switch kind := os.Getenv("SENTINEL_TEST_REDIS"); kind {
	case "container":
		return newContainers()
	case "process":
		return newProcesses()
	case "":
	default:
		return nil, fmt.Errorf("redistest: SENTINEL_TEST_REDIS is %q; use container, process, or leave it unset", kind)
	}
	p, noContainer := newContainers()
	if noContainer == nil {
		return p, nil
	}
	if os.Getenv("SENTINEL_REDIS_IMAGE") != "" && !errors.Is(noContainer, errNoDocker) {
		// An image that was asked for by name is not silently replaced.
		return nil, noContainer
	}
	if q, err := newProcesses(); err == nil {
		return q, nil
	}
	return nil, fmt.Errorf("%w (%w)", errNoRedis, noContainer)
})

// defaultFlags make a server that Sentinel accepts and that writes no file.
var defaultFlags = []string{
	"--maxmemory", "256mb", "--maxmemory-policy", "noeviction",
	"--save", "", "--appendonly", "no",
}

// flagsFor puts a test's own flags behind the defaults: of a flag that stands
// twice, redis-server takes the last.
func flagsFor(own []string) []string {
	return append(append([]string{}, defaultFlags...), own...)
}

// serverBinary is the machine's redis-server.
func serverBinary() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("redistest: there is no redis-server on the PATH; install it (Debian: apt-get install redis-server)")
	}
	return path, nil
}

// listen returns a listener on a free port of 127.0.0.1, below the range from
// which systems take the ports of outgoing connections (32768 and up). There, a
// client could be given the port of a server that is down just now: the server
// could not come back, and a client that dials a dead port could even connect
// to itself. No port is given twice, so that a server or proxy that is down for
// a while finds its own free when it comes back.
func listen() (net.Listener, error) {
	var err error
	for range 200 {
		port := 20000 + rand.IntN(12000)
		if _, twice := portsGiven.LoadOrStore(port, true); twice {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("redistest: no free port: %w", err)
}

// portsGiven holds the ports that this process has tried.
var portsGiven sync.Map

// freePort returns a port that was free a moment ago.
func freePort() (string, error) {
	l, err := listen()
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// waitReady returns once the server at addr answers a PING, be it with an error
// such as NOAUTH; a server that is still loading has not answered. It gives up
// when ctx or the server itself ends.
func waitReady(ctx context.Context, addr string, exited <-chan struct{}) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if answers(addr) {
			return nil
		}
		select {
		case <-tick.C:
		case <-exited:
			return errors.New("the server ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s: %w", addr, context.Cause(ctx))
		}
	}
}

// answers says whether a Redis answers at addr within a second.
func answers(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	if err != nil {
		return false
	}
	return buf[0] == '+' || buf[0] == '-' && string(buf[:min(n, 8)]) != "-LOADING"
}
