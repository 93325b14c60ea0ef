package sentinel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/lua"
)

const (
	// setupLimit bounds one attempt to get a connection ready: dial, TLS, AUTH,
	// start check, script load.
	setupLimit = 2 * time.Second
	// stepLimit bounds the dial and each command of an attempt, so that one
	// that began while the network swallowed everything ends early enough for
	// the next to succeed within two seconds.
	stepLimit = time.Second
	// Between failed attempts: full jitter, https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
	backoffBase = 50 * time.Millisecond
	backoffCap  = 500 * time.Millisecond
	// maxTold bounds the reasons that the log has of one outage.
	maxTold = 16
	// recheckAfter is when a server that was refused is looked at again.
	recheckAfter = 10 * time.Second
)

// refusal is a server that answers and is not fit for use.
type refusal struct{ fault string }

func (r *refusal) Error() string { return "sentinel: redis_url: " + r.fault }

// start begins the connector, and its first attempt. quiet: whoever waits for
// that reports what came of it.
func (s *redisStore) start(quiet bool) {
	ctx, stop := context.WithCancel(context.Background())
	s.stop, s.wake, s.spare = stop, make(chan struct{}, 1), min(spareLines, s.max)
	s.mu.Lock()
	s.starting = quiet
	s.begin()
	s.mu.Unlock()
	s.running.Go(func() { s.connect(ctx) })
	if s.masters != nil {
		s.running.Go(func() { s.watch(ctx) })
	}
}

// begin marks an attempt as under way and wakes the connector for it; the
// caller holds the lock and has seen that there is none.
func (s *redisStore) begin() {
	s.attempt = make(chan struct{})
	s.wake <- struct{}{} // never blocks: one attempt at a time
}

// first waits for the end of the attempt under way and returns what came of
// it: nil, a *refusal, or an error that may pass.
func (s *redisStore) first(ctx context.Context) error {
	defer func() { // from now on the connector itself reports
		s.mu.Lock()
		s.starting = false
		s.mu.Unlock()
	}()
	s.mu.Lock()
	attempt := s.attempt
	s.mu.Unlock()
	if attempt != nil {
		select {
		case <-attempt:
		case <-ctx.Done():
			return fmt.Errorf("sentinel: redis_url: no answer in time: %w", ctx.Err())
		}
	}
	failure := s.ready()
	switch {
	case failure == nil:
		return nil
	case failure.kind == kindRefused:
		return &refusal{failure.detail}
	default:
		return errors.New("sentinel: redis_url: " + failure.detail)
	}
}

// connect is the connector: the one goroutine that sets connections up, one
// attempt at a time, until the store is closed.
func (s *redisStore) connect(ctx context.Context) {
	backoff := backoffBase
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			s.finish(nil, &storeFailure{kind: kindClosed, detail: "the limiter is closed"})
			return
		}
		ln, err := s.setUp(ctx)
		if err == nil {
			backoff = backoffBase
			s.finish(ln, nil)
			continue
		}
		retry, wait := s.finish(nil, setupFailure(err)), rand.N(backoff)+1
		if !retry {
			continue // other lines are up; the next caller in need asks again
		}
		if s.masters != nil {
			s.masters.doubt()
		}
		if backoff *= 2; backoff > backoffCap {
			backoff = backoffCap
		}
		if _, refused := errors.AsType[*refusal](err); refused {
			wait = recheckAfter
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		s.mu.Lock()
		s.begin()
		s.mu.Unlock()
	}
}

// finish ends the attempt under way, and wakes all that wait for it. It
// reports whether the connector must try again by itself: there is no line.
func (s *redisStore) finish(ln *line, failure *storeFailure) bool {
	s.mu.Lock()
	wasFailed := s.failed
	isFirst := ln != nil && s.open == 0
	another := isFirst && s.master != ln.master
	switch {
	case ln != nil && s.closed:
		defer func() { _ = ln.conn.Close() }()
	case ln != nil:
		s.open++
		s.failed, s.told = nil, nil
		s.master = ln.master
		s.free = append(s.free, ln)
	case s.open == 0:
		s.failed = failure
	default:
		s.growAfter = time.Now().Add(backoffCap)
	}
	if s.attempt != nil {
		close(s.attempt)
		s.attempt = nil
	}
	s.topUp()
	s.dispatch()
	retry := s.open == 0 && !s.closed
	closed, starting := s.closed, s.starting
	tell := retry && !starting && len(s.told) < maxTold && !slices.Contains(s.told, failure.detail)
	if tell {
		s.told = append(s.told, failure.detail)
	}
	s.mu.Unlock()
	if closed {
		return false
	}
	if isFirst {
		if wasFailed != nil {
			s.log.Info("sentinel: connected to Redis again")
		}
		s.onReady(another)
	}
	if tell {
		s.logAway(failure)
	}
	return retry
}

// logAway writes one line for each reason that Redis is away, not for each
// attempt, nor where two reasons take turns, and certainly not for each request.
func (s *redisStore) logAway(f *storeFailure) {
	if f.kind == kindRefused {
		s.log.Error("sentinel: this Redis is not fit for use; every check takes its failure row",
			"change", f.detail, "next_look", recheckAfter.String())
		return
	}
	s.log.Error("sentinel: Redis is away; every check takes its failure row", "kind", string(f.kind), "detail", f.detail)
}

func setupFailure(err error) *storeFailure {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return &storeFailure{kind: kindRefused, detail: refused.fault}
	}
	return classify(err)
}

// setUp makes one connection ready. The first of a series also checks the
// server, for it may be another one than before.
func (s *redisStore) setUp(ctx context.Context) (*line, error) {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	ln := &line{}
	if s.dialer == nil {
		ln.conn = s.client.Conn()
	} else {
		// The socket is opened before go-redis asks for it: go-redis would log
		// each failure through its global logger, and after a few of them
		// answer with the last one without looking again.
		var err error
		if ln.socket, err = s.dialer.prepare(ctx); err != nil {
			return nil, err
		}
		ln.conn = s.client.EphemeralConn()
	}
	if s.masters != nil {
		ln.master = s.masters.lead()
	}
	if err := readable(func() error { return s.prepare(ctx, ln) }); err != nil {
		_ = ln.conn.Close()
		if s.dialer != nil {
			s.dialer.discard()
		}
		if fault := unfit(err, s.client.Options().DB, s.cluster); fault != "" {
			return nil, &refusal{fault}
		}
		return nil, err
	}
	ln.used = time.Now()
	return ln, nil
}

// readable is f, which reads replies. go-redis makes room for as many elements as
// a reply announces, and panics where there is no such room; in the background
// that would end the process.
func readable(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errUnreadable
		}
	}()
	return f()
}

// errUnreadable is a reply that cannot be read.
var errUnreadable = errors.New("redis: a reply that cannot be read")

// prepare loads the script, which also shows whether the credentials are good,
// and looks at the server.
func (s *redisStore) prepare(ctx context.Context, ln *line) error {
	s.mu.Lock()
	isFirst := s.open == 0
	s.mu.Unlock()
	if err := ln.conn.ScriptLoad(ctx, lua.Decide).Err(); err != nil || !isFirst {
		return err
	}
	if err := s.check(ctx, ln.conn); err != nil {
		return err
	}
	return s.rehearse(ctx, ln)
}

// rehearse makes one decision, the first time that a connection to a master is
// up, on a key that is nobody's and expires by itself. Only so does a permission
// show that the user lacks, and a replica, which writes nothing. Whatever else
// goes wrong is for the decisions to tell.
func (s *redisStore) rehearse(ctx context.Context, ln *line) error {
	s.mu.Lock()
	known := s.proven && s.master == ln.master
	s.mu.Unlock()
	if known {
		return nil
	}
	var g group
	g.add(&subject{key: s.checkKey, rule: newRule(bucket.NewTokenBucket(bucket.Token, bucket.Token), 0)})
	cmd := redis.NewIntSliceCmd(ctx, encodeCall(nil, modeDecide, []group{g})...)
	err := ln.conn.Process(ctx, cmd)
	if lacksPermission(err) || isReplica(err) {
		return err
	}
	if err != nil && classify(err).aboutCluster() {
		return nil // another time
	}
	s.mu.Lock()
	s.proven = true
	s.mu.Unlock()
	return nil
}

// check refuses a Redis that would lose quotas or fill its host.
func (s *redisStore) check(ctx context.Context, conn *redis.Conn) error {
	policy, err := readMemoryPolicy(ctx, conn)
	switch {
	case errors.Is(err, errUnreadablePolicy) && s.unread == UnreadableRefuse:
		return &refusal{err.Error() + "; allow the user +config|get or +info, or set unreadable_redis_policy to \"warn\" once you have checked the server yourself"}
	case errors.Is(err, errUnreadablePolicy):
		s.log.Warn("sentinel: " + err.Error() + "; make sure that it is noeviction and that maxmemory is set, or set unreadable_redis_policy to \"refuse\"")
		return nil
	case err != nil:
		return err
	}
	if fault := policy.fault(); fault != "" {
		return &refusal{fault}
	}
	return nil
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// handoff is the dialer of a client that Sentinel made. It gives go-redis the
// socket that the connector has opened, and no other: a decision never dials.
type handoff struct {
	open    dialFunc
	network string
	addr    string

	mu   sync.Mutex
	conn net.Conn
}

// prepare opens the socket that dial will give.
func (h *handoff) prepare(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	conn, err := h.open(ctx, h.network, h.addr)
	if _, refused := errors.AsType[*refusal](err); refused {
		return nil, err
	}
	if err != nil {
		return nil, newDialError(err)
	}
	h.mu.Lock()
	h.conn = conn
	h.mu.Unlock()
	return conn, nil
}

// dial is redis.Options.Dialer.
func (h *handoff) dial(context.Context, string, string) (net.Conn, error) {
	conn := h.take()
	if conn == nil {
		return nil, &dialError{kind: kindConnection, detail: "no connection is ready"}
	}
	return conn, nil
}

// discard closes a socket that nobody took.
func (h *handoff) discard() {
	if conn := h.take(); conn != nil {
		_ = conn.Close()
	}
}

func (h *handoff) take() net.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	conn := h.conn
	h.conn = nil
	return conn
}
