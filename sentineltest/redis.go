package sentineltest

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// Redis is a stand-in for Redis: [miniredis], with faults. It is safe for
// concurrent use; make one with [NewRedis].
//
// What it counts and spoils are decision calls, the executions of Sentinel's
// script. Several decisions that are made at the same time share one.
//
// [miniredis]: https://github.com/alicebob/miniredis
type Redis struct {
	redis *miniredis.Miniredis

	mu    sync.Mutex
	now   time.Time
	next  []Fault
	stays Fault
	calls int
	inner *server.Peer // executes calls whose answer nobody gets
}

// Fault is what becomes of a decision call. The zero Fault is none: it is
// answered.
type Fault struct {
	late  time.Duration
	runs  bool   // although the caller is not answered
	hangs bool   // the caller waits in vain
	ends  bool   // the connection is closed
	reply string // an error
	wide  bool   // spoils all commands that need the data, while it stays
}

// The faults, beside [Late]. See docs/failure-semantics.md for what Sentinel
// makes of each.
var (
	// Well is no fault.
	Well = Fault{}
	// Silent takes the call and never answers.
	Silent = Fault{hangs: true}
	// Lost executes the call and closes the connection without an answer.
	Lost = Fault{runs: true, ends: true}
	// HungUp closes the connection; nothing is executed.
	HungUp = Fault{ends: true}
	// NoScript is the answer of a server that has lost its scripts. Sentinel
	// loads the script and asks once more, so it takes two of them in a row to
	// be seen: Play(NoScript, NoScript).
	NoScript = Fault{reply: "NOSCRIPT No matching script. Please use EVAL."}
	// Loading is the answer of a server that has just been started.
	Loading = Fault{reply: "LOADING Redis is loading the dataset in memory", wide: true}
	// ReadOnly is the answer of a replica.
	ReadOnly = Fault{reply: "READONLY You can't write against a read only replica."}
	// OutOfMemory is the answer of a server that has reached maxmemory.
	OutOfMemory = Fault{reply: "OOM command not allowed when used memory > 'maxmemory'."}
)

// Late takes d to execute the call and to answer.
func Late(d time.Duration) Fault { return Fault{late: d} }

// startCheck is the key of the one decision that a connection makes to see
// whether it may decide.
const startCheck = "sentinel:start-check"

// NewRedis starts a stand-in that ends with the test. Its clock begins at the
// present second and stands still until [Redis.Advance] moves it.
func NewRedis(t testing.TB) *Redis {
	t.Helper()
	r := &Redis{
		redis: miniredis.RunT(t),
		now:   time.Now().Truncate(time.Second),
		inner: server.NewPeer(bufio.NewWriter(io.Discard)),
	}
	r.redis.SetTime(r.now)
	r.redis.Server().SetPreHook(r.meet)
	return r
}

// URL is what goes into redis_url.
func (r *Redis) URL() string { return "redis://" + r.redis.Addr() }

// Advance moves the clock: buckets fill, and keys expire.
func (r *Redis) Advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
	r.redis.SetTime(r.now)
	r.redis.FastForward(d)
}

// Play has the next decision calls meet these faults, one each, in order, and
// those after them what [Redis.Stay] has set. The call by which a new connection
// tries whether it may decide meets none of them.
func (r *Redis) Play(faults ...Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = append(r.next, faults...)
}

// Stay has every decision call meet f, until the next Stay, those too by which
// new connections try whether they may decide: a limiter that is opened
// meanwhile starts degraded.
func (r *Redis) Stay(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stays = f
}

// Calls is how many decision calls have arrived, whatever became of them,
// without those by which connections try whether they may decide.
func (r *Redis) Calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// Stop closes the port and all connections, like a server that was killed. The
// data is still there after [Redis.Start].
func (r *Redis) Stop() { r.redis.Close() }

// Start opens the port again.
func (r *Redis) Start() error {
	if err := r.redis.Restart(); err != nil {
		return err
	}
	r.redis.Server().SetPreHook(r.meet)
	return nil
}

// meet is called before each command. It reports whether it has answered, or
// seen to it that nobody does.
func (r *Redis) meet(c *server.Peer, command string, args ...string) bool {
	if c == r.inner {
		return false
	}
	var f Fault
	switch strings.ToUpper(command) {
	case "EVALSHA":
		f = r.fault(slices.Contains(args, startCheck))
	case "PING", "SCRIPT":
		f = r.wide()
	}
	switch {
	case f.reply != "":
		c.WriteError(f.reply)
		return true
	case f.runs:
		r.mu.Lock() // inner is one
		r.redis.Server().Dispatch(r.inner, append([]string{command}, args...))
		r.mu.Unlock()
	case f.late > 0:
		time.Sleep(f.late)
		return false
	}
	if f.ends {
		c.Close()
	}
	return f.ends || f.hangs
}

// fault takes the one that is next.
func (r *Redis) fault(starting bool) Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	if starting {
		return r.stays
	}
	r.calls++
	if len(r.next) == 0 {
		return r.stays
	}
	f := r.next[0]
	r.next = r.next[1:]
	return f
}

// wide is the fault that spoils other commands, too.
func (r *Redis) wide() Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stays.wide {
		return r.stays
	}
	return Well
}
