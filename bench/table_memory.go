package main

import (
	"runtime"
	"strconv"

	"github.com/sentinelgo/sentinel/measure"
)

// measureMemory is about buckets that one process keeps for itself.
func measureMemory(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "3 memory://",
		About: "Buckets of one process, by key. x/time/rate, juju and uber are one limiter for each key in a sync.Map. " +
			"\"" + nameTable + "\" is what memory:// keeps its buckets in, and what the peers are; the row below it is the whole of Limiter.Allow, " +
			"which also hashes the tenant, makes a Decision and counts.",
	}
	for _, p := range memoryPeers {
		if err := proveMemory(l, p); err != nil {
			return nil, err
		}
	}
	one, many := names("tenant", 1), names("tenant", 100_000)
	hot, err := l.memoryRound(s, "Hot allow: one key, one goroutine", 1, lasting, one, true)
	if err != nil {
		return nil, err
	}
	if _, err = l.memoryRound(s, "Hot allow: one key, two goroutines", 2, lasting, one, true); err != nil {
		return nil, err
	}
	deny, err := l.memoryRound(s, "Hot deny: one key, two goroutines", 2, scarce, one, false)
	if err != nil {
		return nil, err
	}
	wide, err := l.memoryRound(s, "100,000 keys, two goroutines", 2, lasting, many, true)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{nameTable, nameMemory} {
		what := name + ": "
		s.Bars = append(s.Bars,
			measure.AtMost(what+"hot allow to the fastest peer", hot.ratio(name, hot.fastest(peerNames(false)...)), 0.65),
			measure.AtMost(what+"hot deny on two cores to the fastest peer", deny.ratio(name, deny.fastest(peerNames(true)...)), 0.3),
			measure.AtMost(what+"100,000 keys on two cores to x/time/rate", wide.ratio(name, nameXTime), 0.65),
			measure.NoAllocations(name, wide.allocs(name)),
		)
	}
	s.Bars[0] = s.Bars[0].AsGate() // of the bar's figures the hot allow is the gate
	return s, addBytesPerKey(l, s)
}

// peerNames are the peers that are not ours; denying are those that can deny.
func peerNames(denying bool) []string {
	var all []string
	for _, p := range memoryPeers {
		if p.name != nameTable && p.name != nameMemory && (!denying || !p.paces) {
			all = append(all, p.name)
		}
	}
	return all
}

// memoryRound adds a table of all peers on the keys. Where the answer is to be
// a denial, the buckets are emptied first.
func (l *lab) memoryRound(s *measure.Section, title string, workers int, q quota, keys []string, want bool) (*spins, error) {
	var all []spinner
	for _, p := range memoryPeers {
		if p.paces && !want {
			continue
		}
		decide, done, err := p.open(l, q)
		if err != nil {
			return nil, err
		}
		defer done()
		for _, k := range keys {
			for n := int64(0); n == 0 || !want && n < q.burst; n++ {
				decide(k)
			}
		}
		all = append(all, spinner{name: p.name, want: want, call: overKeys(decide, keys)})
	}
	r, err := l.spinAll(workers, l.Cell, all)
	if err != nil {
		return nil, err
	}
	base := nameXTime
	if len(keys) == 1 {
		base = r.fastest(peerNames(!want)...)
	}
	s.Tables = append(s.Tables, r.table(title, base))
	return r, nil
}

// overKeys walks the keys in an order that no cache foresees, another one for
// each worker.
func overKeys(decide func(string) bool, keys []string) func(w, i int) bool {
	if len(keys) == 1 {
		key := keys[0]
		return func(int, int) bool { return decide(key) }
	}
	n := uint64(len(keys))
	return func(w, i int) bool {
		x := uint64(i)*0x9e3779b97f4a7c15 + uint64(w)*0xbf58476d1ce4e5b9
		return decide(keys[(x>>32)*n>>32])
	}
}

func addBytesPerKey(l *lab, s *measure.Section) error {
	n := pick(l, 1_000_000, 20_000)
	t := &measure.Table{Title: "Memory", Columns: []string{"", "bytes per key at " + strconv.Itoa(n)}}
	for _, p := range memoryPeers {
		before := heap()
		decide, done, err := p.open(l, lasting)
		if err != nil {
			return err
		}
		for _, k := range names("tenant", n) {
			if !decide(k) {
				return errDenied(p.name)
			}
		}
		after := heap()
		runtime.KeepAlive(decide)
		done()
		t.Add(p.name, measure.Number(float64(after-before)/float64(n)))
	}
	s.Tables = append(s.Tables, t)
	s.Notes = append(s.Notes, "The bytes are those of the live heap, with the text of the key, after each key was used once. "+
		"Sentinel's keys are hashes of 64 characters with a prefix and the endpoint; the peers' are the 15 characters of the tenant. "+
		"memory:// holds a million keys and drops only those that are full again; x/time/rate, juju and uber in a sync.Map drop none.")
	return nil
}

// heap is what is alive.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
