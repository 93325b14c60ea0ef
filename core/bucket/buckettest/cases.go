package buckettest

import (
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
)

const (
	token = 1_000_000
	exact = 1 << 52
	epoch = 1_790_000_000_000_000 // a time in 2026
)

// Cases returns count cases of all kinds: everyday traffic, the corners of both
// algorithms, clocks that step back, and texts that are no state.
func Cases(r *rand.Rand, count int) []Case {
	cases := make([]Case, count)
	for i := range cases {
		switch {
		case i%10 == 0:
			cases[i] = textCase(r, i/10)
		case i%10 == 2:
			cases[i] = divisionCase(r)
		case i%20 == 4:
			cases[i] = agesCase(r)
		case i%2 == 0:
			cases[i] = tokenCase(r)
		default:
			cases[i] = windowCase(r)
		}
		if i%3 == 0 && cases[i].Cost == 0 {
			cases[i].Cost = costOf(r, cases[i])
		}
	}
	return cases
}

// costOf is a small cost, one about the rule's size, or any.
func costOf(r *rand.Rand, c Case) int64 {
	size := c.P1
	if !c.Sliding {
		size /= token
	}
	const most = exact/token + 1
	return max(1, min(most, pick(r, 1, 2, 3, 5, size-1, size, size+1, magnitude(r, max(size, 1)), magnitude(r, most))))
}

// nearWhole returns a time from elapsed on in which almost exactly a whole number
// of microtokens flows in, a little more or a little less: there a rounded
// product falls to the wrong side.
func nearWhole(rate, elapsed int64) int64 {
	best, nearest := elapsed, int64(token)
	for e := elapsed; e < elapsed+200; e++ {
		part := n(0).Mod(mul(n(e), n(rate)), million).Int64()
		if d := min(part, token-1-part); d < nearest {
			best, nearest = e, d
		}
	}
	return best
}

// LargeCases returns token bucket cases that are aimed at the limit of a
// double: capacity 2^40 to 2^52, and a time elapsed in which a large part of it
// has come back, so that no cap hides the product. A plain double gets many of
// them wrong; random cases hardly ever show it.
func LargeCases(r *rand.Rand, count int) []Case {
	cases := make([]Case, count)
	for i := range cases {
		capacity := 1<<40 + r.Int64N(exact-1<<40+1)
		rate := pick(r, 1<<30+r.Int64N(exact-1<<30), 999_999_999_999, exact, magnitude(r, exact))
		gain := 1<<38 + r.Int64N(capacity-1<<38)
		elapsed := nearWhole(rate, upTo(epoch-1000, n(0).Div(mul(n(gain), million), n(rate))))
		cases[i] = Case{
			P1: capacity, P2: rate, Stored: true, Now: epoch, Charge: r.IntN(4) > 0,
			Text: join(pick(r, 0, r.Int64N(token), r.Int64N(capacity)), epoch-elapsed),
		}
	}
	return cases
}

func tokenCase(r *rand.Rand) Case {
	capacity := pick(r, token, token+1, 2*token-1, 10*token, 1<<30, exact, token+magnitude(r, exact-token))
	rate := pick(r, 0, 1, 3, token-1, token, token+1, exact, magnitude(r, exact), 1+r.Int64N(1<<30))
	tokens := pick(r, 0, 1, token-1, token, capacity-1, capacity, capacity+1, r.Int64N(capacity), magnitude(r, exact))
	now := epoch + r.Int64N(1e15)
	horizon := int64(1 << 50)
	if rate > 0 {
		horizon = upTo(horizon, n(0).Div(mul(n(capacity), million), n(rate)))
	}
	var refill int64 // the time that some number of tokens needs
	if rate > 0 {
		need := max(0, pick(r, token, capacity, token*(1+r.Int64N(max(1, capacity/token))))-tokens)
		refill = upTo(1<<50, ceil(mul(n(need), million), n(rate)))
	}
	elapsed := pick(r, 0, 1, token, refill-1, refill, refill+1, r.Int64N(refill+1), magnitude(r, now),
		-1, -token, -60*token, -60*token-1, -magnitude(r, 100*token), -horizon, -horizon-1, -magnitude(r, horizon+1))
	return Case{
		P1: capacity, P2: rate, Now: now, Charge: r.IntN(4) > 0,
		Stored: r.IntN(20) > 0, Text: join(min(tokens, exact), min(now-elapsed, 1<<53-1)),
	}
}

// divisionCase needs almost exactly a whole number of microseconds until it is
// full, where a quotient of doubles falls to the wrong side, and a stored time so
// far ahead that one microsecond more is one second more.
func divisionCase(r *rand.Rand) Case {
	var rate, micros, need int64
	for range 100 { // as near as chance brings it
		rate, micros = exact/2+r.Int64N(exact/2), 1+r.Int64N(token-1)
		flow := mul(n(micros), n(rate))
		need = ceil(flow, million).Int64()
		if sub(mul(n(need), million), flow).Int64() < token/50 {
			break
		}
	}
	need -= r.Int64N(2)
	capacity := max(need, token) + r.Int64N(exact-max(need, token)+1)
	now := epoch + r.Int64N(1e15)
	ahead := token*(1+r.Int64N(59)) - micros
	return Case{P1: capacity, P2: rate, Stored: true, Text: join(capacity-need, now+ahead), Now: now}
}

// agesCase fills for longer than any wait that is told apart, and has done so for
// long: the rest of its wait is about the longest.
func agesCase(r *rand.Rand) Case {
	now, elapsed := epoch+r.Int64N(1e15), r.Int64N(epoch)
	wait := 1<<53 + pick(r, 0, 1, -1, -token, token, magnitude(r, 1e15), -magnitude(r, 1e15))
	rate := pick(r, 1, 2, 3, 7, 1000, magnitude(r, 400_000))
	cost := upTo(exact/token, n(0).Div(mul(n(rate), n(wait+elapsed)), mul(million, million)))
	return Case{
		P1: exact, P2: rate, Cost: max(1, cost), Stored: true, Now: now, Charge: r.IntN(4) > 0,
		Text: join(pick(r, 0, r.Int64N(token)), now-elapsed),
	}
}

func windowCase(r *rand.Rand) Case {
	window := pick(r, 1000, 1001, token, 60*token, 3600*token, 1000+magnitude(r, 1<<46), 1+magnitude(r, exact-1),
		exact/(1+r.Int64N(8))-r.Int64N(100))
	most := exact / window
	limit := pick(r, 1, min(2, most), min(10, most), min(1000, most), most, magnitude(r, most))
	current := pick(r, 0, 1, limit-1, limit, limit+1, r.Int64N(limit+1), magnitude(r, exact))
	previous := pick(r, 0, 1, limit-1, limit, limit+1, r.Int64N(limit+1), magnitude(r, exact))
	now := epoch + r.Int64N(1e15)
	// The instants at which the estimate crosses a whole number.
	edge := window
	if previous > 0 {
		edge = window - n(0).Div(mul(n(r.Int64N(limit+1)), n(window)), n(previous)).Int64()
	}
	edge += window * r.Int64N(2)
	elapsed := pick(r, 0, 1, window-1, window, window+1, 2*window-1, 2*window, 2*window+1,
		edge-1, edge, edge+1, r.Int64N(2*window), magnitude(r, 4*window),
		-1, -token, -60*token, -60*token-1, -magnitude(r, 100*token), -2*window, -2*window-1, -magnitude(r, 2*window))
	return Case{
		Sliding: true, P1: limit, P2: window, Now: now, Charge: r.IntN(4) > 0, Stored: r.IntN(20) > 0,
		Text: join(min(current, exact), min(previous, exact), max(0, min(now-elapsed, 1<<53-1))),
	}
}

// Texts are stored texts, most of which are no state of either algorithm.
var Texts = []string{
	"", ":", "::", "5", "5:", ":5", "5::7", "abc", "a:b", "0x5:7", " 1:2", "1: 2", "1:2 ", "+1:2", "-1:2", "1:-2",
	"1.0:2", "1e3:5", "inf:5", "nan:5", "1:nan", "1:2\n", "\n1:2", "1:2\x00", "\x001:2", "1,000:2", "1_000:2", "٣:5",
	"1:2:", "1:2:3:4", "1:2:3\n", "1:2:0x3", "1:2: 3", "1:2:-3", ":2:3", "1::3", "-1:2:3", "1:1e3:3",
	"0:0", "1:2", "0:0:0", "1:2:3", "007:1789999999000000", "0000000001000000:1790000000000000",
	"00000000001000000:1790000000000000", "1000000:01790000000000000", "1:2:1789999999999999", "01:02:1789999999999999",
	"4503599627370496:1789999999999999", "4503599627370497:1789999999999999", "9007199254740993:1789999999999999",
	"9999999999999999:9999999999999999", "99999999999999999999:1", "18446744073709551617:1", "1:18446744073709551617",
	"4503599627370496:0:1789999999999999", "4503599627370497:0:1789999999999999",
	"0:4503599627370496:1789999999999999", "0:4503599627370497:1789999999999999",
	"0:1790000059999999", "0:1790000060000000", "0:1790000060000001", "0:9007199254740991", "0:9007199254740992",
	"0:9007199254740993", "5:5:1790000060000000", "5:5:1790000060000001", "5:5:9007199254740991", "5:5:9007199254740992",
	"5:5:9007199254740993", "999999:1790000000000000", "1000000:1790000000000000", "5:5:1790000000000000",
}

func textCase(r *rand.Rand, i int) Case {
	c := Case{Stored: true, Text: Texts[i%len(Texts)], Now: epoch, Charge: r.IntN(4) > 0}
	if r.IntN(2) == 0 {
		c.P1, c.P2 = pick(r, token, 10*token, exact), pick(r, 0, 1, token, exact)
	} else {
		c.Sliding, c.P1, c.P2 = true, pick(r, 1, 10), pick(r, 1000, 60*token, 1<<48)
	}
	return c
}

// upTo returns v, or most if v is more.
func upTo(most int64, v *big.Int) int64 { return least(v, n(most)).Int64() }

// magnitude returns a number from 1 to most whose number of digits, rather than
// whose value, is evenly spread.
func magnitude(r *rand.Rand, most int64) int64 {
	if most <= 1 {
		return 1
	}
	top := int64(1) << r.IntN(n(most).BitLen())
	return min(most, top+r.Int64N(top))
}

func pick(r *rand.Rand, from ...int64) int64 { return from[r.IntN(len(from))] }

func join(numbers ...int64) string {
	var text []byte
	for i, v := range numbers {
		if i > 0 {
			text = append(text, ':')
		}
		text = strconv.AppendInt(text, v, 10)
	}
	return string(text)
}

// At returns the case as it is at another time: the stored time is as far from
// now as it was. A text without a time stays.
func (c Case) At(now int64) Case {
	if i := strings.LastIndexByte(c.Text, ':'); i >= 0 {
		if time, err := strconv.ParseInt(c.Text[i+1:], 10, 64); err == nil && time > exact/4 {
			c.Text = c.Text[:i+1] + strconv.FormatInt(max(0, time+now-c.Now), 10)
		}
	}
	c.Now = now
	return c
}
