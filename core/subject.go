package sentinel

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// subject is one identity at one endpoint: where its bucket is, and whether it
// is known to deny. It is safe for concurrent use.
type subject struct {
	identity string
	rule     *rule
	key      string
	previous string       // the key under the version whose bucket this one begins with; "" for none
	hash     string       // of the identity, a part of key
	slot     uint16       // of key, in a cluster
	place    bucket.Place // in memory://
	denial   atomic.Pointer[denial]
	further  []*subject // the same identity under the endpoint's other limits
	// candidate is the same identity under the endpoint's candidate; nil for none.
	candidate []*subject
}

const (
	// subjectSets and subjectWays bound the subjects that are kept. One that has
	// lost its slot to another costs a hash and, if it was known to deny, a
	// question to Redis; nothing else. Four ways, so that ten thousand busy
	// tenants hardly ever take each other's. A subject takes some 300 bytes, 20 MB
	// for all; where every name is as long as it may be, five times that.
	subjectSets, subjectWays = 1 << 14, 4
	// denialLife is the longest that a denial is believed without asking: so late,
	// at most, is a reset elsewhere noticed, a flush, a failover or a step of
	// Redis's clock.
	denialLife = time.Second
)

// subjects keeps the subjects that came last, in sets of a few slots. Which set
// is a subject's nobody outside can know, for the hash is seeded by the process.
type subjects struct {
	hash bucket.Hasher
	// slotted: the store is a cluster, which has a slot for each key.
	slotted bool
	sets    [subjectSets][subjectWays]atomic.Pointer[subject]
}

func newSubjects() *subjects { return &subjects{hash: bucket.NewHasher()} }

// of returns the subject at an endpoint whose identity is the prefix and the
// name. They come apart so that one who is known is found without a new text;
// the names under different prefixes differ, so the hash needs the name alone.
func (c *subjects) of(e *endpoint, prefix, name string) *subject {
	return c.under(e, e.rule, prefix, name)
}

// under is of for a subject under a rule of the endpoint that is not the
// policy's own: that of a plan.
func (c *subjects) under(e *endpoint, r *rule, prefix, name string) *subject {
	hash := c.hashOf(r, name)
	set := &c.sets[hash%subjectSets]
	slot := &set[hash/subjectSets%subjectWays] // to be taken, unless one is empty
	for i := range set {
		s := set[i].Load()
		switch {
		case s == nil:
			slot = &set[i]
		case s.rule == r && s.is(prefix, name):
			return s
		}
	}
	s := newSubject(e, r, prefix, name)
	if c.slotted {
		s.slot = slotOf(s.key)
		for _, f := range s.further {
			f.slot = s.slot // their keys are made so
		}
		for _, f := range s.candidate {
			f.slot = s.slot
		}
	}
	slot.Store(s)
	return s
}

func (c *subjects) hashOf(r *rule, name string) uint64 {
	return c.hash.Hash(name) + uint64(r.number)*0x9e3779b97f4a7c15
}

// forget drops what is known to deny of a tenant under a rule. Callers at once may
// have made several subjects of it.
func (c *subjects) forget(r *rule, tenant string) {
	set := &c.sets[c.hashOf(r, tenant)%subjectSets]
	for i := range set {
		s := set[i].Load()
		if s == nil || s.rule != r || !s.is("", tenant) {
			continue
		}
		s.denial.Store(nil)
		for _, f := range s.further {
			f.denial.Store(nil)
		}
	}
}

func (s *subject) is(prefix, name string) bool {
	whole, n := s.identity, len(prefix)
	return len(whole) == n+len(name) && whole[n:] == name && whole[:n] == prefix
}

// newSubject copies the name, which may be a piece of something large that must
// not stay.
func newSubject(e *endpoint, r *rule, prefix, name string) *subject {
	var identity strings.Builder
	identity.Grow(len(prefix) + len(name))
	identity.WriteString(prefix)
	identity.WriteString(name)
	s := &subject{identity: identity.String(), rule: r}
	if e.policy.Identity == Anonymous {
		s.key, s.hash = anonymousKey(s.identity, e.policy.EndpointID, e.policy.Version)
	} else {
		s.key, s.hash = tenantKey(s.identity, e.policy.EndpointID, e.policy.Version)
	}
	s.previous = e.policy.previousKey(s.identity)
	for i, further := range r.further {
		f := &subject{identity: s.identity, rule: further, key: furtherKey(s.key, i+2), hash: s.hash}
		if s.previous != "" {
			f.previous = furtherKey(s.previous, i+2)
		}
		s.further = append(s.further, f)
	}
	for i, c := range r.candidate {
		s.candidate = append(s.candidate, &subject{identity: s.identity, rule: c.rule, key: candidateKey(s.key, i+1, c.quota), hash: s.hash})
	}
	return s
}

// maxGroup is how many buckets one decision can have: a cookie's and a peer's,
// under each limit.
const maxGroup = 2 * maxLimits

// group is the buckets of one decision.
type group struct {
	of [maxGroup]*subject
	n  int
	// cost is as how many requests the decision counts, of each bucket. 0 means 1.
	cost Cost
}

func (g *group) price() int64 { return max(int64(g.cost), 1) }

// add adds the buckets of an identity, one for each limit of the endpoint.
func (g *group) add(s *subject) {
	g.push(s)
	for _, f := range s.further {
		g.push(f)
	}
}

// push adds one bucket.
func (g *group) push(s *subject) {
	g.of[g.n] = s
	g.n++
}

// denial is what Redis has said of a bucket that denied: nothing but time adds
// tokens, so until its retry instant it cannot admit. Times are those of the
// limiter's clock.
type denial struct {
	// until is how long it is believed: the retry instant, counted from before
	// the question was sent, so that it is never too late.
	until time.Duration
	// cost is that of the request which was denied: another one waits for
	// another time.
	cost Cost
	// admits and full are told to the client, counted from when the answer was
	// there, so that they are never too early. never: not by itself.
	admits, full time.Duration
}

// denied returns the known denial of the group that lasts longest, and the
// number of its bucket; nil if there is none at now.
func (g *group) denied(now time.Duration) (longest *denial, of int) {
	for i, s := range g.of[:g.n] {
		d := s.denial.Load()
		if d == nil || now >= d.until || d.cost != g.cost {
			continue
		}
		if longest == nil || d.admits == never || longest.admits != never && d.admits > longest.admits {
			longest, of = d, i
		}
	}
	return longest, of
}

// remember keeps each bucket that denied, never its innocent partner. The
// question was asked at asked and answered by now. resets is the count of resets
// from before the question: one that came in between may have made the answer
// old.
func (l *Limiter) remember(g *group, v *verdict, asked, now time.Duration, resets int64) {
	// Redis counts whole microseconds.
	sent, answered := asked.Truncate(time.Microsecond), now+time.Microsecond
	for i, a := range v.buckets() {
		if !a.Denied {
			continue
		}
		d := &denial{cost: g.cost, until: sent + denialLife, admits: never, full: never}
		if a.Wait != bucket.Never {
			d.until = sent + min(micros(a.Wait), denialLife)
			d.admits = later(answered, micros(a.Wait))
		}
		if a.Reset != bucket.Never {
			d.full = later(answered, seconds(a.Reset))
		}
		s := g.of[i]
		s.denial.Store(d)
		if l.resets.Load() != resets {
			s.denial.CompareAndSwap(d, nil)
		}
	}
}

// never stands for an instant of the limiter's clock that does not come.
const never time.Duration = -1

// later is wait after at, or the last instant there is.
func later(at, wait time.Duration) time.Duration {
	return at + min(wait, math.MaxInt64-at)
}

// tell writes into d which limit its numbers are of: that of bucket i.
func (g *group) tell(d *Decision, i int) {
	r := g.of[i].rule
	d.Limit, d.Window, d.windowSeconds = r.told.Limit, r.window, r.told.WindowSeconds
	if first := g.of[0].rule; first.all != nil {
		d.limits, d.limitName = &first.all, r.told.Name
	}
}

// fillKnown writes a known denial, by bucket i of the group, into d.
func (g *group) fillKnown(d *Decision, known *denial, i int, now time.Duration) {
	d.FromStore = true
	g.tell(d, i)
	d.Reason = ReasonRateLimited
	if known.admits != never {
		d.RetryAfter = max(known.admits-now, 1)
		d.NextAfter = d.RetryAfter
	}
	if known.full != never {
		d.ResetAfter = (max(known.full-now, 1)-1)/time.Second*time.Second + time.Second
	}
}
