package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/explain"
	"github.com/sentinelgo/sentinel/edge/internal/limit"
	"github.com/sentinelgo/sentinel/edge/internal/observe"
	"github.com/sentinelgo/sentinel/edge/internal/policy"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

// applied is a configuration that is in force.
type applied struct {
	config   *config.Config
	snapshot *proxy.Snapshot
	hash     string
	source   string // as in observe.View
	at       time.Time
	checked  <-chan struct{} // closed when each backend of the first one was checked once, or is gone
}

// read reads the file again.
func (n *node) read() (*config.Config, error) {
	if n.options.Feed != nil {
		return config.LoadLocal(n.options.File, os.LookupEnv)
	}
	return config.Load(n.options.File, os.LookupEnv)
}

// apply applies what comes from the file alone, whose versions this process counts.
func (n *node) apply(ctx context.Context, cfg *config.Config) error {
	version := int64(1)
	if old := n.current.Load(); old != nil {
		version = old.snapshot.Version + 1
	}
	return n.enforce(ctx, cfg, version, "file", time.Now())
}

// enforce builds everything that a configuration needs, and only then has requests
// use it. Whoever calls it holds nothing up: requests go on by the old one.
func (n *node) enforce(ctx context.Context, cfg *config.Config, version int64, source string, at time.Time) error {
	old := n.current.Load()
	s, err := n.snapshot(ctx, cfg, version)
	if err != nil {
		return err
	}
	checked := s.Backends.Checked()
	if old != nil {
		checked = old.checked
	}
	n.current.Store(&applied{cfg, s, cfg.Hash(), source, at, checked})
	n.handler.Swap(s)
	if old != nil {
		go func() { // requests that have begun by it may still ask for a backend
			<-old.snapshot.Unused()
			old.snapshot.Backends.Release()
			n.forget()
		}()
	}
	return nil
}

// forget drops the metrics of what is in no configuration any more.
func (n *node) forget() {
	n.changing.Lock() // so that nothing comes into force meanwhile
	defer n.changing.Unlock()
	a := n.current.Load()
	names := observe.Names{Routes: map[string]bool{}, Limits: map[string]bool{}, Backends: map[string]bool{}, Breakers: map[string]bool{}}
	for _, r := range a.config.Routes {
		names.Routes[r.Path] = true
		if r.RateLimit != nil {
			names.Limits[r.RateLimit.ID] = true
		}
	}
	for _, b := range a.snapshot.Backends.Status() {
		names.Backends[b.Backend] = true
		names.Breakers[b.Pool+"/"+b.Backend] = true
	}
	n.metrics.Keep(names)
}

// snapshot is the configuration as requests use it.
func (n *node) snapshot(ctx context.Context, cfg *config.Config, version int64) (*proxy.Snapshot, error) {
	routes, faults := router.New(cfg.Patterns())
	if len(faults) > 0 { // the file's reader has looked for these
		return nil, fmt.Errorf("routes: %s", faults[0].Text)
	}
	if err := n.openPolicies(ctx, cfg); err != nil {
		return nil, err
	}
	s := &proxy.Snapshot{Version: version, Router: routes, Routes: make([]proxy.Route, len(cfg.Routes))}
	// From here on nothing can fail: a generation counts as one from its beginning.
	s.Backends = n.registry.Generation(cfg.Pools, longest(cfg))
	budgets := n.budgets(cfg)
	pools := poolsOf(cfg)
	for i, r := range cfg.Routes {
		p := pools[r.Backend]
		s.Routes[i] = proxy.Route{
			Pattern: r.Path, Pool: s.Backends.Pool(r.Backend), PoolName: r.Backend, Limit: n.limiter(r), Timeout: r.Timeout,
			RewriteHost: p.RewriteHost, Upgrades: p.Upgrades, FailureStatus: p.Breaker.FailureStatus,
			Retry: retryOf(p.Retry, budgets[r.Backend]),
		}
	}
	return s, nil
}

// budgets are the pools', each the one that a pool of this name had before: what it
// counts is still under way.
func (n *node) budgets(cfg *config.Config) map[string]*proxy.Budget {
	all := make(map[string]*proxy.Budget, len(cfg.Pools))
	if old := n.current.Load(); old != nil {
		for _, r := range old.snapshot.Routes {
			all[r.PoolName] = r.Retry.Budget
		}
	}
	for _, p := range cfg.Pools {
		if all[p.Name] == nil {
			all[p.Name] = new(proxy.Budget)
		}
	}
	return all
}

func retryOf(r config.Retry, b *proxy.Budget) proxy.Retry {
	return proxy.Retry{
		Attempts: r.Attempts, NextBackend: r.Scope == config.NextBackend, Base: r.Base, Cap: r.Cap, PerTry: r.PerTry,
		Percent: r.Budget.Percent, Least: r.Budget.Least, Budget: b,
	}
}

// limiter is a route's; nil if it has none.
func (n *node) limiter(r config.Route) proxy.Limiter {
	l := r.RateLimit
	switch {
	case l == nil:
		return nil
	case l.Mode == config.Distributed:
		return n.policies.Policy(l.Policy)
	}
	key := limit.ByClient()
	if name, ok := strings.CutPrefix(l.Key, "header:"); ok {
		key = limit.ByHeader(name)
	}
	return n.metrics.Counted(l.ID, n.limits.Policy(l.ID, l.Capacity, l.RefillRate, key))
}

// policiesOf is what the routes use of the library.
func policiesOf(cfg *config.Config) (uses []policy.Use) {
	for _, r := range cfg.Routes {
		if r.RateLimit != nil && r.RateLimit.Mode == config.Distributed {
			uses = append(uses, policy.Use{Route: r.Path, Policy: r.RateLimit.Policy})
		}
	}
	return uses
}

// CheckPolicies says what is wrong with the library's file, if a configuration uses it:
// what would keep it from being applied.
func CheckPolicies(cfg *config.Config) error {
	if uses := policiesOf(cfg); len(uses) > 0 {
		return policy.Check(cfg.Sentinel, uses)
	}
	return nil
}

// openPolicies opens the library's limiter when the first route asks for it, and
// has it read its file again at a reload. It is the last thing that can fail.
func (n *node) openPolicies(ctx context.Context, cfg *config.Config) error {
	uses := policiesOf(cfg)
	switch {
	case len(uses) == 0:
		return nil
	case n.policies != nil:
		return n.policies.Update(cfg.Sentinel, uses)
	}
	opened, err := policy.Open(ctx, cfg.Sentinel, uses, policy.Options{Registerer: n.library, Logger: n.log})
	if err != nil {
		return err
	}
	n.policies = opened
	return nil
}

// reload reads the file again. What cannot be applied leaves everything as it is.
func (n *node) reload(ctx context.Context) {
	n.changing.Lock()
	defer n.changing.Unlock()
	cfg, err := n.read()
	changed := false
	if err == nil {
		if cfg.KeepStart(n.began) {
			n.log.Warn("server, admin and max_clients stay as they were at the start: restart to change them")
		}
		changed, err = n.adopt(ctx, cfg)
	}
	switch {
	case err != nil:
		n.refuse(err)
		n.log.Error("configuration refused, the last good one stays", "error", err.Error())
	case changed:
		n.log.Info("configuration applied", "version", n.versionInForce())
	default:
		n.log.Info("configuration unchanged", "version", n.versionInForce())
	}
}

// adopt applies a file that was read again, and reports whether anything is another. The
// library's file may be another in any case.
func (n *node) adopt(ctx context.Context, cfg *config.Config) (changed bool, err error) {
	switch {
	case n.options.Feed != nil:
		return n.rejoin(ctx, cfg)
	case cfg.Hash() == n.current.Load().hash:
		return false, n.openPolicies(ctx, cfg)
	default:
		return true, n.apply(ctx, cfg)
	}
}

// refuse counts a configuration that was not applied.
func (n *node) refuse(err error) {
	n.rejected.Add(1)
	text := err.Error()
	n.lastFail.Store(&text)
}

// versionInForce is the version in force, 0 if there is none.
func (n *node) versionInForce() int64 {
	if a := n.current.Load(); a != nil {
		return a.snapshot.Version
	}
	return 0
}

// longest is the longest time that a request has.
func longest(cfg *config.Config) time.Duration {
	most := cfg.Server.RequestTimeout
	for _, r := range cfg.Routes {
		most = max(most, r.Timeout)
	}
	return most
}

// poolsOf are the pools by name. The file's reader has looked that each route has one.
func poolsOf(cfg *config.Config) map[string]*config.Pool {
	pools := make(map[string]*config.Pool, len(cfg.Pools))
	for i := range cfg.Pools {
		pools[cfg.Pools[i].Name] = &cfg.Pools[i]
	}
	return pools
}

// view is how everything is at this moment.
func (n *node) view() observe.View {
	v := observe.View{
		Build: n.options.Version, Started: n.started, Source: "none", Control: "none", Rejected: n.rejected.Load(),
		Tunnels: n.handler.Tunnels(), LimiterClients: n.limits.Len(), LimiterOverflow: int64(n.limits.Overflowed()), // #nosec G115 -- a count of requests
	}
	if text := n.lastFail.Load(); text != nil {
		v.LastFail = *text
	}
	var feed FeedStatus
	if n.options.Feed != nil {
		feed = n.options.Feed.Status()
		v.Control, v.Following, v.Connected = feed.Text, true, feed.Connected
	}
	a := n.current.Load()
	if a == nil {
		return v
	}
	v.Version, v.Hash, v.Source, v.Applied = a.snapshot.Version, a.hash, a.source, a.at
	if v.Source == "disk" && feed.Current {
		v.Source = "control" // which has said that this is the newest
	}
	v.LimiterMost = n.began.MaxClients()
	v.Backends = a.snapshot.Backends.Status()
	return v
}

// routes are those in force.
func (n *node) routes() []explain.Route {
	a := n.current.Load()
	if a == nil {
		return []explain.Route{}
	}
	return explain.Routes(a.config, a.snapshot.Router)
}

// conditions are what must hold before traffic may come. Once the backends of the first
// configuration were looked at, those that another one adds make nothing unready
// that serves.
func (n *node) conditions() []observe.Condition {
	a := n.current.Load()
	all := []observe.Condition{
		{Name: "configuration applied", OK: a != nil, Why: n.applicable(a)},
		{Name: "listeners open", OK: n.server != nil}, // this is answered on the last of them
		a.round(),
		{Name: "not draining", OK: true},
	}
	if n.draining.Load() {
		all[3].OK, all[3].Why = false, "a signal has told it to stop"
	}
	return all
}

// round is whether the first round of checks is over, and who is waited for. a may
// be nil.
func (a *applied) round() observe.Condition {
	c := observe.Condition{Name: "backends checked once"}
	if a == nil {
		return c
	}
	select {
	case <-a.checked:
		c.OK = true
		return c
	default:
	}
	var names []string
	for _, b := range a.snapshot.Backends.Status() {
		if b.Health == "unknown" {
			names = append(names, b.Pool+"/"+b.Backend)
		}
	}
	c.Why = "waiting for " + strings.Join(names, ", ")
	return c
}

// explain says what becomes of a request, by the configuration in force and by how its
// backends are.
func (n *node) explain(method, target string) (any, error) {
	if target == "" {
		return nil, errors.New("url is missing: the one to be explained")
	}
	a := n.current.Load()
	if a == nil {
		return nil, errors.New("there is no configuration yet")
	}
	var states []explain.State
	for _, b := range a.snapshot.Backends.Status() {
		states = append(states, explain.State{
			Pool: b.Pool, Backend: b.Backend, Health: b.Health, Breaker: b.Breaker.String(), InFlight: b.InFlight,
			Candidate: b.Health != "unhealthy" && b.RetryAfter == 0 && b.Weight > 0,
		})
	}
	return explain.Request(a.config, a.snapshot.Router, explain.Question{Method: method, URL: target}, states), nil
}

func (n *node) configText() []byte {
	var text bytes.Buffer
	if a := n.current.Load(); a != nil {
		_ = a.config.Write(&text) // a buffer takes all
	}
	return text.Bytes()
}
