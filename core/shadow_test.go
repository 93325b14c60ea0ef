package sentinel

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// What is not enforced decides, counts, charges and logs as always, and lets
// through. The decision says both.
func TestUnenforced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		registry := prometheus.NewRegistry()
		p := bucketPolicy("jobs", Token, Token/10)
		p.Unenforced = true
		var seen observations
		l := openMemory(t, memoryConfig(p), WithRegisterer(registry), WithObserver(seen.add),
			WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		defer l.Close()
		if d := mustAllow(t, l, "acme", "jobs"); !d.Allowed || !d.Unenforced || d.WouldDeny || d.Reason != ReasonAllowed || d.Remaining != 0 {
			t.Errorf("%+v", d)
		}
		for range 2 {
			d := mustAllow(t, l, "acme", "jobs")
			if !d.Allowed || !d.Unenforced || !d.WouldDeny || d.Reason != ReasonRateLimited || d.RetryAfter != 10*time.Second || d.ID() == "" {
				t.Errorf("%+v", d)
			}
		}
		if d, err := l.Peek(t.Context(), "acme", "jobs"); err != nil || !d.Allowed || !d.WouldDeny {
			t.Errorf("peek: %+v, %v", d, err)
		}
		time.Sleep(10 * time.Second) // the two have charged nothing
		if d := mustAllow(t, l, "acme", "jobs"); d.WouldDeny {
			t.Errorf("%+v", d)
		}
		if len(seen) != 4 || !seen[1].d.WouldDeny || !seen[1].d.Allowed || seen[3].d.WouldDeny {
			t.Errorf("observed %+v", seen)
		}
		const want = `
# HELP sentinel_decisions_total Decisions, by endpoint and reason.
# TYPE sentinel_decisions_total counter
sentinel_decisions_total{decision_reason="allowed",endpoint_id="jobs"} 2
sentinel_decisions_total{decision_reason="rate_limited",endpoint_id="jobs"} 2
# HELP sentinel_shadow_denials_total Denials that were let through, because the policy is not enforced, by endpoint and reason.
# TYPE sentinel_shadow_denials_total counter
sentinel_shadow_denials_total{decision_reason="rate_limited",endpoint_id="jobs"} 2
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sentinel_decisions_total", "sentinel_shadow_denials_total"); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), `"sentinel: denied, not enforced"`); n != 2 || strings.Count(log.String(), "enforced=false") != 2 {
			t.Errorf("log:\n%s", log.String())
		}
		if !strings.Contains(log.String(), `policies[\"jobs\"].enforce: false: decides and counts, and lets every request through`) {
			t.Errorf("nothing was said at start:\n%s", log.String())
		}
	})
}

// What is enforced says nothing of it.
func TestEnforced(t *testing.T) {
	var log bytes.Buffer
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	defer l.Close()
	mustAllow(t, l, "acme", "jobs")
	if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.Unenforced || d.WouldDeny || d.CandidateDenies {
		t.Errorf("%+v", d)
	}
	if strings.Contains(log.String(), "enforced") {
		t.Errorf("log:\n%s", log.String())
	}
}

// While the store is away what is not enforced lets through as well, whatever the
// row of the decision table.
func TestUnenforcedWithoutStore(t *testing.T) {
	for mode, want := range map[FailMode][]Reason{
		FailClosed: {ReasonFailClosed, ReasonFailClosed},
		FailOpen:   {ReasonRedisConnectionError, ReasonEmergencyLocalLimit},
	} {
		p := bucketPolicy("jobs", Token, 0)
		p.FailMode, p.FallbackRate, p.Unenforced = mode, 1, true
		l := openMemory(t, memoryConfig(p))
		l.Close()
		for i, reason := range want {
			d := mustAllow(t, l, "acme", "jobs")
			denied := reason == ReasonFailClosed || reason == ReasonEmergencyLocalLimit
			if !d.Allowed || d.WouldDeny != denied || d.Reason != reason || d.FromStore {
				t.Errorf("%s, %d: %+v", mode, i, d)
			}
		}
	}
}

// A known denial and an open breaker are let through as well.
func TestUnenforcedWithoutACall(t *testing.T) {
	for reason, l := range map[Reason]*Limiter{ReasonRateLimited: knownDenial(t), ReasonCircuitOpen: breakerOpen(t)} {
		l.setup.Load().endpoints["jobs"].unenforced = true
		if d := mustAllow(t, l, "tenant-0", "jobs"); !d.Allowed || !d.WouldDeny || d.Reason != reason {
			t.Errorf("%s: %+v", reason, d)
		}
		l.Close()
	}
}

// A new client gets its cookie, for its request is allowed.
func TestUnenforcedCookie(t *testing.T) {
	p := bucketPolicy("visit", Token, 0)
	p.Identity, p.Unenforced = Anonymous, true
	l := openMemory(t, memoryConfig(p))
	defer l.Close()
	for i := range 2 {
		d, err := l.Check(t.Context(), Request{EndpointID: "visit", Peer: "192.0.2.1:1"})
		if err != nil || !d.Allowed || d.WouldDeny != (i == 1) || d.Cookie == nil {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if _, err := l.Check(t.Context(), Request{EndpointID: "nowhere"}); err == nil {
		t.Error("who asks for an unknown endpoint without a token is let through")
	}
}

// tried is a policy with a candidate.
func tried(p Policy, q Quota, also ...Quota) Policy {
	p.Candidate = &Candidate{Quota: q, Also: also}
	return p
}

// compared is how often live and candidate said what.
func compared(t *testing.T, registry *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, f := range families {
		if f.GetName() != "sentinel_candidate_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			counts[m.GetLabel()[2].GetValue()+"/"+m.GetLabel()[0].GetValue()] += int(m.GetCounter().GetValue()) // live/candidate
		}
	}
	return counts
}

// A candidate sees every request, is charged by its own verdict, and changes
// nothing.
func TestCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		p := tried(bucketPolicy("jobs", 3*Token, Token/10),
			Quota{Algorithm: TokenBucket, Capacity: 2 * Token, RefillRate: Token},
			Quota{Algorithm: SlidingWindow, Limit: 4})
		l := openMemory(t, memoryConfig(p), WithRegisterer(registry))
		defer l.Close()
		ask := func(live, candidate bool, remaining int64) {
			t.Helper()
			d := mustAllow(t, l, "acme", "jobs")
			if d.Allowed != live || d.CandidateDenies == candidate || d.Remaining != remaining || d.Limit != 3 {
				t.Errorf("%+v", d)
			}
		}
		ask(true, true, 2)
		ask(true, true, 1)
		ask(true, false, 0)
		ask(false, false, 0)
		time.Sleep(2 * time.Second) // the candidate is full again, the live bucket is not
		ask(false, true, 0)
		ask(false, true, 0)
		time.Sleep(2 * time.Second)
		ask(false, false, 0) // by its second limit: four in a minute
		want := map[string]int{"allowed/allowed": 2, "allowed/denied": 1, "denied/denied": 2, "denied/allowed": 2}
		if got := compared(t, registry); len(got) != len(want) || got["allowed/allowed"] != 2 || got["allowed/denied"] != 1 || got["denied/denied"] != 2 || got["denied/allowed"] != 2 {
			t.Errorf("%v, want %v", got, want)
		}
		if err := l.Reset(t.Context(), "acme", "jobs"); err != nil {
			t.Fatal(err)
		}
		ask(true, true, 2) // a reset is of both
	})
}

// With a candidate and without, the live decisions are the same, also where there
// are costs, several limits, plans, and where the candidate is what it should not
// be; and the candidate decides as the same policy would that is live.
func TestCandidateChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seed = 7
		random := rand.New(rand.NewPCG(seed, seed))
		for range 50 {
			quotas := func() []Quota {
				return []Quota{
					{Algorithm: TokenBucket, Capacity: Micro(1+random.IntN(9)) * Token, RefillRate: Micro(random.IntN(5_000_000))},
					{Algorithm: SlidingWindow, Limit: 1 + random.Int64N(9), Window: time.Duration(1+random.IntN(9)) * time.Second},
				}
			}
			plain := Policy{EndpointID: "jobs", FailMode: FailClosed, FallbackRate: Token, Version: 1}
			as := func(quotas []Quota) Policy {
				p, q := plain, quotas[0]
				p.Algorithm, p.Capacity, p.RefillRate, p.Limit, p.Window = q.Algorithm, q.Capacity, q.RefillRate, q.Limit, q.Window
				p.Also = quotas[1:]
				return p
			}
			live, candidate := quotas(), quotas()
			if random.IntN(2) == 0 {
				slices.Reverse(live)
			}
			if random.IntN(2) == 0 {
				slices.Reverse(candidate)
			}
			registry := prometheus.NewRegistry()
			both := openMemory(t, memoryConfig(tried(as(live), candidate[0], candidate[1:]...)), WithRegisterer(registry))
			one, other := openMemory(t, memoryConfig(as(live))), openMemory(t, memoryConfig(as(candidate)))
			for step := range 100 {
				cost := Cost(1 + random.IntN(3))
				allow := func(l *Limiter) Decision {
					d, err := l.Allow(t.Context(), "acme", "jobs", cost)
					if err != nil {
						t.Fatal(err)
					}
					return d
				}
				d, want, beside := allow(both), allow(one), allow(other)
				if d.CandidateDenies != !beside.Allowed {
					t.Fatalf("step %d: the candidate says %v, live it would say %+v", step, d.CandidateDenies, beside)
				}
				if d.Allowed != want.Allowed || d.Remaining != want.Remaining || d.RetryAfter != want.RetryAfter || d.ResetAfter != want.ResetAfter {
					t.Fatalf("step %d: %+v, without a candidate %+v", step, d, want)
				}
				time.Sleep(time.Duration(random.IntN(1_500_000)) * time.Microsecond)
			}
			both.Close()
			one.Close()
			other.Close()
		}
	})
}

// The candidate has one bucket for a tenant under all of its plans.
func TestCandidateUnderPlans(t *testing.T) {
	p := tried(bucketPolicy("jobs", 9*Token, 0), Quota{Algorithm: TokenBucket, Capacity: 2 * Token})
	p.Plans = map[string]Plan{"small": {Numbers: Numbers{Capacity: Token}}}
	p.Tenants = map[string]Plan{"vip": {Numbers: Numbers{Capacity: 5 * Token}}}
	plan := ""
	l := openMemory(t, memoryConfig(p), WithPlan(func(context.Context, string) string { return plan }))
	defer l.Close()
	for i, of := range []string{"small", "", "small"} {
		plan = of
		if d := mustAllow(t, l, "acme", "jobs"); d.CandidateDenies != (i == 2) {
			t.Errorf("%d: %+v", i, d)
		}
	}
	for i := range 3 {
		if d := mustAllow(t, l, "vip", "jobs"); d.CandidateDenies != (i == 2) || !d.Allowed {
			t.Errorf("vip, %d: %+v", i, d)
		}
	}
}

// An anonymous client's candidate counts cookie and peer together.
func TestCandidateOfTheAnonymous(t *testing.T) {
	p := tried(bucketPolicy("visit", 9*Token, 0), Quota{Algorithm: TokenBucket, Capacity: 2 * Token})
	p.Identity = Anonymous
	l := openMemory(t, memoryConfig(p))
	defer l.Close()
	r := Request{EndpointID: "visit", Peer: "192.0.2.1:1"}
	for i, peer := range []string{"192.0.2.1:1", "192.0.2.1:1", "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"} {
		r.Peer = peer
		d, err := l.Check(t.Context(), r)
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		if d.Cookie != nil {
			r.Cookies = []string{d.Cookie.Name + "=" + d.Cookie.Value}
		}
		// The peer's second is the cookie's first; its third denies, and charges
		// the cookie nothing. The cookie's second is admitted, its third denied.
		if want := i == 2 || i == 4; d.CandidateDenies != want {
			t.Errorf("%d: %+v", i, d)
		}
	}
}

// In memory the candidates' keys take no room from the others.
func TestCandidateTakesNoRoom(t *testing.T) {
	cfg := memoryConfig(tried(bucketPolicy("jobs", Token, 0), Quota{Algorithm: TokenBucket, Capacity: Token}))
	cfg.App.RedisURL = NewSecret("memory://?max_keys=2")
	l := openMemory(t, cfg)
	defer l.Close()
	for _, tenant := range []string{"one", "two"} {
		if d := mustAllow(t, l, tenant, "jobs"); !d.Allowed || d.CandidateDenies {
			t.Errorf("%s: %+v", tenant, d)
		}
	}
}

// Where the store does not answer there is nothing to compare.
func TestCandidateWithoutStore(t *testing.T) {
	registry := prometheus.NewRegistry()
	p := tried(bucketPolicy("jobs", Token, 0), Quota{Algorithm: TokenBucket, Capacity: Token})
	l := openMemory(t, memoryConfig(p), WithRegisterer(registry))
	l.Close()
	if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.CandidateDenies || d.Reason != ReasonFailClosed && d.Reason != ReasonRedisConnectionError {
		t.Errorf("%+v", d)
	}
	if got := compared(t, registry); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// The keys of a candidate are in the live key's slot, and nobody else's.
func TestCandidateKeys(t *testing.T) {
	key, _ := tenantKey("acme", "jobs", 3)
	if got, want := candidateKey(key, 1, Quota{Algorithm: TokenBucket}), "sentinel:{"+key+"}:c1b"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := candidateKey(key, 2, Quota{Algorithm: SlidingWindow, Window: time.Minute}), "sentinel:{"+key+"}:c2w60000000"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	seen := map[string]bool{key: true}
	for number := 2; number <= maxLimits; number++ {
		seen[furtherKey(key, number)] = true
	}
	for number := 1; number <= maxLimits; number++ {
		for _, q := range []Quota{{Algorithm: TokenBucket}, {Algorithm: SlidingWindow, Window: time.Millisecond}, {Algorithm: SlidingWindow, Window: time.Hour}} {
			of := candidateKey(key, number, q)
			if seen[of] || specSlot(of) != specSlot(key) {
				t.Errorf("%s is another's, or in another slot", of)
			}
			seen[of] = true
		}
	}
}

// In a call, what is beside the decisions stands behind all of them, in runs of
// its own.
func TestEncodeCallBeside(t *testing.T) {
	live, beside := groupOf(cookieSubject), groupOf(peerSubject)
	for cost, want := range map[Cost][]any{
		0: {"d", 2, "b", int64(5_000_000), int64(1000), "?", 2, "w", int64(10), int64(60_000_000)},
		7: {"D", 2, "b", int64(7), int64(5_000_000), int64(1000), "?", 2, "w", int64(7), int64(10), int64(60_000_000)},
	} {
		live.cost, beside.cost = cost, cost
		args := encodeCall(nil, modeDecide, []group{live, live}, beside, beside)
		if args[2] != 4 || *args[4].(*string) != "cookie" || *args[5].(*string) != "ip" || !slices.Equal(args[7:], want) {
			t.Errorf("%v, want %v", args, want)
		}
	}
}

// The parts of a reply that are beside the decisions spoil none of them: where one
// makes no sense, it alone is unanswered.
func TestShareBeside(t *testing.T) {
	tried := func() *waiter {
		return &waiter{question: question{group: groupOf(cookieSubject), beside: &beside{group: groupOf(cookieSubject)}}}
	}
	first, plain, last := tried(), &waiter{question: question{group: groupOf(cookieSubject)}}, tried()
	full := []int64{0, 0, 5_000_000, 4} // wait, time, tokens; verdict
	reply := slices.Concat([]int64{testTime}, full, full, full, []int64{0, 0, 5_000_000, 9}, []int64{1_000_000_000, 0, 0, -1})
	if failure := share(modeDecide, []*waiter{first, plain, last}, reply); failure != nil {
		t.Fatal(failure)
	}
	want := bucket.Answer{Remaining: 4, Wait: 1_000_000_000, Reset: 1000}
	for i, w := range []*waiter{first, plain, last} {
		if w.verdict != verdictOf(true, want) {
			t.Errorf("%d: %+v", i, w.verdict)
		}
	}
	if first.beside.answered {
		t.Errorf("what contradicts itself is an answer: %+v", first.beside.verdict)
	}
	if !last.beside.answered || last.beside.verdict.allowed {
		t.Errorf("%+v", last.beside)
	}
	if failure := share(modeDecide, []*waiter{tried()}, slices.Concat([]int64{testTime}, full)); failure == nil || failure.kind != kindBadReply {
		t.Errorf("a reply that is too short: %+v", failure)
	}
}
