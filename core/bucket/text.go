package bucket

import (
	"strconv"
	"strings"
)

const (
	// maxDigits is the length of the longest number in a state.
	maxDigits = 16
	// maxTime bounds a stored time, in microseconds: the greatest number that
	// a double holds and cannot mistake for its neighbour.
	maxTime = 1<<53 - 1
)

// Parse reads a stored state: "tokens:time" for a token bucket,
// "current:previous:start" for a sliding window, each number 1 to 16 decimal
// digits and nothing else, amounts up to MaxExact, times below 2^53. Of any
// other text it returns false, and a state that decides as a fresh one and says
// so in [Answer.Corrupt].
func (r Rule) Parse(text string) (State, bool) {
	count, rest, _ := strings.Cut(text, ":")
	previous := "0"
	if r.sliding {
		previous, rest, _ = strings.Cut(rest, ":")
	}
	c, ok1 := parseNumber(count, MaxExact)
	p, ok2 := parseNumber(previous, MaxExact)
	t, ok3 := parseNumber(rest, maxTime)
	if !ok1 || !ok2 || !ok3 {
		return State{stamp: corrupt}, false
	}
	return State{count: c, previous: p, stamp: t + 1}, true
}

// Stored returns the state whose text holds these numbers; previous is 0 for a
// token bucket. Of numbers that no text may hold it returns false, and what
// Parse does.
func (r Rule) Stored(count, previous, time int64) (State, bool) {
	if uint64(count) > MaxExact || uint64(previous) > MaxExact || uint64(time) > maxTime || previous > 0 && !r.sliding {
		return State{stamp: corrupt}, false
	}
	return State{count: count, previous: previous, stamp: time + 1}, true
}

func parseNumber(digits string, most int64) (int64, bool) {
	if len(digits) < 1 || len(digits) > maxDigits {
		return 0, false
	}
	var n int64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n <= most
}

// Format returns the text of a state that is stored. A missing or corrupt state
// has none: "".
func (r Rule) Format(s State) string {
	if s.stamp <= 0 {
		return ""
	}
	text := strconv.AppendInt(make([]byte, 0, 3*maxDigits+2), s.count, 10)
	if r.sliding {
		text = strconv.AppendInt(append(text, ':'), s.previous, 10)
	}
	return string(strconv.AppendInt(append(text, ':'), s.time(), 10))
}
