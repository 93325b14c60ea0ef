package integration_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// together runs f n times at once.
func together(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(f)
	}
	wg.Wait()
}

// A burst on a Redis that answers every call in 5 ms does not open the breaker.
func TestBurstDoesNotOpenTheBreaker(t *testing.T) {
	s := redistest.Start(t)
	onTime(t, func(r *trial) {
		p := redistest.NewProxy(r, s.Addr())
		l := open(r, onBudget(p.URL(), tokens("a", 1<<40, 1<<40)))
		p.Delay(5 * time.Millisecond)
		r.watchRedis(clientOf(r, p), 5*time.Millisecond)
		time.Sleep(300 * time.Millisecond) // its spare connections come up
		if !r.decides(l, "a") {
			return
		}
		together(100, func() { _, _ = l.Allow(context.Background(), "x", "a") })
		if got := l.Status().Breaker; got != "closed" {
			r.faultf("Redis answered every call it got, breaker is %s", got)
		}
		r.decides(l, "a")
	})
}

// The server closed idle connections (timeout, LB, failover) and a new one takes
// longer than a decision has: set-up is nobody's but the connector's.
func TestIdleConnectionsClosedAndSlowDial(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	cfg := config(p.URL(), tokens("a", 1<<40, 1<<40))
	cfg.App.RedisBudget = 500 * time.Millisecond
	l := open(t, cfg)
	p.Delay(3 * time.Millisecond)
	for n := 4; n < 20; n += 2 { // grows the lines without a timeout
		for range 3 {
			together(n, func() { _, _ = l.Allow(context.Background(), "w", "a") })
		}
	}
	p.Delay(0)
	eventually(t, 31*time.Second+soon, "warm", func() bool { return allow(t, l, "w", "a").FromStore && !l.Status().Degraded })
	time.Sleep(100 * time.Millisecond)
	p.SlowConnect(800 * time.Millisecond)
	p.DropConns()
	time.Sleep(50 * time.Millisecond)
	// With an open breaker it would take 30 s.
	eventually(t, soon, "a verdict of a Redis that is well", func() bool { return allow(t, l, "x", "a").FromStore })
}

func aclUser(t *testing.T, s *redistest.Server, rules string) string {
	t.Helper()
	args := []any{"ACL", "SETUSER", "u", "on", ">pw"}
	for f := range strings.FieldsSeq(rules) {
		args = append(args, f)
	}
	if err := s.Client(t).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return "redis://u:pw@" + s.Addr()
}

// NOPERM is refused at start whichever permission is missing.
func TestOpenRefusesMissingPermissions(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string]string{
		"evalsha": "~sentinel:* +script|load +get +set +time +config|get +info",
		"keys":    "~other:* +evalsha +script|load +get +set +time +config|get +info",
		"time":    "~sentinel:* +evalsha +script|load +get +set +config|get +info",
		"set":     "~sentinel:* +evalsha +script|load +get +time +config|get +info",
		"get":     "~sentinel:* +evalsha +script|load +set +time +config|get +info",
		"script":  "~sentinel:* +evalsha +get +set +time +config|get +info",
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			if refusal(t, config(aclUser(t, s, rules), tokens("a", 10*sentinel.Token, 0))) == nil {
				t.Error("started")
			}
		})
	}
}

// The command in the error mends what the error says, with a database too.
func TestPermissionRemedyMends(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, db := range []string{"", "/1"} {
		url := aclUser(t, s, "resetkeys -@all") + db
		err := refusal(t, config(url, tokens("a", 10*sentinel.Token, 0)))
		if err == nil {
			t.Fatal("a user without any permission: started")
		}
		_, rights, ok := strings.Cut(err.Error(), "ACL SETUSER <user> ")
		if !ok {
			t.Fatalf("no remedy in: %v", err)
		}
		aclUser(t, s, rights)
		d := allow(t, open(t, config(url, tokens("a", 10*sentinel.Token, 0))), fresh(t), "a")
		if !d.FromStore {
			t.Errorf("with the rights that the error names: %+v", d)
		}
	}
}

// With "refuse", a missing password is still reported as that.
func TestNoAuthWithRefuse(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "hunter2hunter2")
	c := config(s.URL(), tokens("a", 10*sentinel.Token, 0))
	c.App.UnreadableRedisPolicy = sentinel.UnreadableRefuse
	err := refusal(t, c)
	if err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("Open: %v, want the missing password", err)
	}
}

// A server met after all connections died while idle is checked like the first.
func TestServerAfterIdleIsChecked(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := open(t, config(p.URL(), tokens("a", 10*sentinel.Token, 0)))
	allow(t, l, "x", "a")
	time.Sleep(200 * time.Millisecond)
	r := s.Client(t) // stands for another server at the same address
	if err := r.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	r.ScriptFlush(t.Context())
	p.DropConns()
	time.Sleep(200 * time.Millisecond)
	for range 2 { // the first has it checked
		if d := allow(t, l, "x", "a"); d.FromStore {
			t.Errorf("%v from a server with allkeys-lru that nobody checked", d.Reason)
		}
		eventually(t, soon, "the server is refused", func() bool { return strings.Contains(l.Status().Detail, "noeviction") })
	}
}

// A second limiter on the registry does not overwrite the first one's gauge.
func TestBreakerGaugeOfTwoLimiters(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	a := open(t, config("redis://127.0.0.1:1", tokens("a", 10*sentinel.Token, 0)), sentinel.WithRegisterer(r))
	for range 6 {
		allow(t, a, "x", "a")
	}
	_ = open(t, config("memory://", tokens("a", 10*sentinel.Token, 0)), sentinel.WithRegisterer(r))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sentinel_breaker_state" && f.GetMetric()[0].GetGauge().GetValue() != 2 {
			t.Errorf("sentinel_breaker_state is %v while a breaker is %s", f.GetMetric()[0].GetGauge().GetValue(), a.Status().Breaker)
		}
	}
}

// A reply whose header promises 2^63-1 elements is a failure, not a panic.
func TestReplyHeaderDoesNotPanic(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := open(t, config(p.URL(), tokens("a", 10*sentinel.Token, 0)))
	defer func() {
		if v := recover(); v != nil {
			t.Errorf("panic: %v", v)
		}
	}()
	p.RewriteNext("EVALSHA", "*9223372036854775807\r\n:1\r\n")
	if d := allow(t, l, "x", "a"); d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Nor is it one in the start check, whose panic would end the process.
func TestReplyHeaderAtTheStartDoesNotPanic(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	p.Rewrite("EVALSHA", "*9223372036854775807\r\n:1\r\n")
	l := cold(t, config(p.URL(), tokens("a", 10*sentinel.Token, 0)))
	if d := allow(t, l, "x", "a"); d.Allowed {
		t.Errorf("%+v", d)
	}
	p.Pass()
	eventually(t, soon, "decided by Redis", func() bool { return allow(t, l, "x", "a").FromStore })
}

// More callers than the way to Redis takes: some wait too long and take their
// failure row, but their calls are not sent in vain, for each would cost its
// connection, and so in the end the breaker.
func TestMoreCallersThanAFarRedisTakes(t *testing.T) {
	srv := redistest.Start(t)
	onTime(t, func(r *trial) {
		p := redistest.NewProxy(r, srv.Addr())
		p.Delay(60 * time.Millisecond)
		cfg := config(p.URL(), tokens("a", 1<<40, 1<<40))
		cfg.App.RedisBudget = 250 * time.Millisecond
		l, err := sentinel.Open(r.Context(), cfg, options(sentinel.WithoutGathering())...)
		if err != nil {
			r.Fatal(err)
		}
		defer l.Close()
		if !r.decides(l, "a") {
			return
		}
		end := time.Now().Add(3 * time.Second)
		var decided atomic.Int64
		together(100, func() {
			for time.Now().Before(end) {
				if allow(r, l, "x", "a").FromStore {
					decided.Add(1)
				}
			}
		})
		if s := l.Status(); s.Breaker != "closed" {
			r.faultf("%d decided: %+v", decided.Load(), s)
		}
		// Eight connections take 400; calls that are sent too late leave 20 of them.
		if decided.Load() < 100 {
			r.faultf("%d decided, on %d connections", decided.Load(), p.Accepted())
		}
	})
}

// A connection that is reset takes the decisions of one call with it. For the
// breaker that is one event, however many they were.
func TestOneResetDoesNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Start(t).Addr())
	l := open(t, config(p.URL(), tokens("a", 1<<40, 1<<40)))
	p.Delay(20 * time.Millisecond) // so that decisions wait, and go together
	var failed atomic.Int64
	stop := meanwhile(64, func() {
		if !allow(t, l, "x", "a").FromStore {
			failed.Add(1)
		}
	})
	// Until one reset has taken more decisions along than the breaker would bear;
	// one that takes a single decision along cannot.
	most, enough := int64(0), int64(5)
	if !gathering() {
		enough = 0
	}
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		before := failed.Load()
		p.DropReply("EVALSHA")
		time.Sleep(100 * time.Millisecond)
		if most = max(most, failed.Load()-before); most > enough {
			break
		}
	}
	stop()
	if most <= enough {
		t.Errorf("no reset failed more than %d decisions: the test proves nothing", most)
	}
	if s := l.Status(); s.Breaker != "closed" {
		t.Errorf("after %d failed decisions, %d of one call: %+v", failed.Load(), most, s)
	}
}
