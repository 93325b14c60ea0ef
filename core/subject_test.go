package sentinel

import (
	"fmt"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
)

func denyingVerdict(answers ...bucket.Answer) *verdict {
	v := verdictOf(false, answers...)
	return &v
}

// A denial is believed until its retry instant, but never longer than a second,
// and only of the bucket that denied.
func TestRemember(t *testing.T) {
	for name, tc := range map[string]struct {
		wait int64         // microseconds
		life time.Duration // from before the question was sent
	}{
		"soon":    {250_000, 250 * time.Millisecond},
		"later":   {3600_000_000, denialLife},
		"longest": {bucket.MaxWait, denialLife},
		"never":   {bucket.Never, denialLife},
	} {
		l := &Limiter{epoch: time.Now().Add(-time.Minute)}
		denies, admits := &subject{}, &subject{}
		g := groupOf(denies, admits)
		now := l.now()
		asked := now - 100*time.Millisecond // a slow answer
		l.remember(&g, denyingVerdict(
			bucket.Answer{Denied: true, Wait: tc.wait, Reset: bucket.Never},
			bucket.Answer{Remaining: 3, Wait: bucket.Never},
		), asked, now, l.resets.Load())
		d, sent := denies.denial.Load(), asked.Truncate(time.Microsecond)
		if d == nil || d.until != sent+tc.life {
			t.Fatalf("%s: %+v, want until %v", name, d, sent+tc.life)
		}
		if tc.wait == bucket.Never && d.admits != never || tc.wait != bucket.Never && d.admits < now+micros(tc.wait) {
			t.Errorf("%s: admits at %v, sent at %v", name, d.admits, sent)
		}
		if admits.denial.Load() != nil {
			t.Errorf("%s: the innocent partner is remembered", name)
		}
		believed, _ := g.denied(sent + tc.life - 1)
		gone, _ := g.denied(sent + tc.life)
		if believed != d || gone != nil {
			t.Errorf("%s: believed at the wrong times", name)
		}
	}
}

func TestRememberNothingOfAnAllow(t *testing.T) {
	l := &Limiter{epoch: time.Now()}
	s := &subject{}
	g := groupOf(s)
	v := verdictOf(true, bucket.Answer{Remaining: 3, Wait: bucket.Never})
	l.remember(&g, &v, 0, l.now(), 0)
	if s.denial.Load() != nil {
		t.Error("an allow is remembered")
	}
}

// An answer from before a reset is not remembered after it.
func TestRememberNothingOlderThanAReset(t *testing.T) {
	l := &Limiter{epoch: time.Now()}
	s := &subject{}
	g := groupOf(s)
	before := l.resets.Load()
	l.resets.Add(1)
	l.remember(&g, denyingVerdict(bucket.Answer{Denied: true, Wait: 1_000_000, Reset: 1}), 0, l.now(), before)
	if s.denial.Load() != nil {
		t.Error("a denial from before a reset is remembered")
	}
}

// Of several known denials the longest is told.
func TestLongestKnownDenial(t *testing.T) {
	short, long, forever := &denial{until: 10, admits: 20}, &denial{until: 10, admits: 30}, &denial{until: 10, admits: never}
	for _, tc := range []struct{ a, b, want *denial }{
		{short, long, long},
		{long, short, long},
		{forever, long, forever},
		{long, forever, forever},
		{nil, short, short},
		{short, nil, short},
		{nil, nil, nil},
	} {
		a, b := &subject{}, &subject{}
		a.denial.Store(tc.a)
		b.denial.Store(tc.b)
		g := groupOf(a, b)
		if got, _ := g.denied(5); got != tc.want {
			t.Errorf("%+v and %+v: %+v", tc.a, tc.b, got)
		}
	}
}

// A subject is the same for the same identity and endpoint, and never another's,
// however many share the slots.
func TestSubjects(t *testing.T) {
	c := newSubjects()
	tenants := newEndpoint(bucketPolicy("jobs", Token, 0), 0)
	p := bucketPolicy("login", Token, 0)
	p.Identity = Anonymous
	anonymous := newEndpoint(p, 1)
	for i := range 3 * subjectSets * subjectWays {
		identity := fmt.Sprint("identity-", i)
		a, b := c.of(tenants, "", identity), c.of(anonymous, "iden", identity[4:])
		key, hash := tenantKey(identity, "jobs", 1)
		if a.key != key || a.hash != hash || a.rule != tenants.rule {
			t.Fatalf("%s: %q", identity, a.key)
		}
		key, _ = anonymousKey(identity, "login", 1)
		if b.key != key || b.rule != anonymous.rule {
			t.Fatalf("%s: %q", identity, b.key)
		}
		if again := c.of(anonymous, "iden", identity[4:]); again != b {
			t.Fatalf("%s: not kept", identity)
		}
	}
	c = newSubjects()
	lost := 0
	kept := make([]*subject, 1000)
	for i := range kept {
		kept[i] = c.of(tenants, "", fmt.Sprint("tenant-", i))
	}
	for i := range kept {
		if c.of(tenants, "", fmt.Sprint("tenant-", i)) != kept[i] {
			lost++
		}
	}
	if lost > 2 {
		t.Errorf("%d of a thousand tenants have taken each other's slots", lost)
	}
}
