package sentinel

import (
	"fmt"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// Cost is as how many requests one counts: a request of cost 5 takes five tokens,
// or counts five times in a window, or is denied and takes none. It is set on the
// server, at the route, and never by the client. The zero Cost means 1.
type Cost int64

// Valid returns nil, or why this is no cost: it is 1 to 4503599627, or 0 for 1.
func (c Cost) Valid() error {
	if c < 0 || c >= bucket.MaxCost {
		return fmt.Errorf("sentinel: a cost of %d: it must be 1 to %d", int64(c), int64(bucket.MaxCost-1))
	}
	return nil
}

// counted is the cost as a group has it, 0 where it is 1, so that those who have
// no costs carry none. What is no cost is more than any bucket has: programmers'
// mistakes fail at wiring, and what gets past that is denied.
func (c Cost) counted() Cost {
	switch {
	case c == 1:
		return 0
	case c.Valid() != nil:
		return bucket.MaxCost
	default:
		return c
	}
}

// costOf is the cost that Allow was given, at most one.
func costOf(given []Cost) Cost {
	switch len(given) {
	case 0:
		return 0
	case 1:
		return given[0].counted()
	default:
		return bucket.MaxCost
	}
}

// RequireCost returns nil if a request of that cost can ever be admitted at the
// endpoint: under each of its limits and every plan, and, where it fails open, by
// the emergency bucket. Call it before the application listens, as [Limiter.Require].
func (l *Limiter) RequireCost(id string, cost Cost) error {
	if err := l.Require(id); err != nil {
		return err
	}
	if err := cost.Valid(); err != nil {
		return err
	}
	p := l.setup.Load().cfg.Policies[id] // the zero policy, which admits nothing, if it went this moment
	over := func(what string, quotas []Quota) error {
		for _, q := range quotas {
			most := q.Limit
			if q.Algorithm == TokenBucket {
				most = int64(q.Capacity / Token)
			}
			if int64(cost) > most {
				return fmt.Errorf("sentinel: %s%s: a cost of %d can never be admitted, for a limit is %d; raise it or lower the cost", policyPath(id), what, int64(cost), most)
			}
		}
		return nil
	}
	if err := over("", p.quotas()); err != nil {
		return err
	}
	for name, plan := range p.Plans {
		if err := over(".plans["+shortQuote(name)+"]", p.planned(plan)); err != nil {
			return err
		}
	}
	for name, plan := range p.Tenants {
		if err := over(".tenants["+shortQuote(name)+"]", p.planned(plan)); err != nil {
			return err
		}
	}
	if most := int64(max(p.FallbackRate, Token) / Token); p.FailMode == FailOpen && int64(cost) > most {
		return fmt.Errorf("sentinel: %s.fallback_per_second: while Redis is away a cost of %d can never be admitted, for the emergency bucket holds %d; raise it to %d", policyPath(id), int64(cost), most, int64(cost))
	}
	return nil
}
