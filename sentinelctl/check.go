package main

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// finding is a fault, or something that is worth a look though the file is valid.
type finding struct {
	Code   string `json:"code,omitempty"` // of a warning, for -ignore
	Path   string `json:"path"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Text   string `json:"text"`
}

// checked is the JSON of check.
type checked struct {
	File     string    `json:"file"`
	Faults   []finding `json:"faults"`
	Warnings []finding `json:"warnings"`
}

func (c *cli) check(fs *flag.FlagSet, args []string) int {
	instances := fs.Int("instances", 1, "how many processes will use the file")
	against := fs.String("against", "", "the `FILE` that is in use now: what the change does to its buckets")
	noEnv := fs.Bool("no-env", false, "take variables that are not set as if they were: for CI, where the secrets are not")
	var ignore list
	fs.Var(&ignore, "ignore", "leave out the warnings of this `code`; may be given several times")
	name, code, ok := c.parse(fs, args)
	switch {
	case !ok:
		return code
	case *instances < 1:
		return c.usage("-instances must be at least 1")
	}
	f, faults, err := read(name, *noEnv)
	if err != nil {
		return c.usage("%v", err)
	}
	result := checked{File: name, Faults: []finding{}, Warnings: []finding{}}
	for _, fault := range faults {
		result.Faults = append(result.Faults, finding{Path: fault.Path, Line: fault.Line, Column: fault.Column, Text: fault.Text})
	}
	if f != nil {
		w := warner{file: f, instances: float64(*instances)}
		w.all()
		if *against != "" {
			old, faults, err := read(*against, true)
			if err != nil {
				return c.usage("-against: %v", err)
			}
			if old == nil {
				return c.usage("-against: %s%s", position(*against, faults[0].Line, faults[0].Column), faults[0])
			}
			w.changed(old.cfg)
		}
		result.Warnings = slices.DeleteFunc(w.found, func(f finding) bool { return slices.Contains(ignore, f.Code) })
		slices.SortStableFunc(result.Warnings, func(a, b finding) int { return a.Line - b.Line })
	}
	return c.report(result, f)
}

func (c *cli) report(result checked, f *policyFile) int {
	code := exitFine
	switch {
	case len(result.Faults) > 0:
		code = exitUsage
	case len(result.Warnings) > 0:
		code = exitFound
	}
	if c.asJSON {
		c.json(result)
		return code
	}
	for _, fault := range result.Faults {
		fmt.Fprintln(c.out, position(result.File, fault.Line, fault.Column)+sentinel.Fault{Path: fault.Path, Text: fault.Text}.String())
	}
	for _, w := range result.Warnings {
		fmt.Fprintf(c.out, "%swarning: %s: %s [%s]\n", position(result.File, w.Line, 0), w.Path, w.Text, w.Code)
	}
	switch {
	case f == nil:
		fmt.Fprintf(c.out, "%s: %s\n", result.File, plural(len(result.Faults), "fault"))
	case code == exitFine:
		fmt.Fprintf(c.out, "%s: fine, %s\n", result.File, plural(len(f.cfg.Policies), "endpoint"))
	default:
		fmt.Fprintf(c.out, "%s: valid, %s\n", result.File, plural(len(result.Warnings), "warning"))
	}
	return code
}

func plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

// warner collects what docs/known-limits.md and docs/operations.md warn of.
type warner struct {
	file      *policyFile
	instances float64
	found     []finding
}

func (w *warner) add(code, path, format string, args ...any) {
	path, line := w.file.place(path)
	w.found = append(w.found, finding{Code: code, Path: path, Line: line, Text: fmt.Sprintf(format, args...)})
}

// Beyond these a number is more likely a mistake than a choice.
const (
	longHorizon = 31 * 24 * time.Hour
	slowBudget  = 100 * time.Millisecond
	hastyBudget = 5 * time.Millisecond
	// breakerFailures is how many calls must fail before the breaker spares Redis.
	breakerFailures = 5
)

func (w *warner) all() {
	cfg := w.file.cfg
	for _, f := range cfg.Warnings() {
		w.add("start", f.Path, "%s", f.Text)
	}
	w.app(cfg.App)
	anonymous := false
	for _, id := range slices.Sorted(maps.Keys(cfg.Policies)) {
		p := cfg.Policies[id]
		anonymous = anonymous || p.Identity == sentinel.Anonymous
		w.policy(policyPath(id), p)
	}
	if anonymous && cfg.App.InsecureAnonymousCookie {
		w.add("insecure-cookie", "app.anonymous_cookie_secure", "the cookie also goes over plain HTTP, where others can read and use it; leave it true in production")
	}
	if anonymous && cfg.App.IPv6Prefix > 64 {
		w.add("ipv6-prefix", "app.ipv6_prefix", "a household has a /64, which would be 2^%d clients, each with a bucket of its own; 64 counts it as one", cfg.App.IPv6Prefix-64)
	}
}

func (w *warner) app(a sentinel.App) {
	if a.InMemory() && w.instances > 1 {
		w.add("memory", "app.redis_url", "memory:// limits each process alone: %.0f instances admit %.0f times every quota", w.instances, w.instances)
	}
	switch {
	case a.RedisBudget > slowBudget:
		w.add("slow-budget", "app.redis_budget_ms", "while Redis hangs, requests wait up to %s each, until %d calls in a row have failed and the breaker spares them; and so does each probe after it", span(a.RedisBudget.Seconds()), breakerFailures)
	case a.RedisBudget < hastyBudget:
		w.add("hasty-budget", "app.redis_budget_ms", "a pause of %s, of the network or of this machine, makes decisions take their failure row; %d in a row open the breaker for 30s", span(a.RedisBudget.Seconds()), breakerFailures)
	}
	for _, name := range []string{"redis_url", "jwt_secret", "anonymous_cookie_secret"} {
		if w.file.holds("app." + name) {
			w.add("inline-secret", "app."+name, "a secret stands in the file itself, and in every copy of it; write \"${NAME}\" or %s_file", name)
		}
	}
}

func (w *warner) policy(path string, p sentinel.Policy) {
	if p.FailMode == sentinel.FailOpen && !p.Unenforced {
		w.overrun(path, p)
	}
	w.limits(path, p, limitsOf(p))
	w.limits(path+".candidate", p, candidateOf(p))
}

func (w *warner) limits(object string, p sentinel.Policy, limits []sentinel.Quota) {
	for i, l := range limits {
		of := object
		if i > 0 {
			of = fmt.Sprintf("%s.also[%d]", object, i-1)
		}
		w.limit(of, p, l)
	}
}

// limit looks at one limit, whose fields are in object.
func (w *warner) limit(object string, p sentinel.Policy, l sentinel.Quota) {
	q := quotaOf(l)
	rate, window := object+".refill_rate_micro_per_sec", object+".window_size_micro"
	switch {
	case l.Algorithm == sentinel.SlidingWindow && 2*q.horizon > longHorizon.Seconds():
		w.add("long-horizon", window, "each key stays in Redis for two windows, %s, and as long a loss of data gives back", span(2*q.horizon))
	case l.Algorithm == sentinel.SlidingWindow:
	case l.RefillRate == 0 && p.Identity != sentinel.Anonymous: // of those the library warns
		w.add("never-refills", rate, "0: a tenant gets %s requests, once and for ever, and its key stays in Redis for ever", tokens(l.Capacity))
	case l.RefillRate == 0:
	case q.perSecond < 1.0/86400:
		w.add("slow-refill", rate, "one request takes %s to come back; if that was meant in tokens, write refill_per_second", span(1/q.perSecond))
	case q.horizon > longHorizon.Seconds():
		w.add("long-horizon", rate, "an empty bucket is full only after %s; as long its key stays in Redis, and as long a loss of data gives back", span(q.horizon))
	}
}

// overrun holds the emergency buckets, one for each process, against the quota.
func (w *warner) overrun(path string, p sentinel.Policy) {
	field := path + ".fallback_rate_per_process_micro"
	fallback := float64(p.FallbackRate) / float64(sentinel.Token)
	sum, quota := w.instances*fallback, longRun(p)
	if sum > quota {
		verb := "admit"
		if w.instances == 1 {
			verb = "admits"
		}
		text := fmt.Sprintf("while Redis is away, %s %s %s, which one client alone may use", plural(int(w.instances), "instance"), verb, perTime(sum))
		if quota > 0 {
			text += fmt.Sprintf(", %s its quota of %s", times(sum/quota), perTime(quota))
		} else {
			text += ", though its quota never refills"
		}
		w.add("overrun", field, "%s", text)
	}
	if fallback < 0.01 {
		w.add("tiny-fallback", field, "while Redis is away, a process admits one request every %s, of all clients; if that was meant in tokens, write fallback_per_second", span(1/fallback))
	}
}

// changed says what a change from old does to the buckets that are there.
func (w *warner) changed(old *sentinel.Config) {
	for _, id := range slices.Sorted(maps.Keys(old.Policies)) {
		path, was := policyPath(id), old.Policies[id]
		p, ok := w.file.cfg.Policies[id]
		switch {
		case !ok:
			w.add("removed", path, "is gone: a Guard of it answers 404 to every request")
		case p.Version > was.Version:
			w.raised(path, &was, &p)
		case p.Version < was.Version:
			w.add("version-back", path+".policy_version", "lowered from %d to %d: buckets of the old version come back as they were; raise it instead", was.Version, p.Version)
		case p.Identity != was.Identity || !sameKinds(limitsOf(p), limitsOf(was)):
			w.add("version-kept", path+".policy_version", "raise it: algorithm, window, identity or the order of limits has changed, and the buckets that are there would be read by other rules")
		}
	}
}

// raised says whose buckets are fresh under a higher version.
func (w *warner) raised(path string, was, p *sentinel.Policy) {
	carried := p.CarryOver == was.Version && p.Identity == was.Identity
	for i, q := range limitsOf(*p) {
		if old := limitsOf(*was); i < len(old) && q.Algorithm != old[i].Algorithm {
			carried = false
		}
	}
	switch {
	case carried:
	case p.CarryOver == was.Version:
		w.add("refill", path+".carry_over", "carries nothing over to another algorithm or identity: those buckets are fresh and full")
	case p.CarryOver != 0:
		w.add("refill", path+".carry_over", "is %d, and the version in use is %d: every tenant who has no bucket of version %d gets a fresh, full one", p.CarryOver, was.Version, p.CarryOver)
	default:
		w.add("refill", path+".policy_version", "raised from %d to %d: every tenant gets a fresh, full bucket; carry_over: %d keeps those of the same algorithm and identity", was.Version, p.Version, was.Version)
	}
}

// sameKinds reports whether the buckets of one list of limits can be read by the
// other. One that is longer or shorter has more keys, or fewer.
func sameKinds(a, b []sentinel.Quota) bool {
	n := min(len(a), len(b))
	return slices.EqualFunc(a[:n], b[:n], func(a, b sentinel.Quota) bool { return a.Algorithm == b.Algorithm && a.Window == b.Window })
}
