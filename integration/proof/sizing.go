package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

func init() { chapters = append(chapters, chapter{"sizing", proveSizing}) }

// sizes are the numbers of tenants that the sizing is measured at.
func sizes(l *lab) []int { return pick(l, []int{100_000, 1_000_000}, []int{2_000, 20_000}) }

const (
	sizingWarm  = 500 // tenants that come before anything is measured
	sizingCrowd = 64
)

// proveSizing fills servers with tenants and weighs them.
func proveSizing(ctx context.Context, l *lab) (*section, error) {
	s := &section{
		title: "What it costs Redis",
		about: "One endpoint with a name of 14 characters, one bucket for each tenant, on each server that is here. Bytes are `used_memory` of INFO, before and after. A decision takes the script time of INFO commandstats for each decision, with 64 callers at once on tenants chosen at random.",
	}
	binaries, err := redistest.Binaries(".")
	if err != nil {
		return nil, err
	}
	memory := &table{title: "Memory", columns: []string{"server", "algorithm", "tenants", "keys", "bytes per key", "resident, MB"}}
	speed := &table{title: "Time", columns: []string{"server", "algorithm", "tenants", "script µs per decision", "decisions/s"}}
	keys, flat := &trials{}, &trials{}
	var mostBytes float64
	for _, binary := range binaries {
		name := serverName(ctx, binary)
		for _, p := range sizingPolicies() {
			var first float64
			for _, tenants := range sizes(l) {
				l.logf("sizing: %s, %s, %d tenants", name, p.name, tenants)
				var w weight
				if err := within(ctx, func(sc *scope) { w = weigh(sc, binary, p.policy, tenants) }); err != nil {
					return nil, err
				}
				memory.add(name, p.name, group3(tenants), group3(w.keys), fmt.Sprintf("%.0f", w.bytes), fmt.Sprintf("%.0f", w.resident/1e6))
				speed.add(name, p.name, group3(tenants), fmt.Sprintf("%.1f", w.script), group3(int(w.rate)))
				keys.check(w.keys == tenants, "%s, %s: %d keys of %d tenants", name, p.name, w.keys, tenants)
				if first == 0 {
					first = w.script
				}
				flat.check(w.script < 1.5*first, "%s, %s: %.1f µs at %d tenants, %.1f µs at first", name, p.name, w.script, tenants, first)
				mostBytes = math.Max(mostBytes, w.bytes)
			}
		}
	}
	s.tables = append(s.tables, memory, speed)
	s.promise(keys.promise("one key for each tenant and endpoint, no other", ""))
	s.promise(flat.promise("a decision takes Redis the same time, however many tenants there are", "within 1.5 times"))
	gone, err := proveExpiry(ctx, l, binaries, s)
	if err != nil {
		return nil, err
	}
	s.promise(gone)
	s.notes = append(s.notes, fmt.Sprintf("5,000,000 tenants at one endpoint, by calculation: %.2f GB at %.0f bytes per key, the most of the table.",
		5e6*mostBytes/1e9, mostBytes))
	return s, nil
}

type sizingPolicy struct {
	name   string
	policy sentinel.Policy
}

func sizingPolicies() []sizingPolicy {
	bucket := sentinel.Policy{
		EndpointID: "billing.export", Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed, Version: 1,
		FallbackRate: sentinel.Token, Capacity: 1000 * sentinel.Token,
		RefillRate: sentinel.Token / 3600, // its keys outlive the filling
	}
	window := sentinel.Policy{
		EndpointID: "billing.export", Algorithm: sentinel.SlidingWindow, FailMode: sentinel.FailClosed, Version: 1,
		FallbackRate: sentinel.Token, Limit: 1000, Window: time.Hour,
	}
	never := bucket
	never.RefillRate = 0
	return []sizingPolicy{{"token bucket", bucket}, {"sliding window", window}, {"token bucket that never refills (no expiry)", never}}
}

// weight is what a number of tenants costs.
type weight struct {
	keys     int
	bytes    float64 // of each key
	resident float64 // of the server
	script   float64 // µs of each decision
	rate     float64 // decisions a second
}

func weigh(s *scope, binary string, p sentinel.Policy, tenants int) weight {
	srv := redistest.StartBinary(s, binary, "--maxmemory", "4gb")
	l := sizingLimiter(s, srv, p)
	admin := srv.Client(s)
	fill(s, l, 0, sizingWarm)
	before := usedMemory(s, admin)
	fill(s, l, sizingWarm, tenants)
	w := weight{
		bytes: (usedMemory(s, admin) - before) / float64(tenants-sizingWarm),
		keys:  int(admin.DBSize(s.Context()).Val()),
	}
	w.resident = infoNumber(s, admin, "memory", "used_memory_rss")
	w.script, w.rate = timeDecisions(s, l, admin, tenants)
	return w
}

func sizingLimiter(s *scope, srv *redistest.Server, p sentinel.Policy) *sentinel.Limiter {
	l, err := sentinel.Open(s.Context(), &sentinel.Config{
		App: sentinel.App{
			RedisURL: sentinel.NewSecret(srv.URL()), JWTSecret: sentinel.NewSecrets(jwtSecret),
			RedisBudget: time.Second, // the machine is busy with the server
		},
		Policies: map[string]sentinel.Policy{p.EndpointID: p},
	}, sentinel.WithStrictStart(), sentinel.WithLogger(silent))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	// The start check's key, which is nobody's, is gone after two seconds.
	admin := srv.Client(s)
	for admin.DBSize(s.Context()).Val() > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	return l
}

// fill has the tenants from one number to another take one token each.
func fill(s *scope, l *sentinel.Limiter, from, to int) {
	var next atomic.Int64
	next.Store(int64(from))
	atOnce(func() {
		for {
			n := int(next.Add(1)) - 1
			if n >= to {
				return
			}
			if err := take(s.Context(), l, n); err != nil {
				s.Error(err)
				return
			}
		}
	})
}

// take takes one token, however long a busy machine has it wait.
func take(ctx context.Context, l *sentinel.Limiter, tenant int) error {
	for try := 0; ; try++ {
		d, err := l.Allow(ctx, "tenant-"+strconv.Itoa(tenant), "billing.export")
		switch {
		case err != nil || d.FromStore:
			return err
		case try == 45:
			return errors.New("sizing: " + string(d.Reason))
		}
		time.Sleep(time.Second)
	}
}

func atOnce(f func()) {
	var all sync.WaitGroup
	for range sizingCrowd {
		all.Go(f)
	}
	all.Wait()
}

// timeDecisions returns the script time of a decision and the decisions in a second, on
// tenants chosen at random.
func timeDecisions(s *scope, l *sentinel.Limiter, admin *redis.Client, tenants int) (script, rate float64) {
	if err := admin.ConfigResetStat(s.Context()).Err(); err != nil {
		s.Fatal(err)
	}
	const length = 2 * time.Second
	var decisions atomic.Int64
	start := time.Now()
	atOnce(func() {
		for time.Since(start) < length {
			if err := take(s.Context(), l, rand.IntN(tenants)); err != nil {
				s.Error(err)
				return
			}
			decisions.Add(1)
		}
	})
	took := time.Since(start)
	n := float64(decisions.Load())
	info := admin.Info(s.Context(), "commandstats").Val()
	m := regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`).FindStringSubmatch(info)
	if m == nil {
		s.Fatal("sizing: no evalsha in INFO commandstats")
	}
	usec, _ := strconv.ParseFloat(m[1], 64) // digits
	return usec / n, n / took.Seconds()
}

// proveExpiry fills a server with buckets that matter for two seconds, and waits
// for them to be gone without anybody asking for them.
func proveExpiry(ctx context.Context, l *lab, binaries []string, s *section) (promise, error) {
	gone, tenants := &trials{}, sizes(l)[0]
	t := &table{title: "Expiry", columns: []string{"server", "keys", "of them without expiry", "all gone after, s", "memory back to, MB"}}
	for _, binary := range binaries {
		name := serverName(ctx, binary)
		l.logf("sizing: expiry on %s", name)
		err := within(ctx, func(sc *scope) {
			srv := redistest.StartBinary(sc, binary, "--maxmemory", "4gb")
			p := sizingPolicies()[0].policy
			p.RefillRate = sentinel.Token / 20 // full again after 20 s
			limiter, admin := sizingLimiter(sc, srv, p), srv.Client(sc)
			fill(sc, limiter, 0, tenants)
			filled := time.Now()
			kept := int(admin.DBSize(sc.Context()).Val())
			eternal := kept - int(infoNumber(sc, admin, "keyspace", "db0:keys=\\d+,expires"))
			for admin.DBSize(sc.Context()).Val() > 0 && time.Since(filled) < time.Minute {
				time.Sleep(100 * time.Millisecond)
			}
			left := admin.DBSize(sc.Context()).Val()
			took := time.Since(filled)
			gone.check(kept == tenants && eternal == 0 && left == 0, "%s: %d keys of %d tenants, %d without expiry, %d left after %v", name, kept, tenants, eternal, left, took)
			t.add(name, group3(kept), group3(eternal), fmt.Sprintf("%.1f", took.Seconds()), fmt.Sprintf("%.1f", usedMemory(sc, admin)/1e6))
		})
		if err != nil {
			return promise{}, err
		}
	}
	s.tables = append(s.tables, t)
	return gone.promise("a bucket that is full again is gone from Redis by itself (here: 21 s after its only token)", ""), nil
}

func usedMemory(s *scope, c *redis.Client) float64 { return infoNumber(s, c, "memory", "used_memory") }

// infoNumber is a number of INFO; name may be a regular expression.
func infoNumber(s *scope, c *redis.Client, part, name string) float64 {
	text, err := c.Info(s.Context(), part).Result()
	m := regexp.MustCompile(`(?m)^` + name + `[:=](\d+)`).FindStringSubmatch(text)
	if err != nil || m == nil {
		s.Fatalf("sizing: INFO %s: no %s, %v", part, name, err)
	}
	n, _ := strconv.ParseFloat(m[1], 64) // digits
	return n
}

// serverName is "Redis 7.0.15" or "Valkey 8.1.1", as the server calls itself.
func serverName(ctx context.Context, binary string) string {
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	fields := strings.Fields(string(out))
	at := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "v=") })
	if err != nil || at < 0 {
		return binary
	}
	return fields[0] + " " + strings.TrimPrefix(fields[at], "v=")
}

// group3 writes 1000000 as 1,000,000.
func group3(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
