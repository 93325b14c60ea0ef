package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/core/bucket/buckettest"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

func init() { chapters = append(chapters, chapter{"contention", proveContention}) }

// proveContention has goroutines and processes want the same at the same time.
func proveContention(ctx context.Context, l *lab) (*section, error) {
	s := &section{
		title: "Contention",
		about: "Goroutines of one process, and three processes, that want the same tokens at the same time, also while Redis fails.",
	}
	for _, part := range []func(*scope, *lab, *section){exactCapacity, failInTheMiddle, burstAtRollover, pairUp, hammerKnownDenials} {
		if err := within(ctx, func(sc *scope) { part(sc, l, s) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// nogather is gathered calls on and off.
var nogather = []bool{false, true}

// exactCapacity has crowds of every shape empty buckets that never refill.
func exactCapacity(s *scope, l *lab, sec *section) {
	const capacity = 500
	policies := []sentinel.Policy{
		tokenBucket("bucket", capacity*sentinel.Token, 0), slidingWindow("window", capacity, 24*time.Hour),
	}
	server := redistest.Start(s)
	all := startProcesses(s, 3)
	tab := &table{title: "Crowds on one bucket of 500", columns: []string{"crowd", "rounds", "tries", "admitted in each round"}}
	sec.tables = append(sec.tables, tab)
	var exact, stored trials
	for _, shape := range []struct {
		name                  string
		processes, goroutines int
	}{{"50 goroutines", 1, 50}, {"3 processes", 3, 1}, {"3 processes of 50 goroutines", 3, 50}} {
		for _, oneByOne := range nogather {
			all.open(s, Opening{URL: server.URL(), Policies: policies, Budget: time.Second, OneByOne: oneByOne})
			for _, p := range policies {
				rounds := pick(l, 40, 4)
				name := p.EndpointID + ", " + shape.name + gathering(oneByOne)
				l.logf("contention: %s", name)
				tries, least, most := 0, capacity, 0
				for range rounds {
					tenant := nobody()
					n := all[:shape.processes].push(s, tenant, p.EndpointID, shape.goroutines, 2*capacity/(shape.processes*shape.goroutines)+1)
					exact.check(n.Admitted == capacity && n.Else == 0, "%s: %d admitted, %d not decided by Redis", name, n.Admitted, n.Else)
					charged := chargedBy(s, server.Client(s), keyOf("v1", tenant, p.EndpointID), capacity)
					stored.check(charged == n.Admitted, "%s: %d charged, %d admitted", name, charged, n.Admitted)
					tries += n.Admitted + n.Denied + n.Else
					least, most = min(least, n.Admitted), max(most, n.Admitted)
				}
				tab.add(name, fmt.Sprint(rounds), fmt.Sprint(tries), spread(least, most))
			}
		}
	}
	sec.promise(exact.promise("a crowd of goroutines, of processes, and of both is admitted exactly the capacity", ""))
	sec.promise(stored.promise("and exactly that is charged", ""))
}

func gathering(oneByOne bool) string {
	if oneByOne {
		return ", one by one"
	}
	return ""
}

func spread(least, most int) string {
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// chargedBy is how many requests a bucket of that capacity was charged, by its
// state; -1 if there is none that makes sense.
func chargedBy(s *scope, c *redis.Client, key string, capacity int) int {
	text, err := c.Get(s.Context(), key).Result()
	if err == redis.Nil { //nolint:errorlint // go-redis returns Nil itself
		return 0
	}
	if err != nil {
		s.Fatal(err)
	}
	n := numbers(text)
	if n[2] > 0 {
		return int(n[0])
	}
	if n[0]%1_000_000 != 0 {
		return -1
	}
	return capacity - int(n[0]/1_000_000)
}

// burstAtRollover has crowds come at instants that are chosen on Redis's clock:
// what they are admitted at one instant does not depend on their order, so it is
// what the sequential reference admits.
func burstAtRollover(s *scope, l *lab, sec *section) {
	server, clock := startClocked(s, shim(s))
	policies := []sentinel.Policy{
		slidingWindow("window", 100, 10*time.Second), slidingWindow("short", 40, time.Millisecond),
		tokenBucket("bucket", 60*sentinel.Token, 7_300_000),
	}
	all := startProcesses(s, 3)
	var exact trials
	admitted := 0
	for _, oneByOne := range nogather {
		all.open(s, Opening{URL: server.URL(), Policies: policies, Budget: time.Second, OneByOne: oneByOne, AskEveryTime: true})
		for _, p := range policies {
			l.logf("contention: bursts at rollover, %s%s", p.EndpointID, gathering(oneByOne))
			r := rand.New(rand.NewPCG(51, 52)) // #nosec G404 -- no secret
			tenant, now := nobody(), time.Now().UnixMicro()
			window := &buckettest.Window{Limit: p.Limit, Length: p.Window.Microseconds()}
			admits := func() bool { return window.Admits(now) }
			if p.Limit == 0 {
				one := bucket.New(bucket.NewTokenBucket(int64(p.Capacity), int64(p.RefillRate)))
				admits = func() bool { return one.Take(now, nil) }
			}
			for range pick(l, 200, 25) {
				clock.hold(now)
				each := 1 + r.IntN(6)
				n := all.push(s, tenant, p.EndpointID, 8, each)
				want := 0
				for range 3 * 8 * each {
					if admits() {
						want++
					}
				}
				exact.check(n.Else == 0 && n.Admitted == want, "%s at %d: %d of %d admitted, one after the other it is %d", p.EndpointID, now, n.Admitted, 3*8*each, want)
				admitted += n.Admitted
				now = nextInstant(r, p, window, now)
			}
		}
	}
	sec.promise(exact.promise("a burst of three processes at one instant, where windows roll over, a microsecond beside that and between, is admitted what the sequential reference admits",
		fmt.Sprintf("%d admitted", admitted)))
}

// nextInstant is near a rollover, or where a token comes.
func nextInstant(r *rand.Rand, p sentinel.Policy, w *buckettest.Window, now int64) int64 {
	if p.Limit == 0 {
		return now + r.Int64N(3_000_000)
	}
	if r.IntN(3) == 0 {
		return now + r.Int64N(w.Length)
	}
	return max(now, w.Anchor()+w.Length*(1+r.Int64N(2))-1+r.Int64N(3))
}

// browser is a cookie as an anonymous client sends it.
func browser(clientID string) string {
	exp := time.Now().Add(time.Hour).Unix()
	mac := hmac.New(sha256.New, []byte(verdictCookie))
	fmt.Fprintf(mac, "sentinel-anon:v1:%s:%d", clientID, exp)
	return fmt.Sprintf("sentinel_anon_id=%s.%d.%s", clientID, exp, hex.EncodeToString(mac.Sum(nil)))
}

// pairUp has anonymous clients with cookies at peers ask at once, on a good
// connection and on one that breaks again and again: both buckets of a request
// are charged, or none.
func pairUp(s *scope, l *lab, sec *section) {
	const capacity = 150
	server := redistest.Start(s)
	proxy := redistest.NewProxy(s, server.Addr())
	p := tokenBucket("login", capacity*sentinel.Token, 0)
	p.Identity = sentinel.Anonymous
	all := startProcesses(s, 3)
	var whole, exact trials
	lost := 0
	for _, breaks := range []bool{false, true} {
		for _, oneByOne := range nogather {
			l.logf("contention: pairs, connections break: %t%s", breaks, gathering(oneByOne))
			for round := range pick(l, 20, 3) {
				// Anew, for a breaker that has opened would send nothing.
				all.open(s, Opening{URL: proxy.URL(), Policies: []sentinel.Policy{p}, Budget: time.Second, OneByOne: oneByOne})
				m := newMix(p.EndpointID, uint64(round))
				mend := func() {}
				if breaks {
					mend = breakAgain(proxy)
				}
				got := together[Mix, Mixed](s, all, "Mix", func(i int) Mix {
					each := m.Mix
					each.Seed = each.Seed<<8 + uint64(i)
					return each
				})
				mend()
				cookies, peers := m.charged(s, server.Client(s), capacity)
				whole.check(sum(cookies) == sum(peers), "cookies were charged %v, peers %v", cookies, peers)
				for i := range cookies {
					a, b := 0, 0
					for _, g := range got {
						a, b = a+g.Cookies[i], b+g.Peers[i]
					}
					lost += cookies[i] - a
					exact.check(a <= cookies[i] && b <= peers[i] && (breaks || a == cookies[i] && b == peers[i]),
						"cookie %d admitted %d, charged %d; peer %d and %d", i, a, cookies[i], b, peers[i])
				}
			}
		}
	}
	sec.promise(whole.promise("a cookie and a peer are charged together or not at all, also where connections break", ""))
	sec.promise(exact.promise("each exactly as often as it was admitted; where connections break, no less often",
		fmt.Sprintf("%d were charged whose answer was lost", lost)))
}

// mix is a Mix of new clients.
type mix struct {
	Mix
	ids []string // of the cookies
}

func newMix(id string, seed uint64) *mix {
	m := &mix{Mix: Mix{Endpoint: id, Goroutines: 16, Each: 30, Seed: seed}}
	for i := range 8 {
		m.ids = append(m.ids, fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())) // #nosec G404 -- no secret
		m.Cookies = append(m.Cookies, browser(m.ids[i]))
		m.Peers = append(m.Peers, fmt.Sprintf("10.%d.%d.%d", rand.IntN(256), rand.IntN(256), i)) // #nosec G404 -- no secret
	}
	return m
}

func (m *mix) charged(s *scope, c *redis.Client, capacity int) (cookies, peers []int) {
	for i := range m.ids {
		cookies = append(cookies, chargedBy(s, c, keyOf("v2", "anon:cookie:"+m.ids[i], m.Endpoint), capacity))
		peers = append(peers, chargedBy(s, c, keyOf("v2", "anon:ip:"+m.Peers[i], m.Endpoint), capacity))
	}
	return cookies, peers
}

func sum(all []int) int {
	total := 0
	for _, n := range all {
		total += n
	}
	return total
}

// breakAgain resets all connections again and again, until mend.
func breakAgain(proxy *redistest.Proxy) (mend func()) {
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(15 * time.Millisecond):
				proxy.DropConns()
			}
		}
	})
	return func() {
		close(stop)
		all.Wait()
	}
}

// hammerKnownDenials has two tenants ask at the same times, one through a
// limiter that remembers denials and one through one that asks Redis each time.
func hammerKnownDenials(s *scope, l *lab, sec *section) {
	policies := []sentinel.Policy{
		tokenBucket("bucket", 10*sentinel.Token, 10*sentinel.Token), tokenBucket("single", sentinel.Token, 10*sentinel.Token),
		slidingWindow("window", 10, time.Second), slidingWindow("long", 50, 5*time.Second),
	}
	server := redistest.Start(s)
	limiters := [2]*sentinel.Limiter{}
	for i := range limiters {
		cfg := configure(server.URL(), policies...)
		cfg.App.DisableKnownDenials = i == 1
		limiters[i] = openLimiter(s, cfg)
	}
	run := pick(l, time.Minute, 6*time.Second)
	l.logf("contention: known denials on and off, for %v", run)
	tab := &table{title: fmt.Sprintf("A tenant at 10 a second who hammers for %v", run), columns: []string{"policy", "asked", "admitted, known denials on", "off"}}
	sec.tables = append(sec.tables, tab)
	var equal trials
	rows := make([][3]int, len(policies))
	var all sync.WaitGroup
	for i, p := range policies {
		all.Go(func() { rows[i] = hammerBoth(s, limiters, p.EndpointID, time.Now().Add(run)) })
	}
	all.Wait()
	for i, p := range policies {
		asked, on, off := rows[i][0], rows[i][1], rows[i][2]
		equal.check(asked > 0 && on-off >= -1 && on-off <= 1, "%s: %d admitted with known denials, %d without", p.EndpointID, on, off)
		tab.add(p.EndpointID, fmt.Sprint(asked), fmt.Sprint(on), fmt.Sprint(off))
	}
	sec.promise(equal.promise("a tenant at 10 a second who hammers is admitted as often with known denials on as off, within one", ""))
	spareVisitors(s, l, sec, server)
}

// hammerBoth returns how often was asked, and how often each limiter admitted.
func hammerBoth(s *scope, limiters [2]*sentinel.Limiter, id string, until time.Time) (row [3]int) {
	tenants := [2]string{nobody(), nobody()}
	for ; time.Now().Before(until); time.Sleep(500 * time.Microsecond) {
		row[0]++
		for i, limiter := range limiters {
			d, err := limiter.Allow(s.Context(), tenants[i], id)
			if err != nil || !d.FromStore {
				s.Errorf("no decision of Redis: %s, %v", d.Reason, err)
				return row
			}
			if d.Allowed {
				row[1+i]++
			}
		}
	}
	return row
}

// spareVisitors has a cookie come from an address whose bucket is empty, and
// then from another.
func spareVisitors(s *scope, l *lab, sec *section, server *redistest.Server) {
	var spared trials
	p := tokenBucket("login", 5*sentinel.Token, 0)
	p.Identity = sentinel.Anonymous
	client, limiter := server.Client(s), openLimiter(s, configure(server.URL(), p))
	for range pick(l, 200, 20) {
		m := newMix("login", 0)
		ask := func(cookie, peer int) sentinel.Decision {
			d, err := limiter.Check(s.Context(), sentinel.Request{EndpointID: "login", Cookies: []string{m.Cookies[cookie]}, Peer: m.Peers[peer]})
			if err != nil || !d.FromStore {
				s.Fatalf("%s, %v", d.Reason, err)
			}
			return d
		}
		empty := fmt.Sprintf("0:%d", time.Now().UnixMicro())
		if err := client.Set(s.Context(), keyOf("v2", "anon:ip:"+m.Peers[0], "login"), empty, 0).Err(); err != nil {
			s.Fatal(err)
		}
		here := []bool{ask(0, 0).Allowed, ask(0, 0).Allowed} // the second is a known denial
		spared.check(!here[0] && !here[1] && ask(0, 1).Allowed, "a cookie at an emptied address: %v; elsewhere it is denied", here)
		spared.check(!ask(1, 0).Allowed, "another cookie at the emptied address is admitted")
	}
	sec.promise(spared.promise("an emptied address does not hold up its visitor's cookie at another one", ""))
}
