package main

import (
	"fmt"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// underPlan returns the policy with the numbers that a tenant gets, and why it
// gets them, in the order in which the limiter looks: the tenant's own numbers at
// the endpoint, its plan in the file, the plan that its token names. What the
// application says at run time (WithPlan) nobody can see here.
func underPlan(cfg *sentinel.Config, p sentinel.Policy, tenant, claimed string) (planned sentinel.Policy, why string) {
	if own, ok := p.Tenants[tenant]; ok {
		return withNumbers(p, own), "the numbers of this tenant alone, under tenants of the policy"
	}
	plan, from := cfg.Tenants[tenant], "tenants of the file"
	if plan == "" {
		plan, from = claimed, "the claim "+cfg.App.JWTPlanClaim
	}
	switch numbers, ok := p.Plans[plan]; {
	case ok:
		return withNumbers(p, numbers), fmt.Sprintf("%s, by %s", plainText(plan), from)
	case plan != "":
		return p, fmt.Sprintf("%s, by %s; this endpoint has no such plan, so the policy as it is", plainText(plan), from)
	default:
		return p, "none, so the policy as it is"
	}
}

// withNumbers puts the numbers of a plan in place of the policy's.
func withNumbers(p sentinel.Policy, plan sentinel.Plan) sentinel.Policy {
	p.Capacity, p.RefillRate, p.Limit = plan.Capacity, plan.RefillRate, plan.Limit
	if plan.Also == nil {
		return p
	}
	also := make([]sentinel.Quota, len(p.Also))
	for i, q := range p.Also {
		n := plan.Also[i] // a valid plan has as many
		q.Capacity, q.RefillRate, q.Limit = n.Capacity, n.RefillRate, n.Limit
		also[i] = q
	}
	p.Also = also
	return p
}
