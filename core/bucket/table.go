package bucket

import (
	"sync"
	"sync/atomic"
)

// Item is one bucket of a decision on a [Table].
type Item struct {
	Key string
	// Previous is another key, "" for none. Its bucket, unless it has expired or
	// been dropped, is what Key's begins with as long as there is none of Key. Of
	// another algorithm it is corrupt. It stays as it is.
	Previous string
	// Overflow has the rule of Key's bucket, which may have other numbers than
	// before but not another algorithm, and is the bucket that is used
	// instead while the table is full and does not know Key. Give one to all
	// keys of an endpoint, so that what does not fit shares one quota instead of
	// getting none or an unlimited number of fresh ones.
	Overflow *Bucket
	// Place, if there is one, spares the search for a key that is asked for
	// again. It is Key's alone, and one table's.
	Place *Place
	// Cost is as how many requests the decision counts; 0 means 1.
	Cost int64
}

func (i *Item) cost() int64 { return max(i.Cost, 1) }

// Place remembers where the bucket of a key is. The zero Place does not know
// yet. It is safe for concurrent use.
type Place struct{ entry atomic.Pointer[entry] }

// Table is a store of many buckets in this process, with the answers of the
// Redis script to the microtoken. It is safe for concurrent use. Decisions on
// keys that it knows take no lock, and a denial writes nothing. It is not for
// sharing a quota between processes.
//
// Its memory is bounded. A bucket that is full again, or counts nothing, is
// dropped, which loses no information; at the greatest number of keys with none
// to drop, new ones share their Overflow bucket. A bucket whose rule never
// refills is never dropped. About 110 bytes per key, and the text of the key.
type Table struct {
	most  int
	hash  Hasher
	index atomic.Pointer[index]
	_     [64]byte // what every decision reads is not on a line with what newcomers write

	mu         sync.Mutex // held to add and to drop keys, and to know that one is not there
	expires    wheel
	overflowed atomic.Uint64
}

// entry is one bucket of a Table. It fills a cache line.
type entry struct {
	key   string
	rule  atomic.Pointer[Rule] // of the last charge: a key may be given other numbers
	cell  cell
	place place
}

// under notes by which rule the entry's key is decided now. Its bucket is kept
// as long as it matters under that one.
func (e *entry) under(r *Rule) {
	if e.rule.Load() != r {
		e.rule.Store(r)
	}
}

// NewTable returns an empty table for at most most keys, at least 1; fewer are
// a programmer's mistake and panic.
func NewTable(most int) *Table {
	if most < 1 {
		panic("bucket: NewTable expects at least 1 key")
	}
	t := &Table{most: most, hash: NewHasher()}
	t.index.Store(newIndex(8))
	return t
}

// Len returns the number of keys.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.index.Load().used
}

// Overflowed returns how many decisions, looks included, had to use an overflow
// bucket so far.
func (t *Table) Overflowed() uint64 { return t.overflowed.Load() }

// Take is [Table.Decide] for a single key, by b's rule, with b as its overflow
// bucket and the answer in a, if that is not nil. For a key that it knows, of up to
// 32 bytes, it allocates nothing.
//
// It differs where the key was last charged by another bucket than b: what the key
// has left then misses the same fraction of b's capacity, see [Bucket.Successor].
// A key belongs to Take or to Decide, not to both.
func (t *Table) Take(now int64, key []byte, b *Bucket, a *Answer) bool {
	var o outcome
	e := t.index.Load().find(t.hash.Hash(string(key)), string(key))
	ok := e != nil && e.rule.Load() == &b.rule
	if ok {
		o, ok = e.cell.take(&b.rule, now, 1)
	}
	if !ok {
		o = t.takeHeld(now, string(key), b)
	}
	if a != nil {
		b.rule.answer(a, o, now, 1)
	}
	return !o.denied
}

// takeHeld is Take for a key that is new, or new to b.
func (t *Table) takeHeld(now int64, key string, b *Bucket) outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropExpired(now, 1)
	item := Item{Key: key, Overflow: b}
	e := t.lookup(key)
	if e != nil && e.rule.Load() != &b.rule {
		e = t.handOver(e, &item)
	}
	// While the table is held no cell dies, and one outside of a table never does.
	switch {
	case e != nil:
		o, _ := e.cell.take(&b.rule, now, 1)
		return o
	case t.index.Load().used < t.most:
		o := b.rule.decide(State{}, now, 1, true)
		if !o.denied {
			t.add(&item, o.after)
		}
		return o
	default:
		t.overflowed.Add(1)
		o, _ := b.cell.take(&b.rule, now, 1)
		return o
	}
}

// handOver replaces an entry by one under the item's rule, and returns that, or
// nil if nothing is left. The table is held.
func (t *Table) handOver(e *entry, item *Item) *entry {
	rule := e.rule.Load()
	s, word := e.cell.read(rule)
	for !e.cell.word.CompareAndSwap(word, dead) {
		s, word = e.cell.read(rule)
	}
	t.drop(e)
	if s = item.Overflow.inherit(s, rule); s.stamp <= missing {
		return nil
	}
	return t.add(item, s)
}

// Decide decides for a group of buckets at the time now and charges all of them
// or, if one denies, none. It reports whether all admit, and writes the answer
// for each item to answers, which has as many, or is nil if nobody asks. The
// keys of a group are different.
func (t *Table) Decide(now int64, group []Item, answers []Answer) bool {
	if len(group) == 1 {
		item := &group[0]
		if e := t.find(item); e != nil {
			e.under(&item.Overflow.rule)
			if o, ok := e.cell.take(&item.Overflow.rule, now, item.cost()); ok {
				if answers != nil {
					item.Overflow.rule.answer(&answers[0], o, now, item.cost())
				}
				return !o.denied
			}
		}
	}
	return t.decide(now, group, answers, true)
}

// Peek is Decide without the charge: what would be decided, and how much
// remains.
func (t *Table) Peek(now int64, group []Item, answers []Answer) bool {
	return t.decide(now, group, answers, false)
}

// Reset makes the buckets of a group fresh and answers like Peek thereafter. An
// overflow bucket is not reset through one of those who share it.
func (t *Table) Reset(now int64, group []Item, answers []Answer) bool {
	t.mu.Lock()
	for i := range group {
		// A fresh bucket is one that is not there, nor the one before it.
		t.remove(group[i].Key)
		if group[i].Previous != "" {
			t.remove(group[i].Previous)
		}
	}
	t.mu.Unlock()
	return t.decide(now, group, answers, false)
}

// remove drops a key, if it is there. The table is held.
func (t *Table) remove(key string) {
	if e := t.lookup(key); e != nil {
		e.cell.kill(e.rule.Load())
		t.drop(e)
	}
}

// lookup finds the entry of a key, for certain if the table is held.
func (t *Table) lookup(key string) *entry { return t.index.Load().find(t.hash.Hash(key), key) }

// find finds an item's entry, which may be dead, or nil. It may miss one.
func (t *Table) find(item *Item) *entry {
	if item.Place == nil {
		return t.lookup(item.Key)
	}
	e := item.Place.entry.Load()
	if e == nil || e.key != item.Key {
		if e = t.lookup(item.Key); e != nil {
			item.Place.entry.Store(e)
		}
	}
	return e
}

// share is an item's part of a decision.
type share struct {
	cell   *cell // nil: the key is new
	word   uint64
	before State
	outcome
}

// decide decides on a group, or looks at it.
func (t *Table) decide(now int64, group []Item, answers []Answer, charge bool) bool {
	var few [2]share
	shares := few[:]
	if len(group) > len(few) {
		shares = make([]share, len(group))
	}
	shares = shares[:len(group)]
	allowed, ok := false, t.findAll(group, shares)
	if ok {
		allowed, ok = settle(now, group, shares, charge)
	}
	if !ok {
		allowed = t.decideHeld(now, group, shares, charge)
	}
	if answers != nil {
		for i := range shares {
			group[i].Overflow.rule.answer(&answers[i], shares[i].outcome, now, group[i].cost())
		}
	}
	return allowed
}

// findAll finds the cells of a group, if none of its keys is new.
func (t *Table) findAll(group []Item, shares []share) bool {
	for i := range group {
		e := t.find(&group[i])
		if e == nil {
			return false
		}
		e.under(&group[i].Overflow.rule)
		shares[i].cell = &e.cell
	}
	return true
}

// decideHeld is decide for groups with keys that are new.
func (t *Table) decideHeld(now int64, group []Item, shares []share, charge bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropExpired(now, len(group))
	room := t.most - t.index.Load().used
	for i := range group {
		item := &group[i]
		e := t.lookup(item.Key)
		switch {
		case e != nil:
			e.under(&item.Overflow.rule)
			shares[i].cell = &e.cell
			if item.Place != nil {
				item.Place.entry.Store(e)
			}
		case room > 0:
			shares[i].cell, shares[i].before = nil, t.carried(now, item)
			room--
		default:
			shares[i].cell = &item.Overflow.cell
			t.overflowed.Add(1)
		}
	}
	allowed, _ := settle(now, group, shares, charge) // while the table is held no cell dies
	if allowed && charge {
		for i := range shares {
			if shares[i].cell == nil {
				t.add(&group[i], shares[i].after)
			}
		}
	}
	return allowed
}

// carried is the state that the bucket of a new key begins with: that of Previous,
// or the zero State. The table is held.
func (t *Table) carried(now int64, item *Item) State {
	if item.Previous == "" {
		return State{}
	}
	e := t.lookup(item.Previous)
	if e == nil {
		return State{}
	}
	r := e.rule.Load()
	s, _ := e.cell.read(r) // while the table is held no cell dies
	switch at := r.expiry(s); {
	case at > 0 && at <= now/second: // to be dropped, sooner or later
		return State{}
	case r.sliding != item.Overflow.rule.sliding:
		return State{stamp: corrupt}
	default:
		return s
	}
}

// settle decides on the cells of a group as if there were nobody else, and
// reports whether all admit. It returns false, false if one of the cells is
// dead.
func settle(now int64, group []Item, shares []share, charge bool) (allowed, ok bool) {
	for tries := 1; ; tries++ {
		allowed, ok = look(now, group, shares, charge)
		switch {
		case !ok:
			return false, false
		case allowed && charge:
			ok = commit(shares)
		default:
			ok = unchanged(shares)
		}
		if ok {
			return allowed, true
		}
		yield(tries)
	}
}

// look decides for each of a group by itself.
func look(now int64, group []Item, shares []share, charge bool) (allowed, ok bool) {
	allowed = true
	for i := range shares {
		s, rule := &shares[i], &group[i].Overflow.rule
		if s.cell != nil {
			if s.before, s.word = s.cell.read(rule); s.word == dead {
				return false, false
			}
		}
		s.outcome = rule.decide(s.before, now, group[i].cost(), charge)
		allowed = allowed && !s.denied
	}
	if charge && !allowed {
		// The partners of the bucket that denied are as they were.
		for i := range shares {
			shares[i].outcome = group[i].Overflow.rule.decide(shares[i].before, now, group[i].cost(), false)
		}
	}
	return allowed, true
}

// unchanged reports whether what was read of several cells was there at one
// time.
func unchanged(shares []share) bool {
	for i := range shares {
		if s := &shares[i]; s.cell != nil && s.cell.word.Load() != s.word {
			return false
		}
	}
	return true
}

// commit stores the new states of all cells, if none has changed. It never waits
// for a cell while it has another.
func commit(shares []share) bool {
	for i := range shares {
		s := &shares[i]
		if s.cell == nil || isIn(s.cell, shares[:i]) {
			continue
		}
		if !s.cell.claim(s.word, s.after) {
			giveBack(shares[:i])
			return false
		}
	}
	for i := range shares {
		if s := &shares[i]; s.cell != nil && !isIn(s.cell, shares[:i]) {
			s.cell.write(s.word, s.after)
		}
	}
	return true
}

func giveBack(claimed []share) {
	for i := range claimed {
		if s := &claimed[i]; s.cell != nil {
			s.cell.word.Store(s.word)
		}
	}
}

// isIn reports whether a cell is an overflow bucket that another of the group
// shares. It is charged once.
func isIn(c *cell, shares []share) bool {
	for i := range shares {
		if shares[i].cell == c {
			return true
		}
	}
	return false
}

// add adds an item with its first state, and returns its entry. The table is held.
func (t *Table) add(item *Item, s State) *entry {
	e := &entry{key: item.Key}
	e.rule.Store(&item.Overflow.rule)
	e.cell.claim(0, s)
	e.cell.write(0, s)
	if item.Place != nil {
		item.Place.entry.Store(e)
	}
	t.schedule(e, s)
	x := t.index.Load()
	if x.full() {
		x = x.grown()
		t.index.Store(x)
	}
	x.add(t.hash.Hash(e.key), e)
	return e
}

// drop forgets an entry that was killed. The table is held.
func (t *Table) drop(e *entry) {
	t.expires.remove(e)
	t.index.Load().remove(t.hash.Hash(e.key), e)
}

// schedule has e looked at when s has expired.
func (t *Table) schedule(e *entry, s State) {
	if at := e.rule.Load().expiry(s); at > 0 {
		t.expires.add(e, at)
	}
}

// expiry is the second from which on s does not matter, as in Redis, by a clock
// that counts whole seconds. 0: there is none.
func (r *Rule) expiry(s State) int64 {
	ttl := r.TTL(s, s.time())
	if ttl == 0 {
		return 0
	}
	return ceilDiv(s.time(), second) + ttl
}

// dropExpired drops buckets that no longer matter until there is room for n more
// or nothing to drop. While there is room it looks at a few, so that the table
// shrinks again after a rush and nobody pays for many others. The table is held.
func (t *Table) dropExpired(now int64, n int) {
	for looks := 0; looks < n+2 || t.index.Load().used > t.most-n; looks++ {
		e := t.expires.due(now / second)
		if e == nil {
			return
		}
		for {
			r := e.rule.Load()
			s, word := e.cell.read(r)
			at := r.expiry(s)
			if at > now/second {
				t.expires.add(e, at)
			}
			if at > now/second || at == 0 { // 0: it never refills any more
				break
			}
			if e.cell.word.CompareAndSwap(word, dead) {
				t.drop(e)
				break
			}
		}
	}
}
