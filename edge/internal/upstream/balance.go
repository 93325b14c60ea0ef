package upstream

// candidate is a backend that may get the next request.
type candidate struct {
	member int   // its index in the pool
	load   int64 // requests in flight
	weight int64 // more than 0
}

// lighter reports whether c has less to do for its weight than o. Loads and
// weights are far from the products that would overflow.
func (c candidate) lighter(o candidate) bool { return c.load*o.weight < o.load*c.weight }

// draw returns a number from 0 to below n, each as likely.
type draw func(n int) int

// smooth is round robin by weight, spread out: in each turn every candidate is
// credited its weight, and who has most credit is next and pays for all. So among
// the same candidates everyone gets its exact share of each cycle, and when one
// is missing, the others share by weight what it would have got, not whoever comes
// next. It returns the index in among, which is not empty.
func smooth(credit []int64, among []candidate) int {
	next, total := 0, int64(0)
	for i, c := range among {
		credit[c.member] += c.weight
		total += c.weight
		if credit[c.member] > credit[among[next].member] { // #nosec G602 -- next is an index of among
			next = i
		}
	}
	credit[among[next].member] -= total
	return next
}

// unsmooth takes back a turn of smooth that chose i.
func unsmooth(credit []int64, among []candidate, i int) {
	for _, c := range among {
		credit[c.member] -= c.weight
		credit[among[i].member] += c.weight
	}
}

// least returns the index of who has least to do for its weight; of several, any
// is as likely. among is not empty.
func least(among []candidate, draw draw) int {
	next, ties := 0, 1
	for i := 1; i < len(among); i++ {
		switch {
		case among[i].lighter(among[next]):
			next, ties = i, 1
		case !among[next].lighter(among[i]):
			ties++
		}
	}
	if ties == 1 {
		return next
	}
	for others := draw(ties); others > 0; others-- {
		first := next
		for next++; among[first].lighter(among[next]); next++ {
		}
	}
	return next
}

// lighterOfTwo draws two, any two as likely, and returns the index of who has less to
// do; if they are equal, of either. among is not empty.
func lighterOfTwo(among []candidate, draw draw) int {
	i, j := 0, 0
	switch n := len(among); n {
	case 1:
		return 0
	case 2:
		j = 1
	default:
		i, j = draw(n), draw(n-1)
		if j >= i {
			j++
		}
	}
	switch {
	case among[i].lighter(among[j]):
		return i
	case among[j].lighter(among[i]):
		return j
	case draw(2) == 0:
		return i
	default:
		return j
	}
}
