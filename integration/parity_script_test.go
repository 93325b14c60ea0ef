package integration_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
	"github.com/sentinelgo/sentinel/integration/redistest"
	"github.com/sentinelgo/sentinel/lua"
)

// Here the whole script runs on real keys, next to a model of it in Go: groups,
// reads, writes and expiry. Redis's TIME is the script's only clock; its reply
// says what it was.

// key is one key of a generated call, and what the model holds it to be.
type key struct {
	name  string
	rule  bucket.Rule
	text  string
	kind  string // "none", "string", or a type that is no bucket's
	ttl   int64  // seconds of the last write; 0: none
	wrote bool
	from  *key // what it begins with; nil in a run that carries nothing over

	expiry bool // it was planted with plantedExpiry
}

const plantedExpiry = 1_000_000 * time.Second

// run is one run of a call: groups of one kind.
type run struct {
	groups [][]*key // all of equal rules
	cost   int64    // of each group; sent in the modes "D" and "P", else 1
}

type call struct {
	mode string // "D" and "P" are "d" and "p" with costs
	runs []run
}

// costed are the groups with their costs.
func (c call) costed() []costedGroup {
	var all []costedGroup
	for _, r := range c.runs {
		for _, g := range r.groups {
			all = append(all, costedGroup{g, r.cost})
		}
	}
	return all
}

type costedGroup struct {
	group []*key
	cost  int64
}

func (c call) groups() [][]*key {
	var all [][]*key
	for _, r := range c.runs {
		all = append(all, r.groups...)
	}
	return all
}

// keys are all keys of the call, as the script takes them.
func (c call) keys() (all []*key) {
	for _, group := range c.groups() {
		all = append(all, group...)
		for _, k := range group {
			if k.from != nil {
				all = append(all, k.from)
			}
		}
	}
	return all
}

// eval sends the call, in one transaction with extra, and returns the reply and
// the time in it.
func (c call) eval(t *testing.T, rdb *redis.Client, extra func(redis.Pipeliner)) (reply []int64, now int64) {
	t.Helper()
	keys, args := []string{}, []any{c.mode}
	for _, r := range c.runs {
		kind := kindArgs(r.groups[0])
		args = append(args, len(r.groups), kind[0])
		if c.mode == "D" || c.mode == "P" {
			args = append(args, r.cost)
		}
		args = append(args, kind[1:]...)
		for _, k := range (call{runs: []run{r}}).keys() {
			keys = append(keys, k.name)
		}
	}
	var before, after *redis.TimeCmd
	var cmd *redis.Cmd
	_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		before = p.Time(t.Context())
		cmd = p.Eval(t.Context(), lua.Decide, keys, args...)
		after = p.Time(t.Context())
		extra(p)
		return nil
	})
	reply, evalErr := cmd.Int64Slice()
	if evalErr != nil || len(reply) == 0 {
		t.Fatal(reply, evalErr, err) // err alone may be of a key that does not exist
	}
	now = reply[0]
	if now < before.Val().UnixMicro() || now > after.Val().UnixMicro() {
		t.Fatalf("the script's time %d is not between %v and %v", now, before.Val(), after.Val())
	}
	return reply, now
}

// kindArgs is what the script is told of the keys of a group.
func kindArgs(group []*key) []any {
	kind, args := "", []any{""}
	for _, k := range group {
		if k.rule.Sliding() {
			kind += "w"
		} else {
			kind += "b"
		}
		p1, p2 := k.rule.Numbers()
		args = append(args, p1, p2)
	}
	if group[0].from != nil {
		kind = strings.ToUpper(kind)
	}
	args[0] = kind
	return args
}

// model does in Go what the script does, and returns the reply.
func (c call) model(now int64) []int64 {
	reply := []int64{now}
	for _, of := range c.costed() {
		group := of.group
		allowed, answers, next := decideGroup(group, c.mode, of.cost, now)
		least := int64(math.MaxInt64)
		for i, a := range answers {
			wait := int64(0)
			if a.Denied {
				wait = a.Wait
			}
			if a.Corrupt {
				wait -= 2
			}
			reply = append(reply, wait)
			reply = append(reply, group[i].held(c.mode, now, a.Corrupt)...)
			if allowed || a.Denied {
				least = min(least, a.Remaining)
			}
		}
		if !allowed {
			least = -1 - least
		}
		reply = append(reply, least)
		if !allowed || c.mode == "p" || c.mode == "P" {
			continue
		}
		for i, k := range group {
			k.write(k.rule, next[i], now)
			if k.from != nil && c.mode == "r" {
				k.from.write(k.rule, next[i], now)
			}
		}
	}
	return reply
}

func (k *key) write(r bucket.Rule, s bucket.State, now int64) {
	k.kind, k.wrote = "string", true
	k.text, k.ttl = r.Format(s), r.TTL(s, now)
}

// holds is what decides: the key, or what it begins with while there is none.
func (k *key) holds() *key {
	if k.kind == "none" && k.from != nil {
		return k.from
	}
	return k
}

// held is what the reply says that the key held.
func (k *key) held(mode string, now int64, corrupt bool) []int64 {
	text := k.holds().text
	if k.holds().kind == "none" || mode == "r" || corrupt {
		text = k.rule.Format(k.rule.Fresh(now))
	}
	var numbers []int64
	for part := range strings.SplitSeq(text, ":") {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			panic(err) // of a text that decided
		}
		numbers = append(numbers, n)
	}
	last := len(numbers) - 1
	return append([]int64{numbers[last] - now}, numbers[:last]...)
}

func decideGroup(group []*key, mode string, cost, now int64) (allowed bool, answers []bucket.Answer, next []bucket.State) {
	evaluate := func(charge bool) {
		allowed, answers, next = true, nil, nil
		for _, k := range group {
			var s bucket.State
			if of := k.holds(); of.kind != "none" && mode != "r" {
				s, _ = k.rule.Parse(of.text) // another type: its text is no state
			}
			s, a := k.rule.DecideCost(s, now, cost, charge)
			if mode == "r" {
				s = k.rule.Fresh(now)
			}
			answers, next = append(answers, a), append(next, s)
			allowed = allowed && !a.Denied
		}
	}
	evaluate(mode == "d" || mode == "D")
	if !allowed {
		evaluate(false)
	}
	return allowed, answers, next
}

// newKey makes up a key, its rule, and what is stored under it.
func newKey(t *testing.T, r *rand.Rand, rdb *redis.Client, c buckettest.Case, now int64) *key {
	t.Helper()
	c = c.At(now)
	k := &key{name: fmt.Sprintf("parity:%d", rand.Uint64()), rule: ruleOf(c), kind: "none"}
	ctx := t.Context()
	var err error
	switch {
	case r.IntN(15) == 0:
		k.kind = "list"
		err = rdb.RPush(ctx, k.name, c.Text, "1:2").Err()
	case r.IntN(15) == 0:
		k.kind = "hash"
		err = rdb.HSet(ctx, k.name, "1:2", c.Text).Err()
	case c.Stored:
		k.kind, k.text = "string", c.Text
		err = rdb.Set(ctx, k.name, c.Text, 0).Err()
	}
	if err == nil && k.kind != "none" && r.IntN(2) == 0 {
		k.expiry = true
		err = rdb.Expire(ctx, k.name, plantedExpiry).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// newKeyOver is newKey; to carry, with another that it begins with, of any rule but
// mostly of the same algorithm, and often without a state of its own.
func newKeyOver(t *testing.T, r *rand.Rand, rdb *redis.Client, cases []buckettest.Case, c buckettest.Case, now int64, carry bool) *key {
	t.Helper()
	if !carry {
		return newKey(t, r, rdb, c, now)
	}
	old := cases[r.IntN(len(cases))]
	if r.IntN(2) == 0 { // as c has been, or what is stored of c
		old = c
	}
	var k *key
	if c.Stored = c.Stored && r.IntN(2) == 0; c.Stored {
		k = newKey(t, r, rdb, c, now)
	} else {
		k = &key{name: fmt.Sprintf("parity:%d", rand.Uint64()), rule: ruleOf(c), kind: "none"}
	}
	k.from = newKey(t, r, rdb, old, now)
	return k
}

// generate makes up a call of one to three runs, of groups of one to three keys,
// in which a key may occur in several groups.
func generate(t *testing.T, r *rand.Rand, rdb *redis.Client, cases []buckettest.Case) call {
	t.Helper()
	now := rdb.Time(t.Context()).Val().UnixMicro()
	c := call{mode: []string{"d", "d", "d", "D", "D", "D", "r", "p", "P"}[r.IntN(9)]}
	for range 1 + r.IntN(3) {
		first, carry := make([]*key, 1+r.IntN(3)), r.IntN(3) == 0
		for i := range first {
			first[i] = newKeyOver(t, r, rdb, cases, cases[r.IntN(len(cases))], now, carry)
		}
		groups := [][]*key{first}
		for range r.IntN(4) {
			group := slices.Clone(first)
			for i := range group { // some keys of the first group, some of their own
				if r.IntN(2) == 0 {
					like := cases[r.IntN(len(cases))]
					like.Sliding = first[i].rule.Sliding()
					like.P1, like.P2 = first[i].rule.Numbers()
					group[i] = newKeyOver(t, r, rdb, cases, like, now, carry)
				}
			}
			groups = append(groups, group)
		}
		cost := int64(1)
		if c.mode == "D" || c.mode == "P" {
			cost = newCost(r, first[r.IntN(len(first))])
		}
		c.runs = append(c.runs, run{groups, cost})
	}
	return c
}

// newCost makes up a cost: a small one, one near what k may hold or holds, or any.
func newCost(r *rand.Rand, k *key) int64 {
	const most = 4503599627 // sentinel.Cost's
	near, _ := k.rule.Numbers()
	if first, _, _ := strings.Cut(k.text, ":"); r.IntN(2) == 0 {
		if n, err := strconv.ParseInt(first, 10, 64); err == nil {
			near = n
		}
	}
	if !k.rule.Sliding() {
		near /= bucket.Token
	}
	cost := []int64{1, 2 + r.Int64N(4), near - 1, near, near + 1, 1 + r.Int64N(most)}[r.IntN(6)]
	return min(max(cost, 1), most)
}

func TestScriptAgreesWithItsModel(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	r := rand.New(rand.NewPCG(21, 22))
	cases := append(buckettest.Cases(r, 6000), buckettest.LargeCases(r, 500)...)
	verdicts := map[string]int{}
	for range 4500 {
		c := generate(t, r, rdb, cases)
		checkCall(t, rdb, c, verdicts)
	}
	t.Log(verdicts)
	for _, kind := range []string{
		"d allowed", "d denied", "D allowed", "D denied", "r allowed", "p allowed", "p denied", "P allowed", "P denied",
		"d allowed carried", "d denied carried", "D allowed carried", "D denied carried", "r allowed carried", "p allowed carried", "P denied carried",
	} {
		if verdicts[kind] < 100 {
			t.Errorf("%d groups are %q: the generator misses its aim", verdicts[kind], kind)
		}
	}
}

func checkCall(t *testing.T, rdb *redis.Client, c call, verdicts map[string]int) {
	t.Helper()
	all := c.keys()
	dumps := make(map[string]string)
	for _, k := range all {
		dumps[k.name] = rdb.Dump(t.Context(), k.name).Val()
	}
	before := time.Now()
	after := make([]stored, len(all))
	got, now := c.eval(t, rdb, func(p redis.Pipeliner) {
		for i, k := range all {
			after[i] = stored{
				dump: p.Dump(t.Context(), k.name),
				text: p.Get(t.Context(), k.name),
				pttl: p.Do(t.Context(), "pttl", k.name),
			}
		}
	})
	if want := c.model(now); !slices.Equal(got, want) {
		t.Fatalf("%s at %d:\n got %v\nwant %v\nkeys %s", c.mode, now, got, want, describe(all))
	}
	got = got[1:]
	for _, group := range c.groups() {
		verdict := " allowed"
		for _, k := range group {
			got = got[1+len(k.held("r", now, false)):]
		}
		if got[0] < 0 {
			verdict = " denied"
		}
		got = got[1:]
		verdicts[c.mode+verdict]++
		if group[0].from != nil {
			verdicts[c.mode+verdict+" carried"]++
		}
	}
	for i, k := range all {
		after[i].check(t, k, dumps[k.name], time.Since(before).Milliseconds())
		rdb.Unlink(t.Context(), k.name)
	}
}

// stored is what is under a key right after a call.
type stored struct {
	dump, text *redis.StringCmd
	pttl       *redis.Cmd // milliseconds; -1: no expiry
}

func (s stored) check(t *testing.T, k *key, dump string, took int64) {
	t.Helper()
	ms, err := s.pttl.Int64()
	switch {
	case err != nil:
		t.Fatal(err)
	case !k.wrote && s.dump.Val() != dump:
		t.Fatalf("%s was written to", describe([]*key{k}))
	case !k.wrote && k.expiry && (ms > plantedExpiry.Milliseconds() || ms < 1):
		t.Fatalf("%s was not written to, and yet expires in %d ms", describe([]*key{k}), ms)
	case !k.wrote && !k.expiry && ms > 0:
		t.Fatalf("%s was given an expiry of %d ms", describe([]*key{k}), ms)
	case !k.wrote:
	case s.text.Val() != k.text:
		t.Fatalf("%s: stored %q", describe([]*key{k}), s.text.Val())
	case k.ttl == 0 && ms != -1:
		t.Fatalf("%s: expires in %d ms", describe([]*key{k}), ms)
	case k.ttl > 0 && (ms > k.ttl*1000 || ms < k.ttl*1000-took-10):
		t.Fatalf("%s: expires in %d ms", describe([]*key{k}), ms)
	}
}

func describe(keys []*key) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "\n  %s %+v %s %q, expiry %d", k.name, k.rule, k.kind, k.text, k.ttl)
	}
	return b.String()
}

// A key in many groups of one call is charged by one after the other.
func TestScriptChargesAKeyOncePerGroup(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	shared := &key{name: fmt.Sprintf("parity:%d", rand.Uint64()), rule: bucket.NewTokenBucket(150*bucket.Token, 0), kind: "none"}
	groups := make([][]*key, 200)
	for i := range groups {
		groups[i] = []*key{shared}
	}
	defer rdb.Unlink(t.Context(), shared.name)
	reply, _ := call{mode: "d", runs: []run{{groups: groups}}}.eval(t, rdb, func(redis.Pipeliner) {})
	for i, numbers := range slices.Collect(slices.Chunk(reply[1:], 4)) {
		// The wait, the time, what was there before, and what remains.
		if want := []int64{0, 0, int64(150-i) * bucket.Token, int64(149 - i)}; i < 150 && !slices.Equal(numbers, want) {
			t.Fatalf("group %d: %v, want %v", i, numbers, want)
		}
		if want := []int64{bucket.Never, 0, 0, -1}; i >= 150 && !slices.Equal(numbers, want) {
			t.Fatalf("group %d: %v, want %v", i, numbers, want)
		}
	}
}

// An error of GET that is not about the key's type is the call's error: it says
// nothing about the bucket, so there is no verdict to give.
func TestScriptReturnsOtherErrors(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	ctx := t.Context()
	if err := rdb.Do(ctx, "acl", "setuser", "half", "on", "nopass", "~*", "+@all", "-get").Err(); err != nil {
		t.Fatal(err)
	}
	conn := rdb.Conn()
	defer conn.Close()
	if err := conn.Do(ctx, "auth", "half", "any").Err(); err != nil {
		t.Fatal(err)
	}
	for _, nkeys := range []int{1, 2} {
		args := []any{"d", 1, strings.Repeat("b", nkeys)}
		for range nkeys {
			args = append(args, bucket.Token, bucket.Token)
		}
		err := conn.Eval(ctx, lua.Decide, []string{"a", "b"}[:nkeys], args...).Err()
		// "The user executing the script can't run this command", or since 7.2 "ACL failure in script".
		if err == nil || !strings.Contains(err.Error(), "run this command") && !strings.Contains(err.Error(), "ACL failure") {
			t.Errorf("%d keys: error %v, want Redis's own about permissions", nkeys, err)
		}
	}
	if n := rdb.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}
