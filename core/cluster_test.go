package sentinel

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// The first map may come between two looks of one decision: at whether there is
// one, and at why there is none.
func TestTheFirstMapComesInTheMiddle(t *testing.T) {
	connecting := &storeFailure{kind: kindConnection, detail: "connecting"}
	owner := &slotTable{}
	owner.of[7] = &shard{}
	for range 2_000 {
		c := &cluster{known: make(chan struct{})}
		c.failed.Store(connecting)
		var both sync.WaitGroup
		both.Go(func() { // as publish does
			c.table.Store(owner)
			c.failed.Store(nil)
		})
		both.Go(func() {
			for failure := connecting; failure != nil; {
				var s *shard
				if s, failure = c.owner(7); s == nil && failure == nil {
					t.Error("neither a master nor a failure")
				}
			}
		})
		both.Wait()
	}
}

// A map of nothing, which a function of the application may give, is none.
func TestAGivenMapOfNothing(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:        []string{"127.0.0.1:1"},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil },
	})
	defer client.Close()
	l, err := New(t.Context(), client, memoryConfig(bucketPolicy("a", Token, Token)), WithLogger(silent))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if s := l.Status(); s.Ready || !s.Degraded || !strings.Contains(s.Detail, "ClusterSlots") {
		t.Errorf("%+v", s)
	}
	start := time.Now()
	if d := mustAllow(t, l, "acme", "a"); d.Allowed || d.Reason != ReasonFailClosed {
		t.Errorf("%+v after %v", d, time.Since(start))
	}
}

// To close the connection to a node that hangs takes until the question on it
// has timed out. A decision that is redirected meanwhile does not wait for that.
func TestAHungNodeHoldsUpNoDecision(t *testing.T) {
	hung := &asker{client: redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})}
	c := &cluster{askers: map[string]*asker{"127.0.0.1:1": hung}, shards: map[string]*shard{"127.0.0.1:2": {}}}
	hung.busy.Lock() // it is being asked
	looked := make(chan struct{})
	go func() {
		c.chooseAskers()
		close(looked)
	}()
	found := make(chan *shard)
	go func() {
		for dropped := false; !dropped; {
			c.mu.Lock()
			dropped = len(c.askers) == 0
			c.mu.Unlock()
		}
		found <- c.named("127.0.0.1:2", nil)
	}()
	select {
	case s := <-found:
		if s == nil {
			t.Error("no shard")
		}
	case <-time.After(5 * time.Second):
		t.Error("a decision waits for a node that hangs")
	}
	hung.busy.Unlock()
	<-looked
}
