package main

import "context"

func init() { chapters = append(chapters, chapter{"attack", proveAttack}) }

// proveAttack has one client flood, and a million come once each. What an
// attacker can do to a single request is tested by the tests named TestAttack.
func proveAttack(ctx context.Context, l *lab) (*section, error) {
	s := &section{
		title: "Attack",
		about: "A tenant who floods, and more clients than any table holds. What can be done to a single request is tried by the tests named TestAttack, which docs/security.md lists.",
	}
	parts := []func(*scope, *lab, *section){flood}
	if !l.short { // fewer clients than the tables hold would prove nothing; see TestAttackMemoryIsBounded
		parts = append(parts, hoardIdentities)
	}
	for _, part := range parts {
		if err := within(ctx, func(sc *scope) { part(sc, l, s) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}
