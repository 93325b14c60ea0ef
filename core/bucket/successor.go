package bucket

// mostPast is how many rules a bucket remembers that came before its own.
const mostPast = 8

// past is a rule that was in force until another took its place.
type past struct {
	rule  *Rule
	until int64
}

// Successor returns a bucket whose rule takes the place of b's at the time now.
// It misses the same fraction of its capacity as b does, and so will the buckets
// of [Table.Take]. b is not to be used any more; who still does, charges a bucket
// of its own.
//
// A sliding window has no capacity to miss a fraction of: of two windows the
// counts stay, and between a window and a token bucket nothing does. A bucket
// remembers eight rules before its own, so that one that was last charged under an
// earlier one has refilled by each of those that were in force meanwhile. By one
// that is forgotten it keeps the fraction that it missed when it was charged.
func (b *Bucket) Successor(rule Rule, now int64) *Bucket {
	next := New(rule)
	kept := b.past[max(0, len(b.past)-mostPast+1):]
	next.past = append(append(make([]past, 0, len(kept)+1), kept...), past{&b.rule, now})
	if s, _ := b.cell.read(&b.rule); s.stamp > missing {
		s = next.inherit(s, &b.rule)
		next.cell.claim(0, s)
		next.cell.write(0, s)
	}
	return next
}

// inherit is what a state becomes, that was charged under the rule of another
// bucket.
func (b *Bucket) inherit(s State, under *Rule) State {
	known := false
	for i, p := range b.past {
		if known = known || p.rule == under; known {
			to := &b.rule
			if i+1 < len(b.past) {
				to = b.past[i+1].rule
			}
			s = to.sameFraction(p.rule, s, p.until)
		}
	}
	if !known {
		s = b.rule.sameFraction(under, s, s.time())
	}
	return s
}

// sameFraction is what a state of another rule's becomes at the time at, or when
// it was charged, if that was later. What it misses is rounded up.
func (r *Rule) sameFraction(of *Rule, s State, at int64) State {
	switch {
	case r.sliding != of.sliding || of.size == 0:
		return State{}
	case s.stamp <= missing || r.sliding:
		return s
	}
	at = max(at, s.time())
	misses, rest := mulDiv(of.size-of.level(s, at), r.size, of.size)
	if rest {
		misses++
	}
	return State{count: r.size - misses, stamp: at + 1}
}
