package main

import (
	"context"
	_ "embed"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	sethvargo "github.com/sethvargo/go-redisstore"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// quota is a burst, and how long one token takes to come back. A contestant
// with a fixed window counts the burst in a window of an hour.
type quota struct {
	burst int64
	every time.Duration
}

var (
	// plenty denies nobody as long as a run lasts. It is not more, for a bucket
	// that is always full costs some scripts less.
	plenty = quota{burst: 1_000_000_000, every: time.Millisecond}
	// scarce admits five, and nobody after that as long as a run lasts.
	scarce = quota{burst: 5, every: time.Hour}
)

func (q quota) microCapacity() int64 { return q.burst * 1_000_000 }
func (q quota) microRate() int64     { return int64(1e6 / q.every.Seconds()) }

// limit is a contestant with one quota, in use. It takes one decision on a key.
type limit func(ctx context.Context, key string) (bool, error)

// peer is a contestant on Redis.
type peer struct {
	name string
	open func(l *lab, q quota) (limit, func(), error)
}

// The names that bars refer to.
const (
	nameRedisRate      = "redis_rate"
	nameBarePool       = "bare EVALSHA, go-redis pool"
	nameBareDuplex     = "bare EVALSHA, go-redis full duplex"
	nameBareRueidis    = "bare EVALSHA, rueidis"
	nameDelayedDuplex  = "bare EVALSHA, go-redis full duplex, tuned"
	nameDelayedRueidis = "bare EVALSHA, rueidis, tuned"
	nameOldPool        = "ancestor's script, go-redis pool"
	nameOldDuplex      = "ancestor's script, go-redis full duplex"
	nameOurs           = "Sentinel"
)

var redisPeers = []peer{
	{nameRedisRate, openRedisRate},
	{"throttled", openThrottled},
	{"ulule/limiter", openUlule},
	{"sethvargo/go-redisstore", openSethvargo},
	{nameBarePool, openScript(bareScript, onPool)},
	{nameBareDuplex, openScript(bareScript, onDuplex(0))},
	{nameBareRueidis, openBareRueidis(rueidis.ClientOption{})},
	{nameDelayedDuplex, openScript(bareScript, onDuplex(flushDelay))},
	{nameDelayedRueidis, openBareRueidis(rueidis.ClientOption{MaxFlushDelay: flushDelay, PipelineMultiplex: -1})},
	{nameOldPool, openScript(ancestorScript, onPool)},
	{nameOldDuplex, openScript(ancestorScript, onDuplex(0))},
	{nameOurs, openOurs},
}

func peerNamed(name string) peer {
	return redisPeers[slices.IndexFunc(redisPeers, func(p peer) bool { return p.name == name })]
}

var (
	//go:embed scripts/bare.lua
	bareScript string
	//go:embed scripts/ancestor.lua
	ancestorScript string
)

const (
	// poolSize is the number of connections of every contestant that keeps a
	// pool. It is more than go-redis's own choice of ten for each CPU: with 256
	// goroutines the peers are up to a quarter faster so, and never slower.
	poolSize = 128
	// flushDelay is what both pipelining clients advise to wait for company at
	// most, where the last word in throughput is wanted.
	flushDelay = 20 * time.Microsecond
)

func newPool(l *lab) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: l.redis.addr, PoolSize: poolSize, MaxRetries: -1})
}

func closing(c interface{ Close() error }) func() { return func() { _ = c.Close() } }

func openRedisRate(l *lab, q quota) (limit, func(), error) {
	client := newPool(l)
	return rateLimit(redis_rate.NewLimiter(client), q), closing(client), nil
}

func rateLimit(limiter *redis_rate.Limiter, q quota) limit {
	rule := redis_rate.Limit{Rate: 1, Burst: int(q.burst), Period: q.every}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := limiter.Allow(ctx, key, rule)
		if err != nil {
			return false, err
		}
		return r.Allowed > 0, nil
	}
}

func openThrottled(l *lab, q quota) (limit, func(), error) {
	client := newPool(l)
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDuration(1, q.every), MaxBurst: int(q.burst) - 1,
	})
	if err != nil {
		return nil, nil, err
	}
	limiter.SetMaxCASAttemptsLimit(10_000) // by default it gives up after ten lost races
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}, closing(client), nil
}

func openUlule(l *lab, q quota) (limit, func(), error) {
	client := newPool(l)
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, nil, err
	}
	lim := limiter.New(store, limiter.Rate{Period: time.Hour, Limit: q.burst})
	return func(ctx context.Context, key string) (bool, error) {
		r, err := lim.Get(ctx, key)
		return !r.Reached, err
	}, closing(client), nil
}

func openSethvargo(l *lab, q quota) (limit, func(), error) {
	// Its own pool keeps no idle connection, gives up above a hundred, and sends
	// a PING before each decision. This one is better to it.
	pool := &redigo.Pool{
		MaxActive: poolSize, MaxIdle: poolSize, Wait: true,
		Dial: func() (redigo.Conn, error) { return redigo.Dial("tcp", l.redis.addr) },
	}
	store, err := sethvargo.NewWithPool(&sethvargo.Config{Tokens: uint64(q.burst), Interval: time.Hour}, pool)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, "sethvargo:"+key)
		return ok, err
	}, func() { _ = store.Close(context.WithoutCancel(l.ctx)) }, nil
}

// transport runs a command and fills it.
type transport func(ctx context.Context, cmd redis.Cmder) error

func onPool(l *lab) (transport, func(), error) {
	client := newPool(l)
	return client.Process, closing(client), nil
}

// onDuplex is go-redis's fastest way for callers that wait: one connection,
// written by one goroutine and read by another.
func onDuplex(delay time.Duration) func(*lab) (transport, func(), error) {
	return func(l *lab) (transport, func(), error) {
		client := newPool(l)
		auto, err := client.AutoPipelineWithOptions(&redis.AutoPipelineOptions{FullDuplex: true, MaxFlushDelay: delay})
		if err != nil {
			return nil, nil, errors.Join(err, client.Close())
		}
		return auto.Process, func() { _, _ = auto.Close(), client.Close() }, nil
	}
}

// openScript is one EVALSHA for each decision, with nothing around it. The bare
// script answers with a number, the ancestor's with a list.
func openScript(script string, over func(*lab) (transport, func(), error)) func(*lab, quota) (limit, func(), error) {
	return func(l *lab, q quota) (limit, func(), error) {
		sha, err := l.redis.client.ScriptLoad(l.ctx, script).Result()
		if err != nil {
			return nil, nil, err
		}
		process, done, err := over(l)
		if err != nil {
			return nil, nil, err
		}
		var verb, digest, one any = "evalsha", sha, 1
		var capacity, rate any = strconv.FormatInt(q.microCapacity(), 10), strconv.FormatInt(q.microRate(), 10)
		prefix := sha[:8] + ":"
		bare := func(ctx context.Context, key string) (bool, error) {
			key = prefix + key
			cmd := redis.NewIntCmd(ctx, verb, digest, one, &key, capacity, rate)
			err := process(ctx, cmd)
			return cmd.Val() >= 0, err
		}
		list := func(ctx context.Context, key string) (bool, error) {
			key = prefix + key
			cmd := redis.NewIntSliceCmd(ctx, verb, digest, one, &key, capacity, rate)
			err := process(ctx, cmd)
			return err == nil && len(cmd.Val()) == 3 && cmd.Val()[0] == 1, err
		}
		if script == bareScript {
			return bare, done, nil
		}
		return list, done, nil
	}
}

func openBareRueidis(o rueidis.ClientOption) func(*lab, quota) (limit, func(), error) {
	return func(l *lab, q quota) (limit, func(), error) {
		sha, err := l.redis.client.ScriptLoad(l.ctx, bareScript).Result()
		if err != nil {
			return nil, nil, err
		}
		o.InitAddress, o.ForceSingleClient, o.DisableCache, o.DisableRetry = []string{l.redis.addr}, true, true, true
		client, err := rueidis.NewClient(o)
		if err != nil {
			return nil, nil, err
		}
		capacity, rate := strconv.FormatInt(q.microCapacity(), 10), strconv.FormatInt(q.microRate(), 10)
		return func(ctx context.Context, key string) (bool, error) {
			cmd := client.B().Evalsha().Sha1(sha).Numkeys(1).Key("rueidis:"+key).Arg(capacity, rate).Build()
			n, err := client.Do(ctx, cmd).AsInt64()
			return n >= 0, err
		}, client.Close, nil
	}
}
