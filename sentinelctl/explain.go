package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// quota is what the numbers of a policy come to.
type quota struct {
	atOnce    float64 // requests
	perSecond float64 // in the long run; 0: never again
	horizon   float64 // seconds until an empty bucket is full, or the window
}

func quotaOf(l sentinel.Quota) quota {
	const token = float64(sentinel.Token)
	if l.Algorithm == sentinel.SlidingWindow {
		return quota{atOnce: float64(l.Limit), perSecond: float64(l.Limit) / l.Window.Seconds(), horizon: l.Window.Seconds()}
	}
	q := quota{atOnce: float64(l.Capacity / sentinel.Token), perSecond: float64(l.RefillRate) / token}
	if l.RefillRate > 0 {
		q.horizon = float64(l.Capacity) / float64(l.RefillRate)
	}
	return q
}

// limitsOf are all limits of a policy, its own first: each must admit.
func limitsOf(p sentinel.Policy) []sentinel.Quota {
	own := sentinel.Quota{Algorithm: p.Algorithm, Capacity: p.Capacity, RefillRate: p.RefillRate, Limit: p.Limit, Window: p.Window}
	return append([]sentinel.Quota{own}, p.Also...)
}

// candidateOf are all limits of a policy's candidate; none where it has none.
func candidateOf(p sentinel.Policy) []sentinel.Quota {
	if p.Candidate == nil {
		return nil
	}
	return append([]sentinel.Quota{p.Candidate.Quota}, p.Candidate.Also...)
}

// longRun is the rate that all limits allow in the long run.
func longRun(p sentinel.Policy) float64 {
	least := math.Inf(1)
	for _, l := range limitsOf(p) {
		least = min(least, quotaOf(l).perSecond)
	}
	return least
}

// line is one fact of explain.
type line struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// explained is the JSON of explain.
type explained struct {
	Endpoint     string `json:"endpoint"`
	Tenant       string `json:"tenant,omitempty"`
	IdentityHash string `json:"identity_hash,omitempty"`
	RedisKey     string `json:"redis_key,omitempty"`
	Lines        []line `json:"lines"`
}

func (e *explained) add(name, format string, args ...any) {
	e.Lines = append(e.Lines, line{name, fmt.Sprintf(format, args...)})
}

func (c *cli) explain(fs *flag.FlagSet, args []string) int {
	endpoint := fs.String("endpoint", "", "the endpoint's `id`")
	tenant := fs.String("tenant", "", "the tenant's `name`: the sub of its token")
	claims := fs.String("token-claims", "", "the claims of its token, as `JSON`: the tenant is taken from there")
	name, code, ok := c.parse(fs, args)
	if !ok {
		return code
	}
	f := c.load(name, true)
	if f == nil {
		return exitUsage
	}
	p, ok := f.cfg.Policies[*endpoint]
	switch {
	case !ok:
		return c.unknownEndpoint(f, *endpoint)
	case *tenant != "" && *claims != "":
		return c.usage("give -tenant or -token-claims, not both")
	}
	claimedPlan := ""
	if *claims != "" {
		var problem string
		if *tenant, claimedPlan, problem = tenantOf(*claims, f.cfg.App); problem != "" {
			return c.usage("-token-claims: %s", problem)
		}
	}
	path := policyPath(*endpoint)
	_, at := f.place(path)
	e := explained{Endpoint: *endpoint, Tenant: *tenant}
	e.add("policy", "%s, %s line %d", path, name, at)
	e.who(f.cfg, p, *tenant, *claims != "")
	if *tenant != "" && p.Identity != sentinel.Anonymous && (len(p.Plans) > 0 || len(p.Tenants) > 0) {
		var why string
		p, why = underPlan(f.cfg, p, *tenant, claimedPlan)
		e.add("plan", "%s", why)
	}
	if p.Unenforced {
		e.add("enforce", "false: what follows is decided and counted, and every request is let through")
	}
	for i, l := range limitsOf(p) {
		e.limit(l, i, len(p.Also))
	}
	if tried := candidateOf(p); tried != nil {
		e.add("candidate", "decides beside it, for every tenant alike, and is only counted:")
		for i, l := range tried {
			e.limit(l, i, len(tried)-1)
		}
	}
	if p.CarryOver != 0 {
		e.add("carried over", "a bucket that is not there yet begins with what version %d left", p.CarryOver)
	}
	e.add("version", "%d; raising it gives everybody a fresh bucket, unless carry_over then names this one", p.Version)
	e.failure(f.cfg, p)
	if c.asJSON {
		c.json(e)
		return exitFine
	}
	for _, l := range e.Lines {
		fmt.Fprintf(c.out, "%-15s  %s\n", l.Name, l.Text)
	}
	return exitFine
}

// unknownEndpoint names those that there are.
func (c *cli) unknownEndpoint(f *policyFile, id string) int {
	ids := strings.Join(slices.Sorted(maps.Keys(f.cfg.Policies)), ", ")
	if id == "" {
		return c.usage("say which with -endpoint; %s has %s", f.name, ids)
	}
	return c.usage("%s has no endpoint %q, so a Guard of it answers 404; it has %s", f.name, id, ids)
}

// tenantOf is the tenant and the plan that claims prove, or why they prove no
// tenant.
func tenantOf(text string, app sentinel.App) (tenant, plan, problem string) {
	if app.Authentication == sentinel.ByApplication {
		return "", "", `no token is read, for authentication is "application"; give -tenant`
	}
	if strings.Count(text, ".") == 2 && !strings.ContainsAny(text, "{ ") {
		return "", "", "that is a token, which is a credential; give its claims, the JSON in its middle"
	}
	var claims map[string]any
	if json.Unmarshal([]byte(text), &claims) != nil {
		return "", "", `not a JSON object, as in '{"sub": "acme"}'`
	}
	tenant, ok := claims[app.JWTTenantClaim].(string)
	if !ok || strings.TrimSpace(tenant) == "" {
		return "", "", app.JWTTenantClaim + " is missing, blank or no string: such a token is answered 401"
	}
	if app.JWTPlanClaim != "" {
		plan, _ = claims[app.JWTPlanClaim].(string)
	}
	return tenant, plan, ""
}

// who says whose bucket it is.
func (e *explained) who(cfg *sentinel.Config, p sentinel.Policy, tenant string, byClaims bool) {
	if p.Identity == sentinel.Anonymous {
		e.add("counts", "anonymous clients: a signed cookie and the client's address, each with a bucket of this size; a request must pass both")
		e.Tenant = ""
		if tenant != "" {
			e.add("tenant", "does not matter here: no token is looked at")
		}
		return
	}
	if cfg.App.Authentication == sentinel.ByApplication {
		e.add("counts", "each tenant on its own: the name that the application has verified (WithTenant, Allow); no token is read")
	} else {
		e.add("counts", "each tenant on its own: the %s of its verified bearer token, nothing else", cfg.App.JWTTenantClaim)
	}
	if tenant == "" {
		return
	}
	e.RedisKey = p.RedisKey(tenant)
	e.IdentityHash = strings.Split(e.RedisKey, ":")[2]
	why := "the tenant that was given"
	if byClaims {
		why = "the claim " + cfg.App.JWTTenantClaim
	}
	e.add("tenant", "%s, %s", plainText(tenant), why)
	e.add("Redis key", "%s", e.RedisKey)
	e.add("in the logs", "identity_hash=%s", e.IdentityHash)
}

// limit puts the numbers of one limit into words; further is how many follow the
// first.
func (e *explained) limit(l sentinel.Quota, i, further int) {
	q := quotaOf(l)
	name := "quota"
	if further > 0 {
		name = fmt.Sprintf("limit %d of %d", i+1, further+1)
	}
	switch {
	case l.Algorithm == sentinel.SlidingWindow:
		e.add(name, "sliding window: %s requests in any %s", grouped(l.Limit), span(q.horizon))
		e.add("in the long run", "%s; all %s may come at once, and come back between %s and %s later", perTime(q.perSecond), grouped(l.Limit), span(q.horizon), span(2*q.horizon))
	case q.perSecond == 0:
		e.add(name, "token bucket: %s requests, once and for ever", number(q.atOnce))
		e.add("in the long run", "none: the bucket never refills, and its key never expires")
	default:
		e.add(name, "token bucket: %s requests at once, then one every %s", number(q.atOnce), span(1/q.perSecond))
		e.add("in the long run", "%s, %s a day", perTime(q.perSecond), number(q.perSecond*86400))
		e.add("full bucket", "lasts %s at twice that rate; an empty one is full again after %s", span(q.horizon), span(q.horizon))
	}
	if further > 0 && i == further {
		e.add("together", "a request is admitted if every limit admits it, and charged to all or to none")
	}
}

// failure says what happens without Redis.
func (e *explained) failure(cfg *sentinel.Config, p sentinel.Policy) {
	if cfg.App.InMemory() {
		e.add("without Redis", "memory:// has none to lose: each process limits alone")
		return
	}
	if p.Unenforced {
		e.add("without Redis", "every request is let through, because nothing is enforced")
		return
	}
	if p.FailMode != sentinel.FailOpen {
		e.add("without Redis", "fail_closed: every request is answered 503; fallback_per_second is not used")
		return
	}
	rate := float64(p.FallbackRate) / float64(sentinel.Token)
	e.add("without Redis", "fail_open: each process admits %s, up to %s at once, of all clients together; the rest is answered 429", perTime(rate), number(max(1, rate)))
}
