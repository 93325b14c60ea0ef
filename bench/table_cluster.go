package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

// clusterMasters is how many masters the cluster has. They share one machine,
// so it shows what a decision costs and not how far a cluster scales.
const clusterMasters = 3

const (
	nameBareCluster = "bare EVALSHA, go-redis cluster client"
	namePair        = "Sentinel, anonymous: cookie and peer, mostly in two slots"
)

var clusterPeers = []peer{
	{nameRedisRate, openClusterRate},
	{nameBareCluster, openScript(bareScript, onClusterPool)},
	{nameOurs, openOursOnCluster},
}

func measureCluster(l *lab) (s *measure.Section, err error) {
	s = &measure.Section{
		Title: "10 Redis Cluster",
		About: fmt.Sprintf("The same closed loop on a cluster of %d masters, all on this machine. Sentinel sends the decisions for one master "+
			"as one pipeline of scripts, for no script may touch two slots; go-redis's cluster client, which the others use, sends each by itself.", clusterMasters),
	}
	on := *l
	if on.redis, err = startCluster(l.ctx, l.binary); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, on.redis.stop()) }()
	keys := names("tenant", uniformKeys)
	var all []contestant
	for _, p := range clusterPeers {
		decide, done, err := openProven(&on, p, plenty)
		if err != nil {
			return nil, err
		}
		defer done()
		all = append(all, contestant{p.name, func(ctx context.Context, i int) (bool, error) { return decide(ctx, keys[i]) }})
	}
	limiter, err := openOnCluster(&on, plenty)
	if err != nil {
		return nil, err
	}
	defer limiter.Close()
	all = append(all, contestant{namePair, twoKeys(limiter)})
	for _, workers := range []int{1, 64} {
		g, err := on.grid(load{workers: workers, keys: uniformKeys, want: true}, l.Cell, all)
		if err != nil {
			return nil, err
		}
		s.Tables = append(s.Tables, g.table(goroutines(workers), nameRedisRate, nameBareCluster))
		if workers == 64 {
			s.Bars = append(s.Bars, measure.AtLeast("cluster, "+goroutines(workers)+": throughput to redis_rate",
				measure.RatioOf(throughput(g.of(nameOurs)), throughput(g.of(nameRedisRate))), 1.6).AimingAt(2).AsGate())
		}
	}
	return s, nil
}

func newClusterPool(l *lab) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: l.redis.addrs(), PoolSize: poolSize, MaxRetries: -1})
}

func openClusterRate(l *lab, q quota) (limit, func(), error) {
	client := newClusterPool(l)
	return rateLimit(redis_rate.NewLimiter(client), q), closing(client), nil
}

func onClusterPool(l *lab) (transport, func(), error) {
	client := newClusterPool(l)
	// Each master needs the script.
	err := client.ForEachMaster(l.ctx, func(ctx context.Context, c *redis.Client) error {
		return c.ScriptLoad(ctx, bareScript).Err()
	})
	return client.Process, closing(client), err
}

func openOnCluster(l *lab, q quota) (*sentinel.Limiter, error) {
	cfg := settings("redis-cluster://"+strings.Join(l.redis.addrs(), ","), q)
	cfg.App.RedisBudget = time.Second // see openLimiter
	return openWith(l.ctx, cfg, sentinel.WithStrictStart())
}

func openOursOnCluster(l *lab, q quota) (limit, func(), error) {
	limiter, err := openOnCluster(l, q)
	if err != nil {
		return nil, nil, err
	}
	return allow(limiter), closing(limiter), nil
}

// startCluster starts masters that share the slots, without replicas.
func startCluster(ctx context.Context, binary string) (first *server, err error) {
	var nodes []*server
	for range clusterMasters {
		bus, err := freePort()
		if err == nil {
			var s *server
			if s, err = startRedis(ctx, binary, "--cluster-enabled", "yes", "--cluster-port", bus); err == nil {
				s.bus = bus
				nodes = append(nodes, s)
				continue
			}
		}
		for _, s := range nodes {
			err = errors.Join(err, s.stop())
		}
		return nil, err
	}
	first = nodes[0]
	first.others = nodes[1:]
	if err := first.join(ctx); err != nil {
		return nil, errors.Join(err, first.stop())
	}
	return first, nil
}

// join gives the nodes their slots and waits until they agree.
func (s *server) join(ctx context.Context) error {
	const slots = 16384
	nodes := s.all()
	for i, n := range nodes {
		low, high := i*slots/len(nodes), (i+1)*slots/len(nodes)-1
		if err := n.client.ClusterAddSlotsRange(ctx, low, high).Err(); err != nil {
			return err
		}
		host, port, _ := strings.Cut(s.addr, ":")
		if err := n.client.Do(ctx, "cluster", "meet", host, port, s.bus).Err(); err != nil {
			return err
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		agreed := 0
		for _, n := range nodes {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", len(nodes))) {
				agreed++
			}
		}
		switch {
		case agreed == len(nodes):
			return nil
		case time.Now().After(end):
			return errors.New("the nodes of the cluster do not agree")
		}
	}
}
