package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

const hoardRole = "hoard"

func init() { roles[hoardRole] = func() any { return &hoard{} } }

// hoard is a process that meets many clients once, or twice.
type hoard struct {
	limiter  *sentinel.Limiter
	registry *prometheus.Registry
	from     int
}

// Hoarding is how it opens its limiter.
type Hoarding struct {
	URL      string
	FailOpen bool
}

// Open opens it, with a metrics registry, and does not wait for a Redis that is
// away.
func (h *hoard) Open(o Hoarding, _ *int) error {
	jobs := tokenBucket("jobs", sentinel.Token, 0)
	if o.FailOpen {
		jobs.FailMode = sentinel.FailOpen
	}
	login := jobs
	login.EndpointID, login.Identity = "login", sentinel.Anonymous
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.FailOpen {
		cancel()
	}
	h.registry, h.from = prometheus.NewRegistry(), 0
	var err error
	h.limiter, err = sentinel.Open(ctx, configure(o.URL, jobs, login), sentinel.WithLogger(slog.New(slog.DiscardHandler)), sentinel.WithRegisterer(h.registry))
	return err
}

// Crowd is clients who were never seen before.
type Crowd struct {
	N     int
	Times int // that each asks
	// Anonymous clients come from an address each, and with a cookie each.
	Anonymous bool
	Long      bool // names of a kilobyte
}

// Kept is what the process keeps of them.
type Kept struct {
	Heap    int64
	Series  int
	Decided int // by the store
	Denied  int
}

// Meet has them ask.
func (h *hoard) Meet(c Crowd, k *Kept) error {
	const goroutines = 64
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			var decided, denied int
			var err error
			for i := g; i < c.N && err == nil; i += goroutines {
				for range c.Times {
					var d sentinel.Decision
					if d, err = h.ask(h.from+i, c); err != nil {
						break
					}
					if d.FromStore {
						decided++
					}
					if !d.Allowed {
						denied++
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			k.Decided += decided
			k.Denied += denied
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	h.from += c.N
	if failed != nil {
		return failed
	}
	runtime.GC()
	runtime.GC() // what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	k.Heap = int64(m.HeapAlloc) // #nosec G115 -- a heap
	families, err := h.registry.Gather()
	for _, f := range families {
		k.Series += len(f.GetMetric())
	}
	return err
}

func (h *hoard) ask(i int, c Crowd) (sentinel.Decision, error) {
	if c.Anonymous {
		return h.limiter.Check(context.Background(), sentinel.Request{
			EndpointID: "login",
			Peer:       fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255),
			Cookies:    []string{browser(fmt.Sprintf("%032x", i))},
		})
	}
	tenant := fmt.Sprintf("tenant-%d", i)
	if c.Long {
		tenant += strings.Repeat("x", 1000)
	}
	return h.limiter.Allow(context.Background(), tenant, "jobs")
}

// Close closes the limiter.
func (h *hoard) Close(_ int, _ *int) error { return h.limiter.Close() }

// mostSeries is two of each endpoint and reason, and those that have other labels.
const mostSeries = 2*2*8 + 20

// hoardIdentities measures what a process keeps of more clients than its tables
// hold.
func hoardIdentities(s *scope, l *lab, sec *section) {
	const million, keys = 1_000_000, 1_000_000
	server := redistest.StartProcess(s, nil, "--maxmemory", "3gb")
	tab := &table{
		title:   "Heap of a process that meets clients who were never seen before",
		columns: []string{"what they meet", "clients", "decisions", "heap after half, MB", "after all, MB", "metric series after half", "after all"},
	}
	sec.tables = append(sec.tables, tab)
	var heap, series trials
	for _, each := range []struct {
		name    string
		open    Hoarding
		crowd   Crowd
		clients int
	}{
		{"Redis, tenants who are denied: subjects and known denials", Hoarding{URL: server.URL()}, Crowd{Times: 2}, million},
		{"Redis, cookies and addresses who are denied", Hoarding{URL: server.URL()}, Crowd{Times: 2, Anonymous: true}, million},
		{"Redis is away: emergency bucket, names of a kilobyte", Hoarding{URL: "redis://127.0.0.1:1", FailOpen: true}, Crowd{Times: 1, Long: true}, million},
		{fmt.Sprintf("memory:// of %d keys", keys), Hoarding{URL: fmt.Sprintf("memory://?max_keys=%d", keys)}, Crowd{Times: 1}, 3 * keys}, // more than its keys also in the first half
	} {
		l.logf("attack: %d clients: %s", each.clients, each.name)
		w := startWorker(s, hoardRole, nil, nil, os.Stderr)
		if err := w.call("Open", each.open, nil); err != nil {
			s.Fatal(err)
		}
		const parts = 20 // so that no call lasts long
		c := each.crowd
		c.N = each.clients / parts
		var half, all Kept
		for part := range parts {
			all = Kept{}
			if err := w.call("Meet", c, &all); err != nil {
				s.Fatal(err)
			}
			if part == parts/2-1 {
				half = all
			}
		}
		if each.open.FailOpen == (all.Decided > 0) {
			s.Fatalf("%s: %d decided by the store", each.name, all.Decided)
		}
		heap.check(all.Heap-half.Heap < 4<<20, "%s: %d bytes after half of the clients, %d after all", each.name, half.Heap, all.Heap)
		series.check(all.Series <= mostSeries, "%s: %d series", each.name, all.Series)
		tab.add(each.name, fmt.Sprint(each.clients), fmt.Sprint(parts*c.N*c.Times), megabytes(half.Heap), megabytes(all.Heap), fmt.Sprint(half.Series), fmt.Sprint(all.Series))
		if err := w.call("Close", 0, nil); err != nil {
			s.Fatal(err)
		}
	}
	sec.promise(heap.promise("what a process keeps of clients stops to grow, in every table: as many again cost it less than 4 MB", ""))
	sec.promise(series.promise("and they make no metric series but those of an endpoint and a reason", ""))
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
