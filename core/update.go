package sentinel

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"
)

// setup is a configuration, prepared. It is never changed: a check loads it once
// and uses it to its end.
type setup struct {
	cfg       *Config // every default filled in
	endpoints map[string]*endpoint
	tenants   *tokenVerifier
	anonymous *anonymizer
	plans     plans
	hash      string // of cfg, for people to compare
	since     time.Time
}

// prepare makes the setup of a valid configuration with every default filled in.
// An endpoint whose policy is that of old is old's own, with all that it has
// counted and remembered. The caller holds changing, or is alone.
func (l *Limiter) prepare(cfg *Config, old *setup) *setup {
	s := &setup{
		cfg:       cfg,
		endpoints: make(map[string]*endpoint, len(cfg.Policies)),
		tenants:   newTokenVerifier(cfg.App, l.options.keys),
		anonymous: newAnonymizer(cfg.App),
		plans:     plans{of: cfg.Tenants, known: cfg.planNames(), ask: l.options.plan},
		hash:      hashOf(cfg),
		since:     time.Now(),
	}
	for id, p := range cfg.Policies {
		l.keep(p)
		var before *endpoint
		if old != nil {
			before = old.endpoints[id]
		}
		if before != nil && reflect.DeepEqual(before.policy, p) {
			s.endpoints[id] = before
			continue
		}
		s.endpoints[id] = l.endpointAfter(before, p)
	}
	return s
}

// keep notes what is stored under a policy, and has been: a limit that was taken away
// has left its buckets.
func (l *Limiter) keep(p Policy) {
	at := policyVersion{p.EndpointID, p.Version}
	if before := l.kept[at].Also; len(before) > len(p.Also) {
		p.Also = slices.Concat(p.Also, before[len(p.Also):])
	}
	l.kept[at] = p
}

// endpointAfter prepares a policy that takes the place of before, nil for none.
func (l *Limiter) endpointAfter(before *endpoint, p Policy) *endpoint {
	e := newEndpoint(p, l.numbered)
	l.numbered++
	if before != nil && before.policy.FallbackRate == p.FallbackRate {
		e.emergency = before.emergency // an update is no second burst
	}
	if known := l.seen[p.EndpointID]; known != nil {
		e.seen = known // so that lines and what they held back still add up
	}
	l.seen[p.EndpointID] = e.seen
	return e
}

// Update puts cfg in the place of the limiter's configuration, whole or not at
// all: its error names every fault, and the limiter goes on as it was. A check
// that has begun ends under the configuration that it began with.
//
// An endpoint whose policy is the same keeps what it has counted and remembered.
// One whose numbers changed keeps its buckets, cut to the new numbers, and
// forgets its known denials; its emergency bucket stays where the rate does. One
// that is gone is unknown from then on. The breaker, the connections and the
// buckets of memory:// stay in every case.
//
// What belongs to the connection cannot be changed like this, nor who
// authenticates: redis_url, redis_budget_ms, known_denials,
// unreadable_redis_policy, authentication and jwt_jwks_url need a restart, and
// Update names each that differs. It refuses another algorithm, window or
// identity under the same policy_version, too: the stored state would be read
// under the wrong rules.
//
// Update may be called at any time, by several goroutines: one goes after the
// other. The limiter copies what it needs of cfg.
func (l *Limiter) Update(cfg *Config) error {
	if err := cfg.check(l.urlRequired); err != nil {
		return err
	}
	full := cfg.withDefaults()
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.closed.Load() {
		return errors.New("sentinel: Update: the limiter is closed")
	}
	old := l.setup.Load()
	if reflect.DeepEqual(old.cfg, full) {
		return nil
	}
	if err := joinFaults(l.unchangeable(old.cfg, full)); err != nil {
		return err
	}
	if err := l.options.fit(&full.App); err != nil {
		return err
	}
	s := l.prepare(full, old)
	l.setup.Store(s)
	l.metrics.configured(l, s)
	for _, w := range full.Warnings() {
		l.log.Warn("sentinel: " + w.String())
	}
	l.log.LogAttrs(logContext, slog.LevelInfo, "sentinel: the configuration has changed", s.differences(old)...)
	return nil
}

// unchangeable returns what of the new configuration cannot take the old one's
// place while the limiter runs.
func (l *Limiter) unchangeable(old, now *Config) []fault {
	var faults []fault
	fixed := func(name string, same bool) {
		if !same {
			faults = append(faults, fault{path: "app." + name, text: "cannot be changed while the limiter runs; restart, or leave it as it was"})
		}
	}
	a, b := &old.App, &now.App
	fixed("redis_url", !l.urlRequired || a.RedisURL.reveal() == b.RedisURL.reveal())
	fixed("authentication", a.Authentication == b.Authentication)
	fixed("jwt_jwks_url", a.JWKSURL == b.JWKSURL)
	fixed("redis_budget_ms", a.RedisBudget == b.RedisBudget)
	fixed("known_denials", a.DisableKnownDenials == b.DisableKnownDenials)
	fixed("unreadable_redis_policy", a.UnreadableRedisPolicy == b.UnreadableRedisPolicy)
	if l.subjects.slotted { // it may be one that redis_url does not name
		faults = append(faults, now.carryOvers()...)
	}
	for _, id := range slices.Sorted(maps.Keys(now.Policies)) {
		q := now.Policies[id]
		// Not only of the last configuration: a bucket outlives its policy.
		p, known := l.kept[policyVersion{id, q.Version}]
		if what := otherState(p, q); known && what != "" {
			faults = append(faults, fault{
				path: policyPath(id) + ".policy_version",
				text: fmt.Sprintf("is %d as before, and %s differs; raise it, for stored buckets cannot be read under the new rules", q.Version, what),
			})
		}
	}
	return faults
}

// policyVersion is what a bucket's key says of the policy that wrote it.
type policyVersion struct {
	endpointID string
	version    int64
}

// otherState names what of two policies makes the state of one unreadable under
// the other, "" for nothing.
func otherState(p, q Policy) string {
	if p.Identity != q.Identity {
		return "identity"
	}
	before, after := p.quotas(), q.quotas()
	for i := range min(len(before), len(after)) {
		of := ""
		if i > 0 {
			of = fmt.Sprintf(" of also[%d]", i-1)
		}
		switch {
		case before[i].Algorithm != after[i].Algorithm:
			return "algorithm" + of
		case before[i].Window != after[i].Window:
			return "window" + of
		}
	}
	return ""
}

// differences says what of old has changed, for the log.
func (s *setup) differences(old *setup) []slog.Attr {
	var added, changed, removed []string
	for id, e := range s.endpoints {
		switch before := old.endpoints[id]; before {
		case nil:
			added = append(added, id)
		case e:
		default:
			changed = append(changed, id)
		}
	}
	for id := range old.endpoints {
		if s.endpoints[id] == nil {
			removed = append(removed, id)
		}
	}
	attrs := []slog.Attr{slog.String("config_hash", s.hash)}
	for _, list := range []struct {
		name string
		ids  []string
	}{{"added", added}, {"changed", changed}, {"removed", removed}} {
		if len(list.ids) > 0 {
			attrs = append(attrs, slog.String(list.name, someOf(list.ids)))
		}
	}
	return attrs
}

// someOf lists ids in a line that does not grow with the configuration.
func someOf(ids []string) string {
	const most = 10
	slices.Sort(ids)
	text := fmt.Sprintf("%q", ids[:min(len(ids), most)])
	if more := len(ids) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// hashOf is the beginning of a SHA-256 over what a configuration decides by, so
// that people can see whether two instances have the same. Secrets are not in
// it: of a weak one a hash would be a way to find it.
func hashOf(cfg *Config) string {
	open := *cfg
	keys := make(map[string][]byte, len(cfg.App.JWTKeys))
	for id, key := range cfg.App.JWTKeys {
		keys[id], _ = x509.MarshalPKIXPublicKey(key) // of a valid configuration
	}
	open.App.JWTKeys = nil
	// Maps are written in order, and secrets as [redacted].
	text, err := json.Marshal([]any{open, keys})
	if err != nil {
		panic("sentinel: a valid configuration cannot be written: " + err.Error()) // of plain data
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}
