package sentinel

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/lua"
)

var (
	cookieSubject = &subject{key: "cookie", rule: newRule(bucket.NewTokenBucket(5*bucket.Token, 1000), 0)}
	peerSubject   = &subject{key: "ip", rule: newRule(bucket.NewSlidingWindow(10, 60_000_000), 1)}
)

func groupOf(subjects ...*subject) (g group) {
	for _, s := range subjects {
		g.add(s)
	}
	return g
}

func verdictOf(allowed bool, answers ...bucket.Answer) verdict {
	v := newVerdict(len(answers))
	v.allowed = allowed
	copy(v.buckets(), answers)
	return v
}

func TestEncodeCall(t *testing.T) {
	t.Parallel()
	for m, letter := range map[mode]string{modePeek: "p", modeDecide: "d", modeReset: "r"} {
		args := encodeCall(nil, m, []group{groupOf(cookieSubject, peerSubject)})
		for i, a := range args {
			if s, ok := a.(*string); ok {
				args[i] = *s
			}
		}
		want := []any{
			"evalsha", scriptSHA, 2, "cookie", "ip", letter,
			1, "bw", int64(5_000_000), int64(1000), int64(10), int64(60_000_000),
		}
		if !slices.Equal(args, want) {
			t.Errorf("mode %d: %v, want %v", m, args, want)
		}
	}
}

// Neighbours of one kind become one run; others stand apart.
func TestEncodeCallOfManyGroups(t *testing.T) {
	t.Parallel()
	cookie, ip := groupOf(cookieSubject), groupOf(peerSubject)
	args := encodeCall(nil, modeDecide, []group{cookie, cookie, ip, groupOf(cookieSubject, peerSubject)})
	want := []any{
		1 + 1, "b", int64(5_000_000), int64(1000),
		1, "w", int64(10), int64(60_000_000),
		1, "bw", int64(5_000_000), int64(1000), int64(10), int64(60_000_000),
	}
	if args[2] != 5 || !slices.Equal(args[9:], want) {
		t.Errorf("%v, want %v after five keys", args, want)
	}
}

// A call is put together without allocating, for it is on every decision's way.
func TestEncodeCallAllocations(t *testing.T) {
	groups := []group{groupOf(cookieSubject)}
	args := make([]any, 0, 32)
	if n := testing.AllocsPerRun(100, func() { args = encodeCall(args[:0], modeDecide, groups) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestScriptIsOneTextWithItsParts(t *testing.T) {
	t.Parallel()
	for _, part := range []string{lua.TokenBucket, lua.SlidingWindow} {
		if part == "" || !strings.Contains(lua.Decide, part) {
			t.Error("the script is not joined from the functions that the parity tests run")
		}
	}
	if len(scriptSHA) != 40 {
		t.Errorf("SHA-1 %q", scriptSHA)
	}
}

const testTime = 1_790_000_000_000_000

// The reply says the verdict, and what the buckets held; the answers are what
// that comes to.
func TestParseReply(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		mode  mode
		reply []int64
		want  verdict
	}{
		"both admit and are charged": {
			modeDecide,
			[]int64{0, 0, 5_000_000, 0, -25_000_000, 4, 8, 1},
			verdictOf(true,
				bucket.Answer{Remaining: 4, Wait: 1_000_000_000, Reset: 1000}, bucket.Answer{Remaining: 1, Wait: 5_000_001, Reset: 95},
			),
		},
		"both admit and are only looked at": {
			modePeek,
			[]int64{0, 0, 5_000_000, 0, -25_000_000, 4, 8, 2},
			verdictOf(true,
				bucket.Answer{Remaining: 5, Wait: bucket.Never}, bucket.Answer{Remaining: 2, Wait: 5_000_001, Reset: 95},
			),
		},
		"both are reset": {
			modeReset,
			[]int64{0, 0, 5_000_000, 0, 0, 0, 0, 5},
			verdictOf(true, bucket.Answer{Remaining: 5, Wait: bucket.Never}, bucket.Answer{Remaining: 10, Wait: bucket.Never}),
		},
		"one denies, the other is not charged": {
			modeDecide,
			[]int64{1_000_000, -1_000_000, 998_000, 0, 0, 0, 0, -1},
			verdictOf(false,
				bucket.Answer{Denied: true, Wait: 1_000_000, Reset: 4001}, bucket.Answer{Remaining: 10, Wait: bucket.Never},
			),
		},
		"one was corrupt": {
			modeDecide,
			[]int64{-2, 0, 5_000_000, 0, 0, 0, 0, 4},
			verdictOf(true,
				bucket.Answer{Corrupt: true, Remaining: 4, Wait: 1_000_000_000, Reset: 1000}, bucket.Answer{Remaining: 9, Wait: 60_000_001, Reset: 120},
			),
		},
		"a time ahead of the clock": {
			modeDecide,
			[]int64{0, 60_000_000, 2_000_000, 0, 0, 0, 0, 1},
			verdictOf(true,
				bucket.Answer{Remaining: 1, Wait: 1_060_000_000, Reset: 4060}, bucket.Answer{Remaining: 9, Wait: 60_000_001, Reset: 120},
			),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := groupOf(cookieSubject, peerSubject)
			got, err := parseReply(tc.mode, testTime, tc.reply, &g)
			if err != nil || got != tc.want {
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

func TestParseReplyRefuses(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string][]int64{
		"nothing":                         nil,
		"too short":                       {0, 0, 5_000_000, 0, 0, 0, 4},
		"too long":                        {0, 0, 5_000_000, 0, 0, 0, 0, 0, 4},
		"one bucket too few":              {0, 0, 5_000_000, 4},
		"admits what it cannot":           {0, 0, 999_999, 0, 0, 0, 0, 0},
		"admits what it cannot, a window": {0, 0, 5_000_000, 0, 0, 10, 0, 0},
		"denies what it cannot":           {1, 0, 5_000_000, 0, 0, 0, 0, -1},
		"denies for ever what it cannot":  {-1, 0, 5_000_000, 0, 0, 0, 0, -1},
		"denies and waits too little":     {999_999, -1_000_000, 998_000, 0, 0, 0, 0, -1},
		"denies and waits too long":       {1_000_001, -1_000_000, 998_000, 0, 0, 0, 0, -1},
		"denies and never admits":         {-1, -1_000_000, 998_000, 0, 0, 0, 0, -1},
		"one denies, and all admit":       {1_000_000, -1_000_000, 998_000, 0, 0, 0, 0, 0},
		"all admit, and it is denied":     {0, 0, 5_000_000, 0, 0, 0, 0, -5},
		"more remains than it held":       {0, 0, 5_000_000, 0, 0, 0, 0, 5},
		"less remains than it held":       {0, 0, 5_000_000, 0, 0, 0, 0, 3},
		"something remains of nothing":    {1_000_000, -1_000_000, 998_000, 0, 0, 0, 0, -2},
		"the least verdict":               {0, 0, 5_000_000, 0, 0, 0, 0, math.MinInt64},
		"corrupt, and waits":              {-4, 0, 5_000_000, 0, 0, 0, 0, 4},
		"the least wait":                  {math.MinInt64, 0, 5_000_000, 0, 0, 0, 0, 4},
		"negative count":                  {1, 0, -1, 0, 0, 0, 0, -1},
		"count too large":                 {0, 0, 1<<52 + 1, 0, 0, 0, 0, 4},
		"negative previous count":         {0, 0, 5_000_000, 0, 0, 0, -1, 4},
		"time before the clock's zero":    {0, -testTime - 1, 5_000_000, 0, 0, 0, 0, 4},
		"time too large":                  {0, 1<<53 - testTime, 5_000_000, 0, 0, 0, 0, 4},
		"time beyond all numbers":         {0, math.MaxInt64, 5_000_000, 0, 0, 0, 0, 4},
		"a time that is corrupt":          {0, 6_000_000_001, 5_000_000, 0, 0, 0, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := groupOf(cookieSubject, peerSubject)
			if v, err := parseReply(modeDecide, testTime, reply, &g); err == nil || v != (verdict{}) {
				t.Errorf("%+v, %v; want an error and the zero verdict", v, err)
			}
		})
	}
}

// FuzzScriptReply: whatever a server answers, there is an error or a verdict
// that does not contradict itself, and no panic.
func FuzzScriptReply(f *testing.F) {
	f.Add([]byte{}, 0, int64(testTime))
	f.Add(make([]byte, 8*4), 2, int64(testTime))
	f.Add(make([]byte, 8*5), 1, int64(testTime))
	f.Add(make([]byte, 8*8), 2, int64(testTime))
	f.Fuzz(func(t *testing.T, data []byte, keys int, now int64) {
		var g group
		for i := range int(uint(keys) % (maxGroup + 1)) {
			g.add([]*subject{cookieSubject, peerSubject}[(i+keys)&1])
		}
		var reply []int64
		for len(data) >= 8 {
			reply = append(reply, int64(binary.LittleEndian.Uint64(data)))
			data = data[8:]
		}
		now &= bucket.MaxWait - 1 // share has looked at it
		v, err := parseReply(modeDecide, now, reply, &g)
		if err != nil {
			if v.allowed {
				t.Fatal("admitted with an error")
			}
			return
		}
		denied := 0
		for _, b := range v.buckets() {
			if b.Denied {
				denied++
			}
			if b.Remaining < 0 || b.Wait < bucket.Never || b.Reset < bucket.Never || b.Denied && b.Remaining > 0 {
				t.Fatalf("%v: %+v", reply, b)
			}
		}
		if v.allowed != (denied == 0) || v.n != g.n {
			t.Fatalf("%v: %+v", reply, v)
		}
	})
}
