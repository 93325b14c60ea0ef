package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// The bucket that is emptied while Redis fails, and what each process may admit
// meanwhile.
const (
	middleCapacity  = 20_000
	middleEmergency = 10 // a second
)

// mishap is a way in which Redis fails while three processes take from it.
type mishap struct {
	name  string
	flags []string
	// forgets: what was charged before is gone after.
	forgets bool
	// do is what happens; nil: the server is killed, and comes back.
	do func(*redistest.Server, *redistest.Proxy)
}

var persistent = []string{"--appendonly", "yes", "--appendfsync", "always"}

var mishaps = []mishap{
	{name: "kill -9, appendfsync always", flags: persistent},
	{name: "kill -9, no persistence", forgets: true},
	{name: "connections reset, every 15 ms", do: func(_ *redistest.Server, p *redistest.Proxy) {
		mend := breakAgain(p)
		time.Sleep(150 * time.Millisecond)
		mend()
	}},
	{name: "stopped for 300 ms", do: func(s *redistest.Server, _ *redistest.Proxy) {
		s.Pause()
		time.Sleep(300 * time.Millisecond)
		s.Resume()
	}},
}

// failInTheMiddle has three processes empty one bucket while Redis fails.
func failInTheMiddle(s *scope, l *lab, sec *section) {
	policies := []sentinel.Policy{
		tokenBucket("bucket", middleCapacity*sentinel.Token, 0), slidingWindow("window", middleCapacity, 24*time.Hour),
	}
	for i := range policies {
		policies[i].FailMode, policies[i].FallbackRate = sentinel.FailOpen, middleEmergency*sentinel.Token
	}
	tab := &table{
		title:   fmt.Sprintf("Redis fails while three processes take from a bucket of %d", middleCapacity),
		columns: []string{"mishap, policy", "rounds", "admitted before", "admitted after", "charged at the end", "charged, not admitted", "forgotten", "emergency, each process"},
	}
	sec.tables = append(sec.tables, tab)
	var lives, charged, nothing, emergency trials
	for _, m := range mishaps {
		for _, p := range policies {
			var sums [6]int
			rounds := pick(l, 12, 1)
			l.logf("contention: %s, %s", m.name, p.EndpointID)
			for range rounds {
				r := middle(s, m, p)
				lives.check(r.before <= middleCapacity && r.after <= middleCapacity, "%s, %s: %d and %d admitted", m.name, p.EndpointID, r.before, r.after)
				if !m.forgets {
					nothing.check(r.before+r.after <= middleCapacity && r.charged >= r.before+r.after, "%s, %s: %d and %d admitted, %d charged", m.name, p.EndpointID, r.before, r.after, r.charged)
				} else {
					charged.check(r.charged >= r.after, "%s, %s: %d admitted, %d charged", m.name, p.EndpointID, r.after, r.charged)
				}
				lost, forgotten := r.charged-r.before-r.after, 0
				if m.forgets {
					lost, forgotten = r.charged-r.after, r.before
				}
				most := 0
				for _, t := range r.processes {
					bound := middleEmergency + int(t.Outage.Seconds()*middleEmergency) + 1
					emergency.check(t.Emergency <= bound, "%s, %s: %d admitted by the emergency bucket in %v, at most %d", m.name, p.EndpointID, t.Emergency, t.Outage, bound)
					most = max(most, t.Emergency)
				}
				for i, n := range []int{r.before, r.after, r.charged, lost, forgotten} {
					sums[i] += n
				}
				sums[5] = max(sums[5], most)
			}
			cells := []string{m.name + ", " + p.EndpointID, fmt.Sprint(rounds)}
			for _, n := range sums[:5] {
				cells = append(cells, fmt.Sprint(n/rounds))
			}
			tab.add(append(cells, fmt.Sprintf("up to %d", sums[5]))...)
		}
	}
	sec.notes = append(sec.notes, "The columns of the table are the mean of the rounds. \"Charged, not admitted\" is what Redis charged and whose answer was lost: the caller took its failure row. kill -9 is the end of a process, not of its machine: what was written to a file is not lost by it.")
	sec.promise(lives.promise("while Redis fails in the middle, what it admits never exceeds the capacity per life of its data", ""))
	sec.promise(nothing.promise("with appendfsync always a kill -9 loses nothing, nor does a reset or a standstill: all that was admitted is charged, the capacity is one", ""))
	sec.promise(charged.promise("without persistence a new life begins with a full bucket, and all that is admitted in it is charged", ""))
	sec.promise(emergency.promise("what a process's emergency bucket admits never exceeds its capacity plus its rate", fmt.Sprintf("%d a second, %d at once", middleEmergency, middleEmergency)))
}

// middleResult is what one round came to.
type middleResult struct {
	before, after int // admitted by Redis, of the mishap
	charged       int
	processes     []Taken
}

// middle is one round.
func middle(s *scope, m mishap, p sentinel.Policy) (r middleResult) {
	// A scope of its own: its servers and processes end with it.
	err := within(s.Context(), func(s *scope) {
		server := redistest.Start(s, m.flags...)
		proxy := redistest.NewProxy(s, server.Addr())
		all := startProcesses(s, 3)
		opening := Opening{URL: proxy.URL(), Policies: []sentinel.Policy{p}, Budget: 20 * time.Millisecond}
		all.open(s, opening)
		push := Push{Tenant: nobody(), Endpoint: p.EndpointID, Goroutines: 16}
		start := func() { together[Push, int](s, all, "Start", func(int) Push { return push }) }
		taken := func(method string) (total int, each []Taken) {
			each = together[int, Taken](s, all, method, func(int) int { return 0 })
			for _, t := range each {
				total += t.Admitted
			}
			return total, each
		}
		start()
		time.Sleep(time.Duration(50+rand.IntN(150)) * time.Millisecond) // #nosec G404 -- no secret
		if m.do == nil {
			server.Kill()
		} else {
			m.do(server, proxy)
		}
		time.Sleep(200 * time.Millisecond)
		r.before, r.processes = taken("Stop")
		if m.do == nil {
			server.Restart()
		}
		// New processes, as far as the limiter is concerned: a breaker that is
		// open would have the round wait for its probe.
		opening.Budget = time.Second
		all.open(s, opening)
		start()
		last := -1
		comes(s.Context(), 20*time.Second, func() bool {
			time.Sleep(100 * time.Millisecond)
			now, _ := taken("Taken")
			over := now == last
			last = now
			return over
		})
		r.after, _ = taken("Stop")
		r.charged = chargedBy(s, server.Client(s), keyOf("v1", push.Tenant, p.EndpointID), middleCapacity)
	})
	if err != nil {
		s.Fatal(err)
	}
	return r
}
