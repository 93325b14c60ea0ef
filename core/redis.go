package sentinel

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/lua"
)

const (
	// maxLines bounds the connections that one limiter uses: as many as there
	// are calls in flight.
	maxLines = maxCalls
	// spareLines is how many are kept ready without being asked for, so that a
	// single slow answer, which costs its line, does not leave the next caller
	// waiting for a dial.
	spareLines = 4
	// restAfter is how long a connection may lie unused before it is checked
	// for having been closed by the other side.
	restAfter = 50 * time.Millisecond
)

// redisStore decides on a Redis. A decision uses only a connection that is
// ready: dialled, authenticated and on a server that has been checked. All
// that is the work of the connector (connector.go), under limits of its own,
// so that a slow set-up neither eats a decision's budget nor is cut short by
// it.
type redisStore struct {
	client  *redis.Client
	owned   bool     // close it with the store
	dialer  *handoff // nil for a client that belongs to the application
	masters *masters // nil unless Redis Sentinels say where the master is
	cluster bool     // it is a master of one
	// checkKey is the key of the start check.
	checkKey string
	unread   UnreadableRedisPolicy // unreadable_redis_policy
	log      *slog.Logger
	// onReady is called whenever the first connection of a new series is up;
	// another: it leads to another master than the last.
	onReady func(another bool)

	wake chan struct{} // asks the connector for one more line

	mu      sync.Mutex
	free    []*line // ready and unused
	queue   queue   // decisions that wait for a line
	clocked bool    // some of them came while there was none
	busy    int     // lines in use
	inside  int     // decisions between their arrival and their answer
	load    int     // inside, smoothed, in 1/loadUnit
	max     int
	spare   int
	open    int           // lines that exist, ready or in use
	attempt chan struct{} // closed when the attempt under way ends; nil if none
	failed  *storeFailure // why there is no line, while open is 0
	told    []string      // reasons that the log has of that
	master  string        // where the last line leads, if Redis Sentinels have said so
	proven  bool          // it has taken a decision, and not said since that it is no master
	closed  bool
	// starting: whoever waits for the first attempt reports what came of it.
	starting bool
	// growAfter keeps callers from asking for one line more at once after the
	// server has refused one.
	growAfter time.Time
	// patience ends when a decision has waited too long for company; impatient:
	// it runs.
	patience  *time.Timer
	impatient bool
	silent    time.Time    // when the time of a call ran out that counts
	usual     atomic.Int64 // how long a call takes, nanoseconds; 0: not yet known

	stop    context.CancelFunc
	running sync.WaitGroup // the connector, and the watch over the master
}

// line is one ready connection, used by one call at a time, with the room that
// its calls are put together in.
type line struct {
	conn   *redis.Conn
	socket net.Conn // below conn; nil for a client that belongs to the application
	master string   // where it leads, if Redis Sentinels have said so
	used   time.Time
	// rested: it lay unused before this call, so that a failure says something
	// about the others that did.
	rested bool
	batch  []*waiter
	groups []group
	beside []group // of their endpoints' candidates
	args   []any
	parts  []part // in a cluster
}

// call is one execution of the script for the groups. It is sent once: a second
// EVALSHA after anything but NOSCRIPT could charge twice.
func call(ctx context.Context, ln *line, m mode) (reply []int64, failure *storeFailure) {
	defer func() {
		if recover() != nil { // see readable
			reply, failure = nil, badReply(errUnreadable)
		}
	}()
	ln.args = encodeCall(ln.args[:0], m, ln.groups, ln.beside...)
	cmd := redis.NewIntSliceCmd(ctx, ln.args...)
	_ = ln.conn.Process(ctx, cmd)
	reply, err := cmd.Result()
	if isNoScript(err) {
		// A restart, a failover or SCRIPT FLUSH emptied the cache and nothing
		// ran. Load and run in one round trip, so that one more flush is
		// unlikely to come between.
		pipe := ln.conn.Pipeline()
		pipe.ScriptLoad(ctx, lua.Decide)
		again := redis.NewIntSliceCmd(ctx, ln.args...)
		_ = pipe.Process(ctx, again)
		_, _ = pipe.Exec(ctx)
		reply, err = again.Result()
	}
	if err != nil {
		return nil, failureOf(err)
	}
	return reply, nil
}

// failureOf is the failure of a script that was sent.
func failureOf(err error) *storeFailure {
	if isNoScript(err) {
		return &storeFailure{kind: kindNoScript, sent: true, detail: "NOSCRIPT again after a reload"}
	}
	failure := classify(err)
	failure.sent = !isDialError(err) && !failure.aboutCluster()
	return failure
}

func isNoScript(err error) bool { return errorCodeOf(err) == "NOSCRIPT" }

// sound reports whether a line may be written to: a write into a connection
// that the server has closed would be lost, and its decisions too. Only one that
// lay unused is looked at. Without its socket it goes through the client's pool
// once, which looks and, if need be, dials.
func (s *redisStore) sound(ln *line) bool {
	ln.rested = time.Since(ln.used) >= restAfter
	switch {
	case !ln.rested:
	case ln.socket != nil:
		return !hungUp(ln.socket)
	default:
		_ = ln.conn.Close() // back to the pool; the next Conn takes it from there
		ln.conn = s.client.Conn()
	}
	return true
}

// topUp starts an attempt where there are fewer lines than the spare ones,
// before a caller needs it; the caller holds the lock. Where a dead Redis has
// failed an attempt, the connector itself tries again.
func (s *redisStore) topUp() {
	if s.open < s.spare && s.attempt == nil && s.failed == nil && !s.closed && time.Now().After(s.growAfter) {
		s.begin()
	}
}

func (s *redisStore) ready() *storeFailure {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return &storeFailure{kind: kindClosed, detail: "the limiter is closed"}
	case s.open > 0:
		return nil
	case s.failed != nil:
		return s.failed
	default:
		return &storeFailure{kind: kindConnection, detail: "connecting"}
	}
}

func (s *redisStore) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.stop()
	var err error
	if s.owned {
		err = s.client.Close() // also ends what the connector waits for
	}
	s.running.Wait()
	if s.masters != nil {
		err = errors.Join(err, s.masters.close())
	}
	s.mu.Lock()
	s.drain()
	s.dispatch()
	s.mu.Unlock()
	return err
}
