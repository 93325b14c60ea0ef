package sentinel

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// watchEvery is how often the Redis Sentinels are asked whether the master
	// is still the same: a deposed one that is cut off from them still answers
	// us, and would go on counting.
	watchEvery = time.Second
	// watchPatience is how long the other Sentinels are waited for once one has
	// answered.
	watchPatience = 100 * time.Millisecond
)

// masters asks Redis Sentinels where the master is. No decision waits for it:
// the connector asks before it dials, and the watch from time to time.
type masters struct {
	target    redisTarget
	sentinels []*asker

	mu      sync.Mutex
	current string // the master by the last answer; "" before the first
	epoch   int64  // of the configuration that names it
	dialled string // where the last connection leads
}

func newMasters(t redisTarget) *masters {
	m := &masters{target: t}
	theirs := t
	theirs.username, theirs.password, theirs.db = t.sentinelUsername, t.sentinelPassword, 0
	for _, addr := range t.addrs {
		s := &asker{}
		s.client, s.dialer = newClient(theirs, addr, theirs.dial)
		m.sentinels = append(m.sentinels, s)
	}
	return m
}

// dial opens a connection to the master, wherever that is.
func (m *masters) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	a, err := m.find(ctx)
	if err != nil {
		return nil, err
	}
	addr := m.believe(a)
	m.mu.Lock()
	m.dialled = addr
	m.mu.Unlock()
	return m.target.dial(ctx, network, addr)
}

// lead returns where the last connection that was dialled leads.
func (m *masters) lead() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dialled
}

// deposed reports whether another master than addr was named since.
func (m *masters) deposed(addr string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current != addr
}

// named is what one Sentinel says.
type named struct {
	master string
	epoch  int64 // of its configuration: after a failover the higher one is right
	err    error
}

// find asks all Sentinels at once and believes the newest configuration: a
// Sentinel that was cut off may still name the old master.
func (m *masters) find(ctx context.Context) (named, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	answers := make(chan named, len(m.sentinels))
	for _, s := range m.sentinels {
		go func() { answers <- askSentinel(ctx, s, m.target.master) }()
	}
	m.mu.Lock()
	known := m.epoch
	m.mu.Unlock()
	return newest(answers, len(m.sentinels), known)
}

// newest waits for n answers and returns that of the newest configuration. Once
// one is as new as what is known, the others have little time left.
func newest(answers <-chan named, n int, known int64) (best named, err error) {
	var enough <-chan time.Time
	for range n {
		select {
		case a := <-answers:
			switch {
			case a.err != nil:
				err = telling(err, a.err)
			case best.master == "" || a.epoch > best.epoch:
				best = a
				if a.epoch >= known {
					enough = time.After(watchPatience)
				}
			}
		case <-enough:
			return best, nil
		}
	}
	if best.master == "" {
		return best, err
	}
	return best, nil
}

// believe takes a to be right unless a newer configuration is known, and returns
// the master.
func (m *masters) believe(a named) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.epoch >= m.epoch {
		m.current, m.epoch = a.master, a.epoch
	}
	return m.current
}

// doubt has any configuration believed, for the master that is known could not
// be used: after the Sentinels were set up anew, their epochs begin again.
func (m *masters) doubt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch = 0
}

// telling returns the error that says more: what a Sentinel refuses for good
// before what may pass.
func telling(a, b error) error {
	if _, refused := errors.AsType[*refusal](b); refused {
		return b
	}
	return cmp.Or(a, b)
}

// askSentinel returns which master the Sentinel names.
func askSentinel(ctx context.Context, s *asker, name string) (a named) {
	err := s.ask(ctx, func(conn *redis.Conn) error {
		// While a failover runs, SENTINEL MASTER has the new epoch and still the
		// old address, so the address is asked for by itself.
		pipe := conn.Pipeline()
		addr := redis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", name)
		about := redis.NewMapStringStringCmd(ctx, "sentinel", "master", name)
		_, _ = pipe.Process(ctx, addr), pipe.Process(ctx, about) // only queues
		_, err := pipe.Exec(ctx)
		if errors.Is(addr.Err(), redis.Nil) {
			err = about.Err() // which says that there is no such master
		}
		if err == nil {
			a, err = parseMaster(addr.Val(), about.Val()["config-epoch"])
		}
		if fault := unfitSentinel(err); fault != "" {
			return &refusal{fault}
		}
		return err
	})
	if err != nil {
		a.err = failing("a Redis Sentinel", err)
	}
	return a
}

// parseMaster reads a Sentinel's answers.
func parseMaster(addr []string, epoch string) (named, error) {
	n, err := strconv.ParseInt(epoch, 10, 64)
	if len(addr) != 2 || addr[0] == "" || err != nil {
		return named{}, errors.New("redis: no master in the answer of a Redis Sentinel")
	}
	return named{master: net.JoinHostPort(addr[0], addr[1]), epoch: n}, nil
}

// unfitSentinel returns what to change where a Sentinel answers and will not
// change its mind, "" if the error may pass.
func unfitSentinel(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	text := reply.Error()
	switch code := errorCode(text); {
	case strings.Contains(text, "No such master"):
		return "the Redis Sentinels know no master of that name; write in ?master= what stands behind \"sentinel monitor\" in their configuration"
	case code == "NOAUTH":
		return "the Redis Sentinels demand a password of their own; add sentinel_password (and sentinel_username) to redis_url"
	case code == "WRONGPASS", strings.Contains(text, "invalid password"), strings.Contains(text, "no password is set"),
		strings.Contains(text, "without any password configured"):
		return "the Redis Sentinels refuse sentinel_username or sentinel_password of redis_url; correct them"
	case strings.Contains(text, "wrong number of arguments for 'auth'"):
		return "the Redis Sentinels refuse sentinel_username or sentinel_password of redis_url; before 6.2 they know no user names: remove sentinel_username"
	case lacksPermission(err):
		return "the user of the Redis Sentinels lacks a permission; grant it there with: ACL SETUSER <user> '+sentinel|master' '+sentinel|get-master-addr-by-name'"
	case strings.Contains(text, "unknown command"):
		return "redis_url names a server where a Redis Sentinel should be; their port is 26379 unless it was changed. For a server write redis://"
	default:
		return ""
	}
}

// watch asks the Sentinels again and again, for as long as the store lives, and
// leaves a master that they no longer name.
func (s *redisStore) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		// Sentinels that do not answer say nothing against the master.
		if a, err := s.masters.find(ctx); err == nil {
			s.masters.believe(a)
			s.leaveDeposed()
		}
	}
}

// leaveDeposed closes the unused lines to a master that is none any more. Those
// in use follow when their call ends.
func (s *redisStore) leaveDeposed() {
	s.mu.Lock()
	kept := s.free[:0]
	for _, ln := range s.free {
		if !s.deposed(ln) {
			kept = append(kept, ln)
			continue
		}
		s.open--
		_ = ln.conn.Close()
	}
	left := len(s.free) - len(kept)
	clear(s.free[len(kept):])
	s.free = kept
	s.topUp()
	s.dispatch()
	s.mu.Unlock()
	if left > 0 {
		s.log.Info("sentinel: the Redis Sentinels name another master; leaving the old one")
	}
}

// deposed reports whether a line leads to a master that is none any more.
func (s *redisStore) deposed(ln *line) bool {
	return s.masters != nil && s.masters.deposed(ln.master)
}

func (m *masters) close() error {
	var err error
	for _, s := range m.sentinels {
		err = errors.Join(err, s.close())
	}
	return err
}
