package upstream

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"runtime"
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

func TestWhatMakesABackendTheSame(t *testing.T) {
	same := func(pool, a, b string) bool {
		u, v := poolOf(t, a).Backends[0].URL, poolOf(t, b).Backends[0].URL
		return identify("pool", u) == identify(pool, v)
	}
	for _, c := range []struct {
		pool, a, b string
		want       bool
	}{
		{"pool", "http://a", "http://A:80", true},
		{"pool", "https://a", "https://a:443", true},
		{"pool", "http://[::1]:8080", "http://[::1]:8080", true},
		{"other", "http://a", "http://a", false},
		{"pool", "http://a:443", "https://a:443", false},
		{"pool", "http://a:80", "http://a:81", false},
		{"pool", "http://a", "http://b", false},
	} {
		if same(c.pool, c.a, c.b) != c.want {
			t.Errorf("%+v: want %t", c, c.want)
		}
	}
	for raw, want := range map[string]string{
		"http://[::1]:80":   "[::1]:80 http://[::1]",
		"https://A.example": "a.example:443 https://a.example",
		"https://a:80":      "a:80 https://a:80",
		"http://a:8080":     "a:8080 http://a:8080",
	} {
		b := single(t, poolOf(t, raw)).members[0].backend
		if got := b.Name() + " " + b.URL().String(); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func TestAGenerationKnowsItsPools(t *testing.T) {
	a, b := poolOf(t, "http://x:1", "http://y:1"), weighted(guarded(poolOf(t, "http://x:1")), 7)
	b.Name = "other"
	g := newTest(t, Options{}).Generation([]config.Pool{a, b}, requestTimeout)
	if g.Pool("pool").Name() != "pool" || g.Pool("other").Name() != "other" || g.Pool("none") != nil {
		t.Error("wrong pools")
	}
	<-g.Checked() // nothing is to be checked
	l := acquire(t, g.Pool("other"))
	breakOpen(t, g.Pool("other"))
	var got []string
	for _, s := range g.Status() {
		got = append(got, fmt.Sprint(s.Pool, " ", s.Backend, " ", s.Health, " ", s.Breaker, " ", s.InFlight, " ", s.Weight, " ", s.RetryAfter > 29*time.Second))
	}
	want := []string{"pool x:1 unchecked closed 0 1 false", "pool y:1 unchecked closed 0 1 false", "other x:1 unchecked open 1 7 true"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	l.Done()
}

func TestABackendOutlivesConfigurations(t *testing.T) {
	s := newBackendServer(t, ok)
	r := newTest(t, Options{})
	c := guarded(poolOf(t, s.URL))
	first := r.Generation([]config.Pool{c}, requestTimeout)
	must(t, first.Pool("pool"))
	l := acquire(t, first.Pool("pool"))
	for range 4 {
		send(t, first.Pool("pool"), breaker.Failure)
	}

	other := poolOf(t, "http://a:80")
	other.Name = "other"
	c.Backends = append(c.Backends, poolOf(t, "http://b:80").Backends...)
	second := r.Generation([]config.Pool{other, c}, requestTimeout)
	first.Release()
	p := second.Pool("pool")
	if p.members[0].backend != l.Backend() {
		t.Fatal("another backend")
	}
	if st := second.Status()[1]; st.InFlight != 1 {
		t.Errorf("%+v", st)
	}
	b := acquire(t, p, p.members[1].backend)
	b.Report(breaker.Failure)
	b.Done()
	if st := b.Backend().Breaker(); st != breaker.Open {
		t.Errorf("four failures before and one after: %v", st)
	}
	response, err := l.Backend().RoundTrip(request(t, l.Backend(), "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	l.Done()
	if made, _ := s.connections(); made != 1 {
		t.Errorf("%d connections", made)
	}
}

func TestARemovedBackendEndsWithItsRequests(t *testing.T) {
	more := make(chan struct{})
	s := newBackendServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			_, _ = io.WriteString(w, "begin ")
			_ = http.NewResponseController(w).Flush()
			<-more
		}
		ok(w, r)
	})
	r := newTest(t, Options{})
	g := r.Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout)
	p := g.Pool("pool")
	slow := acquire(t, p)
	response, err := slow.Backend().RoundTrip(request(t, slow.Backend(), "/slow"), nil)
	if err != nil {
		t.Fatal(err)
	}
	must(t, p)
	if made, open := s.connections(); made != 2 || open != 2 {
		t.Fatalf("%d made, %d open", made, open)
	}
	g.Release()
	refused(t, p, NoBackend, 0)
	edgetest.Soon(t, "the idle connection is closed", func() bool { _, open := s.connections(); return open == 1 })
	close(more)
	if body, err := io.ReadAll(response.Body); string(body) != "begin ok" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	_ = response.Body.Close()
	slow.Done()
	edgetest.Soon(t, "the other one is closed", func() bool { _, open := s.connections(); return open == 0 })
	if n := len(r.backends); n != 0 {
		t.Errorf("%d backends are still known", n)
	}
}

// Who had a lease before may still send its request.
// http.Transport takes a connection as idle a moment before it hands over a response
// without a body. Closed in that moment, the response would be lost.
func TestNoRequestFailsBecauseItsBackendIsRemoved(t *testing.T) {
	s := newBackendServer(t, func(http.ResponseWriter, *http.Request) {})
	g := newTest(t, Options{}).Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout)
	var others []*Lease // whose requests end while those below are under way
	for range 10_000 {
		others = append(others, acquire(t, g.Pool("pool")))
	}
	mine := acquire(t, g.Pool("pool"))
	g.Release()
	var all sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
		all.Go(func() {
			for !stop.Load() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("x"))
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := mine.Backend().RoundTrip(req, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
			}
		})
	}
	for _, l := range others {
		l.Done()
		time.Sleep(time.Microsecond)
	}
	stop.Store(true)
	all.Wait()
	mine.Done()
}

func TestALeaseOutlivesTheRemoval(t *testing.T) {
	s := newBackendServer(t, ok)
	g := newTest(t, Options{}).Generation([]config.Pool{poolOf(t, s.URL)}, requestTimeout)
	l := acquire(t, g.Pool("pool"))
	g.Release()
	response, err := l.Backend().RoundTrip(request(t, l.Backend(), "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); string(body) != "ok" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	_ = response.Body.Close()
	l.Done()
	edgetest.Soon(t, "its connection is closed", func() bool { made, open := s.connections(); return made == 1 && open == 0 })
}

func TestOtherTimeoutsNeedOtherConnections(t *testing.T) {
	s := newBackendServer(t, ok)
	r := newTest(t, Options{})
	c := poolOf(t, s.URL)
	first := r.Generation([]config.Pool{c}, requestTimeout)
	must(t, first.Pool("pool"))
	c.ResponseTimeout++
	second := r.Generation([]config.Pool{c}, requestTimeout)
	must(t, second.Pool("pool"))
	must(t, first.Pool("pool"))
	edgetest.Soon(t, "the first is closed", func() bool { made, open := s.connections(); return made == 2 && open == 1 })
}

// Other settings of a breaker change what follows, not what was.
func TestAChangedBreakerKeepsItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTest(t, Options{})
		c := guarded(one(t))
		first := r.Generation([]config.Pool{c}, requestTimeout)
		breakOpen(t, first.Pool("pool"))
		c.Breaker.OpenFor, c.Breaker.Failures = time.Minute, 1
		p := r.Generation([]config.Pool{c}, requestTimeout).Pool("pool")
		refused(t, p, BreakerOpen, 30*time.Second)
		time.Sleep(30 * time.Second)
		send(t, p, breaker.Failure)
		refused(t, p, BreakerOpen, time.Minute)

		c.Breaker.Failures = -1
		off := r.Generation([]config.Pool{c}, requestTimeout)
		for range 10 {
			send(t, off.Pool("pool"), breaker.Failure)
		}
		if s := off.Status()[0]; s.Breaker != breaker.Closed || s.RetryAfter != 0 {
			t.Errorf("without a breaker: %+v", s)
		}
		time.Sleep(10 * time.Second)
		c.Breaker.Failures = 2
		again := r.Generation([]config.Pool{c}, requestTimeout).Pool("pool")
		refused(t, again, BreakerOpen, 50*time.Second)
	})
}

func TestGenerationsLeaveNothingBehind(t *testing.T) {
	s := newBackendServer(t, ok)
	r := newTest(t, Options{})
	base := r.Generation([]config.Pool{checkedHTTP(poolOf(t, s.URL), "/")}, requestTimeout)
	<-base.Checked()
	must(t, base.Pool("pool"))
	before, files := runtime.NumGoroutine(), edgetest.Descriptors(t, os.Getpid())
	for i := range 1000 {
		c := checkedHTTP(poolOf(t, s.URL), "/")
		if i%10 == 0 {
			c.Backends = append(c.Backends, poolOf(t, fmt.Sprintf("%s1", s.URL[:len(s.URL)-1])).Backends...)
		}
		c.Health.Fall = 1 + i%3
		next := r.Generation([]config.Pool{c}, requestTimeout)
		base.Release()
		base = next
	}
	must(t, base.Pool("pool"))
	edgetest.Soon(t, "goroutines and descriptors are as before", func() bool {
		return runtime.NumGoroutine() <= before && edgetest.Descriptors(t, os.Getpid()) <= files
	})
	if n := len(r.backends); n != 1 {
		t.Errorf("%d backends", n)
	}
	base.Release()
	edgetest.Soon(t, "none is left", func() bool { _, open := s.connections(); return open == 0 })
}

// Configurations change while requests go on, and none fails: each has a backend
// that all configurations have.
func TestRequestsWhileConfigurationsChange(t *testing.T) {
	var changes atomic.Int64
	r := newTest(t, Options{Changed: func(_, _ string, _, _ breaker.State) { changes.Add(1) }})
	wanted := func(i int) []config.Pool {
		hosts := []string{"http://a:80"}
		for h := range i % 3 {
			hosts = append(hosts, fmt.Sprintf("http://b%d:80", h))
		}
		c := poolOf(t, hosts...)
		c.Balance = balances[i%3]
		if i%2 == 0 {
			c = guarded(c)
		}
		return []config.Pool{c}
	}
	var current atomic.Pointer[Generation]
	current.Store(r.Generation(wanted(0), requestTimeout))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, why, _ := current.Load().Pool("pool").Acquire()
				if l == nil {
					t.Errorf("refusal %d", why)
					return
				}
				if rand.IntN(2) == 0 {
					l.Report(breaker.Success)
				}
				runtime.Gosched()
				l.Done()
			}
		})
	}
	for i := range 2000 {
		current.Swap(r.Generation(wanted(i), requestTimeout)).Release()
		_ = current.Load().Status()
	}
	close(stop)
	all.Wait()
	for _, s := range current.Load().Status() {
		if s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	}
	if changes.Load() != 0 {
		t.Errorf("%d transitions", changes.Load())
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	r := newTest(t, Options{})
	for name, spoil := range map[string]func(*config.Pool){
		"balance":  func(c *config.Pool) { c.Balance = "fair" },
		"weight":   func(c *config.Pool) { c.Backends[0].Weight = -1 },
		"interval": func(c *config.Pool) { c.Health = config.Health{Type: config.HealthTCP} },
		"breaker":  func(c *config.Pool) { c.Breaker = config.Breaker{Failures: 1} },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			c := one(t)
			c.Backends[0].URL = &url.URL{Scheme: "http", Host: name}
			spoil(&c)
			r.Generation([]config.Pool{c}, requestTimeout)
		}()
	}
}
