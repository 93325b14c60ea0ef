package upstream

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// requestTimeout is the longest request of the tests' generations.
const requestTimeout = 30 * time.Second

// poolOf is a pool with neither checks nor breaker.
func poolOf(t *testing.T, urls ...string) config.Pool {
	t.Helper()
	p := config.Pool{
		Name: "pool", Balance: config.RoundRobin, MaxIdle: 256,
		DialTimeout: 2 * time.Second, TLSTimeout: 5 * time.Second, ResponseTimeout: 10 * time.Second, IdleTimeout: 55 * time.Second,
		Health:  config.Health{Type: config.HealthOff},
		Breaker: config.Breaker{Failures: -1},
	}
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		p.Backends = append(p.Backends, config.Backend{URL: u, Weight: 1})
	}
	return p
}

// abc is a pool of three backends where nobody listens.
func abc(t *testing.T) config.Pool {
	t.Helper()
	return poolOf(t, "http://a:80", "http://b:80", "http://c:80")
}

// one is a pool of one of them.
func one(t *testing.T) config.Pool {
	t.Helper()
	return poolOf(t, "http://a:80")
}

func weighted(p config.Pool, weights ...int) config.Pool {
	for i, w := range weights {
		p.Backends[i].Weight = w
	}
	return p
}

func guarded(p config.Pool) config.Pool {
	p.Breaker = config.Breaker{Failures: 5, OpenFor: 30 * time.Second}
	return p
}

func checkedTCP(p config.Pool) config.Pool {
	p.Health = config.Health{Type: config.HealthTCP, Interval: 2 * time.Second, Timeout: time.Second, Fall: 3, Rise: 2}
	return p
}

func checkedHTTP(p config.Pool, path string) config.Pool {
	p = checkedTCP(p)
	p.Health.Type, p.Health.Path, p.Health.Status = config.HealthHTTP, path, [2]int{200, 399}
	return p
}

func newTest(t *testing.T, o Options) *Registry {
	t.Helper()
	r := NewRegistry(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// single is the pool of a generation that has only this one.
func single(t *testing.T, c config.Pool) *Pool {
	t.Helper()
	return newTest(t, Options{}).Generation([]config.Pool{c}, requestTimeout).Pool(c.Name)
}

func (p *Pool) backend(name string) *Backend {
	for _, m := range p.members {
		if m.backend.identity.host == name {
			return m.backend
		}
	}
	return nil
}

// become sets the health of a backend that has no checker.
func (b *Backend) become(s standing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setHealth(health{standing: s})
}

func acquire(t *testing.T, p *Pool, except ...*Backend) *Lease {
	t.Helper()
	l, why, _ := p.Acquire(except...)
	if l == nil {
		t.Fatalf("no backend: refusal %d", why)
	}
	return l
}

func refused(t *testing.T, p *Pool, want Refusal, retryAfter time.Duration) {
	t.Helper()
	l, why, wait := p.Acquire()
	if l != nil {
		t.Fatalf("got %s, want refusal %d", l.Backend().Name(), want)
	}
	if why != want || wait != retryAfter {
		t.Fatalf("refusal %d, retry after %v; want %d, %v", why, wait, want, retryAfter)
	}
}

// send is a whole request.
func send(t *testing.T, p *Pool, o breaker.Outcome) *Backend {
	t.Helper()
	l := acquire(t, p)
	l.Report(o)
	l.Done()
	return l.Backend()
}

// breakOpen fails requests until the breaker of a pool of one opens.
func breakOpen(t *testing.T, p *Pool) {
	t.Helper()
	for range 5 {
		send(t, p, breaker.Failure)
	}
	if s := p.members[0].backend.Breaker(); s != breaker.Open {
		t.Fatalf("five failures: %v, want open", s)
	}
}
