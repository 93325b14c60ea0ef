package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// timed is one check and how long it took.
func timed(t testing.TB, l *sentinel.Limiter, tenant, id string) (sentinel.Decision, time.Duration) {
	t.Helper()
	start := time.Now()
	d := allow(t, l, tenant, id)
	return d, time.Since(start)
}

// pair is an endpoint of each fail mode.
var pair = []sentinel.Policy{
	failOpen(tokens("open", 100*sentinel.Token, 0), 10*sentinel.Token),
	tokens("closed", 100*sentinel.Token, 0),
}

// decides has the limiter ask until Redis answers, less often than opens a
// breaker, and reports whether it did.
func (r *trial) decides(l *sentinel.Limiter, id string) bool {
	r.Helper()
	for range 4 {
		if allow(r, l, fresh(r), id).FromStore {
			return true
		}
	}
	r.faultf("four checks in a row were not decided by a Redis that is well")
	return false
}

// A Redis that accepts and never answers, from the first check on: each check
// is answered within the budget by its fail mode, five of them open the
// breaker, and the sixth asks nobody.
func TestBlackHoleCold(t *testing.T) {
	onTime(t, func(r *trial) {
		p := redistest.NewProxy(r, "127.0.0.1:1")
		p.BlackHole()
		l := cold(r, onBudget(p.URL(), pair...))
		r.fiveTimeouts(l, "open", "closed")
		if p.Commands()["EVALSHA"] != 0 {
			r.Error("a check was sent on a connection that never was ready")
		}
		accepted := p.Accepted()
		if d := allow(r, l, "acme", "open"); d.Reason != sentinel.ReasonCircuitOpen || !d.Allowed {
			r.Errorf("breaker open: %+v", d)
		}
		for range 100 {
			d, took := timed(r, l, "acme", "closed")
			if d.Reason != sentinel.ReasonCircuitOpen || d.Allowed {
				r.Errorf("breaker open: %+v", d)
			}
			if took > budget/2 {
				r.faultf("breaker open: took %v", took)
			}
		}
		// The connector may try again meanwhile, but not for each check.
		if n := p.Accepted() - accepted; n > 2 {
			r.Errorf("breaker open: 100 checks opened %d connections", n)
		}
		if s := l.Status(); s.Breaker != "open" || s.Ready || !s.Degraded || s.LastError != "timeout" {
			r.Errorf("%+v", s)
		}
	})
}

// cold opens a limiter whose first connection is still under way.
func cold(t testing.TB, cfg *sentinel.Config) *sentinel.Limiter {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Open does not wait
	l, err := sentinel.Open(ctx, cfg, options()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// fiveTimeouts makes the five checks that open the breaker, at the endpoints in
// turn, and holds each to the budget.
func (r *trial) fiveTimeouts(l *sentinel.Limiter, ids ...string) {
	r.Helper()
	fastest := time.Hour
	for i := range 5 {
		id := ids[i%len(ids)]
		want := sentinel.ReasonRedisTimeout
		if id == "closed" {
			want = sentinel.ReasonFailClosed
		}
		d, took := timed(r, l, "acme", id)
		if d.Reason != want || d.Allowed != (id == "open") {
			r.Errorf("check %d: %+v", i, d)
		}
		if took > within {
			r.faultf("check %d took %v", i, took)
		}
		fastest = min(fastest, took)
	}
	if fastest > budget+late {
		r.faultf("the fastest of five checks took %v", fastest)
	}
}

// A Redis that turns into a black hole under a warm limiter.
func TestBlackHoleWarm(t *testing.T) {
	srv := redistest.Start(t)
	onTime(t, func(r *trial) {
		p := redistest.NewProxy(r, srv.Addr())
		l := open(r, onBudget(p.URL(), pair...))
		if !r.decides(l, "closed") {
			return
		}
		p.BlackHole()
		r.fiveTimeouts(l, "open")
		if d, took := timed(r, l, "acme", "closed"); d.Reason != sentinel.ReasonCircuitOpen || d.Allowed {
			r.Errorf("the sixth: %+v", d)
		} else if took > budget/2 {
			r.faultf("the sixth took %v", took)
		}
	})
}

// Two hundred checks at once on a cold limiter, against a Redis that swallows
// everything and against one that is slow to accept: all leave on time, and
// once that Redis is well it decides everything within two seconds.
func TestColdCrowd(t *testing.T) {
	for _, fault := range []struct {
		name string
		on   func(*redistest.Proxy)
	}{
		{"black hole", (*redistest.Proxy).BlackHole},
		{"slow connect", func(p *redistest.Proxy) { p.SlowConnect(400 * time.Millisecond) }},
		{"dead port", (*redistest.Proxy).Refuse},
	} {
		t.Run(fault.name, func(t *testing.T) {
			srv := redistest.Start(t)
			onTime(t, func(r *trial) { coldCrowd(r, srv, fault.on) })
		})
	}
}

func coldCrowd(r *trial, srv *redistest.Server, fault func(*redistest.Proxy)) {
	r.watchRedis(srv.Client(r), 0)
	p := redistest.NewProxy(r, srv.Addr())
	fault(p)
	l := cold(r, onBudget(p.URL(), pair...))

	var longest time.Duration
	var mu sync.Mutex
	together(200, func() {
		d, took := timed(r, l, "acme", "open")
		if d.FromStore {
			r.Errorf("decided by a Redis that is not there: %+v", d)
		}
		mu.Lock()
		defer mu.Unlock()
		longest = max(longest, took)
	})
	if longest > within {
		r.faultf("the longest of 200 checks took %v, want %v", longest, within)
	}

	p.Pass()
	well := time.Now()
	for !allow(r, l, "acme", "closed").FromStore {
		if time.Since(well) > 2*time.Second {
			r.faultf("not decided by Redis for 2 s after it was well: %+v", l.Status())
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	for range 50 {
		if d := allow(r, l, fresh(r), "closed"); !d.FromStore {
			r.faultf("not decided by Redis: %+v", d)
			return
		}
	}
}

// A Redis that is 5 ms away, or takes 100 ms to accept, works.
func TestFarAndSlowToAccept(t *testing.T) {
	srv := redistest.Start(t)
	onTime(t, func(r *trial) {
		p := redistest.NewProxy(r, srv.Addr())
		p.SlowConnect(100 * time.Millisecond)
		p.Delay(5 * time.Millisecond)
		r.watchRedis(clientOf(r, p), 5*time.Millisecond)
		l := open(r, onBudget(p.URL(), pair...))
		decided := 0
		for range 50 {
			d, took := timed(r, l, fresh(r), "closed")
			if took > within {
				r.faultf("%v, %+v", took, d)
			}
			if d.FromStore {
				decided++
			}
		}
		// 15 ms are left of each budget, and the machine may be late a little.
		if decided < 45 {
			r.faultf("%d of 50 checks decided by Redis", decided)
		}
	})
}

// clientOf is a bare client behind the proxy.
func clientOf(t testing.TB, p *redistest.Proxy) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// One check, one execution: a reply that is lost is not asked for again.
func TestReplyLostAfterExecution(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := redistest.NewProxy(t, srv.Addr())
	registry := prometheus.NewRegistry()
	cfg := config(p.URL(), failOpen(tokens("open", 10*sentinel.Token, 0), sentinel.Token), tokens("closed", 10*sentinel.Token, 0))
	cfg.App.RedisBudget = 250 * time.Millisecond
	l := open(t, cfg, sentinel.WithRegisterer(registry))
	c := srv.Client(t)
	for _, fault := range []func(string){p.DropReply, p.ResetReply, p.HalfReply} {
		for _, id := range []string{"open", "closed"} {
			tenant, failures := fresh(t), storeErrors(t, registry)
			fault("EVALSHA")
			d, took := timed(t, l, tenant, id)
			if n := storeErrors(t, registry) - failures; n != 1 {
				t.Errorf("%s: %v failures counted, want 1", id, n)
			}
			// Without the budget of 250 ms it would take a second and more.
			if d.FromStore || took > 950*time.Millisecond {
				t.Errorf("%s: %v, %+v", id, took, d)
			}
			if n := tokensOf(stateOf(t, c, tenantKey(tenant, id))); n != 9_000_000 {
				t.Errorf("%s: %d microtokens stored, want 9000000: charged once", id, n)
			}
			// A good answer between two faults keeps the breaker closed.
			eventually(t, soon, "decided by Redis", func() bool { return allow(t, l, fresh(t), "closed").FromStore })
		}
	}
}

// Clients that hang up are neutral: on a Redis that is slow but within the
// budget none of them counts on the breaker, whatever their number.
func TestCallersWhoHangUp(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), pair...))
	p.Delay(250 * time.Millisecond)
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		before, gone := p.Commands()["EVALSHA"], make(chan struct{})
		go func() { // hangs up once the question is sent
			defer close(gone)
			for ctx.Err() == nil && p.Commands()["EVALSHA"] == before {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		d, err := l.Allow(ctx, "acme", "closed")
		cancel()
		<-gone
		if !errors.Is(err, context.Canceled) || d != (sentinel.Decision{}) {
			t.Errorf("%+v, %v", d, err)
		}
	}
	// Nor does a deadline that Redis cannot meet cost those who come next anything:
	// a client may choose it, as that of gRPC does.
	before := p.Accepted()
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		d, err := l.Allow(ctx, "acme", "closed")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || d != (sentinel.Decision{}) {
			t.Errorf("%+v, %v", d, err)
		}
		if d := allow(t, l, "acme", "closed"); !d.FromStore {
			t.Errorf("the next one: %+v", d)
		}
	}
	if s := l.Status(); s.Breaker != "closed" || s.LastError != "" || p.Accepted() != before {
		t.Errorf("%+v, %d connections, then %d", s, before, p.Accepted())
	}
}

// The script cache is flushed again and again under traffic: no request fails
// and none is charged twice. So is the server restarted.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	l := open(t, config(srv.URL(), tokens("jobs", 1<<40, 0)))
	tenant := fresh(t)
	var calls, bad atomic.Int64
	end := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for time.Now().Before(end) {
				calls.Add(1)
				if d := allow(t, l, tenant, "jobs"); !d.FromStore {
					bad.Add(1)
				}
			}
		})
	}
	for time.Now().Before(end) {
		if err := c.ScriptFlush(t.Context()).Err(); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	wg.Wait()
	if n := bad.Load(); n != 0 {
		t.Errorf("%d of %d checks not decided by Redis", n, calls.Load())
	}
	if got, want := tokensOf(stateOf(t, c, tenantKey(tenant, "jobs"))), int64(1<<40)-calls.Load()*1_000_000; got != want {
		t.Errorf("%d microtokens left, want %d: each check charged once", got, want)
	}
	if s := l.Status(); s.Breaker != "closed" {
		t.Errorf("%+v", s)
	}

	srv.Kill()
	srv.Restart()
	eventually(t, soon, "decided by the restarted Redis", func() bool { return allow(t, l, tenant, "jobs").FromStore })
}

// A server that answers NOSCRIPT for ever: one reload, then a failure.
func TestAlwaysNoScript(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), pair...))
	p.Rewrite("EVALSHA", "-NOSCRIPT No matching script.\r\n")
	before := p.Commands()["EVALSHA"]
	if d := allow(t, l, "acme", "open"); d.Reason != sentinel.ReasonRedisNoScriptRetry || !d.Allowed {
		t.Errorf("%+v", d)
	}
	if n := p.Commands()["EVALSHA"] - before; n != 2 {
		t.Errorf("%d EVALSHA for one check, want 2", n)
	}
	if d := allow(t, l, "acme", "closed"); d.Reason != sentinel.ReasonFailClosed {
		t.Errorf("%+v", d)
	}
}

// Error replies and replies of the wrong shape are failures, not verdicts.
func TestRepliesThatAreNoVerdict(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), pair...))
	for _, reply := range []string{
		"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
		"-READONLY You can't write against a read only replica.\r\n",
		"-BUSY Redis is busy running a script.\r\n",
		"-LOADING Redis is loading the dataset in memory\r\n",
		"-ERR user_script:1: x\r\n",
		"+OK\r\n", ":1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "$3\r\nabc\r\n",
		"*2\r\n:1\r\n:99\r\n", "*6\r\n:1\r\n:5\r\n:1\r\n:5\r\n:-1\r\n:0\r\n",
		"*6\r\n:7\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:0\r\n",
		"*6\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n+f\r\n",
		"*1\r\n*1\r\n:1\r\n",
		"!garbage\r\n",
	} {
		p.RewriteNext("EVALSHA", reply)
		if d := allow(t, l, "acme", "closed"); d.Allowed || d.Reason != sentinel.ReasonFailClosed {
			t.Errorf("%q: %+v", reply, d)
		}
		eventually(t, soon, "decided by Redis after "+reply, func() bool { return allow(t, l, fresh(t), "closed").FromStore })
	}
}

// While the breaker is open, and at the instant it may close, the server sees
// exactly one call per open period.
func TestProbeCountedAtTheServer(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), pair...))
	p.Rewrite("EVALSHA", "-OOM command not allowed when used memory > 'maxmemory'.\r\n")
	before := p.Commands()["EVALSHA"]
	sent := func() int { return p.Commands()["EVALSHA"] - before }
	opening := time.Now()
	for range 5 {
		allow(t, l, "acme", "closed")
	}
	opened := time.Now()
	if n := sent(); n != 5 {
		t.Fatalf("%d calls opened the breaker, want 5", n)
	}
	hammer := func(until time.Time) {
		together(50, func() {
			for time.Now().Before(until) {
				if d := allow(t, l, "acme", "closed"); d.Allowed {
					t.Errorf("%+v", d)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	hammer(opening.Add(28 * time.Second)) // and not to its last moment: a check may begin late
	if n := sent(); n != 5 {
		t.Errorf("%d calls sent while open", n-5)
	}
	p.Delay(300 * time.Millisecond) // while the probe is under way, all others come by
	hammer(opened.Add(31 * time.Second))
	eventually(t, soon, "a probe", func() bool { allow(t, l, "acme", "closed"); return sent() > 5 })
	if n := sent(); n != 6 {
		t.Errorf("%d probes in the first open period, want 1", n-5)
	}
	p.Pass()
	eventually(t, 31*time.Second+soon, "closed by a good probe", func() bool {
		time.Sleep(20 * time.Millisecond)
		return allow(t, l, "acme", "closed").FromStore
	})
}

// storeErrors is sentinel_store_errors_total, of all kinds.
func storeErrors(t *testing.T, registry *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "sentinel_store_errors_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

// A probe whose caller hangs up says nothing about Redis and holds its slot for
// nobody: the next caller probes, at once.
func TestProbeOfACallerWhoHangsUp(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), pair...))
	p.Rewrite("EVALSHA", "-OOM command not allowed when used memory > 'maxmemory'.\r\n")
	for range 5 {
		allow(t, l, "acme", "closed")
	}
	if s := l.Status(); s.Breaker != "open" {
		t.Fatalf("%+v", s)
	}
	time.Sleep(30 * time.Second)
	p.Pass()
	p.Delay(100 * time.Millisecond)
	before := p.Commands()["EVALSHA"]
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // hangs up once the probe is sent
		defer cancel()
		for ctx.Err() == nil && p.Commands()["EVALSHA"] == before {
			time.Sleep(time.Millisecond)
		}
	}()
	if d, err := l.Allow(ctx, "acme", "closed"); !errors.Is(err, context.Canceled) || d != (sentinel.Decision{}) {
		t.Errorf("%+v, %v", d, err)
	}
	if s := l.Status(); s.Breaker != "half_open" {
		t.Errorf("after a probe that nobody waits for: %+v", s)
	}
	if d := allow(t, l, "acme", "closed"); !d.FromStore {
		t.Errorf("the next one: %+v", d)
	}
	if s := l.Status(); s.Breaker != "closed" {
		t.Errorf("after a good probe: %+v", s)
	}
	if n := p.Commands()["EVALSHA"] - before; n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

// Redis is killed under traffic and comes back: fail-open endpoints go on under
// their emergency bucket.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	l := open(t, config(srv.URL(), pair...))
	allow(t, l, "acme", "open")
	srv.Kill()
	begin := time.Now()
	admitted := 0
	for range 40 {
		if d := allow(t, l, "acme", "open"); d.FromStore {
			t.Errorf("decided by a Redis that is not there: %+v", d)
		} else if d.Allowed {
			admitted++
		}
	}
	most := 10 + int(10*time.Since(begin).Seconds())
	if admitted < 10 || admitted > most {
		t.Errorf("%d of 40 admitted by an emergency bucket of 10, want at most %d", admitted, most)
	}
	srv.Restart()
	eventually(t, 31*time.Second+soon, "decided by Redis", func() bool {
		time.Sleep(20 * time.Millisecond)
		return allow(t, l, "acme", "closed").FromStore
	})
}

// When Redis is killed under traffic, nobody waits for longer than the budget.
func TestKilledOnBudget(t *testing.T) {
	srv := redistest.Start(t)
	onTime(t, func(r *trial) {
		l := open(r, onBudget(srv.URL(), pair...))
		if !r.decides(l, "closed") {
			return
		}
		srv.Kill()
		for range 40 {
			d, took := timed(r, l, "acme", "open")
			if d.FromStore {
				r.Errorf("decided by a Redis that is not there: %+v", d)
			}
			if took > within {
				r.faultf("took %v: %+v", took, d)
			}
		}
		srv.Restart()
	})
}

// A Redis that restarted while nobody asked does not cost the next checks.
func TestIdleConnectionsThatWereClosed(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	l := open(t, config(srv.URL(), tokens("jobs", 1000*sentinel.Token, 0)))
	c := srv.Client(t)
	for range 10 {
		if err := c.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // until that has come through
		if d := allow(t, l, "acme", "jobs"); !d.FromStore {
			t.Errorf("%+v", d)
		}
	}
}

// A Redis that answers and is wrong is refused, and the error says what to do.
func TestStartRefuses(t *testing.T) {
	t.Parallel()
	locked := redistest.Start(t, "--requirepass", "hunter2-of-redis")
	for _, tc := range []struct {
		name, url string
		flags     []string
		want      []string
	}{
		{"evicts", "", []string{"--maxmemory-policy", "allkeys-lru"}, []string{"allkeys-lru", "CONFIG SET maxmemory-policy noeviction"}},
		{"unbounded", "", []string{"--maxmemory", "0"}, []string{"maxmemory is 0", "CONFIG SET maxmemory"}},
		{"no password", locked.URL(), nil, []string{"demands a password"}},
		{"wrong password", "redis://:wr0ng-pa55w0rd@" + locked.Addr(), nil, []string{"refuses the user name or password", "ACL SETUSER"}},
		{"no such db", "/99", nil, []string{"database"}},
	} {
		url := tc.url
		if url == "" || strings.HasPrefix(url, "/") {
			url = redistest.Start(t, tc.flags...).URL() + url
		}
		var log bytes.Buffer
		err := refusal(t, config(url, pair...), sentinel.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err == nil {
			t.Errorf("%s: started", tc.name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", tc.name, err, want)
			}
		}
		for _, out := range []string{err.Error(), fmt.Sprintf("%+v", err), log.String()} {
			for _, piece := range []string{"wr0ng", "pa55", "127.0.0.1"} {
				if strings.Contains(out, piece) {
					t.Errorf("%s: %q in %s", tc.name, piece, out)
				}
			}
		}
	}
}

// Managed servers forbid CONFIG, by renaming it or by ACL: the policy is then
// read from INFO, and where that is forbidden too the setting decides.
func TestServersThatForbidConfig(t *testing.T) {
	t.Parallel()
	renamed := redistest.Start(t, "--rename-command", "CONFIG", "")
	open(t, config(renamed.URL(), pair...))

	srv := redistest.Start(t)
	c := srv.Client(t)
	user := func(name string, rules ...any) string {
		t.Helper()
		args := append([]any{"acl", "setuser", name, "on", ">pw-of-" + name, "~sentinel:*", "+evalsha", "+script|load", "+get", "+set", "+time"}, rules...)
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		return "redis://" + name + ":pw-of-" + name + "@" + srv.Addr()
	}
	l := open(t, config(user("info", "+info"), pair...))
	if d := allow(t, l, "acme", "closed"); !d.FromStore {
		t.Errorf("a user with +info: %+v", d)
	}
	if d := allow(t, open(t, config(user("config", "+config|get"), pair...)), "acme", "closed"); !d.FromStore {
		t.Errorf("a user with +config|get: %+v", d)
	}

	blind := config(user("blind"), pair...)
	var log bytes.Buffer
	l = open(t, blind, sentinel.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if d := allow(t, l, "acme", "closed"); !d.FromStore {
		t.Errorf("a user with neither: %+v", d)
	}
	if !strings.Contains(log.String(), "can be read neither by CONFIG GET nor by INFO") || strings.Contains(log.String(), "noeviction;") {
		t.Errorf("log: %s", &log)
	}
	blind.App.UnreadableRedisPolicy = sentinel.UnreadableRefuse
	if err := refusal(t, blind); err == nil {
		t.Error("unreadable_redis_policy refuse: started")
	} else if !strings.Contains(err.Error(), "+config|get") {
		t.Errorf("%v", err)
	}

	if err := c.Do(t.Context(), "acl", "setuser", "weak", "on", ">pw-of-weak", "~sentinel:*", "+info").Err(); err != nil {
		t.Fatal(err)
	}
	if err := refusal(t, config("redis://weak:pw-of-weak@"+srv.Addr(), pair...)); err == nil {
		t.Error("a user without EVALSHA: started")
	} else if !strings.Contains(err.Error(), "+evalsha") {
		t.Errorf("%v", err)
	}
}

// Away is not wrong: the application boots, degraded and loudly, and strictly
// only where it asked for that.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	p.Refuse()
	start := time.Now()
	if l, err := sentinel.Open(t.Context(), config(p.URL(), pair...), options(sentinel.WithStrictStart())...); err == nil {
		l.Close()
		t.Error("strict: started")
	}
	var log bytes.Buffer
	l := open(t, config(p.URL(), pair...), sentinel.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if took := time.Since(start); took > 2500*time.Millisecond {
		t.Errorf("two starts took %v", took)
	}
	if !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("log: %s", &log)
	}
	if d := allow(t, l, "acme", "closed"); d.Reason != sentinel.ReasonFailClosed {
		t.Errorf("%+v", d)
	}
	p.Pass()
	eventually(t, soon, "decided by Redis", func() bool { return allow(t, l, "acme", "closed").FromStore })
}

// A server that is found wrong only after the start is not trusted, says once
// what to change, and is looked at again.
func TestLateCheckFindsAWrongServer(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	p := redistest.NewProxy(t, srv.Addr())
	p.Refuse()
	log := &syncBuffer{}
	l := open(t, config(p.URL(), pair...), sentinel.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	p.Pass()
	eventually(t, soon, "the fault logged", func() bool { return strings.Contains(log.String(), "CONFIG SET maxmemory-policy noeviction") })
	for range 20 {
		if d := allow(t, l, "acme", "closed"); d.FromStore || d.Allowed {
			t.Errorf("%+v", d)
		}
	}
	if s := l.Status(); s.Ready || !strings.Contains(s.Detail, "noeviction") {
		t.Errorf("%+v", s)
	}
	if err := srv.Client(t).ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second+soon, "decided by the mended Redis", func() bool {
		time.Sleep(20 * time.Millisecond)
		return allow(t, l, "acme", "closed").FromStore
	})
	if n := strings.Count(log.String(), "not fit for use"); n != 1 {
		t.Errorf("the fault was logged %d times:\n%s", n, log)
	}
}

// The same where nobody waited for the first attempt.
func TestLateCheckAfterAStartThatDidNotWait(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	p := redistest.NewProxy(t, srv.Addr())
	p.SlowConnect(100 * time.Millisecond)
	log := &syncBuffer{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	l, err := sentinel.Open(ctx, config(p.URL(), pair...), options(sentinel.WithLogger(slog.New(slog.NewTextHandler(log, nil))))...)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	eventually(t, soon, "the fault logged", func() bool { return strings.Contains(log.String(), "CONFIG SET maxmemory-policy noeviction") })
}

// A client that the application already has, and keeps.
func TestNewWithAClient(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
	defer client.Close()
	cfg := config("", pair...)
	l, err := sentinel.New(t.Context(), client, cfg, options()...)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if d := allow(t, l, "acme", "closed"); !d.FromStore {
			t.Fatalf("%+v", d)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("Close closed the application's client: %v", err)
	}
}

// After Close every check takes its failure row, also one that is under way.
func TestCloseInTheMiddle(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	l, err := sentinel.Open(t.Context(), config(srv.URL(), pair...), options()...)
	if err != nil {
		t.Fatal(err)
	}
	stop := meanwhile(20, func() { allow(t, l, "acme", "closed") })
	time.Sleep(100 * time.Millisecond)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if d := allow(t, l, "acme", "closed"); d.Allowed || d.FromStore {
		t.Errorf("%+v", d)
	}
	if d := allow(t, l, "acme", "open"); d.FromStore {
		t.Errorf("%+v", d)
	}
	eventually(t, soon, "all connections closed", func() bool {
		list := srv.Client(t).ClientList(context.Background()).Val()
		return strings.Count(list, "cmd=evalsha") == 0
	})
}

// A host name that does not resolve, a dead port: no piece of the URL in any
// output.
func TestNothingOfTheURLIsPrinted(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := dead.Addr().String()
	dead.Close()
	for _, url := range []string{"redis://user:s3cret@" + addr, "rediss://user:s3cret@" + addr, "redis://user:s3cret@nosuch.invalid:6379"} {
		log := &syncBuffer{}
		cfg := config(url, pair...)
		l, err := sentinel.Open(t.Context(), cfg, options(sentinel.WithLogger(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))))...)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		allow(t, l, "acme", "closed")
		printed := fmt.Sprintf("%v %+v %#v %+v", l.Status(), cfg, cfg, l)
		l.Close()
		for _, piece := range []string{"s3cr", "3cre", "cret", "nosuch", addr} {
			if strings.Contains(log.String(), piece) {
				t.Errorf("%q in the log: %s", piece, log)
			}
			// The names of App's fields hold "cret" themselves.
			if piece != "cret" && strings.Contains(printed, piece) {
				t.Errorf("%q in %s", piece, printed)
			}
		}
	}
}
