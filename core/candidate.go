package sentinel

// candidateRule is one limit of a candidate, prepared.
type candidateRule struct {
	*rule
	quota Quota
}

// newCandidate prepares an endpoint's candidate, nil for none.
func newCandidate(p Policy, number int) []candidateRule {
	var rules []candidateRule
	for _, q := range p.Candidate.quotas() {
		rules = append(rules, candidateRule{newQuotaRule(p.EndpointID, q, number), q})
	}
	return rules
}

// try has the candidate decide beside the endpoint's own limits, under every plan.
func (e *endpoint) try(candidate []candidateRule) {
	e.rule.candidate, e.fresh.candidate = candidate, candidate
	for _, rules := range []map[string]*rule{e.plans, e.tenants} {
		for _, r := range rules {
			r.candidate = candidate
		}
	}
}

// beside is the candidate's part of a question: a group of its own, which decides
// on the same request and charges for itself. What becomes of it changes nothing
// for the live group, and it is never a reason to ask again.
type beside struct {
	group    group
	verdict  verdict
	answered bool
}

// beside is what is to be decided beside the group; nil where its endpoint has no
// candidate.
func (g *group) beside() *beside {
	if g.of[0].candidate == nil {
		return nil
	}
	b := &beside{group: group{cost: g.cost}}
	for _, s := range g.of[:g.n] {
		for _, c := range s.candidate {
			b.group.push(c)
		}
	}
	return b
}

// take takes the script's reply. One that contradicts itself is none.
func (b *beside) take(m mode, now int64, reply []int64) {
	v, err := parseReply(m, now, reply, &b.group)
	b.verdict, b.answered = v, err == nil
}

// compare counts the live verdict and the candidate's, if both are there.
func (l *Limiter) compare(d *Decision, live *verdict, b *beside) {
	if b == nil || !b.answered {
		return
	}
	d.CandidateDenies = !b.verdict.allowed
	l.metrics.compared(d.EndpointID, live.allowed, b.verdict.allowed)
}
