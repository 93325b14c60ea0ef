package upstream

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

var balances = []config.Balance{config.RoundRobin, config.LeastConnections, config.PowerOfTwo}

// picks counts n requests, one after the other, by host.
func picks(t *testing.T, p *Pool, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		got[send(t, p, breaker.Success).identity.host]++
	}
	return got
}

func TestRoundRobinSharesWhatADownBackendWouldGet(t *testing.T) {
	for before := range 3 {
		p := single(t, abc(t))
		picks(t, p, before)
		p.backend("b").become(unhealthy)
		got := picks(t, p, 9000)
		if got["b"] != 0 || got["a"] < 4499 || got["a"] > 4501 {
			t.Errorf("after %d requests: %v, want half each", before, got)
		}
	}
}

func TestRoundRobinIsExactAmongManyCallers(t *testing.T) {
	p := single(t, abc(t))
	const callers, each = 8, 1500
	var got [3]atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				l, _, _ := p.Acquire()
				got[l.Backend().identity.host[0]-'a'].Add(1)
				l.Done()
			}
		})
	}
	all.Wait()
	for i := range got {
		if n := got[i].Load(); n != callers*each/3 {
			t.Errorf("backend %d: %d of %d", i, n, callers*each)
		}
	}
}

func TestRoundRobinKeepsToTheWeights(t *testing.T) {
	p := single(t, weighted(abc(t), 5, 0, 2))
	if got := picks(t, p, 700); got["a"] != 500 || got["b"] != 0 || got["c"] != 200 {
		t.Errorf("%v", got)
	}
}

func TestABackendThatIsThereTwiceHasBothWeights(t *testing.T) {
	p := single(t, poolOf(t, "http://a", "http://b:80", "http://A:80"))
	if got := picks(t, p, 300); len(p.members) != 2 || got["a"] != 200 {
		t.Errorf("%d members, %v", len(p.members), got)
	}
}

func TestLeastConnectionsFollowsTheLoad(t *testing.T) {
	for _, balance := range []config.Balance{config.LeastConnections, config.PowerOfTwo} {
		c := poolOf(t, "http://a:80", "http://b:80")
		c.Balance = balance
		p := single(t, c)
		p.backend("a").inFlight.Store(9)
		p.backend("b").inFlight.Store(1)
		if got := picks(t, p, 10_000); got["b"] != 10_000 {
			t.Errorf("%s: %v", balance, got)
		}
	}
}

// Nobody is next because of where the file has it.
func TestIdleBackendsAreAsLikely(t *testing.T) {
	for _, balance := range []config.Balance{config.LeastConnections, config.PowerOfTwo} {
		c := abc(t)
		c.Balance = balance
		got := picks(t, single(t, c), 9000)
		for host, n := range got {
			if math.Abs(float64(n-3000)) > 300 { // more than six standard deviations
				t.Errorf("%s: %s has %d of 9000", balance, host, n)
			}
		}
	}
}

func TestNoMoreInFlightThanTheBound(t *testing.T) {
	for _, balance := range balances {
		c := guarded(poolOf(t, "http://a:80", "http://b:80"))
		c.Balance, c.MaxInFlight = balance, 3
		p := single(t, c)
		var got, full atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				switch l, why, _ := p.Acquire(); {
				case l != nil:
					got.Add(1)
				case why == Overloaded:
					full.Add(1)
				}
			})
		}
		all.Wait()
		if got.Load() != 6 || full.Load() != 94 {
			t.Errorf("%s: %d in flight, %d refused as too many", balance, got.Load(), full.Load())
		}
	}
}

// Two who see the last place at the same moment do not both get it.
func TestTheLastPlaceIsForOne(t *testing.T) {
	c := one(t)
	c.MaxInFlight = 1
	p := single(t, c)
	const rounds = 5000
	var arrived, got atomic.Int64
	var all sync.WaitGroup
	together := func(turn int64) { // awake, or one would run after the other
		arrived.Add(1)
		for since := time.Now(); arrived.Load() < 2*turn; {
			if time.Since(since) > 20*time.Microsecond {
				runtime.Gosched() // there are fewer cores than callers
			}
		}
	}
	for range 2 {
		all.Go(func() {
			for round := range int64(rounds) {
				together(2*round + 1)
				l, _, _ := p.Acquire()
				together(2*round + 2)
				if l != nil {
					got.Add(1)
					l.Done()
				}
			}
		})
	}
	all.Wait()
	if n := got.Load(); n != rounds {
		t.Errorf("%d leases in %d rounds", n, rounds)
	}
}

func TestWhoWasTriedIsNotTriedAgain(t *testing.T) {
	for _, balance := range balances {
		c := abc(t)
		c.Balance = balance
		p := single(t, c)
		var tried []*Backend
		for range 3 {
			l := acquire(t, p, tried...)
			if slices.Contains(tried, l.Backend()) {
				t.Fatalf("%s: %s again", balance, l.Backend().Name())
			}
			tried = append(tried, l.Backend())
			l.Done()
		}
		if l, why, wait := p.Acquire(tried...); l != nil || why != NoBackend || wait != 0 {
			t.Errorf("%s: all were tried: %v, %d, %v", balance, l, why, wait)
		}
	}
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := guarded(weighted(abc(t), 1, 1, 0))
		c.MaxInFlight = 20
		p := single(t, c)
		a, b := p.backend("a"), p.backend("b")
		a.become(unhealthy)
		b.become(unhealthy)
		refused(t, p, NoBackend, soon) // c has no weight

		b.become(healthy)
		for range 5 {
			send(t, p, breaker.Failure)
		}
		time.Sleep(12 * time.Second)
		refused(t, p, BreakerOpen, soon) // a may be back before
		a.become(healthy)
		for range 5 {
			send(t, p, breaker.Failure)
		}
		refused(t, p, BreakerOpen, 18*time.Second) // b's is the soonest
		b.become(unhealthy)
		refused(t, p, BreakerOpen, 18*time.Second) // and is not sooner than its breaker

		time.Sleep(18 * time.Second)
		b.become(unchecked)
		b.inFlight.Store(20)
		refused(t, p, Overloaded, 0)
		b.inFlight.Store(0)
		send(t, p, breaker.Success)
	})
}

func TestAPoolWithoutBackendsRefuses(t *testing.T) {
	refused(t, single(t, config.Pool{Name: "pool"}), NoBackend, 0)
}

// The open period is over: of 1,000 callers at once, one is the probe.
func TestOneProbeAmongManyCallers(t *testing.T) {
	for _, balance := range balances {
		synctest.Test(t, func(t *testing.T) {
			c := guarded(one(t))
			c.Balance = balance
			p := single(t, c)
			breakOpen(t, p)
			refused(t, p, BreakerOpen, 30*time.Second)
			time.Sleep(30 * time.Second)
			var probes, kept atomic.Int64
			var probe atomic.Pointer[Lease]
			var all sync.WaitGroup
			for range 1000 {
				all.Go(func() {
					switch l, why, _ := p.Acquire(); {
					case l != nil:
						probes.Add(1)
						probe.Store(l)
					case why == BreakerOpen:
						kept.Add(1)
					}
				})
			}
			all.Wait()
			if probes.Load() != 1 || kept.Load() != 999 || p.members[0].backend.inFlight.Load() != 1 {
				t.Fatalf("%s: %d probes, %d kept away", balance, probes.Load(), kept.Load())
			}
			probe.Load().Report(breaker.Success)
			probe.Load().Done()
			picks(t, p, 10)
		})
	}
}

// Many who raced for one backend's probe and lost took none of its turns.
func TestALostRaceCostsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := guarded(poolOf(t, "http://a:80", "http://b:80"))
		p := single(t, c)
		for p.backend("a").Breaker() != breaker.Open {
			l := acquire(t, p, p.backend("b"))
			l.Report(breaker.Failure)
			l.Done()
		}
		time.Sleep(30 * time.Second)
		var all sync.WaitGroup
		var probe atomic.Pointer[Lease]
		for range 1000 {
			all.Go(func() {
				l, _, _ := p.Acquire()
				if l.Probe() {
					probe.Store(l)
					return
				}
				l.Done()
			})
		}
		all.Wait()
		probe.Load().Report(breaker.Success)
		probe.Load().Done()
		if got := picks(t, p, 100); got["a"] < 49 {
			t.Errorf("%v after the race", got)
		}
	})
}

// What was free when the candidates were looked at, and is not when one of them is
// chosen, costs nothing: no turn, and no request in flight.
func TestWhoComesTooLateTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := guarded(poolOf(t, "http://a:80", "http://b:80"))
		c.MaxInFlight = 2
		p := single(t, c)
		for _, m := range p.members {
			for m.backend.Breaker() != breaker.Open {
				pass, _ := m.backend.breaker.Acquire(p.registry.now())
				m.backend.breaker.Report(p.registry.now(), pass, breaker.Failure)
			}
		}
		time.Sleep(30 * time.Second)
		late := func(want Refusal) {
			t.Helper()
			now := p.registry.now()
			among, _ := p.survey(nil, now, nil)
			if len(among) != 2 {
				t.Fatalf("%d candidates", len(among))
			}
			var faster []*Lease
			for l, _, _ := p.Acquire(); l != nil; l, _, _ = p.Acquire() {
				faster = append(faster, l)
			}
			turns := slices.Clone(p.turn)
			for range 10 {
				if l, why := p.try(among, now); l != nil || why != want {
					t.Fatalf("lease %v, refusal %d, want %d", l, why, want)
				}
				if !slices.Equal(p.turn, turns) {
					t.Fatalf("turns %v, were %v", p.turn, turns)
				}
			}
			for _, l := range faster {
				l.Report(breaker.Success)
				l.Done()
			}
			for _, m := range p.members {
				if n := m.backend.inFlight.Load(); n != 0 {
					t.Errorf("%s: %d in flight", m.backend.Name(), n)
				}
			}
		}
		late(BreakerOpen)
		late(Overloaded)
	})
}

// A backend whose breaker has been open long enough is one of the candidates,
// beside others that are well: else it would never close.
func TestABackendComesBackBesideOthers(t *testing.T) {
	for _, balance := range balances {
		synctest.Test(t, func(t *testing.T) {
			c := guarded(abc(t))
			c.Balance = balance
			p := single(t, c)
			b := p.backend("b")
			for b.Breaker() != breaker.Open {
				l := acquire(t, p, p.backend("a"), p.backend("c"))
				l.Report(breaker.Failure)
				l.Done()
			}
			if got := picks(t, p, 100); got["b"] != 0 {
				t.Fatalf("%s: open, and chosen: %v", balance, got)
			}
			time.Sleep(30 * time.Second)
			if got := picks(t, p, 300); got["b"] < 50 || b.Breaker() != breaker.Closed {
				t.Fatalf("%s: %v, %v, it does not come back", balance, got, b.Breaker())
			}
		})
	}
}

// Without any health check the first request after the open period closes it.
func TestABreakerClosesWithoutHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes []breaker.State
		r := newTest(t, Options{Changed: func(pool, backend string, _, to breaker.State) {
			if pool != "pool" || backend != "a:80" {
				t.Errorf("%s, %s", pool, backend)
			}
			changes = append(changes, to)
		}})
		p := r.Generation([]config.Pool{guarded(one(t))}, requestTimeout).Pool("pool")
		breakOpen(t, p)
		time.Sleep(30*time.Second - 1)
		refused(t, p, BreakerOpen, 1)
		time.Sleep(time.Nanosecond)
		l := acquire(t, p)
		if !l.Probe() {
			t.Error("no probe")
		}
		l.Report(breaker.Success) // a 404, too, is an answer
		send(t, p, breaker.Success)
		l.Done()
		if want := []breaker.State{breaker.Open, breaker.HalfOpen, breaker.Closed}; !slices.Equal(changes, want) {
			t.Errorf("transitions %v, want %v", changes, want)
		}
	})
}

// A probe holds its slot for as long as a request may take, and ten seconds at least.
func TestAProbeHasTheTimeOfARequest(t *testing.T) {
	for request, lease := range map[time.Duration]time.Duration{time.Second: 10 * time.Second, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			p := newTest(t, Options{}).Generation([]config.Pool{guarded(one(t))}, request).Pool("pool")
			breakOpen(t, p)
			time.Sleep(30 * time.Second)
			lost := acquire(t, p)
			time.Sleep(lease - 1)
			refused(t, p, BreakerOpen, soon)
			time.Sleep(time.Nanosecond)
			l := acquire(t, p)
			lost.Report(breaker.Failure) // too late
			l.Report(breaker.Success)
			lost.Done()
			l.Done()
			if s := p.members[0].backend.Breaker(); s != breaker.Closed {
				t.Errorf("%v", s)
			}
		})
	}
}

// model is a backend of the model test: what it promises, in the plainest way.
type model struct {
	weight   int64
	standing standing
	inFlight int64
	credit   int64

	state breaker.State
	era   int
	row   int
	until time.Duration
}

const (
	modelFailures = 3
	modelOpen     = 20 * time.Second
	modelLease    = 10 * time.Second
	modelBound    = 6
)

// obstacle and wait are as the pool's.
func (m *model) obstacle(now time.Duration) (Refusal, time.Duration) {
	breakerWait := time.Duration(0)
	switch m.state {
	case breaker.Open:
		breakerWait = max(0, m.until-now)
	case breaker.HalfOpen:
		breakerWait = soon
	}
	switch {
	case m.standing == unhealthy:
		return NoBackend, max(soon, breakerWait)
	case m.state != breaker.Closed && now < m.until:
		return BreakerOpen, breakerWait
	case m.inFlight >= modelBound:
		return Overloaded, 0
	}
	return 0, 0
}

// enter is a request that has been let through.
func (m *model) enter(now time.Duration) (era int) {
	m.inFlight++
	if m.state != breaker.Closed {
		m.state, m.until = breaker.HalfOpen, now+modelLease
		m.era++
	}
	return m.era
}

func (m *model) report(now time.Duration, era int, o breaker.Outcome) {
	if era != m.era {
		return
	}
	switch {
	case o == breaker.Neutral && m.state == breaker.HalfOpen:
		m.until = math.MinInt64
	case o == breaker.Neutral:
	case o == breaker.Success && m.state == breaker.Closed:
		m.row = 0
	case o == breaker.Success:
		m.state, m.row = breaker.Closed, 0
		m.era++
	default:
		if m.row++; m.row == modelFailures || m.state == breaker.HalfOpen {
			m.state, m.row, m.until = breaker.Open, 0, now+modelOpen
			m.era++
		}
	}
}

// Requests, results, health and time in any order: each choice is one that the
// model allows, and each refusal is the model's.
func TestPicksAgainstTheModel(t *testing.T) {
	for _, balance := range balances {
		seen := map[Refusal]int{}
		for seed := range uint64(150) {
			synctest.Test(t, func(t *testing.T) { walk(t, balance, seed, seen) })
		}
		if seen[0] < 3000 || seen[NoBackend] < 50 || seen[BreakerOpen] < 50 || seen[Overloaded] < 50 {
			t.Errorf("%s: %v: the walk misses its aim", balance, seen)
		}
	}
}

func walk(t *testing.T, balance config.Balance, seed uint64, seen map[Refusal]int) {
	r := rand.New(rand.NewPCG(11, seed))
	c := abc(t)
	c.Backends = c.Backends[:1+r.IntN(3)]
	c.Balance, c.MaxInFlight = balance, modelBound
	c.Breaker = config.Breaker{Failures: modelFailures, OpenFor: modelOpen}
	for i := range c.Backends {
		c.Backends[i].Weight = 1 + r.IntN(3)
	}
	p := newTest(t, Options{}).Generation([]config.Pool{c}, 0).Pool("pool")
	models := make([]*model, len(p.members))
	for i, m := range p.members {
		models[i] = &model{weight: m.weight, credit: p.turn[i], standing: unchecked}
	}
	type request struct {
		lease *Lease
		of    *model
		era   int
	}
	var out []request
	for step := range 300 {
		now := p.registry.now()
		switch k := r.IntN(20); {
		case k < 10:
			l, why, wait := p.Acquire()
			seen[why]++
			var of *model
			for i, m := range p.members {
				if l != nil && m.backend == l.Backend() {
					of = models[i]
				}
			}
			if fault := judge(balance, models, of, why, wait, now); fault != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, fault)
			}
			if of != nil {
				out = append(out, request{l, of, of.enter(now)})
			}
		case k < 17 && len(out) > 0:
			i := r.IntN(len(out))
			o := []breaker.Outcome{breaker.Neutral, breaker.Success, breaker.Failure, breaker.Failure}[r.IntN(4)]
			out[i].of.report(now, out[i].era, o)
			out[i].of.inFlight--
			if o != breaker.Neutral || r.IntN(2) == 0 {
				out[i].lease.Report(o)
			}
			out[i].lease.Done()
			out = slices.Delete(out, i, i+1)
		case k == 17:
			i, s := r.IntN(len(models)), []standing{unhealthy, healthy, unknown}[r.IntN(3)]
			models[i].standing = s
			p.members[i].backend.become(s)
		default:
			time.Sleep([]time.Duration{time.Second, modelLease - 1, modelLease, modelOpen}[r.IntN(4)])
		}
		for i, m := range models {
			b := p.members[i].backend
			if b.Breaker() != m.state || b.inFlight.Load() != m.inFlight {
				t.Fatalf("seed %d, step %d: %v with %d in flight; the model %v, %d", seed, step, b.Breaker(), b.inFlight.Load(), m.state, m.inFlight)
			}
		}
	}
}

// judge says what is wrong with a choice, of, or a refusal.
func judge(balance config.Balance, models []*model, of *model, why Refusal, wait, now time.Duration) string {
	var among []*model
	refusal, soonest := NoBackend, time.Duration(0)
	for _, m := range models {
		switch r, w := m.obstacle(now); r {
		case 0:
			among = append(among, m)
		default:
			refusal = max(refusal, r)
			if w > 0 && (soonest == 0 || w < soonest) {
				soonest = w
			}
		}
	}
	if refusal == Overloaded {
		soonest = 0
	}
	switch {
	case of == nil && len(among) > 0:
		return "refused, and there are candidates"
	case of == nil && (why != refusal || wait != soonest):
		return "not the refusal, or not its time"
	case of == nil:
		return ""
	case !slices.Contains(among, of):
		return "no candidate was chosen"
	}
	return judgeChoice(balance, among, of)
}

func judgeChoice(balance config.Balance, among []*model, of *model) string {
	load := func(m *model) float64 { return float64(m.inFlight) / float64(m.weight) }
	heavier, total := 0, int64(0)
	for _, m := range among {
		m.credit += m.weight
		total += m.weight
		if load(m) < load(of) {
			heavier++
		}
	}
	for _, m := range among {
		if balance == config.RoundRobin && m.credit > of.credit {
			return "another one's turn was due"
		}
	}
	of.credit -= total
	switch {
	case balance == config.LeastConnections && heavier > 0:
		return "another has less to do"
	case balance == config.PowerOfTwo && heavier > 0 && heavier == len(among)-1:
		return "there is nobody who has more to do"
	}
	return ""
}
