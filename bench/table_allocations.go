package main

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

const (
	nameForced  = "go-redis alone: one EVALSHA on a connection of its own"
	nameBounded = "go-redis alone, and the context of a deadline"
	nameAllow   = "Sentinel, Limiter.Allow"
	nameCheck   = "Sentinel, Limiter.Check with a token"
)

// measureAllocations is about the garbage of a decision on Redis.
func measureAllocations(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "6 Allocations on the Redis path",
		About: "Allocations of one decision, everything that the process does meanwhile included. What go-redis forces is measured by a loop that " +
			"sends an EVALSHA by itself: a command and its reply, on a connection per goroutine; the row below it also makes the context that bounds it.",
	}
	rows, done, err := allocationRows(l)
	defer done()
	if err != nil {
		return nil, err
	}
	for _, workers := range []int{1, 64} {
		g, err := l.grid(load{workers: workers, keys: uniformKeys, want: true}, l.Cell, rows)
		if err != nil {
			return nil, err
		}
		t := &measure.Table{Title: goroutines(workers), Columns: []string{"", "allocs", "bytes", "k decisions/s"}}
		for i, name := range g.names {
			cells := g.cells[i]
			t.Add(name, allocsOf(cells).String(),
				measure.StatOf(measure.Each(cells, func(c *cell) float64 { return c.bytes / c.decisions })).String(),
				measure.Number(measure.StatOf(throughput(cells)).Median/1e3))
		}
		s.Tables = append(s.Tables, t)
		s.Bars = append(s.Bars, measure.AtMost(goroutines(workers)+": allocations of Allow beside those of a bounded go-redis call",
			difference(g.of(nameAllow), g.of(nameBounded)), 0.5).In(""))
	}
	return s, nil
}

func allocsOf(cells []*cell) measure.Stat {
	return measure.StatOf(measure.Each(cells, func(c *cell) float64 { return c.mallocs / c.decisions }))
}

func difference(a, b []*cell) measure.Stat {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = a[i].mallocs/a[i].decisions - b[i].mallocs/b[i].decisions
	}
	return measure.StatOf(values)
}

func allocationRows(l *lab) (rows []contestant, done func(), err error) {
	limiter, err := openLimiter(l, plenty)
	if err != nil {
		return nil, func() {}, err
	}
	client := redis.NewClient(&redis.Options{Addr: l.redis.addr, PoolSize: 4 * 64, MaxRetries: -1, ContextTimeoutEnabled: true})
	done = func() { _, _ = limiter.Close(), client.Close() }
	forced, err := forcedByGoRedis(l, client, false)
	if err != nil {
		return nil, done, err
	}
	bounded, err := forcedByGoRedis(l, client, true)
	if err != nil {
		return nil, done, err
	}
	keys := names("tenant", uniformKeys)
	requests := make([]sentinel.Request, len(keys))
	for i, k := range keys {
		requests[i] = sentinel.Request{EndpointID: endpoint, Authorization: []string{bearer(k)}}
	}
	verify := verifier(requests[0].Authorization[0][len("Bearer "):])
	return []contestant{
		{nameForced, forced},
		{nameBounded, bounded},
		{nameAllow, func(ctx context.Context, i int) (bool, error) { return genuine(limiter.Allow(ctx, keys[i], endpoint)) }},
		{nameCheck, func(ctx context.Context, i int) (bool, error) { return genuine(limiter.Check(ctx, requests[i])) }},
		{nameVerify, func(context.Context, int) (bool, error) { return verify(), nil }},
	}, done, nil
}

// forcedByGoRedis sends a script with a list for a reply as economically as
// go-redis allows: the arguments are boxed beforehand, the key is passed by
// pointer, each goroutine has a connection of its own. With a deadline it is
// bounded as a decision is, by a context, for go-redis takes no other.
func forcedByGoRedis(l *lab, client *redis.Client, deadline bool) (taker, error) {
	sha, err := l.redis.client.ScriptLoad(l.ctx, ancestorScript).Result()
	if err != nil {
		return nil, err
	}
	keys := names("forced", uniformKeys)
	var verb, digest, one any = "evalsha", sha, 1
	var capacity, rate any = strconv.FormatInt(plenty.microCapacity(), 10), strconv.FormatInt(plenty.microRate(), 10)
	conns := make(chan *redis.Conn, 64)
	for range cap(conns) {
		conn := client.Conn()
		if err := conn.Ping(l.ctx).Err(); err != nil { // it dials
			return nil, err
		}
		conns <- conn
	}
	return func(ctx context.Context, i int) (bool, error) {
		conn := <-conns
		if deadline {
			bounded, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			ctx = bounded
		}
		cmd := redis.NewIntSliceCmd(ctx, verb, digest, one, &keys[i], capacity, rate)
		_ = conn.Process(ctx, cmd)
		conns <- conn
		return len(cmd.Val()) == 3 && cmd.Val()[0] == 1, cmd.Err()
	}, nil
}
