package bucket

// wheelSeconds is how far ahead a wheel tells one second from another.
const wheelSeconds = 1024

// wheel holds entries by the second at which to look whether they still matter.
// An entry may come to matter for longer meanwhile, which is seen only then: so
// a decision has nothing to do here.
type wheel struct {
	seconds [wheelSeconds][]*entry
	hand    int64 // all entries of earlier seconds have been looked at
}

// place is where in a wheel an entry is. The zero place is nowhere.
type place struct{ second, index uint32 }

// add has e looked at at the given second, or when as many have gone by as the
// wheel has.
func (w *wheel) add(e *entry, second int64) {
	at := min(max(second, w.hand), w.hand+wheelSeconds-1) % wheelSeconds
	e.place = place{uint32(at) + 1, uint32(len(w.seconds[at]))}
	w.seconds[at] = append(w.seconds[at], e)
}

// remove takes e out if it is there.
func (w *wheel) remove(e *entry) {
	if e.place.second == 0 {
		return
	}
	all := &w.seconds[e.place.second-1]
	last := len(*all) - 1
	moved := (*all)[last]
	(*all)[e.place.index], moved.place.index = moved, e.place.index
	(*all)[last] = nil
	if *all = (*all)[:last]; last == 0 {
		*all = nil // its array may be that of a rush
	}
	e.place = place{}
}

// due takes out an entry that is to be looked at by now, nil if there is none.
func (w *wheel) due(now int64) *entry {
	// Where the hand jumps, or the clock stepped back, some are looked at too
	// early.
	w.hand = min(max(w.hand, now-wheelSeconds+1), now)
	for ; w.hand <= now; w.hand++ {
		if all := w.seconds[w.hand%wheelSeconds]; len(all) > 0 {
			e := all[len(all)-1]
			w.remove(e)
			return e
		}
	}
	return nil
}
