package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// stepped is a policy under live traffic, and the bounds that it has to keep.
type stepped struct {
	policy sentinel.Policy
	fill   int64         // the most that is admitted at one instant
	pace   time.Duration // in which one more comes
	longer time.Duration // the longest wait with a clock that is right
}

// The horizons are below a minute, so that a step of an hour is beyond the limit.
var steppedPolicies = []stepped{
	{tokenBucket("bucket", 5*sentinel.Token, 5*sentinel.Token), 5, 200 * time.Millisecond, 200 * time.Millisecond},
	{slidingWindow("window", 10, 2*time.Second), 10, 200 * time.Millisecond, 4 * time.Second},
}

var clockSteps = []time.Duration{3 * time.Second, -3 * time.Second, hour, -hour, year, -year}

// stepClocks steps a clock that runs, under live traffic of a limiter as it is
// by default, known denials included. It steps between two script calls: Redis 7.0
// goes by two times within one that it falls into, as docs/known-limits.md says.
func stepClocks(s *scope, l *lab, sec *section) {
	library := shim(s)
	server, clock := startClocked(s, library)
	var policies []sentinel.Policy
	for _, p := range steppedPolicies {
		policies = append(policies, p.policy)
	}
	limiter := openLimiter(s, configure(server.URL(), policies...))
	tab := &table{title: "Steps of a running clock, under live traffic", columns: []string{"step, policy", "tries", "admitted", "at most", "longest wait, s", "at most"}}
	sec.tables = append(sec.tables, tab)
	var more, wait trials
	run := pick(l, 8*time.Second, 5*time.Second)
	steps := clockSteps
	if l.short {
		steps = clockSteps[:4]
	}
	ahead := time.Duration(0)
	for _, step := range steps {
		l.logf("clocks: a running clock steps by %v", step)
		clock.run(ahead)
		var between sync.RWMutex
		var all sync.WaitGroup
		var results [2]traffic
		begin := time.Now()
		for i, p := range steppedPolicies {
			all.Go(func() { results[i] = hammer(s, limiter, p.policy.EndpointID, begin.Add(time.Second+run), &between) })
		}
		time.Sleep(time.Second)
		ahead += step
		between.Lock()
		clock.run(ahead)
		between.Unlock()
		all.Wait()
		for i, p := range steppedPolicies {
			t := results[i]
			most := p.most(t.took, step)
			longest := p.longest(step)
			more.check(t.admitted <= most, "%v, %s: %d admitted, at most %d", step, p.policy.EndpointID, t.admitted, most)
			wait.check(t.longest <= longest, "%v, %s: nobody admitted for %v, at most %v", step, p.policy.EndpointID, t.longest, longest)
			tab.add(fmt.Sprintf("%+v, %s", step, p.policy.EndpointID), fmt.Sprint(t.tries), fmt.Sprint(t.admitted), fmt.Sprint(most),
				fmt.Sprintf("%.2f", t.longest.Seconds()), fmt.Sprintf("%.2f", longest.Seconds()))
		}
	}
	sec.promise(more.promise("under live traffic a step gives nobody more than the policy on Redis's clock, plus one fresh bucket where it is back beyond the limit", ""))
	sec.promise(wait.promise("and keeps nobody waiting longer than the step, where it is within the limit, plus the policy's own horizon", ""))
}

// most is what a tenant may get in so long a time with one step in it: what there
// is at first, what flows in on Redis's clock, and at most once more as much as
// there is at first, by a step forward that refills or by one back beyond the
// limit. A window is an estimate, so that one of the real time can overlap two.
func (p stepped) most(took, step time.Duration) int64 {
	most := p.fill
	if step < 0 && step > -time.Minute {
		took = max(0, took+step)
	} else {
		most += min(p.fill, int64(max(step, -step)/p.pace))
	}
	if p.policy.Algorithm == sentinel.SlidingWindow {
		most += p.fill
	}
	return most + int64(took/p.pace) + 1
}

// longest is how long nobody may be admitted: a step back within the limit, the
// horizon, and what a known denial may be late, with room for a busy machine.
func (p stepped) longest(step time.Duration) time.Duration {
	longest := p.longer + time.Second + 500*time.Millisecond
	if step > -time.Minute && step < 0 {
		longest -= step
	}
	return longest
}

// traffic is what came of a tenant who asks without end.
type traffic struct {
	tries, admitted int64
	longest, took   time.Duration // longest: without an admission
}

// hammer is a tenant of its own who asks from four goroutines, as often as it
// can but for a pause of a millisecond. While between is locked no check is under way.
func hammer(s *scope, l *sentinel.Limiter, id string, until time.Time, between *sync.RWMutex) traffic {
	// By the wall clock, as Redis has it: a machine that is suspended stops the other.
	tenant, begin := nobody(), time.Now().Round(0)
	var mu sync.Mutex
	var t traffic
	last := time.Now()
	var all sync.WaitGroup
	var failed atomic.Pointer[sentinel.Decision]
	for range 4 {
		all.Go(func() {
			for time.Now().Before(until) {
				between.RLock()
				d, err := l.Allow(s.Context(), tenant, id)
				between.RUnlock()
				if err != nil || !d.FromStore {
					failed.Store(&d)
					return
				}
				now := time.Now()
				mu.Lock()
				t.tries++
				if d.Allowed {
					t.admitted++
					t.longest = max(t.longest, now.Sub(last))
					last = now
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		})
	}
	all.Wait()
	if d := failed.Load(); d != nil {
		s.Errorf("no decision of Redis: %s", d.Reason)
	}
	t.took = time.Now().Round(0).Sub(begin)
	t.longest = max(t.longest, time.Since(last))
	return t
}

// changeMasters kills a master and has a replica take over whose clock differs.
func changeMasters(s *scope, l *lab, sec *section) {
	library := shim(s)
	differences := clockSteps
	if l.short {
		differences = clockSteps[:4]
	}
	var v verdicts
	for _, d := range differences {
		l.logf("clocks: a replica takes over whose clock differs by %v", d)
		// A scope of its own: its servers end with it.
		if err := within(s.Context(), func(s *scope) { changeMaster(s, l, library, d, &v) }); err != nil {
			s.Fatal(err)
		}
	}
	sec.promise(v.more.promise("a replica whose clock differs by seconds, an hour or a year takes over: nobody is admitted more often than by the policy, measured on its clock",
		"clocks that differ by "+strings.Trim(fmt.Sprint(differences), "[]")))
	sec.promise(v.less.promise("nor less often", ""))
	sec.promise(v.wait.promise("nor told to wait longer than the clock is behind, within the limit, plus the policy's own horizon", ""))
	sec.promise(v.first.promise("waiting exactly that long admits, one microsecond less does not", ""))
	sec.promise(v.expiry.promise("and no state expires early there", ""))
}

func changeMaster(s *scope, l *lab, library string, difference time.Duration, v *verdicts) {
	master, masterClock := startClocked(s, library)
	replica, replicaClock := startClocked(s, library)
	detour := newDetour(s, master.Addr())
	cfg := configure("redis://"+detour.addr, clockPolicies()...)
	cfg.App.DisableKnownDenials = true
	c := &clocked{s, master, master.Client(s), masterClock, openLimiter(s, cfg)}
	follow(s, replica, master)

	now := time.Now().UnixMicro()
	lives := make([]*life, 0, 4*len(clockPolicies()))
	for range pick(l, 4, 1) {
		for _, p := range clockPolicies() {
			lives = append(lives, newLife(p, now))
		}
	}
	use := func() { // what each has, and a little more
		for _, b := range lives {
			for range 1 + min(b.policy.Limit+int64(b.policy.Capacity/sentinel.Token), 30) {
				c.at(now, b, v)
			}
		}
	}
	use()
	// WAIT waits for what was written on its own connection, and before it.
	conn := c.client.Conn()
	defer conn.Close()
	if err := conn.Set(s.Context(), "proof:marker", difference.String(), time.Hour).Err(); err != nil {
		s.Fatal(err)
	}
	if n := conn.Wait(s.Context(), 1, 10*time.Second).Val(); n != 1 {
		s.Fatal("the replica does not follow")
	}
	now += difference.Microseconds()
	replicaClock.hold(now)
	master.Kill()
	c.server, c.client, c.clock = replica, replica.Client(s), replicaClock
	if err := c.client.Do(s.Context(), "replicaof", "no", "one").Err(); err != nil {
		s.Fatal(err)
	}
	detour.lead(replica.Addr())
	if !comes(s.Context(), 40*time.Second, func() bool { return allow(s, c.limiter, nobody(), lives[0].policy.EndpointID).FromStore }) {
		s.Fatal("the new master decides nothing")
	}
	use()
	// The waits are tried from the shortest to the longest: a clock that goes back
	// after one of them would show the next bucket what Redis has meanwhile expired.
	type waiting struct {
		life   *life
		denied sentinel.Decision
	}
	var all []waiting
	for _, b := range lives {
		if d := c.at(now, b, v); !d.Allowed && d.RetryAfter > 0 {
			all = append(all, waiting{b, d})
		}
	}
	slices.SortFunc(all, func(a, b waiting) int { return cmp.Compare(a.denied.RetryAfter, b.denied.RetryAfter) })
	for _, w := range all {
		c.waitExactly(now, w.life, v, w.denied)
	}
}

// follow makes replica one of master's, and returns when it has all.
func follow(s *scope, replica, master *redistest.Server) {
	host, port, _ := strings.Cut(master.Addr(), ":")
	for _, c := range [][]any{{"config", "set", "repl-diskless-sync-delay", "0"}} {
		if err := master.Client(s).Do(s.Context(), c...).Err(); err != nil {
			s.Fatal(err)
		}
	}
	client := replica.Client(s)
	if err := client.Do(s.Context(), "replicaof", host, port).Err(); err != nil {
		s.Fatal(err)
	}
	if !comes(s.Context(), 20*time.Second, func() bool {
		return strings.Contains(client.Info(s.Context(), "replication").Val(), "master_link_status:up")
	}) {
		s.Fatal("the replica does not follow")
	}
}

// detour is the address that leads to the master, whoever that is.
type detour struct {
	s    *scope
	addr string

	mu   sync.Mutex
	to   string
	open map[net.Conn]struct{}
}

func newDetour(s *scope, to string) *detour {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	r := &detour{s: s, addr: listener.Addr().String(), to: to, open: map[net.Conn]struct{}{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go r.carry(conn)
		}
	}()
	s.Cleanup(func() {
		listener.Close()
		r.lead("")
	})
	return r
}

// lead leads to another server from now on, and ends what led to the one before.
func (r *detour) lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for conn := range r.open {
		conn.Close()
	}
	clear(r.open)
}

func (r *detour) carry(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	to := r.to
	r.open[client] = struct{}{}
	r.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client) // either end is the end of both
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}
