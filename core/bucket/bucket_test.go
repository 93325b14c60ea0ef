package bucket

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
)

func ruleOf(c buckettest.Case) Rule {
	if c.Sliding {
		return NewSlidingWindow(c.P1, c.P2)
	}
	return NewTokenBucket(c.P1, c.P2)
}

// decide runs a case through the package, from text to text.
func decide(c buckettest.Case) buckettest.Result {
	rule := ruleOf(c)
	var s State
	if c.Stored {
		s, _ = rule.Parse(c.Text)
	}
	next, a := rule.DecideCost(s, c.Now, c.Price(), c.Charge)
	r := buckettest.Result{
		Denied: a.Denied, Corrupt: a.Corrupt,
		Remaining: a.Remaining, Wait: a.Wait, Reset: a.Reset,
	}
	if c.Charge && !a.Denied {
		r.Text, r.TTL = rule.Format(next), rule.TTL(next, c.Now)
	}
	return r
}

func TestKnownAnswers(t *testing.T) {
	t.Parallel()
	for _, v := range buckettest.Vectors(t, "testdata") {
		rule := ruleOf(v.Case)
		s, ok := rule.Parse(v.Text)
		if !ok {
			t.Fatalf("%+v: the state is refused", v)
		}
		next, a := rule.Decide(s, v.Now, true)
		if a.Denied == v.Allowed {
			t.Fatalf("%+v: denied %t", v, a.Denied)
		}
		if v.Allowed {
			if got := rule.Format(next); got != v.After {
				t.Fatalf("%+v: state %s", v, got)
			}
			continue
		}
		want := int64(Never)
		if v.Wait != nil {
			want = *v.Wait
		}
		if a.Wait != want {
			t.Fatalf("%+v: wait %d", v, a.Wait)
		}
		// A denial stores nothing; the answer's state is what it looked at.
		if next != s {
			t.Fatalf("%+v: a denial changed the state", v)
		}
		seen := s
		if v.Sliding {
			seen = rule.roll(s, v.Now)
		} else {
			seen.count = rule.level(s, v.Now)
		}
		if got := rule.Format(seen); got != v.After {
			t.Fatalf("%+v: looked at %s", v, got)
		}
	}
}

func TestOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	cases := append(buckettest.Cases(r, 20_000), buckettest.LargeCases(r, 4_000)...)
	kinds := map[string]int{}
	for _, c := range cases {
		got, want := decide(c), buckettest.Oracle(c)
		if want.Wait > MaxWait {
			want.Wait = MaxWait
		}
		if got != want {
			t.Fatalf("%+v:\n got %+v\nwant %+v", c, got, want)
		}
		count(kinds, c, want)
	}
	for _, kind := range []string{"token", "window", "denied", "allowed", "corrupt", "ahead", "never"} {
		if kinds[kind] < 200 {
			t.Errorf("only %d cases are %q: the generator misses its aim", kinds[kind], kind)
		}
	}
}

func count(kinds map[string]int, c buckettest.Case, r buckettest.Result) {
	name := map[bool]string{true: "window", false: "token"}
	kinds[name[c.Sliding]]++
	name = map[bool]string{true: "denied", false: "allowed"}
	kinds[name[r.Denied]]++
	if r.Corrupt {
		kinds["corrupt"]++
	}
	if r.Wait == Never {
		kinds["never"]++
	}
	if s, ok := ruleOf(c).Parse(c.Text); ok && s.time() > c.Now {
		kinds["ahead"]++
	}
}

// The targeted cases must be ones that a double gets wrong, or they prove
// nothing about split products.
func TestLargeCasesDefeatADouble(t *testing.T) {
	t.Parallel()
	wrong := 0
	cases := buckettest.LargeCases(rand.New(rand.NewPCG(3, 4)), 1000)
	for _, c := range cases {
		rule := ruleOf(c)
		s, _ := rule.Parse(c.Text)
		naive := float64(s.count) + math.Floor(float64(c.Now-s.time())*float64(c.P2)/1e6)
		if int64(min(naive, float64(c.P1))) != rule.level(s, c.Now) {
			wrong++
		}
	}
	if wrong < len(cases)/5 {
		t.Errorf("a double is wrong in %d of %d cases only", wrong, len(cases))
	}
}

// The wait of a denial is exact: one microsecond earlier the same bucket still
// denies, at that instant it admits. Likewise for the growth of Remaining, for
// Reset, and for the pair in a row.
func TestWaitIsTheFirstInstant(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for _, c := range append(buckettest.Cases(r, 20_000), buckettest.LargeCases(r, 2_000)...) {
		rule := ruleOf(c)
		var s State
		if c.Stored {
			s, _ = rule.Parse(c.Text)
		}
		s, a := rule.Decide(s, c.Now, c.Charge)
		if a.Wait == Never || a.Wait == MaxWait || s.stamp <= 0 || a.Corrupt {
			continue
		}
		if _, early := rule.Decide(s, c.Now+a.Wait-1, false); early.Remaining != a.Remaining {
			t.Fatalf("%+v: %+v, but %+v one microsecond early", c, a, early)
		}
		if _, then := rule.Decide(s, c.Now+a.Wait, false); then.Remaining <= a.Remaining || then.Denied {
			t.Fatalf("%+v: %+v, but %+v at that instant", c, a, then)
		}
	}
}

// A clock that steps back: the time in between is credited once, whatever the
// order in which the steps arrive.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	b := New(NewTokenBucket(10*Token, Token))
	admitted := 0
	take := func(at int64, times int) {
		for range times {
			if b.Take(at*second, nil) {
				admitted++
			}
		}
	}
	take(100, 5)
	take(40, 1)
	take(100, 50)
	if admitted != 10 {
		t.Errorf("admitted %d, want 10", admitted)
	}
}

func TestCapacityLoweredInPlace(t *testing.T) {
	t.Parallel()
	rule := NewTokenBucket(2*Token, 0)
	s, _ := rule.Parse("9000000:5")
	next, a := rule.Decide(s, 10, true)
	if got := rule.Format(next); got != "1000000:10" || a.Remaining != 1 {
		t.Errorf("state %s, remaining %d", got, a.Remaining)
	}
}

// A waiting time in whole seconds, rounded up, is never too short, whatever the
// rate; a bucket that never refills has none.
func TestWaitsOfTheUsualRates(t *testing.T) {
	t.Parallel()
	for rate, want := range map[int64]int64{
		3 * Token:       333_334,
		Token:           second,
		Token / 7:       7_000_008, // 142,857 microtokens a second
		Token / 3600:    3_610_108_304,
		0:               Never,
		1:               second * second,
		MaxExact:        1,
		Token * 1000003: 1,
	} {
		rule := NewTokenBucket(Token, rate)
		s, _ := rule.Decide(State{}, 77, true)
		if _, a := rule.Decide(s, 77, true); !a.Denied || a.Wait != want {
			t.Errorf("rate %d: denied %t, wait %d, want %d", rate, a.Denied, a.Wait, want)
		}
	}
}

func TestZeroRuleRefuses(t *testing.T) {
	t.Parallel()
	if s, a := (Rule{}).Decide(State{}, 5, true); !a.Denied || a.Wait != Never || s != (State{}) {
		t.Errorf("%+v %+v", s, a)
	}
}

func TestImpossibleRulesPanic(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(){
		"capacity below a token": func() { NewTokenBucket(Token-1, 1) },
		"capacity too large":     func() { NewTokenBucket(MaxExact+1, 1) },
		"negative rate":          func() { NewTokenBucket(Token, -1) },
		"rate too large":         func() { NewTokenBucket(Token, MaxExact+1) },
		"no limit":               func() { NewSlidingWindow(0, 1000) },
		"no window":              func() { NewSlidingWindow(1, 0) },
		"product too large":      func() { NewSlidingWindow(MaxExact/1000+1, 1000) },
		"product overflows":      func() { NewSlidingWindow(math.MaxInt64, math.MaxInt64) },
		"table of no keys":       func() { NewTable(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			build()
		})
	}
}

func TestParseAgreesWithOracle(t *testing.T) {
	t.Parallel()
	for _, text := range buckettest.Texts {
		for _, rule := range []Rule{NewTokenBucket(Token, 1), NewSlidingWindow(1, 1000)} {
			s, ok := rule.Parse(text)
			// A clock far ahead, so that the text alone decides.
			c := buckettest.Case{Sliding: rule.sliding, P1: rule.size, P2: rule.pace, Stored: true, Text: text, Now: 1<<53 - 1}
			if want := !buckettest.Oracle(c).Corrupt; ok != want {
				t.Errorf("%+v: %q: usable %t, want %t", rule, text, ok, want)
			}
			if _, a := rule.Decide(s, c.Now, true); a.Corrupt == ok {
				t.Errorf("%+v: %q: parsed %t, but corrupt %t", rule, text, ok, a.Corrupt)
			}
		}
	}
}

func FuzzState(f *testing.F) {
	for _, text := range buckettest.Texts {
		f.Add(text, int64(1), int64(1_790_000_000_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, pace, now int64) {
		now &= MaxExact - 1
		pace &= MaxExact - 1
		for _, c := range []buckettest.Case{
			{P1: Token + pace/2, P2: pace},
			{Sliding: true, P1: 1 + MaxExact/(pace+1)/2, P2: pace + 1},
		} {
			if c.Sliding && c.P1 > MaxExact/c.P2 {
				c.P1 = 1
			}
			c.Stored, c.Text, c.Now, c.Charge = true, text, now, true
			got, want := decide(c), buckettest.Oracle(c)
			want.Wait = min(want.Wait, MaxWait)
			if got != want {
				t.Fatalf("%+v:\n got %+v\nwant %+v", c, got, want)
			}
			if s, ok := ruleOf(c).Parse(got.Text); got.Text != "" && (!ok || ruleOf(c).Format(s) != got.Text) {
				t.Fatalf("%+v: wrote %q, which it does not read", c, got.Text)
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for name, rule := range map[string]Rule{
		"token":  NewTokenBucket(100*Token, 50*Token),
		"window": NewSlidingWindow(100, 60*second),
	} {
		b.Run(name, func(b *testing.B) {
			var s State
			now := int64(1_790_000_000_000_000)
			for b.Loop() {
				s, _ = rule.Decide(s, now, true)
				now += 1000
			}
		})
	}
}
