package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// fleetSize is how many processes of the service meet a fault.
const fleetSize = 3

// lane is one process and one mode: all that is measured is measured for each.
type lane struct {
	worker   int
	gathered bool
}

func (l lane) String() string {
	mode := "gathered"
	if !l.gathered {
		mode = "one by one"
	}
	return fmt.Sprintf("process %d, %s", l.worker+1, mode)
}

var lanes = func() (all []lane) {
	for w := range fleetSize {
		all = append(all, lane{w, true}, lane{w, false})
	}
	return all
}()

// The groups of limiters that each lane has.
const (
	liveGroup    = "live"    // one, behind net/http, with traffic for the whole time
	loneGroup    = "lone"    // one, asked one check after the other
	warmGroup    = "warm"    // several, connected before the fault, each met by a crowd
	coldGroup    = "cold"    // several, opened in the middle of the fault, each met by a crowd
	closingGroup = "closing" // one, closed in the middle of the fault and of a crowd
)

var groups = []string{liveGroup, loneGroup, warmGroup, coldGroup, closingGroup}

// group is the name of a lane's group; also its tenant.
func (l lane) group(kind string) string {
	mode := "gathered"
	if !l.gathered {
		mode = "single"
	}
	return fmt.Sprintf("%s-%s-%d", kind, mode, l.worker)
}

// seat is a lane's own road to Redis for the groups of one kind.
type seat struct {
	lane
	kind string
}

// roadOf is the kind of road that a group uses.
func roadOf(kind string) string {
	if kind == warmGroup || kind == coldGroup || kind == closingGroup {
		return "crowd"
	}
	return kind
}

// arena is one server with three processes of the service before it, and what
// was seen there.
type arena struct {
	*scope
	lab     *lab
	machine *sync.Mutex // held while something is measured
	fault   *fault
	server  *redistest.Server
	admin   *redis.Client // one connection
	roads   map[seat]*redistest.Proxy
	url     func(seat) string
	command []string        // before the name of the service's program
	env     []string        // of the service
	pool    int             // see Deploy
	flaws   map[lane]string // of the service, for tests
	files   string          // a folder with certificates
	cable   *cable          // to the network of the service

	team  [fleetSize]*worker
	books [fleetSize]*logBook
	holds [fleetSize]holding
	seen  map[lane]*sight
	ended time.Time // when the fault did

	here *control // in this process, where the proxies are: when they are late, so is Redis
	// lateness is how late its timers were: before the fault, while the checks
	// met it, while it stayed and the service recovered, and after.
	lateness struct{ before, met, stay, after int64 }
}

// late is the worst of all.
func (a *arena) late() int64 {
	return max(a.lateness.before, a.lateness.met, a.lateness.stay, a.lateness.after)
}

// holding is what a process held: before it had a limiter, with live traffic
// before the fault, after it, and when all limiters were closed.
type holding struct{ bare, before, after, end Footprint }

// sight is what was seen at one lane.
type sight struct {
	calm, during, well                Report // of the live traffic
	lone, warm, cold, closing         Report
	warmUp                            map[string]Report // by group
	loneState, liveState, closedState []State
	asked                             int // EVALSHA seen on the live road while the breaker was open
	probes, periods                   int
	charged                           map[string]int64 // by endpoint.group
	failures                          map[string]map[string]int
}

// run meets the fault once, and notes what it finds.
func (a *arena) run(o *outcome) {
	a.here = startControl(10)
	defer a.here.stop()
	a.alone(func() {
		a.watched(&a.lateness.before, func() { a.build(); a.staff() })
		a.watched(&a.lateness.met, a.meet)
	})
	a.watched(&a.lateness.stay, a.linger)
	a.alone(func() { a.watched(&a.lateness.after, a.leave) })
	a.judge(o)
}

// watched runs f, which may end the goroutine, and notes how late the machine was.
func (a *arena) watched(late *int64, f func()) {
	a.here.worst.Store(0)
	defer func() { *late = a.here.worst.Load() }()
	f()
}

// alone runs f while nobody else measures. f may end the goroutine.
func (a *arena) alone(f func()) {
	a.machine.Lock()
	defer a.machine.Unlock()
	if a.ctx.Err() != nil {
		a.Fatal(a.ctx.Err())
	}
	f()
}

// build makes the server and the roads to it, where the fault does not do so
// itself.
func (a *arena) build() {
	if a.fault.build != nil {
		a.fault.build(a)
		return
	}
	a.serve(a.fault.flags...)
	a.pave()
}

// serve starts the server.
func (a *arena) serve(flags ...string) {
	a.server = redistest.StartProcess(a, nil, flags...)
	a.admin = redis.NewClient(&redis.Options{
		Addr: a.server.Addr(), PoolSize: 1, MaxRetries: 1, DialTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
	})
	a.Cleanup(func() { _ = a.admin.Close() })
	a.must(a.admin.Ping(a.ctx).Err())
}

// pave gives each seat a proxy before the server.
func (a *arena) pave() {
	a.roads = map[seat]*redistest.Proxy{}
	for _, l := range lanes {
		for _, kind := range []string{liveGroup, loneGroup, "crowd"} {
			a.roads[seat{l, kind}] = redistest.NewProxy(a, a.server.Addr())
		}
	}
	a.url = func(s seat) string { return a.roads[s].URL() }
}

// user puts credentials before the host of every road.
func (a *arena) user(name, password string) {
	plain := a.url
	a.url = func(s seat) string {
		u, err := url.Parse(plain(s))
		a.must(err)
		u.User = url.UserPassword(name, password)
		return u.String()
	}
}

func (a *arena) must(err error) {
	if err != nil {
		a.Fatalf("%s: %v", a.fault.name, err)
	}
}

// do runs a command on the server.
func (a *arena) do(args ...any) {
	a.must(a.admin.Do(a.ctx, args...).Err())
}

// each does the same to every road, at the same time.
func (a *arena) each(f func(*redistest.Proxy)) {
	var all sync.WaitGroup
	for _, p := range a.roads {
		all.Go(func() { f(p) })
	}
	all.Wait()
	if a.failed() != nil {
		a.Fatal("given up")
	}
}

// staff starts the processes and their live traffic.
func (a *arena) staff() {
	a.hire()
	a.seen = map[lane]*sight{}
	for _, l := range lanes {
		a.seen[l] = &sight{warmUp: map[string]Report{}, charged: map[string]int64{}, failures: map[string]map[string]int{}}
	}
	a.eachProcess(func(w int, h *holding) { h.bare = a.settle(w, nil) })
	a.all(func(l lane, _ *sight) {
		a.deploy(l, liveGroup, 1)
		a.pace(l, time.Second/20, 0)
	})
	time.Sleep(300 * time.Millisecond) // until connections and pools are as large as they get
	a.all(func(l lane, _ *sight) { a.pace(l, 0, 0) })
	time.Sleep(100 * time.Millisecond)
	a.eachProcess(func(w int, h *holding) { h.before = a.settle(w, nil) })
	a.all(func(l lane, _ *sight) {
		a.deploy(l, loneGroup, 1)
		a.deploy(l, closingGroup, 1)
		a.deploy(l, warmGroup, a.lab.crowds())
		if a.pool == 0 {
			a.deploy(l, coldGroup, a.lab.crowds())
		}
	})
	a.all(func(l lane, _ *sight) { a.pace(l, 40*time.Millisecond, 10) })
	time.Sleep(pick(a.lab, 500*time.Millisecond, 200*time.Millisecond))
	a.all(func(l lane, s *sight) { a.harvest(l, &s.calm) })
}

// hire starts the processes.
func (a *arena) hire() {
	for i := range a.team {
		a.books[i] = &logBook{}
		a.team[i] = startWorker(a.scope, serviceRole, a.command, a.env, a.books[i])
	}
}

// crowds is how many limiters of each lane are met by a crowd, and crowdSize how
// many goroutines it has: 2,000 checks and more for each mode and fault.
func (l *lab) crowds() int { return pick(l, 12, 1) }

const crowdSize = 32

// all does the same for every lane, at the same time.
func (a *arena) all(f func(lane, *sight)) {
	var all sync.WaitGroup
	for l, s := range a.seen {
		all.Go(func() { f(l, s) })
	}
	all.Wait()
	if a.failed() != nil {
		a.Fatal("given up")
	}
}

// eachProcess does the same for every process, at the same time.
func (a *arena) eachProcess(f func(int, *holding)) {
	var all sync.WaitGroup
	for w := range a.holds {
		all.Go(func() { f(w, &a.holds[w]) })
	}
	all.Wait()
	if a.failed() != nil {
		a.Fatal("given up")
	}
}

// call calls the lane's process. It must not end the goroutine, which may not be
// the arena's own.
func (a *arena) call(l lane, method string, args, reply any) {
	if err := a.team[l.worker].call(method, args, reply); err != nil {
		a.Errorf("%s, %s: %v", a.fault.name, l, err)
	}
}

func (a *arena) deploy(l lane, kind string, limiters int) {
	var r Report
	a.call(l, "Deploy", Deploy{
		Group: l.group(kind), URL: a.url(seat{l, roadOf(kind)}), Limiters: limiters, Gathered: l.gathered,
		Cold: kind == coldGroup, Serve: kind == liveGroup, Pool: a.pool, Budget: a.lab.budget, Flaw: a.flaws[l],
	}, &r)
	a.seen[l].warmUp[kind] = r
}

// pace sets how often each client of the lane's service calls.
func (a *arena) pace(l lane, every time.Duration, timers int) {
	a.call(l, "Pace", Pace{Group: l.group(liveGroup), Millis: int(every.Milliseconds()), Timers: timers}, nil)
}

// harvest adds the live traffic since the last harvest to r.
func (a *arena) harvest(l lane, r *Report) {
	var more Report
	a.call(l, "Harvest", l.group(liveGroup), &more)
	r.merge(&more)
}

func (a *arena) volley(l lane, kind string, crowd, rounds int, r *Report) {
	a.call(l, "Volley", Volley{Group: l.group(kind), Crowd: crowd, Rounds: rounds}, r)
}

func (a *arena) states(l lane, kind string) (states []State) {
	a.call(l, "States", l.group(kind), &states)
	return states
}

// meet begins the fault and measures what checks find.
func (a *arena) meet() {
	a.fault.begin(a)
	a.all(func(l lane, s *sight) { a.volley(l, loneGroup, 1, 30, &s.lone) })
	for _, gathered := range []bool{true, false} {
		a.all(func(l lane, s *sight) {
			if l.gathered == gathered {
				a.volley(l, warmGroup, crowdSize, 1, &s.warm)
			}
		})
		a.all(func(l lane, s *sight) {
			if l.gathered == gathered && a.pool == 0 {
				a.volley(l, coldGroup, crowdSize, 1, &s.cold)
			}
		})
	}
	a.all(func(l lane, s *sight) {
		s.loneState = a.states(l, loneGroup)
		a.call(l, "Storm", Storm{Group: l.group(closingGroup), Crowd: 16, Millis: 100, CloseAfter: 40, Pause: 1000}, &s.closing)
		s.closedState = a.states(l, closingGroup)
		for _, kind := range []string{warmGroup, coldGroup, loneGroup, closingGroup} {
			if kind != coldGroup || a.pool == 0 {
				a.dismiss(l, kind)
			}
		}
	})
	a.all(func(l lane, _ *sight) { a.pace(l, 400*time.Millisecond, 2) })
	a.lab.logf("%s: measured", a.fault.name)
}

// dismiss closes a group, once it has said how its calls failed.
func (a *arena) dismiss(l lane, kind string) {
	s := a.seen[l]
	failures := map[string]int{}
	for _, state := range a.states(l, kind) {
		for name, n := range state.Failures {
			failures[name] += n
		}
	}
	s.failures[kind] = failures
	a.call(l, "Dismiss", l.group(kind), nil)
}

// linger waits with the fault on as long as it is worth, ends it and waits for
// the service to recover.
func (a *arena) linger() {
	var opened time.Time
	if a.fault.effect == fails {
		opened = a.await("the breakers to open", 10*time.Second, func(st State) bool { return st.Breaker == "open" })
	}
	stay := a.lab.stay(a.fault)
	if stay >= openPeriod {
		a.countProbes(opened)
	}
	if stay > 0 {
		a.sleep(time.Until(opened.Add(stay)))
	}
	a.all(func(l lane, s *sight) {
		s.liveState = a.states(l, liveGroup)
		a.harvest(l, &s.during)
	})
	a.fault.end(a)
	a.ended = time.Now()
	if a.lab.recovers(a.fault) {
		a.await("the service to recover", openPeriod+15*time.Second, func(st State) bool { return st.Breaker == "closed" && st.Detail == "" })
	}
	a.lab.logf("%s: %.1f s after it has ended", a.fault.name, time.Since(a.ended).Seconds())
}

// await returns when every live limiter is as wanted, or when the time is over.
func (a *arena) await(what string, limit time.Duration, ok func(State) bool) time.Time {
	end := time.Now().Add(limit)
	for {
		all := true
		for _, l := range lanes {
			for _, st := range a.states(l, liveGroup) {
				all = all && ok(st)
			}
		}
		switch {
		case a.failed() != nil:
			a.Fatal("given up")
		case all:
			return time.Now()
		case time.Now().After(end):
			a.lab.logf("%s: waited %v in vain for %s", a.fault.name, limit, what)
			return time.Now()
		}
		a.sleep(200 * time.Millisecond)
	}
}

func (a *arena) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.ctx.Done():
		a.Fatal(a.ctx.Err())
	}
}

// countProbes watches one whole open period and the probe at its end.
func (a *arena) countProbes(opened time.Time) {
	a.sleep(300 * time.Millisecond) // calls that were out
	calls, probes := map[lane]int{}, map[lane]int{}
	count := func(l lane) (int, int) {
		n := 0
		if a.roads != nil {
			n = a.roads[seat{l, liveGroup}].Commands()["EVALSHA"]
		}
		return n, a.states(l, liveGroup)[0].Moves["half_open"]
	}
	for _, l := range lanes {
		calls[l], probes[l] = count(l)
	}
	a.sleep(time.Until(opened.Add(openPeriod + time.Second)))
	for _, l := range lanes {
		n, p := count(l)
		s := a.seen[l]
		s.asked, s.probes, s.periods = n-calls[l], p-probes[l], 1
	}
}

// leave looks whether all is as it was, and closes what is left.
func (a *arena) leave() {
	if a.lab.recovers(a.fault) {
		a.all(func(l lane, s *sight) {
			a.harvest(l, &s.during) // of the time until all had recovered
			a.pace(l, 40*time.Millisecond, 10)
		})
		a.sleep(pick(a.lab, time.Second, 300*time.Millisecond))
	}
	a.all(func(l lane, _ *sight) { a.pace(l, 0, 0) })
	a.sleep(100 * time.Millisecond)
	a.all(func(l lane, s *sight) {
		if a.lab.recovers(a.fault) {
			a.harvest(l, &s.well)
		} else {
			a.harvest(l, &s.during)
		}
	})
	a.eachProcess(func(w int, h *holding) {
		h.after = a.settle(w, func(f Footprint) bool { return len(judgeFootprint(h.before, f, spareSockets).broken) == 0 })
	})
	a.all(func(l lane, _ *sight) { a.dismiss(l, liveGroup) })
	a.eachProcess(func(w int, h *holding) {
		h.end = a.settle(w, func(f Footprint) bool { return len(judgeFootprint(h.bare, f, 0).broken) == 0 })
	})
	a.count()
	for _, w := range a.team {
		a.must(w.end())
	}
}

// spareSockets is how many connections more than at first the two live limiters
// of a process may keep: up to eight each, of which four are there from the
// start.
const spareSockets = 8

// settle returns the footprint of a process, once it is as wanted, or after five
// seconds: what was closed needs a moment to be gone.
func (a *arena) settle(worker int, ok func(Footprint) bool) (f Footprint) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		f = Footprint{}
		a.call(lane{worker: worker}, "Footprint", "", &f)
		if ok == nil || ok(f) || time.Now().After(end) {
			return f
		}
	}
}

// count reads what Redis has charged.
func (a *arena) count() {
	for l, s := range a.seen {
		for _, kind := range groups {
			for _, id := range []string{failOpenID, failClosedID} {
				endpoint := id + "." + l.group(kind)
				n, err := charged(a.ctx, a.admin, l.group(kind), endpoint)
				a.must(err)
				s.charged[endpoint] = n
			}
		}
	}
}

// charged is how many requests the bucket of a tenant has paid for.
func charged(ctx context.Context, c *redis.Client, tenant, endpoint string) (int64, error) {
	sum := sha256.Sum256([]byte(tenant))
	key := "sentinel:v1:" + hex.EncodeToString(sum[:]) + ":" + endpoint + ":1"
	state, err := c.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(state, ":")
	tokens, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the state %q: %w", state, err)
	}
	return (plenty - tokens) / 1_000_000, nil
}

// rows is all that a group has done in a lane.
func (s *sight) rows(kind string) []Row {
	all := s.warmUp[kind]
	for _, r := range map[string][]*Report{
		liveGroup: {&s.calm, &s.during, &s.well}, loneGroup: {&s.lone}, warmGroup: {&s.warm},
		coldGroup: {&s.cold}, closingGroup: {&s.closing},
	}[kind] {
		all.merge(r)
	}
	return all.Rows
}

// outcome is what was found at one fault.
type outcome struct {
	fault *fault
	notes []note
	times map[bool]*timing // by gathered
	again int              // how often it was met in vain
	vain  []note           // what was found in vain
}

// note is a finding on its way to the ledger.
type note struct {
	text, who string
	finding
}

func (o *outcome) reset() {
	o.notes = nil
	o.times = map[bool]*timing{true: {reasons: map[string]int{}}, false: {reasons: map[string]int{}}}
}

func (o *outcome) note(text, who string, f finding) { o.notes = append(o.notes, note{text, who, f}) }

// undecided reports whether the fault is to be met again: all that is broken, and
// something is, may be so by the machine. why is what, first.
func (o *outcome) undecided() (again bool, why string) {
	for _, n := range o.notes {
		switch {
		case n.doubtful():
			again, why = true, cmp.Or(why, fmt.Sprintf("%s: %s; %s", n.who, n.broken[0], cmp.Or(n.excuse, "the machine was on time")))
		case len(n.broken) > 0:
			return false, ""
		}
	}
	return again, why
}

// timing is how long the checks took that met the fault, and what they were
// told.
type timing struct {
	micros  []int64
	late    int64
	reasons map[string]int
}

func (t *timing) add(r *Report) {
	t.micros = append(t.micros, r.Micros...)
	t.late = max(t.late, r.Late)
	for _, row := range r.Rows {
		t.reasons[row.Reason] += row.N
	}
}

// row is the timing as cells.
func (t *timing) row() []string {
	sorted := slices.Sorted(slices.Values(t.micros))
	longest := quantile(sorted, 1)
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(t.reasons)) {
		reasons = append(reasons, fmt.Sprintf("%d %s", t.reasons[reason], reason))
	}
	return []string{
		fmt.Sprint(len(sorted)), fmt.Sprintf("%.1f", ms(quantile(sorted, 0.5))), fmt.Sprintf("%.1f", ms(quantile(sorted, 0.99))),
		fmt.Sprintf("%.1f", ms(longest)), fmt.Sprintf("%.1f", ms(t.late)), strings.Join(reasons, ", "),
	}
}
