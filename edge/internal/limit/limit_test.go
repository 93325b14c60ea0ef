package limit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

const token = bucket.Token

var (
	alice = netip.MustParseAddr("192.0.2.1")
	bob   = netip.MustParseAddr("192.0.2.2")
)

// request is one without anything special.
func request() *http.Request { return httptest.NewRequest(http.MethodGet, "/", nil) }

// allows asks for one request of a client's.
func allows(p *Policy, client netip.Addr) bool {
	ok, reason := p.Allow(httptest.NewRecorder(), request(), client)
	if ok != (reason == proxy.OK) || !ok && reason != proxy.RateLimited {
		panic("limit: " + reason)
	}
	return ok
}

// admitted asks n times.
func admitted(p *Policy, client netip.Addr, n int) (count int) {
	for range n {
		if allows(p, client) {
			count++
		}
	}
	return count
}

// atOnce asks from many goroutines, n times each.
func atOnce(goroutines, n int, ask func() bool) int64 {
	var count atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range n {
				if ask() {
					count.Add(1)
				}
			}
		})
	}
	all.Wait()
	return count.Load()
}

// While the clock stands, exactly the capacity is admitted, however many ask; and
// k more when the time for k has passed, no matter what was refused meanwhile.
func TestExactlyTheCapacityAndWhatFlowsIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewStore(10).Policy("p", 100*token, 3*token, ByClient())
		if n := atOnce(64, 50, func() bool { return allows(p, alice) }); n != 100 {
			t.Errorf("admitted %d, want 100", n)
		}
		for k := range 20 {
			time.Sleep(time.Duration(k) * time.Second / 3 / time.Microsecond * time.Microsecond)
			time.Sleep(time.Microsecond) // a third is no whole number
			if n := atOnce(16, 20, func() bool { return allows(p, alice) }); n != int64(min(k, 100)) {
				t.Errorf("admitted %d after the time for %d", n, k)
			}
		}
	})
}

// Where the level and the time of the last refill are two words, a swap of the one
// may succeed for everybody.
func TestManyAtOnceGetNoMoreThanTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewStore(10).Policy("p", token, 10*token, ByClient())
		end := time.Now().Add(3 * time.Second)
		var all sync.WaitGroup
		var n atomic.Int64
		for range 64 {
			all.Go(func() {
				for ; time.Now().Before(end); time.Sleep(time.Millisecond) {
					if allows(p, alice) {
						n.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n := n.Load(); n != 30 && n != 31 {
			t.Errorf("admitted %d, want 30 or 31", n)
		}
	})
}

// The same on the machine's own clock.
func TestNeverMoreThanTheRate(t *testing.T) {
	t.Parallel()
	store := NewStore(10)
	p := store.Policy("p", 5*token, 1000*token, ByClient())
	begin := time.Now()
	n := atOnce(16, 5000, func() bool { return allows(p, alice) })
	if most := 5 + int64(time.Since(begin).Seconds()*1000) + 1; n > most || n < 5 {
		t.Errorf("admitted %d in %v, want at most %d", n, time.Since(begin), most)
	}
}

// Over any times, policies answer as the arithmetic of core/bucket.
func TestPolicyAgainstTheArithmetic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		store := NewStore(1000)
		for range 100 {
			capacity, rate := token+r.Int64N(20*token), 1+r.Int64N(5*token)
			p := store.Policy(fmt.Sprint(r.Uint64()), capacity, rate, ByClient())
			rule, state := bucket.NewTokenBucket(capacity, rate), bucket.State{}
			for range 100 {
				time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
				var want, got bucket.Answer
				state, want = rule.Decide(state, store.now(), true)
				if p.Take(request(), alice, &got); got != want {
					t.Fatalf("%d at %d: %+v, want %+v", capacity, rate, got, want)
				}
			}
		}
	})
}

// One who takes all that he can get takes nothing from others.
func TestClientsDoNotTakeFromOneAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := NewStore(10)
		p, other := store.Policy("p", 5*token, token, ByClient()), store.Policy("other", 5*token, token, ByClient())
		if n := admitted(p, alice, 1000); n != 5 {
			t.Errorf("admitted %d", n)
		}
		if n := admitted(p, bob, 1000); n != 5 {
			t.Errorf("admitted %d of another client's", n)
		}
		if n := admitted(other, alice, 1000); n != 5 {
			t.Errorf("admitted %d at another policy", n)
		}
	})
}

func TestWhoIsOneClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			a, b string
			same bool
		}{
			{"192.0.2.1", "192.0.2.1", true},
			{"192.0.2.1", "192.0.2.2", false},
			{"192.0.2.1", "::ffff:192.0.2.1", true},
			{"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true},
			{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
			{"fe80::1%eth0", "fe80::2%eth1", true},
			{"192.0.2.1", "c000:201::", false},
			{"", "", true},
			{"", "0.0.0.0", false},
			{"", "::", false},
		} {
			p := NewStore(10).Policy("p", token, token, ByClient())
			a, _ := netip.ParseAddr(c.a)
			b, _ := netip.ParseAddr(c.b)
			if allows(p, a); allows(p, b) == c.same {
				t.Errorf("%q and %q: want the same client: %t", c.a, c.b, c.same)
			}
		}
	})
}

func TestClientsByHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		of := func(client netip.Addr, values ...string) func(*Policy) bool {
			return func(p *Policy) bool {
				r := request()
				r.Header["X-Tenant"] = values
				ok, _ := p.Allow(httptest.NewRecorder(), r, client)
				return ok
			}
		}
		for _, c := range []struct {
			name string
			a, b func(*Policy) bool
			same bool
		}{
			{"one value, two addresses", of(alice, "acme"), of(bob, "acme"), true},
			{"two values, one address", of(alice, "acme"), of(alice, "ACME"), false},
			{"long values", of(alice, strings.Repeat("a", 9000)+"b"), of(alice, strings.Repeat("a", 9000)+"c"), false},
			{"no value", of(alice), of(alice), true},
			{"no value, two addresses", of(alice), of(bob), false},
			{"an empty value is none", of(alice), of(alice, ""), true},
			{"a value that is the address", of(alice, alice.String()), of(alice), false},
			{"several values", of(alice, "a", "b"), of(alice, "ab"), false},
			{"several values in another order", of(alice, "a", "b"), of(alice, "b", "a"), false},
		} {
			p := NewStore(10).Policy("p", token, token, ByHeader("x-tenant"))
			if c.a(p); c.b(p) == c.same {
				t.Errorf("%s: want the same client: %t", c.name, c.same)
			}
		}
		p := NewStore(10).Policy("p", token, token, ByHeader("host"))
		a, b := request(), request()
		b.Host = "other.example"
		for _, r := range []*http.Request{a, b} {
			if ok, _ := p.Allow(httptest.NewRecorder(), r, alice); !ok {
				t.Errorf("%s is refused", r.Host)
			}
		}
	})
}

// respond returns the response to a request.
func respond(p *Policy, method string) *http.Response {
	w := httptest.NewRecorder()
	p.Allow(w, httptest.NewRequest(method, "/", nil), alice)
	return w.Result()
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		check := func(resp *http.Response, want map[string]string) {
			t.Helper()
			for name, value := range want {
				if got := resp.Header.Get(name); got != value {
					t.Errorf("%s: %q, want %q", name, got, value)
				}
			}
		}
		p := NewStore(10).Policy(`GET /"é`, 2*token, token/3, ByClient())
		policy := `"GET /\"__";q=2;w=7` // 6.000006 s
		check(respond(p, http.MethodGet), map[string]string{"RateLimit-Policy": policy, "RateLimit": `"GET /\"__";r=1;t=4`, "Retry-After": "", "Content-Type": ""})
		time.Sleep(2 * time.Second)
		check(respond(p, http.MethodGet), map[string]string{"RateLimit-Policy": policy, "RateLimit": `"GET /\"__";r=0;t=2`})
		resp := respond(p, http.MethodGet)
		check(resp, map[string]string{
			"RateLimit-Policy": policy, "RateLimit": `"GET /\"__";r=0;t=2`, "Retry-After": "2",
			"Content-Type": "application/problem+json", "Cache-Control": "no-store",
		})
		var problem struct {
			Type, Title, Detail, Reason string
			Status                      int
		}
		if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || resp.StatusCode != http.StatusTooManyRequests ||
			problem.Status != resp.StatusCode || problem.Title != "Too Many Requests" || problem.Detail != "rate limit exceeded" || problem.Reason != "rate_limited" || problem.Type != "about:blank" {
			t.Errorf("%d %+v, %v", resp.StatusCode, problem, err)
		}
		if resp := respond(p, http.MethodHead); resp.ContentLength != int64(len(refusal)) || resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%+v", resp)
		}
		full := NewStore(10).Policy("p", token, 1, ByClient())
		check(respond(full, http.MethodGet), map[string]string{"RateLimit-Policy": `"p";q=1;w=1000000`, "RateLimit": `"p";r=0;t=1000000`})
		fast := NewStore(10).Policy("p", token, 1000*token, ByClient())
		respond(fast, http.MethodGet)
		check(respond(fast, http.MethodGet), map[string]string{"Retry-After": "1", "RateLimit": `"p";r=0;t=1`})
	})
}

// HEAD is answered without a body by whoever writes it, not only by net/http.
func TestARefusedHeadHasNoBody(t *testing.T) {
	t.Parallel()
	p := NewStore(10).Policy("p", token, 1, ByClient())
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		w := httptest.NewRecorder()
		p.Allow(w, httptest.NewRequest(method, "/", nil), alice)
		if method == http.MethodHead && w.Body.Len() > 0 {
			t.Errorf("%s", w.Body)
		}
	}
}

// Equal numbers keep everything; others keep the fraction; another key begins anew.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := NewStore(10)
		first := store.Policy("p", 10*token, token, ByClient())
		admitted(first, alice, 6)
		same := store.Policy("p", 10*token, token, ByClient())
		if n := admitted(same, alice, 2); n != 2 {
			t.Errorf("admitted %d", n)
		}
		if n := admitted(first, alice, 100); n != 2 {
			t.Errorf("admitted %d by the policy before, want the 2 that are left", n)
		}
		time.Sleep(5 * time.Second)
		double := store.Policy("p", 20*token, 4*token, ByClient())
		time.Sleep(time.Second)
		if n := admitted(double, alice, 100); n != 14 {
			t.Errorf("admitted %d, want half of 20, and 4", n)
		}
		if n := admitted(double, bob, 100); n != 20 {
			t.Errorf("admitted %d of a new client's", n)
		}
		if n := admitted(store.Policy("p", 20*token, 4*token, ByHeader("A")), alice, 100); n != 20 {
			t.Errorf("admitted %d by another key", n)
		}
		if n := admitted(store.Policy("q", 20*token, 2*token, ByClient()), alice, 100); n != 20 {
			t.Errorf("admitted %d under another id", n)
		}
	})
}

// Who still has the snapshot before gets no second burst.
func TestStragglersGetNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := NewStore(10)
		policies := []*Policy{store.Policy("p", 100*token, 1, ByClient())}
		admitted(policies[0], alice, 100)
		for i := range 5 {
			policies = append(policies, store.Policy("p", int64(100+i)*token, int64(2+i), ByClient()))
		}
		if n := atOnce(20, 50, func() bool { return allows(policies[rand.IntN(len(policies))], alice) }); n > 0 {
			t.Errorf("admitted %d", n)
		}
	})
}

// At the most clients, newcomers share one quota for each policy, known clients
// keep theirs, and there is room again when somebody's bucket is full.
func TestOverflowGivesNoFreePassage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := NewStore(100)
		p, other := store.Policy("p", 5*token, token, ByClient()), store.Policy("other", 7*token, token, ByClient())
		known := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
		for i := range 100 {
			allows(p, known(i))
		}
		shared, others := 0, 0
		for i := range 1000 {
			stranger := netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)})
			shared += admitted(p, stranger, 1)
			others += admitted(other, stranger, 1)
		}
		if shared != 5 || others != 7 || store.Len() != 100 || store.Overflowed() != 2000 {
			t.Errorf("admitted %d and %d, %d clients, %d overflowed", shared, others, store.Len(), store.Overflowed())
		}
		if n := admitted(p, known(0), 10); n != 4 {
			t.Errorf("admitted %d of a known client's", n)
		}
		time.Sleep(time.Minute)
		if n := admitted(p, alice, 10); n != 5 || store.Overflowed() != 2000 {
			t.Errorf("admitted %d, %d overflowed: there is room again", n, store.Overflowed())
		}
	})
}

// A million clients take no more memory than a hundred thousand may.
func TestAMillionClients(t *testing.T) {
	if testing.Short() {
		t.Skip("a million requests")
	}
	const most = 100_000
	before := heap()
	store := NewStore(most)
	p := store.Policy("p", 10*token, 1, ByClient()) // nobody's is full again
	var a bucket.Answer
	r := request()
	for i := range 1_000_000 {
		p.Take(r, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), &a)
	}
	grown := heap() - before
	if store.Len() != most || store.Overflowed() != 900_000 {
		t.Errorf("%d clients, %d overflowed", store.Len(), store.Overflowed())
	}
	if perClient := grown / most; perClient > 200 {
		t.Errorf("%d bytes for each client that there may be", perClient)
	}
	t.Logf("%d bytes, %d for each client that there may be", grown, grown/most)
	runtime.KeepAlive(store)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAKnownClientAllocatesNothing(t *testing.T) {
	r := request()
	r.Header.Set("X-Tenant", "acme")
	for name, key := range map[string]KeySpec{"client": ByClient(), "header": ByHeader("X-Tenant")} {
		p := NewStore(10).Policy("p", bucket.MaxExact, token, key)
		for _, client := range []netip.Addr{alice, netip.MustParseAddr("2001:db8::1")} {
			if n := testing.AllocsPerRun(100, func() {
				var a bucket.Answer
				p.Take(r, client, &a)
			}); n > 0 {
				t.Errorf("by %s, %v: %v allocations", name, client, n)
			}
		}
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	t.Parallel()
	store := NewStore(1)
	for name, f := range map[string]func(){
		"no clients":  func() { NewStore(0) },
		"no capacity": func() { store.Policy("p", 0, token, ByClient()) },
		"no rate":     func() { store.Policy("p", token, 0, ByClient()) },
		"no header":   func() { ByHeader("") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if v, ok := recover().(string); !ok || !strings.Contains(v, " expects ") {
					t.Errorf("%v", v)
				}
			}()
			f()
		})
	}
}

// BenchmarkTake is a lookup and a take with the answer's numbers, and beside it the
// least that a limit can cost: a clock and a compare-and-swap of a word whose place
// is known.
func BenchmarkTake(b *testing.B) {
	for _, clients := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("clients=%d/bare", clients), func(b *testing.B) {
			words := make([]atomic.Int64, clients)
			begin := time.Now()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				now := time.Since(begin).Nanoseconds()
				for v := words[i].Load(); !words[i].CompareAndSwap(v, max(v, now)+1); v = words[i].Load() {
				}
				if i++; i == clients {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("clients=%d/policy", clients), func(b *testing.B) {
			p := NewStore(clients).Policy("p", bucket.MaxExact, bucket.MaxExact, ByClient())
			addrs := make([]netip.Addr, clients)
			r := request()
			var a bucket.Answer
			for i := range addrs {
				addrs[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				p.Take(r, addrs[i], &a)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if !p.Take(r, addrs[i], &a) {
					b.Fatal("refused")
				}
				if i++; i == clients {
					i = 0
				}
			}
		})
	}
}
