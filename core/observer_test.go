package sentinel

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// observation is what an observer is called with.
type observation struct {
	ctx     context.Context
	d       Decision
	start   time.Time
	latency time.Duration
}

type observations []observation

func (o *observations) add(ctx context.Context, d Decision, start time.Time, latency time.Duration) {
	*o = append(*o, observation{ctx, d, start, latency})
}

// Every decision is seen, once, by each observer, as its caller gets it, and
// what is no decision is not.
func TestObserver(t *testing.T) {
	visit := bucketPolicy("visit", Token, 0)
	visit.Identity = Anonymous
	var seen, also observations
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0), visit), WithObserver(seen.add), WithObserver(also.add))
	defer l.Close()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	before := time.Now()
	var want []Decision
	for range 3 { // allowed, denied, denied as known
		d, err := l.Allow(ctx, "acme", "jobs")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, d)
	}
	d, err := l.Check(ctx, Request{EndpointID: "visit", Peer: "192.0.2.1:1"})
	if err != nil || d.Cookie == nil {
		t.Fatalf("%+v, %v", d, err)
	}
	d.Cookie = nil // a credential, and the caller's alone
	want = append(want, d)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, ended := l.Allow(gone, "acme", "jobs")
	_, nobody := l.Check(ctx, Request{EndpointID: "jobs"})
	_, unknown := l.Allow(ctx, "acme", "nowhere")
	_, peek := l.Peek(ctx, "acme", "jobs")
	if !errors.Is(ended, context.Canceled) || !errors.Is(nobody, ErrUnauthenticated) || !errors.Is(unknown, ErrUnknownEndpoint) || peek != nil {
		t.Errorf("%v, %v, %v, %v", ended, nobody, unknown, peek)
	}

	if len(seen) != len(want) || len(also) != len(want) {
		t.Fatalf("%d and %d seen of %d", len(seen), len(also), len(want))
	}
	for i, o := range seen {
		if !reflect.DeepEqual(o.d, want[i]) || !reflect.DeepEqual(also[i].d, want[i]) {
			t.Errorf("%d: seen %+v, got %+v", i, o.d, want[i])
		}
		if o.ctx.Value(key{}) != "mine" || o.start.Before(before) || o.start.Add(o.latency).After(time.Now()) || o.latency < 0 {
			t.Errorf("%d: context %v, start %v, latency %v", i, o.ctx, o.start, o.latency)
		}
	}
}

// The start is when the check began, by the clock on the wall, and the latency
// what it took.
func TestObserverTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const thinks = 7 * time.Millisecond
		var seen observations
		cfg := memoryConfig(bucketPolicy("jobs", Token, 0))
		cfg.App.Authentication, cfg.App.JWTSecret = ByApplication, Secrets{}
		l := openMemory(t, cfg, WithObserver(seen.add), WithTenant(func(context.Context) (string, error) {
			time.Sleep(thinks)
			return "acme", nil
		}))
		defer l.Close()
		time.Sleep(time.Hour)
		start := time.Now()
		if _, err := l.Check(t.Context(), Request{EndpointID: "jobs"}); err != nil {
			t.Fatal(err)
		}
		if len(seen) != 1 || !seen[0].start.Equal(start) || seen[0].latency != thinks {
			t.Errorf("from %v: %+v", start, seen)
		}
	})
}

func TestObserverNil(t *testing.T) {
	defer func() {
		if r := recover(); r != "sentinel: WithObserver: the function is nil" {
			t.Errorf("recovered %v", r)
		}
	}()
	WithObserver(nil)
}
