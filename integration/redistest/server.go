package redistest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Server is a Redis that belongs to one test and is removed when the test ends.
// A failure of its methods ends the test; call them from the test's goroutine.
type Server struct {
	t    testing.TB
	inst instance
}

// Start starts a server for this test alone. It runs with
//
//	--maxmemory 256mb --maxmemory-policy noeviction --save "" --appendonly no
//
// and with flags behind that, which add to these or override them. It is of the
// same kind as the shared server; where that is an external one, it is whatever
// this machine can start.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	p, err := findProvider()
	if err != nil {
		if os.Getenv("SENTINEL_REDIS_URL") != "" {
			err = errors.Join(errors.New("redistest: this test needs a server of its own beside SENTINEL_REDIS_URL"), err)
		}
		t.Fatal(err)
	}
	return startWith(t, p, flags)
}

// StartProcess is Start for a server that must be a process of this machine:
// its flags name files, or env, which is added to its environment, preloads a
// library. It is the redis-server on the PATH, whatever the other servers are.
func StartProcess(t testing.TB, env []string, flags ...string) *Server {
	t.Helper()
	binary, err := serverBinary()
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, processes{binary: binary, env: env}, flags)
}

func startWith(t testing.TB, p provider, flags []string) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	inst, err := p.start(ctx, flagsFor(flags))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, inst: inst}
	t.Cleanup(func() { s.do("remove", inst.remove) })
	return s
}

// Addr is the server's host:port. It never changes.
func (s *Server) Addr() string { return s.inst.addr() }

// URL is the server's redis:// address, without any credentials.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Client returns a client of the server, closed when t ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	return clientFor(t, s.URL())
}

// Kill ends the server at once, as a crash would: connections die, and nobody
// listens at its address until Restart.
func (s *Server) Kill() { s.t.Helper(); s.do("kill", s.inst.kill) }

// Stop ends the server in good order; for its clients that is like Kill.
func (s *Server) Stop() { s.t.Helper(); s.do("stop", s.inst.stop) }

// Restart starts a server that was killed or stopped anew: at the same address,
// with the same flags, and empty. It returns when the server answers.
func (s *Server) Restart() { s.t.Helper(); s.do("restart", s.inst.restart) }

// Pause freezes the server: connections stay, new ones are accepted by the
// kernel, and nothing is answered until Resume.
func (s *Server) Pause() { s.t.Helper(); s.do("pause", s.inst.pause) }

// Resume lets a paused server go on. It then also runs what it was sent while it
// was frozen, as a real one would.
func (s *Server) Resume() { s.t.Helper(); s.do("resume", s.inst.resume) }

// do runs one operation under a limit of its own, for the test's context has
// ended when it cleans up.
func (s *Server) do(name string, op func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := op(ctx); err != nil {
		s.t.Fatalf("redistest: %s: %v", name, err)
	}
}
