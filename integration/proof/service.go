package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
)

func init() { roles[serviceRole] = newService }

// serviceRole is a process of the guarded service: net/http servers with guards
// and the limiters behind them, in groups. It does what it is told and reports
// what it saw; whether that is right is not its business.
const serviceRole = "service"

const (
	emergency    = 10      // a second, of each endpoint that fails open
	plenty       = 1 << 40 // microtokens; they never come back
	jwtSecret    = "proof-jwt-secret-0123456789abcdef-0123"
	resolverEnv  = "SENTINEL_PROOF_RESOLVER" // address of the one DNS server
	failOpenID   = "page"                    // page.GROUP is the endpoint that fails open
	failClosedID = "job"                     // job.GROUP the one that fails closed
)

// Deploy is a group of equal limiters.
type Deploy struct {
	Group    string // also the tenant
	URL      string
	Limiters int
	Gathered bool
	Cold     bool // Open does not wait
	Budget   time.Duration
	Pool     int  // of a client of the application's own, for New; 0: Open
	Serve    bool // net/http servers before them, and live traffic
	Capacity int64
	// Flaw breaks the service, to prove that the proof sees it.
	Flaw string
}

// The flaws that a service can have.
const (
	flawDouble  = "double"  // each check decides twice
	flawPatient = "patient" // the budget is ten times the promised one
	flawLeak    = "leak"    // limiters are not closed
	flawQuiet   = "quiet"   // denials are not logged
)

type service struct {
	mu     sync.Mutex
	groups map[string]*group
}

// group is the limiters of one Deploy.
type group struct {
	Deploy
	token    string
	limiters []*instance
}

// instance is one limiter.
type instance struct {
	limiter  *sentinel.Limiter
	registry *prometheus.Registry
	client   *redis.Client // the application's own; nil: the limiter's
	hog      *hog
	front    *front // nil unless served
	tally    *tally // of the live traffic
}

func newService() any {
	if addr := os.Getenv(resolverEnv); addr != "" {
		net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}}
	}
	return &service{groups: map[string]*group{}}
}

func (s *service) group(name string) (*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups[name]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("no group %q", name)
}

// Deploy opens the limiters of a group and has each decide on Redis, which it
// reports. Those of a cold group are opened by Volley.
func (s *service) Deploy(d Deploy, r *Report) error {
	g := &group{Deploy: d, token: bearer(d.Group), limiters: make([]*instance, d.Limiters)}
	s.mu.Lock()
	s.groups[d.Group] = g
	s.mu.Unlock()
	if d.Cold {
		return nil
	}
	for n := range g.limiters {
		i, err := g.openWarm(r)
		if err != nil {
			return err
		}
		g.limiters[n] = i
	}
	return nil
}

// openWarm opens a limiter and has it decide on Redis, at both endpoints. On a
// machine that is late it may take several: where the breaker of one opens, it
// is closed again.
func (g *group) openWarm(r *Report) (*instance, error) {
	for limit := time.Now().Add(20 * time.Second); ; {
		i, err := g.open()
		if err != nil {
			return nil, err
		}
		if g.warm(i) {
			i.tally.addTo(r)
			return i, nil
		}
		status := i.limiter.Status()
		i.tally.addTo(r)
		if err := g.close(i); err != nil {
			return nil, err
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("group %s: Redis does not decide: %+v", g.Group, status)
		}
	}
}

// live is the limiters that are open.
func (g *group) live() []*instance {
	return slices.DeleteFunc(slices.Clone(g.limiters), func(i *instance) bool { return i == nil })
}

func (g *group) open() (*instance, error) {
	i := &instance{registry: prometheus.NewRegistry(), tally: newTally()}
	opts := []sentinel.Option{sentinel.WithRegisterer(i.registry)}
	if !g.Gathered {
		opts = append(opts, sentinel.WithoutGathering())
	}
	if g.Flaw == flawQuiet {
		opts = append(opts, sentinel.WithLogger(silent))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if g.Cold {
		cancel()
	}
	var err error
	if g.Pool == 0 {
		i.limiter, err = sentinel.Open(ctx, g.config(), opts...)
	} else {
		i.client, i.limiter, err = openWithPool(ctx, g.URL, g.Pool, g.config(), opts...)
	}
	if err != nil {
		return nil, err
	}
	if g.Serve {
		i.front, err = serve(g, i)
	}
	return i, err
}

// openWithPool gives New a client of the application's, with a small pool.
func openWithPool(ctx context.Context, url string, pool int, cfg *sentinel.Config, opts ...sentinel.Option) (*redis.Client, *sentinel.Limiter, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, errors.New("not a Redis URL")
	}
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.PoolSize = -1, 1, true, pool
	client := redis.NewClient(o)
	l, err := sentinel.New(ctx, client, cfg, opts...)
	return client, l, err
}

func (g *group) config() *sentinel.Config {
	open := sentinel.Policy{
		EndpointID: failOpenID + "." + g.Group, FailMode: sentinel.FailOpen,
		Algorithm: sentinel.TokenBucket, Capacity: sentinel.Micro(cmp.Or(g.Capacity, plenty)),
		FallbackRate: emergency * sentinel.Token, Version: 1,
	}
	closed := open
	closed.EndpointID, closed.FailMode = failClosedID+"."+g.Group, sentinel.FailClosed
	c := &sentinel.Config{
		App:      sentinel.App{RedisURL: sentinel.NewSecret(g.URL), JWTSecret: sentinel.NewSecrets(jwtSecret), RedisBudget: g.Budget},
		Policies: map[string]sentinel.Policy{open.EndpointID: open, closed.EndpointID: closed},
	}
	if g.Flaw == flawPatient {
		c.App.RedisBudget *= 10
	}
	return c
}

// warm reports whether Redis decides, at both endpoints, before the breaker opens.
func (g *group) warm(i *instance) bool {
	for _, id := range []string{failOpenID, failClosedID} {
		for {
			start := time.Now()
			row := g.check(i, id)
			i.tally.add(row, start, time.Now())
			if row.FromStore {
				break
			}
			if i.limiter.Status().Breaker != "closed" {
				return false
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return true
}

// check is one check of a caller with a valid token. Its time, and so what it
// is worth, is the caller's to take.
func (g *group) check(i *instance, id string) Row {
	r := sentinel.Request{EndpointID: id + "." + g.Group, Authorization: []string{g.token}}
	d, err := i.limiter.Check(context.Background(), r)
	if g.Flaw == flawDouble {
		_, _ = i.limiter.Check(context.Background(), r)
	}
	row := Row{Endpoint: id, Allowed: d.Allowed, FromStore: d.FromStore, Reason: string(d.Reason)}
	if err != nil {
		row.Reason = "error: " + err.Error()
	}
	return row
}

func bearer(tenant string) string {
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": tenant, "exp": time.Now().Add(24 * time.Hour).Unix(),
	}).SignedString([]byte(jwtSecret))
	if err != nil {
		panic(err) // the key is a byte slice
	}
	return "Bearer " + text
}

// State is what a limiter says of itself.
type State struct {
	Breaker string
	Detail  string
	// Moves counts the transitions of the breaker, by the state it went to.
	Moves map[string]int
	// Failures counts the checks that the store failed, by kind.
	Failures map[string]int
}

// States replies the state of each limiter of a group.
func (s *service) States(name string, states *[]State) error {
	g, err := s.group(name)
	if err != nil {
		return err
	}
	for _, i := range g.live() {
		st := i.limiter.Status()
		state := State{Breaker: st.Breaker, Detail: st.Detail, Moves: map[string]int{}, Failures: map[string]int{}}
		families, err := i.registry.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				switch f.GetName() {
				case "sentinel_breaker_transitions_total":
					state.Moves[labels["to"]] = int(m.GetCounter().GetValue())
				case "sentinel_store_errors_total":
					state.Failures[labels["kind"]] = int(m.GetCounter().GetValue())
				}
			}
		}
		*states = append(*states, state)
	}
	return nil
}

// Dismiss closes the limiters of a group.
func (s *service) Dismiss(name string, _ *int) error {
	g, err := s.group(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.groups, name)
	s.mu.Unlock()
	var failed error
	for _, i := range g.live() {
		failed = errors.Join(failed, g.close(i))
	}
	return failed
}

// close closes a limiter and what belongs to it.
func (g *group) close(i *instance) error {
	if i.front != nil {
		i.front.stop()
	}
	var err error
	if g.Flaw != flawLeak {
		err = i.limiter.Close()
	}
	if i.client != nil {
		i.hog.letGo()
		err = errors.Join(err, i.client.Close())
	}
	return err
}

// Footprint is what the process holds.
type Footprint struct {
	Goroutines int
	Sockets    int
	Heap       int64 // bytes, after a collection
}

// Footprint replies what the process holds, of memory after a collection.
func (s *service) Footprint(_ string, f *Footprint) error {
	runtime.GC()
	runtime.GC() // what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	sockets, err := countSockets()
	*f = Footprint{
		Goroutines: runtime.NumGoroutine(), Sockets: sockets, Heap: int64(m.HeapAlloc),
	}
	return err
}

// countSockets counts the open sockets of this process. A file that is closed
// meanwhile was none for long.
func countSockets() (int, error) {
	files, err := os.ReadDir("/proc/self/fd")
	n := 0
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n, err
}

// Hog is for groups with a pool of the application's own.
type Hog struct {
	Group string
	On    bool
}

// Hog has the application take every connection of its pools that it can get,
// or lets go of them.
func (s *service) Hog(h Hog, held *int) error {
	g, err := s.group(h.Group)
	if err != nil {
		return err
	}
	for _, i := range g.limiters {
		i.hog.letGo()
		i.hog = nil
		if h.On {
			i.hog = newHog(i.client)
		}
	}
	if h.On {
		time.Sleep(4 * restAfter) // until lines that lie unused go back to the pool
	}
	for _, i := range g.limiters {
		*held += i.hog.count()
	}
	return nil
}

// restAfter is how long the limiter keeps a connection that it does not use from
// the pool of an application.
const restAfter = 50 * time.Millisecond

// hog takes connections of a pool and keeps them busy.
type hog struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	held   int
}

func newHog(c *redis.Client) *hog {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hog{cancel: cancel}
	for range c.Options().PoolSize {
		h.done.Go(func() {
			for ctx.Err() == nil {
				conn := c.Conn()
				if conn.Ping(ctx).Err() == nil { // this takes it
					h.mu.Lock()
					h.held++
					h.mu.Unlock()
					<-ctx.Done()
				}
				_ = conn.Close()
			}
		})
	}
	return h
}

func (h *hog) count() int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

func (h *hog) letGo() {
	if h != nil {
		h.cancel()
		h.done.Wait()
	}
}

func sortedRows(counts map[Row]int) []Row {
	rows := make([]Row, 0, len(counts))
	for r, n := range counts {
		r.N = n
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.String(), b.String()) })
	return rows
}
