package upstream

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

func TestALeaseCountsOnce(t *testing.T) {
	p := single(t, one(t))
	b := p.members[0].backend
	first, second := acquire(t, p), acquire(t, p)
	if n := b.inFlight.Load(); n != 2 {
		t.Fatalf("%d in flight, want 2", n)
	}
	first.Done()
	first.Done()
	third := acquire(t, p)
	first.Done() // late: it must not end another's
	if n := b.inFlight.Load(); n != 2 {
		t.Fatalf("%d in flight, want 2", n)
	}
	second.Done()
	third.Done()
	if n := b.inFlight.Load(); n != 0 {
		t.Fatalf("%d in flight at the end", n)
	}
}

func TestTheFirstReportCounts(t *testing.T) {
	p := single(t, guarded(one(t)))
	b := p.members[0].backend
	for range 4 {
		send(t, p, breaker.Failure)
	}
	l := acquire(t, p)
	l.Report(breaker.Success)
	l.Report(breaker.Failure)
	l.Done()
	l.Report(breaker.Failure)
	for range 4 {
		send(t, p, breaker.Failure)
	}
	if s := b.Breaker(); s != breaker.Closed {
		t.Fatalf("four failures after a success: %v", s)
	}
	late := acquire(t, p)
	late.Done()
	late.Report(breaker.Failure)
	if s := b.Breaker(); s != breaker.Closed {
		t.Fatalf("a report after Done counted: %v", s)
	}
}

// A request that ends without a word leaves the probe's slot to the next.
func TestDoneWithoutReportIsNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := single(t, guarded(one(t)))
		breakOpen(t, p)
		time.Sleep(30 * time.Second)
		l := acquire(t, p)
		if !l.Probe() {
			t.Fatal("the first one after the open period is no probe")
		}
		refused(t, p, BreakerOpen, soon)
		l.Done()
		if l = acquire(t, p); !l.Probe() {
			t.Fatal("the next one is no probe")
		}
		l.Report(breaker.Success)
		l.Done()
		if s := p.members[0].backend.Breaker(); s != breaker.Closed {
			t.Fatalf("after a good probe: %v", s)
		}
	})
}

func TestInFlightIsNeverNegative(t *testing.T) {
	c := abc(t)
	c.MaxInFlight = 2
	p := single(t, c)
	stop, watched := make(chan struct{}), make(chan struct{})
	var negative atomic.Bool
	go func() {
		defer close(watched)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, m := range p.members {
				if n := m.backend.inFlight.Load(); n < 0 || n > 2 {
					negative.Store(true)
				}
			}
		}
	}()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(g)))
			for range 3000 {
				l, _, _ := p.Acquire()
				if l == nil {
					continue
				}
				for range 1 + r.IntN(3) {
					switch r.IntN(3) {
					case 0:
						all.Go(l.Done)
					case 1:
						l.Report(breaker.Failure)
					}
				}
				l.Done()
			}
		})
	}
	all.Wait()
	close(stop)
	<-watched
	if negative.Load() {
		t.Error("a count left its bounds")
	}
	for _, m := range p.members {
		if n := m.backend.inFlight.Load(); n != 0 {
			t.Errorf("%s: %d in flight at the end", m.backend.Name(), n)
		}
	}
}

func TestTheSameRequestMayGoToABackendAgainUnlessItIsDownNow(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(p *Pool, b *Backend)
		passes bool
	}{
		"well":             {func(*Pool, *Backend) {}, true},
		"not enough fails": {func(p *Pool, _ *Backend) { send(t, p, breaker.Failure) }, true},
		"breaker opened": {func(p *Pool, _ *Backend) {
			for range 5 {
				send(t, p, breaker.Failure)
			}
		}, false},
		"unhealthy": {func(_ *Pool, b *Backend) { b.become(unhealthy) }, false},
		"unknown":   {func(_ *Pool, b *Backend) { b.become(unknown) }, true},
		"removed":   {func(_ *Pool, b *Backend) { b.become(removed) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := single(t, guarded(one(t)))
			b := p.members[0].backend
			l := acquire(t, p)
			defer l.Done()
			c.spoil(p, b)
			if l.Passes() != c.passes {
				t.Errorf("passes: %t", !c.passes)
			}
		})
	}
}

func TestAProbeMayGoAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := single(t, guarded(one(t)))
		before := acquire(t, p)
		for range 5 {
			send(t, p, breaker.Failure)
		}
		time.Sleep(time.Hour)
		probe := acquire(t, p)
		if !probe.Probe() || !probe.Passes() || before.Passes() {
			t.Errorf("the probe passes: %t, one from before: %t", probe.Passes(), before.Passes())
		}
		before.Done()
		probe.Report(breaker.Failure)
		if probe.Passes() {
			t.Error("a probe that failed passes")
		}
		probe.Done()
	})
}

func TestReadyTakesNothing(t *testing.T) {
	for _, balance := range balances {
		c := abc(t)
		c.Balance, c.MaxInFlight = balance, 1
		p := single(t, c)
		a, b, third := p.backend("a"), p.backend("b"), p.backend("c")
		for range 100 {
			if !p.Ready() || !p.Ready(a, b) || p.Ready(a, b, third) {
				t.Fatal("who is left out does not count")
			}
		}
		b.become(unhealthy)
		third.inFlight.Add(1) // as many as there may be
		if !p.Ready() || p.Ready(a) {
			t.Errorf("%s: ready without a: %t", balance, p.Ready(a))
		}
		third.inFlight.Add(-1)
		if !p.Ready(a) {
			t.Errorf("%s: not ready when there is room", balance)
		}
	}
}
