package conformance

import (
	"net/http"
	"sync"
	"sync/atomic"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// counter counts the runs of handlers.
type counter struct{ n atomic.Int64 }

// then counts, and goes on with next.
func (c *counter) then(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.n.Add(1)
		next(w, r)
	}
}

// link counts as a middleware.
func (c *counter) link() Link {
	return Link{Then: func(http.ResponseWriter, *http.Request) { c.n.Add(1) }}
}

func (c *counter) want(t *stage, n int64) {
	t.Helper()
	if got := c.n.Load(); got != n {
		t.Errorf("ran %d times, want %d", got, n)
	}
}

// decisions keeps the decisions that its handler was run with.
type decisions struct {
	mu    sync.Mutex
	run   int
	made  sentinel.Decision // the latest; zero where there was none
	found bool
}

func (d *decisions) handler(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.run++
	d.made, d.found = sentinel.FromContext(r.Context())
	d.mu.Unlock()
	ok(w, r)
}

// last is the decision of the latest run.
func (d *decisions) last() sentinel.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made
}
