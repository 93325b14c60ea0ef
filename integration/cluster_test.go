package integration_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

func clusterURL(c *redistest.Cluster) string {
	return "redis-cluster://" + strings.Join(c.Addrs()[:3], ",")
}

// charged is how many tokens of a bucket that began with capacity, and does not
// refill, are gone by what the cluster stores.
func charged(t testing.TB, c *redistest.Cluster, key string, capacity int64) int64 {
	t.Helper()
	text := stateOf(t, c.Master(key).Client(t), key)
	if text == "" {
		return 0
	}
	tokens, _, _ := strings.Cut(text, ":")
	micro, err := strconv.ParseInt(tokens, 10, 64)
	if err != nil {
		t.Fatalf("%s holds %q", key, text)
	}
	return capacity - micro/int64(sentinel.Token)
}

// All that a limiter does it does in a cluster, whatever slot a key is in.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	t.Run("Open", func(t *testing.T) {
		decidesInEverySlot(t, c, open(t, config(clusterURL(c), tokens("a", 3*sentinel.Token, 0)), sentinel.WithStrictStart()))
	})
	t.Run("New", func(t *testing.T) {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()[1:2]})
		defer client.Close()
		l, err := sentinel.New(t.Context(), client, config("", tokens("a", 3*sentinel.Token, 0)), options(sentinel.WithStrictStart())...)
		if err != nil {
			t.Fatal(err)
		}
		decidesInEverySlot(t, c, l)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("the application's client is closed, too: %v", err)
		}
	})
	t.Run("lost reply", func(t *testing.T) { losesAReply(t, c) })
	t.Run("anonymous", func(t *testing.T) { chargesNoPairOnADenial(t, c) })
	t.Run("candidate", func(t *testing.T) { triesInEverySlot(t, c) })
	t.Run("moving slot", func(t *testing.T) { movesSlots(t, c) })
	t.Run("rights", func(t *testing.T) { needsRights(t, c) })
	t.Run("doctor", func(t *testing.T) { doctorNeedsRights(t, c) })
	t.Run("start check", func(t *testing.T) { checksEveryMaster(t, c) })
}

func decidesInEverySlot(t *testing.T, c *redistest.Cluster, l *sentinel.Limiter) {
	if st := l.Status(); !st.Ready || st.Degraded || st.Breaker != "closed" {
		t.Errorf("%+v", st)
	}
	for range 20 { // in every master
		tenant := fresh(t)
		for i := range 4 {
			if d := allow(t, l, tenant, "a"); !d.FromStore || d.Allowed != (i < 3) || d.Allowed && d.Remaining != int64(2-i) {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		if got := charged(t, c, tenantKey(tenant, "a"), 3); got != 3 {
			t.Fatalf("%d tokens are charged", got)
		}
		if err := l.Reset(context.Background(), tenant, "a"); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Peek(context.Background(), tenant, "a"); err != nil || d.Remaining != 3 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
}

// A reply that is lost after the script has run is a failure, and nothing is
// sent again: the bucket has been charged once.
func losesAReply(t *testing.T, c *redistest.Cluster) {
	l := open(t, config(clusterURL(c), tokens("a", 9*sentinel.Token, 0)), sentinel.WithStrictStart())
	for range 5 {
		tenant := fresh(t)
		key := tenantKey(tenant, "a")
		allow(t, l, tenant, "a") // whatever is to be redirected has been
		c.Master(key).DropNextReply()
		if d := allow(t, l, tenant, "a"); d.Allowed || d.Reason != sentinel.ReasonFailClosed {
			t.Errorf("%+v", d)
		}
		if got := charged(t, c, key, 9); got != 2 {
			t.Errorf("%d tokens are charged, want the one of before and the one of the lost reply", got)
		}
		eventually(t, soon, "it decides again", func() bool { return allow(t, l, tenant, "a").FromStore })
	}
}

// A candidate is decided in the live key's slot, in the same call. That of an
// anonymous client is refused, and with a client of the application's own it is
// left out where there is a cookie.
func triesInEverySlot(t *testing.T, c *redistest.Cluster) {
	login := trying(anonymous(tokens("login", 9*sentinel.Token, 0)), once(1))
	err := config(clusterURL(c), login).Validate()
	if err == nil || !strings.Contains(err.Error(), `policies["login"].candidate: not with anonymous identity in a Redis Cluster`) {
		t.Errorf("%v", err)
	}
	l := open(t, config(clusterURL(c), trying(tokens("a", 3*sentinel.Token, 0), once(1))), sentinel.WithStrictStart())
	for range 20 { // in every master
		tenant := fresh(t)
		for i := range 4 {
			if d := allow(t, l, tenant, "a"); !d.FromStore || d.Allowed != (i < 3) || d.CandidateDenies != (i > 0) {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		key := tenantKey(tenant, "a")
		if got := charged(t, c, key, 3); got != 3 {
			t.Fatalf("%d tokens are charged", got)
		}
		if got := tokensOf(stateOf(t, c.Master(key).Client(t), candidateKey(key, "1b"))); got != 0 {
			t.Fatalf("the candidate holds %d", got)
		}
	}
	var wg sync.WaitGroup // several slots in one pipeline, with and without candidates
	for i := range 32 {
		wg.Go(func() {
			tenant := fmt.Sprint(fresh(t), i)
			for n := range 4 {
				if d := allow(t, l, tenant, "a"); !d.FromStore || d.Allowed != (n < 3) || d.CandidateDenies != (n > 0) {
					t.Errorf("%d: %+v", n, d)
				}
			}
		})
	}
	wg.Wait()

	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	defer client.Close()
	own, err := sentinel.New(t.Context(), client, config("", login), options(sentinel.WithStrictStart())...)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	peer := freshPeer()
	cookie := mintCookie(t, own, "login", peer)
	for range 3 {
		d, err := own.Check(t.Context(), sentinel.Request{EndpointID: "login", Peer: peer, Cookies: []string{"sentinel_anon_id=" + cookie}})
		if err != nil || !d.Allowed || !d.FromStore || d.CandidateDenies {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

// The two buckets of an anonymous client are in two slots, and mostly in two
// masters. A denial by either charges neither.
func chargesNoPairOnADenial(t *testing.T, c *redistest.Cluster) {
	cfg := config(clusterURL(c), anonymous(tokens("login", 2*sentinel.Token, 0)))
	cfg.App.DisableKnownDenials = true
	l := open(t, cfg, sentinel.WithStrictStart())
	check := func(cookie, peer string) sentinel.Decision {
		t.Helper()
		d, err := l.Check(context.Background(), sentinel.Request{EndpointID: "login", Cookies: []string{"sentinel_anon_id=" + cookie}, Peer: peer})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	cookieKey := func(cookie string) string { return keyOf("v2", "anon:cookie:"+cookie[:32], "login") }
	peerKey := func(peer string) string { return keyOf("v2", "anon:ip:"+peer, "login") }
	want := func(key string, n int64) {
		t.Helper()
		if got := charged(t, c, key, 2); got != n {
			t.Errorf("%d tokens are charged, want %d", got, n)
		}
	}
	for range 10 {
		cookie, other := mintCookie(t, l, "login", freshPeer()), mintCookie(t, l, "login", freshPeer())
		peer, elsewhere := freshPeer(), freshPeer()
		if d := check(cookie, peer); !d.Allowed || d.Remaining != 1 {
			t.Fatalf("%+v", d)
		}
		if d := check(cookie, peer); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("%+v", d)
		}
		if d := check(other, peer); d.Allowed || d.Reason != sentinel.ReasonRateLimited {
			t.Errorf("the address is used up: %+v", d)
		}
		want(cookieKey(other), 0)
		if d := check(cookie, elsewhere); d.Allowed || d.Reason != sentinel.ReasonRateLimited {
			t.Errorf("the cookie is used up: %+v", d)
		}
		want(peerKey(elsewhere), 0)
		want(cookieKey(cookie), 2)
		want(peerKey(peer), 2)
	}
}

// Slots that move under load lose no decision, and each is charged once, also
// of buckets that come to be on the way.
func movesSlots(t *testing.T, c *redistest.Cluster) {
	const capacity = 1_000_000
	var limiters []*sentinel.Limiter
	for range 3 {
		limiters = append(limiters, open(t, config(clusterURL(c), tokens("a", capacity*sentinel.Token, 0)), sentinel.WithStrictStart()))
	}
	home := tenantKey(fresh(t), "a")
	slot := redistest.SlotOf(home)
	var tenants []string // in the slot, and one elsewhere
	for n := 0; len(tenants) < 3; n++ {
		if name := fmt.Sprint(t.Name(), n); redistest.SlotOf(tenantKey(name, "a")) == slot {
			tenants = append(tenants, name)
		}
	}
	tenants = append(tenants, fresh(t))
	load := startLoad(limiters, func(n int) string { return tenants[n%len(tenants)] })
	for round := range 4 {
		to := c.Nodes[round%3]
		if to == c.Master(home) {
			continue
		}
		before := load.total()
		c.BeginMove(home, to)
		eventually(t, soon, "decisions meet the open move", func() bool { return load.total() > before+50 })
		c.MoveKeys(home, to)
		eventually(t, soon, "decisions are sent after their keys", func() bool { return load.total() > before+150 })
		c.FinishMove(home, to)
		eventually(t, soon, "decisions come from the new master", func() bool { return load.total() > before+300 })
	}
	load.end()
	for _, tenant := range tenants {
		of := load.of(tenant)
		if got := charged(t, c, tenantKey(tenant, "a"), capacity); of.failed > 0 || got != of.admitted {
			t.Errorf("%d charged, %d admitted, %d failed (%v)", got, of.admitted, of.failed, of.rows)
		}
	}
	t.Logf("%d decisions", load.total())
}

// The rights of docs/operations.md are enough, and one that lacks is named.
func needsRights(t *testing.T, c *redistest.Cluster) {
	const lone = "reset on >Qz7Xk9VwJ4 ~sentinel:* +evalsha +script|load +get +set +time +info"
	grant := func(more string) {
		for _, n := range c.Nodes {
			args := []any{"acl", "setuser", "quotas"}
			for right := range strings.FieldsSeq(lone + more) {
				args = append(args, right)
			}
			if err := n.Client(t).Do(t.Context(), args...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg := config(strings.Replace(clusterURL(c), "://", "://quotas:Qz7Xk9VwJ4@", 1), tokens("a", 3*sentinel.Token, 0))
	grant("")
	err := refusal(t, cfg, sentinel.WithStrictStart())
	if err == nil || !strings.Contains(err.Error(), "+cluster|slots +cluster|info +asking") || strings.Contains(err.Error(), "Qz7X") {
		t.Errorf("%v", err)
	}
	grant(" +cluster|slots +cluster|info +asking")
	l := open(t, cfg, sentinel.WithStrictStart())
	for range 10 {
		if d := allow(t, l, fresh(t), "a"); !d.Allowed {
			t.Errorf("%+v", d)
		}
	}
}

// doctor names what a user lacks in a cluster, at the node where it does.
func doctorNeedsRights(t *testing.T, c *redistest.Cluster) {
	const lone = "reset on >Qz7Xk9VwJ4 ~sentinel:* +evalsha +script|load +get +set +time +info"
	grant := func(n *redistest.Node, rights string) {
		args := []any{"acl", "setuser", "doctor"}
		for right := range strings.FieldsSeq(rights) {
			args = append(args, right)
		}
		if err := n.Client(t).Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes {
		grant(n, lone+" +cluster|slots +cluster|info +asking")
	}
	file := sentinelctlFile(t, strings.Replace(clusterURL(c), "://", "://doctor:Qz7Xk9VwJ4@", 1))
	rights := regexp.MustCompile(`(?m)^(ok|FAIL) +rights \d of 3 +(.*)$`)
	found := func() string {
		out, _ := sentinelctl(t, "doctor", file, "-samples", "5")
		var lines []string
		for _, m := range rights.FindAllStringSubmatch(out, -1) {
			lines = append(lines, m[1]+" "+strings.TrimSpace(m[2]))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	const sufficient = "ok sufficient\nok sufficient"
	if got := found(); got != sufficient+"\nok sufficient" {
		t.Errorf("with all rights: %s", got)
	}
	one := c.Master("any")
	for lacks, left := range map[string]string{
		"+asking":        "+cluster|slots +cluster|info",
		"+cluster|info":  "+cluster|slots +asking",
		"+cluster|slots": "+cluster|info +asking",
	} {
		grant(one, lone+" "+left)
		if got := found(); got != "FAIL the user lacks "+lacks+"; run: ACL SETUSER <user> "+lacks+"\n"+sufficient {
			t.Errorf("without %s: %s", lacks, got)
		}
	}
}

// One master that would lose quotas is enough for a refusal, and a server that
// is in no cluster is told apart.
func checksEveryMaster(t *testing.T, c *redistest.Cluster) {
	wrong := c.Master("any").Client(t)
	set := func(v string) {
		if err := wrong.ConfigSet(context.Background(), "maxmemory", v).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("0")
	defer set("256mb")
	err := refusal(t, config(clusterURL(c), tokens("a", sentinel.Token, 0)))
	if err == nil || !strings.Contains(err.Error(), "maxmemory is 0") {
		t.Errorf("%v", err)
	}
	_, url := shared(t)
	url = "redis-cluster://" + url[strings.LastIndexAny(url, "/@")+1:]
	err = refusal(t, config(url, tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
	if err == nil || !strings.Contains(err.Error(), "in no cluster; for one server write redis://") {
		t.Errorf("%v", err)
	}
}
