package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

const uniformKeys = 10_000

// contestant is one row of a table of loads.
type contestant struct {
	name string
	take taker
}

// grid is the cells of some contestants at one number of goroutines.
type grid struct {
	names []string
	cells [][]*cell
}

func (l *lab) grid(ld load, d time.Duration, all []contestant) (*grid, error) {
	g := &grid{}
	for _, c := range all {
		g.names = append(g.names, c.name)
	}
	var err error
	g.cells, err = measure.Interleave(l.Rounds, len(all), func(i int) (*cell, error) {
		c, err := l.run(ld, d, all[i].take)
		if err != nil {
			return nil, fmt.Errorf("%s at %d goroutines: %w", all[i].name, ld.workers, err)
		}
		return c, nil
	})
	return g, err
}

func (g *grid) of(name string) []*cell { return g.cells[slices.Index(g.names, name)] }

func throughput(cells []*cell) []float64 { return measure.Each(cells, (*cell).perSecond) }

func quantileOf(cells []*cell, q float64) []float64 {
	return measure.Each(cells, func(c *cell) float64 { return float64(c.latency.Quantile(q)) / 1e3 })
}

func redisCPU(cells []*cell) []float64 {
	return measure.Each(cells, func(c *cell) float64 { return c.per(c.redis) })
}

func clientCPU(cells []*cell) []float64 {
	return measure.Each(cells, func(c *cell) float64 { return c.per(c.client) })
}

// floor is the better of the two ways to send one bare EVALSHA per decision,
// each client as it comes.
func (g *grid) floor() string { return g.fastest(nameBareDuplex, nameBareRueidis) }

// tuned is the best floor that either client can be made to be.
func (g *grid) tuned() string {
	return g.fastest(nameBareDuplex, nameBareRueidis, nameDelayedDuplex, nameDelayedRueidis)
}

func (g *grid) fastest(names ...string) string {
	return slices.MaxFunc(names, func(a, b string) int {
		return cmp.Compare(measure.StatOf(throughput(g.of(a))).Median, measure.StatOf(throughput(g.of(b))).Median)
	})
}

// table shows the grid with ratios of throughput to each of the bases.
func (g *grid) table(title string, bases ...string) *measure.Table {
	t := &measure.Table{Title: title, Columns: []string{"", "k decisions/s"}}
	for _, b := range bases {
		t.Columns = append(t.Columns, "to "+b)
	}
	t.Columns = append(t.Columns, "p50 us", "p99 us", "CPU us here", "CPU us Redis", "allocs", "bytes")
	for i, name := range g.names {
		cells := g.cells[i]
		row := []string{name, measure.StatOf(measure.Each(cells, func(c *cell) float64 { return c.perSecond() / 1e3 })).String()}
		for _, b := range bases {
			row = append(row, measure.RatioOf(throughput(cells), throughput(g.of(b))).Factor())
		}
		row = append(row,
			measure.Number(measure.StatOf(quantileOf(cells, 0.5)).Median), measure.StatOf(quantileOf(cells, 0.99)).String(),
			measure.Number(measure.StatOf(clientCPU(cells)).Median), measure.Number(measure.StatOf(redisCPU(cells)).Median),
			measure.Number(measure.StatOf(measure.Each(cells, func(c *cell) float64 { return c.mallocs / c.decisions })).Median),
			measure.Number(measure.StatOf(measure.Each(cells, func(c *cell) float64 { return c.bytes / c.decisions })).Median))
		t.Add(row...)
	}
	return t
}

func measureRedis(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "1 Redis",
		About: fmt.Sprintf("A closed loop of goroutines, each taking one decision after another on %d keys drawn uniformly, all admitted. "+
			"The floor is the better of two ways to send one bare EVALSHA for each decision; its script is a token bucket with the same text state "+
			"and nothing else. Tuned, a client has one connection and waits up to %s for company before it writes; the bars are against clients as they come, "+
			"and the table says how far the best of all is. The CPU columns are microseconds of a decision, in this process, the loop included, and in Redis.", uniformKeys, flushDelay),
	}
	all, done, err := openRedisPeers(l)
	defer done()
	if err != nil {
		return nil, err
	}
	for _, workers := range []int{1, 8, 64, 256} {
		g, err := l.grid(load{workers: workers, keys: uniformKeys, want: true}, l.Cell, all)
		if err != nil {
			return nil, err
		}
		floor := g.floor()
		s.Tables = append(s.Tables, g.table(goroutines(workers), nameRedisRate, floor))
		s.Bars = append(s.Bars, redisBars(g, workers, floor)...)
		s.Notes = append(s.Notes, fmt.Sprintf("At %s, Sentinel does %s of the best floor that can be had, %s.",
			goroutines(workers), measure.RatioOf(throughput(g.of(nameOurs)), throughput(g.of(g.tuned()))).Factor(), g.tuned()))
	}
	if err := addSpecialCases(l, s, all); err != nil {
		return nil, err
	}
	if l.profile != "" {
		ours := pickContestants(all, nameOurs)[0]
		err := profiled(l.profile, func() error {
			_, err := l.run(load{workers: 64, keys: uniformKeys, want: true}, 5*l.Cell, ours.take)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	harness, err := l.run(load{workers: 64, keys: uniformKeys, want: true}, l.Cell,
		func(context.Context, int) (bool, error) { return true, nil })
	if err != nil {
		return nil, err
	}
	s.Notes = append(s.Notes, fmt.Sprintf("The loop's own share of the CPU here is %.2f us of a decision.", harness.per(harness.client)))
	return s, nil
}

// openRedisPeers opens all peers, each after its proof.
func openRedisPeers(l *lab) (all []contestant, done func(), err error) {
	var closers []func()
	done = func() {
		for _, c := range closers {
			c()
		}
	}
	keys := names("tenant", uniformKeys)
	for _, p := range redisPeers {
		decide, closer, err := openProven(l, p, plenty)
		if err != nil {
			return nil, done, err
		}
		closers = append(closers, closer)
		all = append(all, contestant{p.name, func(ctx context.Context, i int) (bool, error) { return decide(ctx, keys[i]) }})
	}
	return all, done, nil
}

func redisBars(g *grid, workers int, floor string) []measure.Bar {
	ours := g.of(nameOurs)
	at := goroutines(workers) + ": "
	toRate := measure.RatioOf(throughput(ours), throughput(g.of(nameRedisRate)))
	toFloor := measure.RatioOf(throughput(ours), throughput(g.of(floor)))
	switch workers {
	case 1:
		return []measure.Bar{measure.AtMost(at+"p50 to a bare EVALSHA on a go-redis pool",
			measure.RatioOf(quantileOf(ours, 0.5), quantileOf(g.of(nameBarePool), 0.5)), 1)}
	case 8:
		return []measure.Bar{measure.AtLeast(at+"throughput to the floor", toFloor, 0.9).AimingAt(1)}
	case 64:
		return []measure.Bar{
			measure.AtLeast(at+"throughput to redis_rate", toRate, 2.6).AimingAt(3.3).AsGate(),
			measure.AtLeast(at+"throughput to the floor", toFloor, 1.3).AimingAt(1.5),
			measure.AtMost(at+"p99 to the floor's", measure.RatioOf(quantileOf(ours, 0.99), quantileOf(g.of(floor), 0.99)), 0.75),
			measure.AtMost(at+"CPU of Redis to the ancestor's script", measure.RatioOf(redisCPU(ours), redisCPU(g.of(nameOldDuplex))), 0.6),
		}
	default:
		return []measure.Bar{
			measure.AtLeast(at+"throughput to redis_rate", toRate, 4).AimingAt(5).AsGate(),
			measure.AtLeast(at+"throughput to the floor", toFloor, 1.7),
		}
	}
}

// addSpecialCases adds the loads that are not uniform: few keys, many policies,
// two buckets for each decision.
func addSpecialCases(l *lab, s *measure.Section, all []contestant) error {
	limiter, err := openMany(l)
	if err != nil {
		return err
	}
	defer limiter.Close()
	ld := load{workers: 64, keys: 4, want: true}
	hot, err := l.grid(ld, l.Cell, pickContestants(all, nameRedisRate, nameBareDuplex, nameBareRueidis, nameOldDuplex, nameOurs))
	if err != nil {
		return err
	}
	s.Tables = append(s.Tables, hot.table("Four hot keys, 64 goroutines", nameRedisRate, hot.floor()))

	ld.keys = uniformKeys
	rows := pickContestants(all, nameRedisRate, nameBareDuplex, nameBareRueidis, nameOurs)
	rows = append(rows, contestant{nameEight, eightPolicies(limiter)}, contestant{nameTwoKeys, twoKeys(limiter)},
		contestant{nameTwice, twice(limiter)})
	mixed, err := l.grid(ld, l.Cell, rows)
	if err != nil {
		return err
	}
	s.Tables = append(s.Tables, mixed.table("Many policies, and two buckets in one decision, 64 goroutines", nameRedisRate, mixed.floor()))
	s.Notes = append(s.Notes, "Two buckets in one call instead of two calls: "+
		measure.RatioOf(throughput(mixed.of(nameTwoKeys)), throughput(mixed.of(nameTwice))).Factor()+" the throughput.")
	return nil
}

const (
	nameEight   = "Sentinel, eight policies of both algorithms"
	nameTwoKeys = "Sentinel, anonymous: cookie and peer together"
	nameTwice   = "Sentinel, two buckets one after the other"
)

func pickContestants(all []contestant, names ...string) []contestant {
	var picked []contestant
	for _, c := range all {
		if slices.Contains(names, c.name) {
			picked = append(picked, c)
		}
	}
	return picked
}

// many names the eight policies: four token buckets, four sliding windows.
func many(i int) string { return fmt.Sprintf("bench.many.%d", i%8) }

func openMany(l *lab) (*sentinel.Limiter, error) {
	cfg := settings("redis://"+l.redis.addr, plenty)
	cfg.App.RedisBudget = time.Second
	for i := range 8 {
		if i%2 == 0 {
			add(cfg, bucketPolicy(many(i), quota{burst: plenty.burst - int64(i), every: plenty.every}))
		} else {
			add(cfg, windowPolicy(many(i), quota{burst: 40_000_000 + int64(i), every: plenty.every}))
		}
	}
	return openWith(l.ctx, cfg, sentinel.WithStrictStart())
}

func eightPolicies(limiter *sentinel.Limiter) taker {
	keys := names("tenant", uniformKeys)
	var endpoints [8]string
	for i := range endpoints {
		endpoints[i] = many(i)
	}
	return func(ctx context.Context, i int) (bool, error) {
		return genuine(limiter.Allow(ctx, keys[i], endpoints[i%8]))
	}
}

// twoKeys is a whole check of an anonymous client: the cookie's MAC, both keys,
// one call.
func twoKeys(limiter *sentinel.Limiter) taker {
	requests := make([]sentinel.Request, uniformKeys)
	for i := range requests {
		requests[i] = sentinel.Request{EndpointID: anonymous, Cookies: []string{cookie(i)}, Peer: address(i)}
	}
	return func(ctx context.Context, i int) (bool, error) {
		return genuine(limiter.Check(ctx, requests[i]))
	}
}

// twice is what two buckets cost where each is a decision of its own.
func twice(limiter *sentinel.Limiter) taker {
	one, two := names("cookie", uniformKeys), names("peer", uniformKeys)
	return func(ctx context.Context, i int) (bool, error) {
		if ok, err := genuine(limiter.Allow(ctx, one[i], endpoint)); !ok {
			return ok, err
		}
		return genuine(limiter.Allow(ctx, two[i], endpoint))
	}
}
