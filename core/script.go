package sentinel

import (
	"crypto/sha1" //nolint:gosec // EVALSHA names a script by its SHA-1; nothing is protected by it.
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/lua"
)

// mode is what a store does with a group of buckets.
type mode uint8

const (
	// modePeek looks and writes nothing. It is the zero mode: a mode that
	// nobody chose charges nobody.
	modePeek mode = iota
	// modeDecide charges every bucket of the group or none.
	modeDecide
	// modeReset makes every bucket of the group fresh.
	modeReset
)

// scriptSHA is the name of the script in EVALSHA.
var scriptSHA = func() string {
	sum := sha1.Sum([]byte(lua.Decide)) //nolint:gosec // See the import.
	return hex.EncodeToString(sum[:])
}()

// The arguments that never change, boxed once: a string costs an allocation
// each time it becomes an any.
var (
	argEvalSHA any = "evalsha"
	argSHA     any = scriptSHA
	argModes       = [...]any{modePeek: "p", modeDecide: "d", modeReset: "r"}
	// argModesWithCosts are those of calls in which some decision costs more
	// than 1: others carry no cost. A reset costs nothing.
	argModesWithCosts = [...]any{modePeek: "P", modeDecide: "D", modeReset: "r"}
	// argBeside stands before the runs of what is decided beside the rest.
	argBeside any = "?"
)

// encodeCall appends to args the whole EVALSHA command for the groups, and for
// those beside them, as decide.lua reads it. Neighbours of one kind, the same rules in the same order,
// become one run, which saves the script most of its reading. Keys are passed
// as pointers, which costs no allocation, so the subjects must stay as they are
// until the command has been answered.
func encodeCall(args []any, m mode, groups []group, beside ...group) []any {
	args = append(args, argEvalSHA, argSHA, nil)
	keys := len(args)
	args = appendKeys(appendKeys(args, groups), beside)
	args[keys-1] = len(args) - keys
	// What is beside has the costs of the others.
	costs := slices.ContainsFunc(groups, func(g group) bool { return g.cost != 0 })
	if costs {
		args = append(args, argModesWithCosts[m])
	} else {
		args = append(args, argModes[m])
	}
	args = appendRuns(args, groups, costs)
	if len(beside) > 0 {
		args = appendRuns(append(args, argBeside), beside, costs)
	}
	return args
}

func appendKeys(args []any, groups []group) []any {
	for i := range groups {
		of := groups[i].of[:groups[i].n]
		for _, s := range of {
			args = append(args, &s.key)
		}
		if groups[i].carries() {
			for _, s := range of {
				args = append(args, &s.previous)
			}
		}
	}
	return args
}

func appendRuns(args []any, groups []group, costs bool) []any {
	for first := 0; first < len(groups); {
		next := first + 1
		for next < len(groups) && sameKind(&groups[first], &groups[next]) {
			next++
		}
		args = append(args, next-first, groups[first].kind())
		if costs {
			args = append(args, groups[first].price())
		}
		for _, of := range groups[first].of[:groups[first].n] {
			args = append(args, of.rule.args[:]...)
		}
		first = next
	}
	return args
}

// kinds are the kinds of groups, as the script takes them, boxed once: the
// letters of the algorithms, by the number that they make in binary after a 1.
var kinds = kindsOf("bw")

// carryingKinds are those of groups that begin with the buckets of another version.
var carryingKinds = kindsOf("BW")

func kindsOf(algorithms string) (kinds [2 << maxGroup]any) {
	for n := 2; n < len(kinds); n++ {
		letters := []byte(strconv.FormatInt(int64(n), 2))[1:]
		for i, digit := range letters {
			letters[i] = algorithms[digit-'0']
		}
		kinds[n] = string(letters)
	}
	return kinds
}

func (g *group) kind() any {
	n := 1
	for _, of := range g.of[:g.n] {
		n <<= 1
		if of.rule.Sliding() {
			n++
		}
	}
	if g.carries() {
		return carryingKinds[n]
	}
	return kinds[n]
}

// carries reports whether the buckets of the group, which are all of one policy,
// begin with those of another version.
func (g *group) carries() bool { return g.of[0].previous != "" }

func sameKind(a, b *group) bool {
	if a.n != b.n || a.cost != b.cost {
		return false
	}
	for i := range a.n {
		if a.of[i].rule != b.of[i].rule {
			return false
		}
	}
	return true
}

// replyLen is how many numbers of a reply are the group's: its buckets', and its
// verdict.
func replyLen(g *group) int {
	n := 1
	for _, of := range g.of[:g.n] {
		n += of.rule.replyLen()
	}
	return n
}

// replyLen is how many numbers of a reply are one bucket's: its wait, its time
// less now, and one count or two.
func (r *rule) replyLen() int {
	if r.Sliding() {
		return 4
	}
	return 3
}

// parseReply reads the script's reply to one group, asked in mode m. The script
// says what it decided, and what its buckets held at now. From the latter the
// whole verdict follows by the same arithmetic, also what the script leaves out.
// Whatever is not such a reply is an error: numbers that contradict each other
// are not a verdict.
func parseReply(m mode, now int64, reply []int64, g *group) (verdict, error) {
	if len(reply) != replyLen(g) {
		return verdict{}, fmt.Errorf("sentinel: script reply of %d numbers to %d keys", len(reply), g.n)
	}
	v := newVerdict(g.n)
	// The verdict is last: as many requests as remain, or -1 less them for a denial.
	remaining := reply[len(reply)-1]
	v.allowed = remaining >= 0
	if !v.allowed {
		remaining = -1 - remaining
	}
	least, denied := int64(bucket.MaxExact), false
	for i, of := range g.of[:g.n] {
		part := reply[:of.rule.replyLen()]
		reply = reply[len(part):]
		a, ok := of.rule.answer(part, now, g.price(), v.allowed && m == modeDecide)
		if !ok {
			return verdict{}, fmt.Errorf("sentinel: script reply, bucket %d: %v at %d", i, part, now)
		}
		v.buckets()[i] = a
		switch {
		case a.Denied && !denied:
			least, denied = a.Remaining, true
		case a.Denied == denied:
			least = min(least, a.Remaining)
		}
	}
	if v.allowed == denied || remaining != least {
		return verdict{}, fmt.Errorf("sentinel: script reply: verdict %d contradicts the buckets, of which %d remain", reply[0], least)
	}
	return v, nil
}

// answer is the answer of a bucket of which the script says part, at now, and
// whether what the script decided follows from what it says that the bucket held.
func (r *rule) answer(part []int64, now, cost int64, charged bool) (bucket.Answer, bool) {
	wait, previous := part[0], int64(0)
	if len(part) > 3 {
		previous = part[3]
	}
	// A time that is out of range stays so, if the sum overflows: it is negative.
	state, ok := r.Stored(part[2], previous, now+part[1])
	if !ok {
		return bucket.Answer{}, false
	}
	_, a := r.DecideCost(state, now, cost, charged)
	if a.Corrupt {
		return a, false // the script would have said that it held a fresh one's
	}
	if wait < bucket.Never {
		a.Corrupt = true
		wait += corruptWait
	}
	if !a.Denied {
		return a, wait == 0
	}
	return a, wait == a.Wait
}

// corruptWait is by how much the wait of a bucket in a reply is less if its
// state was corrupt. Such a bucket decides like a fresh one, which admits or
// never does.
const corruptWait = 2
