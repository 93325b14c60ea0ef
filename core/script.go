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
)

// encodeCall appends to args the whole EVALSHA command for the groups, as
// decide.lua reads it. Neighbours of one kind, the same rules in the same order,
// become one run, which saves the script most of its reading. Keys are passed
// as pointers, which costs no allocation, so the subjects must stay as they are
// until the command has been answered.
func encodeCall(args []any, m mode, groups []group) []any {
	args = append(args, argEvalSHA, argSHA, nil)
	keys := len(args)
	for i := range groups {
		for _, of := range groups[i].of[:groups[i].n] {
			args = append(args, &of.key)
		}
	}
	args[keys-1] = len(args) - keys
	costs := slices.ContainsFunc(groups, func(g group) bool { return g.cost != 0 })
	if costs {
		args = append(args, argModesWithCosts[m])
	} else {
		args = append(args, argModes[m])
	}
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
var kinds = func() (kinds [2 << maxGroup]any) {
	for n := 2; n < len(kinds); n++ {
		letters := []byte(strconv.FormatInt(int64(n), 2))[1:]
		for i, digit := range letters {
			letters[i] = "bw"[digit-'0']
		}
		kinds[n] = string(letters)
	}
	return kinds
}()

func (g *group) kind() any {
	n := 1
	for _, of := range g.of[:g.n] {
		n <<= 1
		if of.rule.Sliding() {
			n++
		}
	}
	return kinds[n]
}

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

// replyLen is how many numbers of a reply are the group's.
func replyLen(g *group) int {
	n := 0
	for _, of := range g.of[:g.n] {
		n += of.rule.replyLen()
	}
	return n
}

// replyLen is how many numbers of a reply are one bucket's: flags, its time
// less now, and one count or two.
func (r *rule) replyLen() int {
	if r.Sliding() {
		return 4
	}
	return 3
}

// The flags of one bucket in a reply.
const (
	flagDenied = 1 << iota
	flagCorrupt
	flagsEnd
)

// parseReply reads the script's reply to one group, asked in mode m: what its
// buckets held at now, and which of them denied. From that all the rest follows
// by the same arithmetic that the script decides by. Whatever is not such a
// reply is an error: numbers that contradict each other are not a verdict.
func parseReply(m mode, now int64, reply []int64, g *group) (verdict, error) {
	if len(reply) != replyLen(g) {
		return verdict{}, fmt.Errorf("sentinel: script reply of %d numbers to %d keys", len(reply), g.n)
	}
	v := newVerdict(g.n)
	v.allowed = true
	var states2 [2]bucket.State
	var flags2 [2]int64
	states, flags := states2[:0], flags2[:0]
	for i, of := range g.of[:g.n] {
		part := reply[:of.rule.replyLen()]
		reply = reply[len(part):]
		previous := int64(0)
		if len(part) > 3 {
			previous = part[3]
		}
		// A time that is out of range stays so, if the sum overflows: it is negative.
		state, ok := of.rule.Stored(part[2], previous, now+part[1])
		if !ok || uint64(part[0]) >= flagsEnd {
			return verdict{}, fmt.Errorf("sentinel: script reply, bucket %d: %v at %d", i, part, now)
		}
		states, flags = append(states, state), append(flags, part[0])
		v.allowed = v.allowed && part[0]&flagDenied == 0
	}
	for i, of := range g.of[:g.n] {
		_, a := of.rule.DecideCost(states[i], now, g.price(), v.allowed && m == modeDecide)
		if a.Corrupt || a.Denied != (flags[i]&flagDenied != 0) {
			return verdict{}, fmt.Errorf("sentinel: script reply, bucket %d: flags %d contradict what it held at %d", i, flags[i], now)
		}
		a.Corrupt = flags[i]&flagCorrupt != 0
		v.buckets()[i] = a
	}
	return v, nil
}
