package sentinel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/bucket"
)

const (
	breakerFailures = 5
	breakerOpenFor  = 30 * time.Second
)

// Limiter decides. Make one with [Open] or [New] for the life of the process;
// the zero value is not usable. It is safe for concurrent use.
type Limiter struct {
	setup   atomic.Pointer[setup]                 // what Update replaces
	vouched func(context.Context) (string, error) // WithTenant; nil: by token
	budget  time.Duration

	subjects *subjects
	// remembers is known_denials, on a store that is worth sparing.
	remembers bool
	resets    atomic.Int64 // so far, for those who remember
	oneByOne  bool         // WithoutGathering
	store     store
	closed    atomic.Bool
	ended     chan struct{} // closed with closed
	observers []observer    // nil: nobody observes

	metrics *metrics
	denials *denyLog
	log     *slog.Logger
	epoch   time.Time // the origin of now
	// epochNano is epoch in nanoseconds since 1970.
	epochNano int64

	options     options
	urlRequired bool                      // redis_url is: the limiter was made by Open
	changing    sync.Mutex                // guards what follows, and the order of updates
	numbered    int                       // endpoints so far
	kept        map[policyVersion]Policy  // that there have been, for what is stored under them
	seen        map[string]*[reasons]seen // of every endpoint that there has been
}

// endpoint is a policy, prepared.
type endpoint struct {
	policy  Policy
	rule    *rule // of the first limit
	plans   map[string]*rule
	tenants map[string]*rule
	fresh   *rule // what Reset writes: fresh under every plan
	// unenforced lets through what is denied.
	unenforced bool
	emergency  *bucket.Bucket
	seen       *[reasons]seen // by the number of the reason; the same for every policy of this id
}

// seen is what is kept to observe one endpoint and reason.
type seen struct {
	tally atomic.Pointer[tally] // nil: not yet needed, or no metrics are kept
	lines denyCount
}

// Open connects to the Redis of cfg, or makes the embedded store of memory://,
// and returns a limiter that owns it.
//
// It blocks at most two seconds, or until ctx ends. A Redis that answers and
// is wrong (credentials, permissions, an eviction policy that resets quotas,
// no maxmemory) is an error that says what to change. One that does not answer
// is not, unless [WithStrictStart] is given: the limiter starts degraded, says
// so at ERROR, and connects in the background. The error of a bad
// configuration names every fault.
func Open(ctx context.Context, cfg *Config, opts ...Option) (*Limiter, error) {
	l, o, cfg, err := newLimiter(cfg, opts, true)
	if err != nil {
		return nil, err
	}
	target, err := cfg.App.target()
	if err == nil {
		err = target.check()
	}
	if err != nil {
		return nil, err
	}
	switch target.kind {
	case memoryTarget:
		l.store = newMemoryStore(target.memoryKeys, l.metrics)
		l.log.Warn("sentinel: memory:// limits this process alone; other instances count for themselves")
		return l, nil
	case clusterTarget:
		l.useCluster(&cluster{seeds: target.addrs, client: func(addr string) (*redis.Client, *handoff) {
			return newClient(target, addr, target.dial)
		}}, cfg)
	case failoverTarget:
		m := newMasters(target)
		client, dialer := newClient(target, target.addrs[0], m.dial)
		l.useRedis(&redisStore{client: client, owned: true, dialer: dialer, masters: m, max: maxLines}, cfg)
	default:
		client, dialer := newClient(target, target.addrs[0], target.dial)
		l.useRedis(&redisStore{client: client, owned: true, dialer: dialer, max: maxLines}, cfg)
	}
	return l.start(ctx, o)
}

// New is Open with a client that the application already has, and that stays
// the application's: Close leaves it open. redis_url is not looked at.
//
// A [redis.Client], one of [redis.NewFailoverClient] included, lends the limiter
// connections, at most half of its pool. Its options must neither outlast the
// budget nor send a command twice; New refuses those that would and names each:
// MaxRetries must be -1, DialerRetries 1, ContextTimeoutEnabled true, PoolSize and
// MaxActiveConns, where it is set, at least 2, and no timeout may be unlimited.
//
// Of a [redis.ClusterClient] the limiter takes how to reach the cluster (Addrs,
// ClusterSlots, Dialer, TLSConfig, OnConnect, ClientName and the credentials), and makes
// connections of its own, so its other options do not matter. A [redis.Ring] is
// refused: it has no slots that tell where a key is.
func New(ctx context.Context, client redis.UniversalClient, cfg *Config, opts ...Option) (*Limiter, error) {
	if err := checkUniversal(client); err != nil {
		return nil, err
	}
	l, o, cfg, err := newLimiter(cfg, opts, false)
	if err != nil {
		return nil, err
	}
	switch c := client.(type) {
	case *redis.ClusterClient:
		if err := joinFaults(cfg.carryOvers()); err != nil {
			return nil, err
		}
		l.useCluster(borrowCluster(c.Options()), cfg)
	case *redis.Client:
		l.useRedis(&redisStore{client: c, max: linesOf(c.Options())}, cfg)
	}
	return l.start(ctx, o)
}

// newLimiter prepares all that does not depend on the store, from a copy of
// the configuration with every default filled in, which it returns.
func newLimiter(given *Config, opts []Option, urlRequired bool) (*Limiter, options, *Config, error) {
	o := newOptions(opts)
	if err := given.check(urlRequired); err != nil {
		return nil, o, nil, err
	}
	cfg := given.withDefaults()
	if err := o.fit(&cfg.App); err != nil {
		return nil, o, nil, err
	}
	m, err := newMetrics(o.registerer)
	if err != nil {
		return nil, o, nil, err
	}
	l := &Limiter{
		vouched:     o.tenant,
		budget:      cfg.App.RedisBudget,
		subjects:    newSubjects(),
		metrics:     m,
		denials:     &denyLog{log: o.logger, all: o.allDenials},
		log:         o.logger,
		epoch:       time.Now(),
		oneByOne:    o.oneByOne,
		ended:       make(chan struct{}),
		observers:   o.observers,
		options:     o,
		urlRequired: urlRequired,
		kept:        make(map[policyVersion]Policy),
		seen:        make(map[string]*[reasons]seen),
	}
	l.epochNano = l.epoch.UnixNano()
	first := l.prepare(cfg, nil)
	l.setup.Store(first)
	l.metrics.configured(l, first)
	for _, w := range cfg.Warnings() {
		o.logger.Warn("sentinel: " + w.String())
	}
	return l, o, cfg, nil
}

// newEndpoint prepares a validated policy; number tells the endpoints of a
// limiter apart.
func newEndpoint(p Policy, number int) *endpoint {
	e := &endpoint{
		policy:     p,
		unenforced: p.Unenforced,
		rule:       newRules(p.EndpointID, p.quotas(), number),
		// Below one token the bucket could never admit anybody.
		emergency: bucket.New(bucket.NewTokenBucket(int64(max(p.FallbackRate, Token)), int64(p.FallbackRate))),
		seen:      new([reasons]seen),
	}
	candidate := newCandidate(p, number)
	e.plans, number = newPlans(p, p.Plans, number)
	e.tenants, number = newPlans(p, p.Tenants, number)
	e.fresh = newFresh(p, e.rule, number)
	e.try(candidate)
	return e
}

// useRedis has r decide.
func (l *Limiter) useRedis(r *redisStore, cfg *Config) {
	l.remembers = !cfg.App.DisableKnownDenials
	r.unread, r.log, r.checkKey = cfg.App.UnreadableRedisPolicy, l.log, startCheck
	l.store = newShard(r, l.metrics, l.epoch, nil, true)
}

// useCluster has the masters decide that c finds.
func (l *Limiter) useCluster(c *cluster, cfg *Config) {
	l.remembers = !cfg.App.DisableKnownDenials
	l.subjects.slotted = true
	c.metrics, c.log, c.oneByOne = l.metrics, l.log, l.oneByOne
	c.shard = func(addr, checkKey string, quiet bool) *shard {
		r := &redisStore{cluster: true, owned: true, max: maxLines, unread: cfg.App.UnreadableRedisPolicy, log: l.log, checkKey: checkKey}
		r.client, r.dialer = c.client(addr)
		return newShard(r, l.metrics, l.epoch, c.slotsOf, quiet)
	}
	c.start()
	l.store = c
}

// firster is a store that connects: a shard, or a cluster of them. first waits for
// the first attempt, or attempts, and returns what came of it: nil, a *refusal,
// or an error that may pass.
type firster interface {
	first(context.Context) error
}

// start waits for the first connection.
func (l *Limiter) start(ctx context.Context, o options) (*Limiter, error) {
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	err := l.store.(firster).first(ctx)
	var refused *refusal
	if errors.As(err, &refused) || err != nil && o.strictStart {
		return nil, errors.Join(err, l.Close())
	}
	if err != nil {
		l.log.Error("sentinel: starts without Redis; every check takes its failure row until it answers", "detail", err.Error())
	}
	return l, nil
}

// Close ends the background work and closes the connections that Open made.
// Every later check takes its failure row. It may be called more than once.
func (l *Limiter) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	close(l.ended)
	err := l.store.close()
	l.changing.Lock()
	defer l.changing.Unlock()
	l.metrics.unconfigured(l)
	l.denials.close(l.seen, l.setup.Load().endpoints)
	l.metrics.release(l.seen)
	return err
}

// Require returns nil if every id is configured, else one error that names all
// that are not. Call it before the application listens: a guard for an id that
// the configuration lacks answers 404 for ever.
func (l *Limiter) Require(ids ...string) error {
	var missing []string
	known := l.setup.Load().endpoints
	for _, id := range ids {
		if known[id] == nil && !slices.Contains(missing, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	quoted := make([]string, len(missing))
	for i, id := range missing {
		quoted[i] = fmt.Sprintf("%q", id)
	}
	return fmt.Errorf("%w: no policy for %s; add it under \"policies\"", ErrUnknownEndpoint, strings.Join(quoted, ", "))
}

// RateLimitHeaders reports whether an adapter sends RateLimit headers:
// ratelimit_headers of the configuration.
func (l *Limiter) RateLimitHeaders() bool { return !l.setup.Load().cfg.App.DisableRateLimitHeaders }

// Logger returns the logger that the limiter writes to.
func (l *Limiter) Logger() *slog.Logger { return l.log }

// Status is what a readiness probe needs to know.
type Status struct {
	// Store is "redis" or "memory".
	Store string
	// Ready reports whether the store can decide now.
	Ready bool
	// Degraded reports whether checks take their failure row now: the store is
	// not ready, or the breaker is not closed.
	Degraded bool
	// Breaker is "closed", "half_open" or "open"; "" for memory://.
	Breaker string
	// LastError is the kind of the latest store failure, as in
	// sentinel_store_errors_total; "" if there was none since the store last
	// answered.
	LastError string
	// Detail says in words why checks take their failure row; "" if they do
	// not. It holds no address and no credential.
	Detail string
}

// Status returns the state of this moment. It asks nobody and never blocks on
// the network.
func (l *Limiter) Status() Status { return l.store.status() }

// now is the limiter's own clock, the monotonic one: how long it has been there.
func (l *Limiter) now() time.Duration { return time.Since(l.epoch) }

// seconds is n seconds, or the longest Duration there is.
func seconds(n int64) time.Duration {
	if n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// micros is n microseconds, or the longest Duration there is.
func micros(n int64) time.Duration {
	if n > int64(math.MaxInt64/time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}
