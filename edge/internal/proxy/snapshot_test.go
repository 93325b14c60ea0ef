package proxy

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

func TestASnapshotIsUnusedWhenItsLastRequestHasABackend(t *testing.T) {
	h := New(Options{MaxBodyBytes: 1, BodyIdle: 1, WriteIdle: 1, TunnelIdle: 1})
	first, second := &Snapshot{Version: 1}, &Snapshot{Version: 2}
	if h.enter() != nil || h.Swap(first) != nil {
		t.Fatal("there was one before")
	}
	request := h.enter()
	if old := h.Swap(second); old != first || request != first || h.Snapshot() != second {
		t.Fatal("the wrong one")
	}
	select {
	case <-first.Unused():
		t.Fatal("unused while a request has it")
	default:
	}
	request.leave()
	<-first.Unused()
	if first.enter() {
		t.Error("used again")
	}
	defer func() {
		if recover() == nil {
			t.Error("a snapshot may be swapped in twice")
		}
	}()
	h.Swap(first)
}

func TestNewPanicsWithoutItsLimits(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New(Options{})
}

// TestNoRequestFailsOrSeesTwoVersions swaps while requests are made.
func TestNoRequestFailsOrSeesTwoVersions(t *testing.T) {
	backend := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	s := setup{backends: []string{backend}}
	registry := upstream.NewRegistry(upstream.Options{})
	e := newEdge(t, s)
	var version atomic.Int64
	version.Store(1)
	done := make(chan bool)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			c := e.client(1)
			for {
				select {
				case <-done:
					return
				default:
				}
				least := version.Load()
				if a := e.do(c, e.request("GET", "/", nil)); a.StatusCode != 204 {
					t.Errorf("status %d after version %d", a.StatusCode, least)
					return
				}
			}
		})
	}
	swaps := 10000
	if testing.Short() {
		swaps = 1000
	}
	var releases sync.WaitGroup
	for range swaps {
		gen := registry.Generation([]config.Pool{s.poolConfig(t)}, time.Minute)
		old := e.handler.Swap(s.snapshot(t, gen, version.Add(1)))
		releases.Go(func() { <-old.Unused(); old.Backends.Release() })
	}
	close(done)
	all.Wait()
	releases.Wait()
	last := e.handler.Swap(nil)
	<-last.Unused()
	last.Backends.Release()
	if err := registry.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.records {
		if r.Reason != OK || r.ConfigVersion < 1 || r.ConfigVersion > version.Load() {
			t.Fatalf("recorded %+v", r)
		}
	}
}

func TestAStreamDoesNotHoldItsSnapshot(t *testing.T) {
	s := setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}}
	e := newEdge(t, s)
	resp, err := e.client(1).Do(e.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	old := e.handler.Swap(s.snapshot(t, e.gen, 2))
	select {
	case <-old.Unused():
	case <-time.After(patience):
		t.Error("it does")
	}
	if n := e.gen.Status()[0].InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
}

// A request that waits for its backend, and will ask for no other, does not hold its
// snapshot either.
func TestARequestThatWaitsHoldsItsSnapshotOnlyForAnotherBackend(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		retry  Retry
		holds  bool
	}{
		"the same backend":  {"GET", Retry{Attempts: 3}, false},
		"what is sent once": {"POST", Retry{Attempts: 3, NextBackend: true}, false},
		"the next backend":  {"GET", Retry{Attempts: 3, NextBackend: true}, true},
		"no retries at all": {"GET", Retry{Attempts: 1, NextBackend: true}, false},
		"of a HEAD":         {"HEAD", Retry{Attempts: 3}, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked, answer := make(chan bool), make(chan bool)
			s := setup{route: Route{Retry: c.retry}, backends: []string{serve(t, func(http.ResponseWriter, *http.Request) {
				asked <- true
				<-answer
			})}}
			e := newEdge(t, s)
			done := make(chan bool)
			go func() {
				defer close(done)
				e.do(e.client(1), e.request(c.method, "/", nil))
			}()
			<-asked
			old := e.handler.Swap(s.snapshot(t, e.gen, 2))
			if c.holds {
				select {
				case <-old.Unused():
					t.Error("it does not, and may want another backend")
				default:
				}
				close(answer)
				<-done
			}
			select {
			case <-old.Unused():
			case <-time.After(patience):
				t.Error("it does")
			}
			if !c.holds {
				close(answer)
				<-done
			}
		})
	}
}
