package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// network stands for the backends of a synctest: who answers a dial, and when
// each was dialled.
type network struct {
	mu     sync.Mutex
	answer map[string]func(context.Context) error
	dials  map[string][]time.Time
	atOnce map[string]int
	peak   int // dials of one backend at once
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address] = append(n.dials[address], time.Now())
	n.atOnce[address]++
	n.peak = max(n.peak, n.atOnce[address])
	answer := n.answer[address]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.atOnce[address]--
		n.mu.Unlock()
	}()
	if answer != nil {
		if err := answer(ctx); err != nil {
			return nil, err
		}
	}
	here, there := net.Pipe()
	_ = there.Close()
	return here, nil
}

// on sets what a backend answers from now on.
func (n *network) on(address string, answer func(context.Context) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answer[address] = answer
}

func (n *network) when(address string) []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.dials[address])
}

// most is how many dials of one backend there were at once.
func (n *network) most() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peak
}

func (n *network) count(address string) int { return len(n.when(address)) }

var errDown = errors.New("connection refused")

func down(context.Context) error { return errDown }

// stuck answers nothing until its caller gives up.
func stuck(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// checkTest is a registry on a network that is none, and what it logged.
type checkTest struct {
	*Registry
	net *network
	log *strings.Builder
}

// newCheckTest is for use inside a synctest.
func newCheckTest(t *testing.T) checkTest {
	t.Helper()
	var log strings.Builder
	out := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	r := newTest(t, Options{Logger: out})
	n := &network{answer: map[string]func(context.Context) error{}, dials: map[string][]time.Time{}, atOnce: map[string]int{}}
	r.dial = n.dial
	return checkTest{r, n, &log}
}

func (c checkTest) generation(pools ...config.Pool) *Generation {
	return c.Generation(pools, requestTimeout)
}

func (c checkTest) expect(t *testing.T, g *Generation, backend, health string) {
	t.Helper()
	synctest.Wait()
	for _, s := range g.Status() {
		if s.Backend == backend && s.Health != health {
			t.Fatalf("%s is %s, want %s", backend, s.Health, health)
		}
	}
}

func TestChecksBeginAtOnceAndKeepTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		g := c.generation(checkedTCP(abc(t)))
		c.expect(t, g, "a:80", "healthy")
		began := time.Now()
		time.Sleep(10 * time.Minute)
		for _, address := range []string{"a:80", "b:80", "c:80"} {
			dials := c.net.when(address)
			if dials[0] != began {
				t.Errorf("%s: first check at %v", address, dials[0])
			}
			low, high := time.Hour, time.Duration(0)
			for i := range dials[1:] {
				gap := dials[i+1].Sub(dials[i])
				low, high = min(low, gap), max(high, gap)
			}
			if low < 1800*time.Millisecond || high > 2200*time.Millisecond || low > 1900*time.Millisecond || high < 2100*time.Millisecond {
				t.Errorf("%s: gaps from %v to %v, want 1.8 s to 2.2 s", address, low, high)
			}
			if n := len(dials); n < 285 || n > 316 {
				t.Errorf("%s: %d checks in 10 minutes", address, n)
			}
		}
	})
}

// A backend that answers nothing delays neither the others' checks nor, as its
// timeout is shorter than the interval, its own.
func TestASlowCheckDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", stuck)
		g := c.generation(checkedTCP(abc(t)))
		time.Sleep(time.Minute)
		c.expect(t, g, "a:80", "unhealthy")
		c.expect(t, g, "b:80", "healthy")
		for _, address := range []string{"a:80", "b:80", "c:80"} {
			if n := c.net.count(address); n < 28 || n > 34 {
				t.Errorf("%s: %d checks in a minute", address, n)
			}
		}
		if c.net.most() != 1 {
			t.Errorf("%d checks of one backend at once", c.net.most())
		}
		if s := g.Status()[0]; s.LastError != "no answer within 1s" {
			t.Errorf("error %q", s.LastError)
		}
	})
}

func TestTransitionsAreLoggedOnceWithTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		g := c.generation(checkedTCP(one(t)))
		time.Sleep(10 * time.Second)
		c.net.on("a:80", down)
		time.Sleep(time.Minute)
		c.expect(t, g, "a:80", "unhealthy")
		if s := g.Status()[0]; s.LastError != "connection refused" {
			t.Errorf("status %+v", s)
		}
		c.net.on("a:80", nil)
		time.Sleep(time.Minute)
		c.expect(t, g, "a:80", "healthy")
		if s := g.Status()[0]; s.LastError != "" {
			t.Errorf("status %+v", s)
		}
		want := `level=WARN msg="backend is unhealthy" pool=pool backend=a:80 was=healthy last_error="connection refused"
level=INFO msg="backend is healthy" pool=pool backend=a:80 was=unhealthy last_error="connection refused"
`
		if got := c.log.String(); got != want {
			t.Errorf("log\n%swant\n%s", got, want)
		}
	})
}

func TestTransitionsOfABreakerAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		p := c.generation(guarded(one(t))).Pool("pool")
		lease, _, _ := p.Acquire()
		lease.Failed(errDown)
		lease.Done()
		breakOpen(t, p)
		time.Sleep(30 * time.Second)
		send(t, p, breaker.Failure)
		time.Sleep(30 * time.Second)
		send(t, p, breaker.Success)
		want := `level=WARN msg="breaker is open" pool=pool backend=a:80 was=closed last_failure="connection refused"
level=INFO msg="breaker is closed" pool=pool backend=a:80 was=half_open last_failure="connection refused"
`
		if got := c.log.String(); got != want {
			t.Errorf("log\n%swant\n%s", got, want)
		}
	})
}

func TestAFailureIsShownWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newCheckTest(t).generation(guarded(one(t)))
		if s := g.Status()[0]; s.LastFailure != "" || !s.LastFailureAt.IsZero() {
			t.Errorf("before any: %+v", s)
		}
		lease, _, _ := g.Pool("pool").Acquire()
		defer lease.Done()
		lease.Failed(errors.New(strings.Repeat("x", 1000)))
		failed := time.Now()
		time.Sleep(time.Minute)
		if s := g.Status()[0]; s.LastFailure != strings.Repeat("x", 300) || !s.LastFailureAt.Equal(failed) {
			t.Errorf("%+v", s)
		}
	})
}

// A check's error may quote what came, which may be long.
func TestACheckThatFailsIsToldInShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", func(context.Context) error { return errors.New(strings.Repeat("x", 100_000)) })
		g := c.generation(checkedTCP(one(t)))
		synctest.Wait()
		if s := g.Status()[0]; s.LastError != strings.Repeat("x", 300) || c.log.Len() > 1000 {
			t.Errorf("%d bytes are kept, %d were logged", len(s.LastError), c.log.Len())
		}
	})
}

func TestAFlappingBackendChangesNothing(t *testing.T) {
	for _, first := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCheckTest(t)
			checks := 0
			c.net.on("a:80", func(context.Context) error {
				checks++
				if (checks%2 == 1) == first {
					return nil
				}
				return errDown
			})
			g := c.generation(checkedTCP(one(t)))
			synctest.Wait()
			was, logged := g.Status()[0].Health, c.log.Len()
			for range 100 {
				time.Sleep(time.Second)
				c.expect(t, g, "a:80", was)
			}
			if c.log.Len() != logged {
				t.Errorf("first passes %t: log %s", first, c.log)
			}
		})
	}
}

// It takes three failures in a row and two passes in a row, no less and no more.
func TestFallAndRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		g := c.generation(checkedTCP(one(t)))
		c.expect(t, g, "a:80", "healthy")
		check := func() { // waits for the next one
			for n := c.net.count("a:80"); c.net.count("a:80") == n; time.Sleep(100 * time.Millisecond) {
			}
			synctest.Wait()
		}
		c.net.on("a:80", down)
		for range 2 {
			check()
			c.expect(t, g, "a:80", "healthy")
		}
		check()
		c.expect(t, g, "a:80", "unhealthy")
		c.net.on("a:80", nil)
		check()
		c.expect(t, g, "a:80", "unhealthy")
		refused(t, g.Pool("pool"), NoBackend, untilCheck(g))
		check()
		c.expect(t, g, "a:80", "healthy")
		acquire(t, g.Pool("pool")).Done()
	})
}

// untilCheck is when the next check of the first backend is to begin; 0: it is under way,
// or there is none.
func untilCheck(g *Generation) time.Duration {
	return g.pools[0].members[0].backend.untilCheck(g.registry.now())
}

func TestTheNextCheckIsWhenToRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", down)
		g := c.generation(checkedTCP(one(t)))
		c.expect(t, g, "a:80", "unhealthy")
		next := untilCheck(g)
		refused(t, g.Pool("pool"), NoBackend, next)
		c.net.on("a:80", stuck)
		time.Sleep(next - time.Nanosecond)
		synctest.Wait()
		if n := c.net.count("a:80"); n != 1 {
			t.Errorf("%d checks before", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if d := untilCheck(g); d != 0 {
			t.Errorf("a check is under way, and the next is in %v", d)
		}
		refused(t, g.Pool("pool"), NoBackend, soon)
	})
}

func TestChecksThatAreCutShortSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		first := c.generation(checkedTCP(one(t)))
		c.expect(t, first, "a:80", "healthy")
		c.net.on("a:80", stuck)
		time.Sleep(2300 * time.Millisecond)
		before := c.net.count("a:80")
		for i := range 10 { // another configuration while a check is under way
			p := checkedTCP(one(t))
			p.Health.Fall, p.Health.Rise = 1, 1+i
			c.generation(p)
			time.Sleep(900 * time.Millisecond)
		}
		c.expect(t, first, "a:80", "healthy")
		if n := c.net.count("a:80") - before; n != 10 || first.Status()[0].LastError != "" {
			t.Errorf("%d checks, %+v", n, first.Status()[0])
		}
		time.Sleep(100 * time.Millisecond)
		c.expect(t, first, "a:80", "unhealthy")
	})
}

// The result of a check that ended after its backend was removed is lost.
func TestLateResultsOfRemovedBackendsAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", func(context.Context) error { time.Sleep(time.Minute); return errDown })
		g := c.generation(checkedTCP(one(t)))
		synctest.Wait()
		g.Release()
		c.net.on("a:80", nil)
		again := c.generation(checkedTCP(one(t)))
		time.Sleep(10 * time.Minute)
		c.expect(t, g, "a:80", "removed")
		refused(t, g.Pool("pool"), NoBackend, 0)
		c.expect(t, again, "a:80", "healthy")
		if c.log.Len() > 0 {
			t.Errorf("log %s", c.log)
		}
	})
}

func TestAChangedCheckKeepsTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", down)
		first := c.generation(checkedTCP(one(t)))
		c.expect(t, first, "a:80", "unhealthy")
		c.net.on("a:80", nil)
		time.Sleep(2300 * time.Millisecond) // one pass of two

		p := checkedTCP(one(t))
		p.Health.Interval = 10 * time.Second
		before := c.net.count("a:80")
		second := c.generation(p)
		synctest.Wait()
		if n := c.net.count("a:80") - before; n != 1 {
			t.Errorf("%d checks at once by the new settings", n)
		}
		c.expect(t, second, "a:80", "healthy") // it was the second pass
		first.Release()
		before = c.net.count("a:80")
		time.Sleep(99 * time.Second)
		if n := c.net.count("a:80") - before; n < 9 || n > 11 {
			t.Errorf("%d checks in 99 s, want one each 10 s", n)
		}
		if c.net.most() != 1 {
			t.Errorf("%d checks at once", c.net.most())
		}
	})
}

// A check that does not heed that it is given up delays the first one of the new
// settings: there are never two of one backend at once.
func TestAChangedCheckWaitsForTheOneUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", func(context.Context) error { time.Sleep(700 * time.Millisecond); return nil })
		p := checkedTCP(one(t))
		for i := range 20 {
			p.Health.Fall = 1 + i
			if i == 10 {
				c.generation(one(t)) // no checks at all, for a moment
			}
			g := c.generation(p)
			synctest.Wait()
			if d := untilCheck(g); d != 0 {
				t.Errorf("a check is under way, and the next is in %v", d)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		if c.net.most() != 1 {
			t.Errorf("%d checks at once", c.net.most())
		}
	})
}

func TestAnUnchangedBackendIsNotCheckedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		g := c.generation(checkedTCP(one(t)))
		for range 100 {
			next := c.generation(checkedTCP(one(t)))
			g.Release()
			g = next
			c.expect(t, g, "a:80", "healthy")
		}
		if n := c.net.count("a:80"); n != 1 {
			t.Errorf("%d checks", n)
		}
		<-g.Checked()
	})
}

func TestABackendThatCameBackIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", down)
		first := c.generation(checkedTCP(one(t)))
		c.expect(t, first, "a:80", "unhealthy")
		first.Release()
		c.net.on("a:80", stuck)
		second := c.generation(checkedTCP(one(t)))
		c.expect(t, second, "a:80", "unknown")
		acquire(t, second.Pool("pool")).Done()
		time.Sleep(time.Second)
		c.expect(t, second, "a:80", "unhealthy")
	})
}

func TestChecksAreSwitchedOffAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", down)
		first := c.generation(checkedTCP(one(t)))
		c.expect(t, first, "a:80", "unhealthy")
		off := c.generation(one(t))
		c.expect(t, off, "a:80", "unchecked")
		if s := off.Status()[0]; untilCheck(off) != 0 || s.LastError != "" {
			t.Errorf("%+v", s)
		}
		<-off.Checked()
		acquire(t, off.Pool("pool")).Done()
		before := c.net.count("a:80")
		time.Sleep(time.Minute)
		if n := c.net.count("a:80"); n != before {
			t.Errorf("%d checks while off", n-before)
		}
		c.net.on("a:80", stuck)
		on := c.generation(checkedTCP(one(t)))
		c.expect(t, on, "a:80", "unknown")
		select {
		case <-on.Checked():
			t.Error("checked, says one whose checks have just begun")
		default:
		}
		time.Sleep(time.Second)
		synctest.Wait()
		<-on.Checked()
	})
}

func TestCheckedWaitsForTheFirstRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("b:80", stuck)
		g := c.generation(checkedTCP(abc(t)))
		began := time.Now()
		<-g.Checked()
		if d := time.Since(began); d != time.Second {
			t.Errorf("checked after %v, want b's timeout", d)
		}
		p := checkedTCP(poolOf(t, "http://d:80"))
		c.net.on("d:80", stuck)
		gone := c.generation(p)
		gone.Release()
		<-gone.Checked()
	})
}

// The newest configuration that is in use decides, and the one before it again
// when it is given up.
func TestTheNewestGenerationDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		first := c.generation(checkedTCP(one(t)))
		second := c.generation(one(t))
		c.expect(t, first, "a:80", "unchecked")
		second.Release()
		second.Release()
		c.expect(t, first, "a:80", "healthy")
		first.Release()
		c.expect(t, first, "a:80", "removed")
	})
}

func TestCloseEndsChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheckTest(t)
		c.net.on("a:80", stuck)
		g := c.generation(checkedTCP(abc(t)))
		synctest.Wait()
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-g.Checked()
		before := c.net.count("b:80")
		time.Sleep(time.Minute)
		if n := c.net.count("b:80"); n != before {
			t.Errorf("%d checks after Close", n-before)
		}
		g.Release()
		defer func() {
			if recover() == nil {
				t.Error("a generation after Close")
			}
		}()
		c.generation()
	})
}

func TestJitter(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 1800 * time.Millisecond, 0.5: 2 * time.Second, 1: 2200 * time.Millisecond} {
		if got := jitter(2*time.Second, random); got != want {
			t.Errorf("%v: %v, want %v", random, got, want)
		}
	}
}

// listen accepts and leaves each connection to serve, which may be nil.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var conns []net.Conn
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			if serve != nil {
				all.Go(func() { serve(conn) })
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepted
		for _, conn := range conns {
			_ = conn.Close()
		}
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// say answers any request with these bytes and hangs up.
func say(answer string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, answer)
		_ = conn.Close()
	}
}

// probeOnce is what a first check of a backend says, "" if it passes.
func probeOnce(t *testing.T, r *Registry, p config.Pool) string {
	t.Helper()
	g := r.Generation([]config.Pool{p}, requestTimeout)
	defer g.Release()
	<-g.Checked()
	s := g.Status()[0]
	if (s.Health == "healthy") != (s.LastError == "") {
		t.Errorf("%s, and the error is %q", s.Health, s.LastError)
	}
	return s.LastError
}

func TestProbesOnRealListeners(t *testing.T) {
	for _, c := range []struct {
		name      string
		url       func(t *testing.T) string
		http, tcp string // the beginning of the error; "": passes
	}{
		{"accepts and never answers", func(t *testing.T) string { return listen(t, nil) }, "no answer within 300ms", ""},
		{"refuses", edgetest.Nowhere, "dial tcp", "dial tcp"},
		{"ok", func(t *testing.T) string { return listen(t, say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) }, "", ""},
		{"no content", func(t *testing.T) string { return listen(t, say("HTTP/1.1 204 No Content\r\n\r\n")) }, "", ""},
		{"not found", func(t *testing.T) string {
			return listen(t, say("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
		}, "status 404, wanted 200 to 399", ""},
		{"unavailable", func(t *testing.T) string {
			return listen(t, say("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"))
		}, "status 503", ""},
		{"hangs up", func(t *testing.T) string { return listen(t, say("")) }, "EOF", ""},
		{"speaks something else", func(t *testing.T) string { return listen(t, say("220 mail\r\n\r\n")) }, "malformed HTTP", ""},
		{"cuts its body short", func(t *testing.T) string {
			return listen(t, say("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok"))
		}, "body: unexpected EOF", ""},
		{"never ends its body", func(t *testing.T) string {
			return listen(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nok")
			})
		}, "no answer within 300ms", ""},
		{"has no end of bytes", func(t *testing.T) string {
			return listen(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096))
				_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				for err == nil {
					_, err = c.Write(bytes.Repeat([]byte("x"), 1<<12))
				}
			})
		}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newTest(t, Options{})
			p := checkedHTTP(poolOf(t, c.url(t)), "/healthz?full=1")
			p.Health.Timeout = 300 * time.Millisecond
			if got := probeOnce(t, r, p); !strings.HasPrefix(got, c.http) && !strings.Contains(got, c.http) || (got == "") != (c.http == "") {
				t.Errorf("http: %q, want %q", got, c.http)
			}
			p = checkedTCP(p)
			if got := probeOnce(t, r, p); !strings.HasPrefix(got, c.tcp) || (got == "") != (c.tcp == "") {
				t.Errorf("tcp: %q, want %q", got, c.tcp)
			}
		})
	}
}

func TestAnHTTPCheckAsksOnceAndFollowsNothing(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		got := fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("User-Agent"), " ", r.Close, " ", r.Header.Get("Accept-Encoding"))
		if got != "GET /healthz?full=1 sentinel-health true " {
			t.Error(got)
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}))
	defer s.Close()
	r := newTest(t, Options{})
	p := checkedHTTP(poolOf(t, s.URL), "/healthz?full=1")
	if got := probeOnce(t, r, p); got != "" || asked.Load() != 1 {
		t.Errorf("%q after %d requests", got, asked.Load())
	}
	p.Health.Status = [2]int{200, 299}
	if got := probeOnce(t, r, p); got != "status 302, wanted 200 to 299" || asked.Load() != 2 {
		t.Errorf("%q after %d requests", got, asked.Load())
	}
}

func TestAPathThatIsNoneFailsTheCheck(t *testing.T) {
	r := newTest(t, Options{})
	if got := probeOnce(t, r, checkedHTTP(poolOf(t, listen(t, nil)), "healthz")); !strings.Contains(got, "invalid port") {
		t.Errorf("%q", got)
	}
}

func TestChecksVerifyCertificates(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	defer s.Close()
	p := checkedHTTP(poolOf(t, s.URL), "/")
	p.Health.Status = [2]int{404, 404}
	if got := probeOnce(t, newTest(t, Options{}), p); !strings.Contains(got, "certificate") {
		t.Errorf("nobody knows its authority: %q", got)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if got := probeOnce(t, newTest(t, Options{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}), p); got != "" {
		t.Errorf("its authority is known: %q", got)
	}
}
