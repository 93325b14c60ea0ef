package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

const shopRole = "shop"

func init() { roles[shopRole] = func() any { return &shop{} } }

// shop is a service with one guarded route and the same without a guard.
type shop struct{}

// Serve starts it, and tells its address.
func (*shop) Serve(url string, addr *string) error {
	plenty := tokenBucket("page", 1<<40, 1<<40)
	few := tokenBucket("few", sentinel.Token, 1000)
	l, err := sentinel.Open(context.Background(), configure(url, plenty, few), sentinel.WithLogger(slog.New(slog.DiscardHandler)), sentinel.WithStrictStart())
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	mux := http.NewServeMux()
	mux.Handle("/guarded/quiet", sentinelhttp.Guard("page")(page))
	mux.Handle("/guarded/flood", sentinelhttp.Guard("few")(page))
	mux.Handle("/open/", page)
	server := &http.Server{Handler: sentinelhttp.Middleware(l)(mux), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until the process ends
	*addr = listener.Addr().String()
	return nil
}

// The flood, and the quiet tenant at each of the two services, in requests a
// second. The flood leaves the machine some room: where there is none the quiet
// one waits for a CPU, guarded or not.
const (
	floodRate    = 1500
	quietRate    = 150
	floodSenders = 16
)

// The services, and the floods.
const (
	openService    = "open" // the same, without a guard
	guardedService = "guarded"
	noFlood        = ""
)

var (
	services   = []string{openService, guardedService}
	floods     = []string{noFlood, openService, guardedService}
	floodNames = map[string]string{
		noFlood: "calm", openService: "a flood at the open service, which is served", guardedService: "a flood at the guarded one, which is denied",
	}
)

// flood measures how long a quiet tenant waits for an answer while another one
// floods, behind a guard and without one. What the machine does besides hits both
// alike: the quiet one asks both services at the same time, and the floods come
// in short turns.
func flood(s *scope, l *lab, sec *section) {
	server := redistest.Start(s)
	w := startWorker(s, shopRole, nil, nil, os.Stderr)
	var addr string
	if err := w.call("Serve", server.URL(), &addr); err != nil {
		s.Fatal(err)
	}
	rounds, turns := pick(l, 9, 3), pick(l, 8, 3)
	l.logf("attack: floods of %d a second, %d rounds", floodRate, rounds)
	visitor := newVisitor(s, addr)
	found := map[[2]string][]time.Duration{} // the p99 of each round, by flood and service
	for range rounds {
		took := map[[2]string][]time.Duration{}
		for range turns {
			for _, flood := range floods {
				for service, t := range visitor.turn(flood) {
					took[[2]string{flood, service}] = append(took[[2]string{flood, service}], t...)
				}
			}
		}
		for at, t := range took {
			found[at] = append(found[at], p99(t))
		}
	}
	tab := &table{
		title:   fmt.Sprintf("p99 of a quiet tenant at %d a second beside a flood of %d a second, ms", quietRate, floodRate),
		columns: []string{"meanwhile", "without a guard", "guarded", "guarded by without"},
	}
	beside := map[string][]float64{} // guarded by without, at the same time
	for _, flood := range floods {
		open, guarded := found[[2]string{flood, openService}], found[[2]string{flood, guardedService}]
		beside[flood] = divide(guarded, open)
		tab.add(floodNames[flood], millis(median(open)), millis(median(guarded)), ratio(beside[flood]))
	}
	sec.tables = append(sec.tables, tab)
	calm, denied := found[[2]string{noFlood, guardedService}], found[[2]string{guardedService, guardedService}]
	served := divide(found[[2]string{openService, openService}], found[[2]string{noFlood, openService}])
	sec.notes = append(sec.notes, fmt.Sprintf("Under a flood that is denied the quiet tenant's p99 is %s of what it is in calm; without a guard, under a flood that is served, %s.", ratio(divide(denied, calm)), ratio(served)))

	var quiet, flooded trials
	most := 2 * max(1, median(beside[noFlood]))
	quiet.check(median(beside[guardedService]) <= most, "the quiet tenant's p99 is %s of what it is without a guard at the same time; in calm it is %s", ratio(beside[guardedService]), ratio(beside[noFlood]))
	sec.promise(quiet.promise("a flood that is denied costs another tenant nothing that it would not cost without a guard: its p99, by that of the open service at the same time, stays within twice that in calm",
		fmt.Sprintf("%s under the flood, %s in calm, over %d rounds", ratio(beside[guardedService]), ratio(beside[noFlood]), rounds)))
	flooded.check(visitor.denied > rounds*turns*100, "%d of the flood's requests were denied: it was none", visitor.denied)
	sec.promise(flooded.promise("the flood is denied", fmt.Sprintf("%d denials", visitor.denied)))
}

// ratio is a median with its spread.
func ratio(all []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(all), slices.Min(all), slices.Max(all))
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
}

// visitor is the quiet tenant, and the one who floods.
type visitor struct {
	s      *scope
	addr   string
	client *http.Client
	tokens map[string]string // by path

	mu     sync.Mutex
	denied int // of the flood at the guarded service
}

func newVisitor(s *scope, addr string) *visitor {
	v := &visitor{
		s: s, addr: addr, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 10 * time.Second},
		tokens: map[string]string{"quiet": signed("quiet"), "flood": signed("flooder")},
	}
	s.Cleanup(v.client.CloseIdleConnections)
	return v
}

func (v *visitor) ask(service, path string) (status int) {
	r, err := http.NewRequestWithContext(v.s.Context(), http.MethodGet, "http://"+v.addr+"/"+service+"/"+path, nil)
	if err != nil {
		v.s.Error(err)
		return 0
	}
	r.Header.Set("Authorization", v.tokens[path])
	resp, err := v.client.Do(r)
	if err != nil {
		v.s.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// turn has the quiet tenant ask both services at a fixed pace for a while, beside
// a flood at one of them or none, and returns how long each answer took from when
// its request was due.
func (v *visitor) turn(flood string) map[string][]time.Duration {
	const long, senders = 400 * time.Millisecond, 4
	took := map[string][]time.Duration{}
	begin := time.Now().Add(20 * time.Millisecond)
	end := begin.Add(long)
	var all sync.WaitGroup
	for sender := range floodSenders {
		if flood == noFlood {
			break
		}
		all.Go(func() {
			pace(begin, end, floodRate, sender, floodSenders, func(time.Time) {
				if v.ask(flood, "flood") == http.StatusTooManyRequests {
					v.mu.Lock()
					v.denied++
					v.mu.Unlock()
				}
			})
		})
	}
	for _, service := range services {
		for sender := range senders {
			all.Go(func() {
				pace(begin, end, quietRate, sender, senders, func(due time.Time) {
					status := v.ask(service, "quiet")
					t := time.Since(due)
					v.mu.Lock()
					defer v.mu.Unlock()
					took[service] = append(took[service], t)
					if status != http.StatusOK {
						v.s.Errorf("the quiet tenant got %d", status)
					}
				})
			})
		}
	}
	all.Wait()
	return took
}

// pace calls f when its part of the requests is due.
func pace(begin, end time.Time, rate, sender, senders int, f func(due time.Time)) {
	for i := sender; ; i += senders {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if due.After(end) {
			return
		}
		time.Sleep(time.Until(due))
		f(due)
	}
}

// signed is the Authorization header of a tenant.
func signed(tenant string) string {
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": tenant, "exp": time.Now().Add(24 * time.Hour).Unix(),
	}).SignedString([]byte(verdictJWT))
	if err != nil {
		panic(err) // the key is a byte slice
	}
	return "Bearer " + text
}

func median[T time.Duration | float64](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func divide(a, b []time.Duration) []float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = float64(a[i]) / float64(b[i])
	}
	return ratios
}
