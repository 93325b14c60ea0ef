package integration_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
	"github.com/sentinelgo/sentinel/integration/redistest"
	"github.com/sentinelgo/sentinel/lua"
)

// The arithmetic exists twice, in Lua and in Go. Here the two pure Lua
// functions, the same text that the script is joined from, run on Redis's own
// interpreter with the time as an argument, next to their twins in Go and to an
// oracle of big integers. Nothing of this touches a key.

// runLua runs the pure functions on all cases.
func runLua(t *testing.T, rdb *redis.Client, cases []buckettest.Case) []buckettest.Result {
	t.Helper()
	results := make([]buckettest.Result, 0, len(cases))
	for len(cases) > 0 {
		batch := cases[:min(500, len(cases))]
		cases = cases[len(batch):]
		results = append(results, evalPure(t, rdb, lua.TokenBucket+lua.SlidingWindow, batch)...)
	}
	return results
}

// evalPure runs the functions that the given text defines.
func evalPure(t *testing.T, rdb *redis.Client, functions string, cases []buckettest.Case) []buckettest.Result {
	t.Helper()
	var args []any
	for _, c := range cases {
		args = append(args, c.Sliding, c.Stored, c.Text, c.Now, c.P1, c.P2, c.Charge, c.Price())
	}
	rows, err := rdb.Eval(t.Context(), functions+callPure, nil, args...).Slice()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(cases) {
		t.Fatalf("%d answers to %d cases", len(rows), len(cases))
	}
	results := make([]buckettest.Result, len(rows))
	for i, row := range rows {
		results[i] = luaResult(t, row.([]any), cases[i])
	}
	return results
}

// callPure calls a pure function for every eight arguments.
const callPure = `
local out = {}
for i = 1, #ARGV, 8 do
  local decide = ARGV[i] == '1' and sliding_window or token_bucket
  local state = ARGV[i + 1] == '1' and ARGV[i + 2]
  local wait, left, text, ttl, time, count, previous =
    decide(state, ARGV[i + 3] + 0, ARGV[i + 4] + 0, ARGV[i + 5] + 0, ARGV[i + 6] == '1', ARGV[i + 7] + 0)
  out[#out + 1] = {wait, left, text or '', ttl, time, count, previous or 0}
end
return out`

// luaResult is what a decision in Lua comes to. Lua says whether and how long it
// denies, what remains, and what it holds now. When that grows and is whole again
// follows in Go from what it held, as it does in core, so all of it is held
// against the oracle.
func luaResult(t *testing.T, row []any, c buckettest.Case) buckettest.Result {
	t.Helper()
	n := func(i int) int64 { return row[i].(int64) }
	rule := ruleOf(c)
	state, ok := rule.Stored(n(5), n(6), c.Now+n(4))
	if !ok {
		t.Fatalf("%+v: lua says that it held %v", c, row)
	}
	_, a := rule.DecideCost(state, c.Now, c.Price(), c.Charge)
	r := buckettest.Result{Wait: n(0), Remaining: n(1), Reset: a.Reset}
	if r.Wait < bucket.Never {
		r.Corrupt, r.Wait = true, r.Wait+2
	}
	if r.Denied = r.Wait != 0; !r.Denied {
		r.Wait = a.Wait
	}
	if c.Charge && !r.Denied {
		r.Text, r.TTL = row[2].(string), n(3)
	}
	return r
}

// runGo runs the twin in Go.
func runGo(c buckettest.Case) buckettest.Result {
	rule := ruleOf(c)
	var state bucket.State
	if c.Stored {
		state, _ = rule.Parse(c.Text)
	}
	next, a := rule.DecideCost(state, c.Now, c.Price(), c.Charge)
	r := buckettest.Result{
		Denied: a.Denied, Corrupt: a.Corrupt,
		Remaining: a.Remaining, Wait: a.Wait, Reset: a.Reset,
	}
	if c.Charge && !a.Denied {
		r.Text, r.TTL = rule.Format(next), rule.TTL(next, c.Now)
	}
	return r
}

func ruleOf(c buckettest.Case) bucket.Rule {
	if c.Sliding {
		return bucket.NewSlidingWindow(c.P1, c.P2)
	}
	return bucket.NewTokenBucket(c.P1, c.P2)
}

func TestLuaMeetsTheKnownAnswers(t *testing.T) {
	t.Parallel()
	vectors := buckettest.Vectors(t, filepath.Join("..", "core", "bucket", "testdata"))
	cases := make([]buckettest.Case, len(vectors))
	for i, v := range vectors {
		cases[i] = v.Case
	}
	for i, got := range runLua(t, redistest.Client(t), cases) {
		v := vectors[i]
		want := int64(bucket.Never)
		if v.Wait != nil {
			want = *v.Wait
		}
		switch {
		case got.Denied == v.Allowed || got.Corrupt:
			t.Fatalf("%+v: %+v", v, got)
		case v.Allowed && got.Text != v.After: // a denial stores nothing
			t.Fatalf("%+v: state %s", v, got.Text)
		case !v.Allowed && got.Wait != want:
			t.Fatalf("%+v: wait %d", v, got.Wait)
		case !v.Allowed && got.Remaining != 0:
			t.Fatalf("%+v: remaining %d", v, got.Remaining)
		}
	}
}

func TestLuaAgreesWithGoAndTheOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(11, 12))
	cases := append(buckettest.Cases(r, 20_000), buckettest.LargeCases(r, 4_000)...)
	for i, got := range runLua(t, redistest.Client(t), cases) {
		want := buckettest.Oracle(cases[i])
		want.Wait = min(want.Wait, bucket.MaxWait)
		if got != want {
			t.Fatalf("%+v:\n   lua %+v\noracle %+v", cases[i], got, want)
		}
		if twin := runGo(cases[i]); twin != want {
			t.Fatalf("%+v:\n    go %+v\noracle %+v", cases[i], twin, want)
		}
	}
}

// A token bucket that multiplies plain doubles. The targeted cases must convict
// it, or they prove nothing about the real one.
const naiveTokenBucket = `
local function token_bucket(state, now, capacity, rate, charge)
  local tokens, last = state:match('^(%d+):(%d+)$')
  tokens = math.min(capacity, tokens + math.floor((now - last) * rate / 1000000))
  local text
  if charge then text = ('%d:%d'):format(tokens - 1000000, now) end
  return tokens < 1000000 and 1 or 0, 0, text, 0, 0, 0
end
local sliding_window
`

func TestTargetedCasesConvictADouble(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	cases := buckettest.LargeCases(rand.New(rand.NewPCG(13, 14)), 1000)
	for i := range cases {
		cases[i].Charge = true
	}
	wrong := 0
	for i, got := range evalPure(t, rdb, naiveTokenBucket, cases) {
		if want := runGo(cases[i]); got.Denied != want.Denied || got.Text != want.Text {
			wrong++
		}
	}
	if wrong < len(cases)/5 {
		t.Errorf("plain doubles are wrong in %d of %d cases only", wrong, len(cases))
	}
}
