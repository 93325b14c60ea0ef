package sentinel

import (
	"context"
	"sync/atomic"
)

// plans is how a limiter finds out which plan a tenant has.
type plans struct {
	of    map[string]string // tenants, in the configuration
	known map[string]bool   // the plans that some policy has
	ask   func(ctx context.Context, tenant string) string
	told  atomic.Bool // that a plan is unknown
}

// planShift keeps the numbers of an endpoint's plans apart from other endpoints.
const planShift = 20

func newPlans(p Policy, plans map[string]Plan, number int) (map[string]*rule, int) {
	if len(plans) == 0 {
		return nil, number
	}
	rules := make(map[string]*rule, len(plans))
	for name, plan := range plans {
		number += 1 << planShift
		rules[name] = newRules(p.EndpointID, p.planned(plan), number)
	}
	return rules, number
}

// newFresh has the greatest numbers of all plans, since a bucket is cut to the
// numbers of whoever reads it: the plan of a tenant may stand in a token that
// nobody shows. own is the policy's rule, which is the one where there are no plans.
func newFresh(p Policy, own *rule, number int) *rule {
	if len(p.Plans) == 0 && len(p.Tenants) == 0 {
		return own
	}
	most := p.quotas()
	for _, plans := range []map[string]Plan{p.Plans, p.Tenants} {
		for _, plan := range plans {
			for i, q := range p.planned(plan) {
				m := &most[i]
				m.Capacity, m.RefillRate, m.Limit = max(m.Capacity, q.Capacity), max(m.RefillRate, q.RefillRate), max(m.Limit, q.Limit)
			}
		}
	}
	return newRules(p.EndpointID, most, number+1<<planShift)
}

// forget has nothing known of a tenant at an endpoint any more, whatever its plan.
func (l *Limiter) forget(e *endpoint, tenant string) {
	l.subjects.forget(e.rule, tenant)
	if own := e.tenants[tenant]; own != nil {
		l.subjects.forget(own, tenant)
	}
	for _, r := range e.plans {
		l.subjects.forget(r, tenant)
	}
}

// subject returns the tenant's subject at an endpoint, under the rule that its
// plan asks for; claimed is the plan that its token names.
func (l *Limiter) subject(ctx context.Context, p *plans, e *endpoint, tenant, claimed string) *subject {
	if e.plans == nil && e.tenants == nil {
		return l.subjects.of(e, "", tenant)
	}
	return l.subjects.under(e, l.ruleOf(ctx, p, e, tenant, claimed), "", tenant)
}

// ruleOf looks in this order: the tenant's own numbers at this endpoint, its plan
// in the configuration, the application's word, the token's. A plan that this
// endpoint does not have is the policy as it is.
func (l *Limiter) ruleOf(ctx context.Context, p *plans, e *endpoint, tenant, claimed string) *rule {
	if r := e.tenants[tenant]; r != nil {
		return r
	}
	plan := p.of[tenant]
	if plan == "" && p.ask != nil {
		plan = p.ask(ctx, tenant)
	}
	if plan == "" {
		plan = claimed
	}
	if r := e.plans[plan]; r != nil {
		return r
	}
	if plan != "" && !p.known[plan] {
		l.unknownPlan(p, e, plan)
	}
	return e.rule
}

// unknownPlan counts it, and says so once: whoever writes tokens must not fill
// the log.
func (l *Limiter) unknownPlan(p *plans, e *endpoint, plan string) {
	l.metrics.unknownPlan(e.policy.EndpointID)
	if !p.told.Swap(true) {
		l.log.Warn("sentinel: a tenant has a plan that no policy has, so it gets the policy as it is; further ones are only counted",
			"endpoint_id", e.policy.EndpointID, "plan", shortQuote(plan))
	}
}
