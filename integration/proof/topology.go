package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

func init() {
	chapters = append(chapters, chapter{"topology", proveTopology})
}

// What is promised where there is more than one Redis.
const (
	pSpared     = "Tenants of a master that nothing happens to are decided by it, all the time"
	pReachable  = "What leaves every master able to answer fails no check"
	pTopRecover = "Redis decides again within one open period after its topology is well, by itself"
)

// ground is what a service stands on: one of the two is there.
type ground struct {
	cluster *redistest.Cluster
	trio    *redistest.Trio
}

// quarters is how many masters there are.
func (g ground) quarters() int {
	if g.cluster != nil {
		return 3
	}
	return 1
}

func (g ground) url() string {
	if g.cluster != nil {
		return "redis-cluster://" + strings.Join(g.cluster.Addrs()[:3], ",")
	}
	return "redis-sentinel://" + strings.Join(g.trio.Addrs(), ",") + "/0?master=" + redistest.MasterName
}

// master is the node that serves the key now.
func (g ground) master(key string) *redistest.Node {
	if g.cluster != nil {
		return g.cluster.Master(key)
	}
	return g.trio.Master()
}

// block is the limiter of one process for a tenant whose two keys are both on one
// master.
type block struct {
	worker, quarter int
	group           string

	warmUp, calm, during, well Report
	charged                    map[string]int64
}

func (b *block) endpoints() []string {
	return []string{failOpenID + "." + b.group, failClosedID + "." + b.group}
}

// rows is all that the block has done.
func (b *block) rows() []Row {
	var all Report
	for _, r := range []*Report{&b.warmUp, &b.calm, &b.during, &b.well} {
		all.merge(r)
	}
	return all.Rows
}

// siege is three processes of the service on a topology to which something
// happens.
type siege struct {
	*scope
	ground
	lab   *lab
	event *event
	team  [fleetSize]*worker
	all   []*block

	struck, over time.Time // when it began, and when the topology was well again
	late         int64
}

// run has the event happen once.
func (s *siege) run(o *outcome) {
	if s.event.trio {
		s.trio = redistest.StartTrio(s, s.event.flags...)
	} else {
		s.cluster = redistest.StartCluster(s, append([]string{"--cluster-require-full-coverage", "no"}, s.event.flags...)...)
	}
	here := startControl(5)
	defer here.stop()
	s.settle()
	s.each(func(b *block) { s.harvest(b, &b.calm) })
	s.struck = time.Now()
	s.event.happen(s)
	s.over = time.Now()
	s.recover()
	s.each(func(b *block) { s.harvest(b, &b.during) })
	time.Sleep(time.Second)
	s.each(func(b *block) { s.pace(b, 0) })
	time.Sleep(100 * time.Millisecond)
	s.each(func(b *block) { s.harvest(b, &b.well) })
	s.count()
	s.each(func(b *block) { s.call(b, "Dismiss", b.group, nil) })
	s.late = here.stop()
	s.judge(o)
}

// settle starts the processes and their traffic.
func (s *siege) settle() {
	for w := range s.team {
		s.team[w] = startWorker(s.scope, serviceRole, nil, nil, &logBook{})
		for q := range s.quarters() {
			s.all = append(s.all, &block{worker: w, quarter: q, group: s.tenantOn(w, q), charged: map[string]int64{}})
		}
	}
	s.each(func(b *block) {
		s.call(b, "Deploy", Deploy{
			Group: b.group, URL: s.url(), Limiters: 1, Gathered: b.worker != 1, Serve: true, Budget: s.lab.budget,
		}, &b.warmUp)
		s.pace(b, 80*time.Millisecond)
	})
	time.Sleep(time.Second)
}

// tenantOn finds a tenant whose keys are both on that master.
func (s *siege) tenantOn(worker, quarter int) string {
	for n := 0; ; n++ {
		b := block{group: fmt.Sprintf("t%d-%d-%d", worker, quarter, n)}
		here := true
		for _, id := range b.endpoints() {
			here = here && int(redistest.SlotOf(keyOf("v1", b.group, id)))*s.quarters()/16384 == quarter
		}
		if here {
			return b.group
		}
	}
}

// recover waits until every limiter is well, and a little longer.
func (s *siege) recover() {
	for end := time.Now().Add(openPeriod + 15*time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		well := true
		for _, b := range s.all {
			var states []State
			s.call(b, "States", b.group, &states)
			for _, st := range states {
				well = well && st.Breaker == "closed" && st.Detail == ""
			}
		}
		if s.failed() != nil {
			s.Fatal("given up")
		}
		if well {
			break
		}
	}
	time.Sleep(500 * time.Millisecond)
}

func (s *siege) each(f func(*block)) {
	var all sync.WaitGroup
	for _, b := range s.all {
		all.Go(func() { f(b) })
	}
	all.Wait()
	if s.failed() != nil {
		s.Fatal("given up")
	}
}

// call calls the block's process; it does not end the goroutine.
func (s *siege) call(b *block, method string, args, reply any) {
	if err := s.team[b.worker].call(method, args, reply); err != nil {
		s.Errorf("%s: %v", s.event.name, err)
	}
}

func (s *siege) pace(b *block, every time.Duration) {
	s.call(b, "Pace", Pace{Group: b.group, Millis: int(every.Milliseconds()), Timers: min(int(every), 4)}, nil)
}

func (s *siege) harvest(b *block, r *Report) { s.call(b, "Harvest", b.group, r) }

// count reads what the masters have charged.
func (s *siege) count() {
	for _, b := range s.all {
		for _, id := range b.endpoints() {
			n, err := charged(s.ctx, s.master(keyOf("v1", b.group, id)).Client(s), b.group, id)
			if err != nil {
				s.Fatalf("%s: %v", s.event.name, err)
			}
			b.charged[id] = n
		}
	}
}

// hit reports whether the event was at the block's master.
func (s *siege) hit(b *block) bool { return s.event.everybody || b.quarter == 0 }

// judge compares what was seen with what is promised.
func (s *siege) judge(o *outcome) {
	for _, b := range s.all {
		who := fmt.Sprintf("%s, process %d, master %d", s.event.name, b.worker+1, b.quarter+1)
		rows := b.rows()
		late := max(s.late, b.calm.Late, b.during.Late, b.well.Late)
		timed := func(text string, f finding) { o.note(text, who, f.lateBy(late, s.lab.budget)) }
		o.note(pRows, who, judgeRows(rows))
		var micros []int64
		for _, r := range []*Report{&b.calm, &b.during, &b.well} {
			o.note(pEmergency, who, judgeEmergency(r.Bursts))
			micros = append(micros, r.Micros...)
		}
		timed(pBudget, judgeBudget(micros, late, s.lab.budget))
		forgets := s.event.forgets && s.hit(b)
		for _, id := range []string{failOpenID, failClosedID} {
			o.note(pOnce, who, judgeCharge(b.charged[id+"."+b.group], rows, id, forgets))
		}
		timed(pWell, judgeWell(b.calm.Rows))
		timed(pWell, judgeWell(b.well.Rows))
		switch {
		case s.event.harmless:
			timed(pReachable, judgeWell(b.during.Rows))
		case s.hit(b):
			timed(pTopRecover, judgeRecovery(s.over, b.during.LastFailure, b.well.LastDecision))
		default:
			timed(pSpared, judgeWell(b.during.Rows))
		}
	}
}

// cells are the row of the event: of those whom it hit.
func (s *siege) cells() []string {
	var admitted, failed, over, unanswered int64
	var micros []int64
	var last int64
	reasons := map[string]int{}
	for _, b := range s.all {
		micros = append(append(micros, b.during.Micros...), b.calm.Micros...)
		if !s.hit(b) {
			continue
		}
		last = max(last, b.during.LastFailure)
		for _, id := range []string{failOpenID, failClosedID} {
			var here int64
			for _, r := range b.rows() {
				if r.Endpoint == id && r.FromStore && r.Allowed {
					here += int64(r.N)
				}
			}
			admitted += here
			paid := b.charged[id+"."+b.group]
			over, unanswered = over+max(0, here-paid), unanswered+max(0, paid-here)
		}
		for _, r := range b.during.Rows {
			reasons[r.Reason] += r.N
			if !r.FromStore {
				failed += int64(r.N)
			}
		}
	}
	failing := "not at all"
	if last > 0 {
		failing = fmt.Sprintf("%.1f", time.UnixMicro(last).Sub(s.struck).Seconds())
	}
	var told []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		told = append(told, fmt.Sprintf("%d %s", reasons[reason], reason))
	}
	sorted := slices.Sorted(slices.Values(micros))
	return []string{
		s.event.name, fmt.Sprintf("%.1f", s.over.Sub(s.struck).Seconds()), failing, fmt.Sprint(failed), fmt.Sprint(admitted), fmt.Sprint(over), fmt.Sprint(unanswered),
		fmt.Sprintf("%.1f", ms(quantile(sorted, 0.99))), fmt.Sprintf("%.1f", ms(quantile(sorted, 1))), fmt.Sprintf("%.1f", ms(s.late)), strings.Join(told, ", "),
	}
}

// proveTopology has three processes of a guarded service on a cluster, and on a
// master with two replicas and three Redis Sentinels, to which things happen.
func proveTopology(ctx context.Context, l *lab) (*section, error) {
	book := newLedger(pRows, pBudget, pOnce, pEmergency, pWell, pReachable, pSpared, pTopRecover, pMet)
	t := &table{columns: []string{
		"what happens", "topology well after s", "failing for s", "failed", "admitted", "over-admitted", "charged without an answer",
		"p99 ms", "longest ms", "timer late ms", "decisions of those whom it hits",
	}}
	again := 0
	for _, e := range events() {
		if !l.wants(e.name, true) {
			continue
		}
		o := &outcome{fault: &fault{name: e.name}}
		var cells []string
		l.judged(ctx, o, func() {
			si := &siege{lab: l, event: e}
			err := within(ctx, func(sc *scope) {
				si.scope = sc
				si.run(o)
			})
			cells = nil
			if err == nil {
				cells = si.cells()
			}
			o.note(pMet, e.name, judgeMeeting(err))
		})
		if cells != nil {
			t.add(cells...)
		}
		o.record(book)
		again += o.again
		l.logf("%s: done", e.name)
	}
	s := &section{
		title: "Cluster and Redis Sentinel",
		about: fmt.Sprintf("Three processes of a guarded service under live traffic through net/http and through `Limiter.Check`, on a Redis Cluster of three masters with a replica each "+
			"(`cluster-node-timeout` 1 s, no full coverage), and on a master with two replicas and three Redis Sentinels (`down-after-milliseconds` 1000). The budget of a check is %v. "+
			"Failing is the time from the event to the last check that Redis did not decide. Over-admitted is what was admitted and is not charged in what the masters store; charged without an answer, the opposite. "+
			"Those whom an event hits are the tenants of one master of three, or all.", l.budget),
		tables: []*table{t},
		notes:  []string{l.metAgain(again)},
	}
	for _, p := range book.promises() {
		if p.tries > 0 || len(p.unjudged) > 0 || l.match == nil {
			s.promise(p)
		}
	}
	return s, nil
}
