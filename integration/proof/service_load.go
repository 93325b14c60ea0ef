package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

var silent = slog.New(slog.DiscardHandler)

// Row is a kind of decision, and how many there were.
type Row struct {
	Endpoint  string // failOpenID or failClosedID
	Allowed   bool
	FromStore bool
	Reason    string
	// Status is what the HTTP client got, 0 for a check without HTTP, and
	// Headers whether RateLimit headers came along.
	Status  int
	Headers bool
	N       int
}

func (r Row) String() string {
	text := r.Endpoint + " "
	if r.Status != 0 {
		text += fmt.Sprintf("%d ", r.Status)
	}
	if r.Allowed {
		text += "allowed "
	} else {
		text += "denied "
	}
	text += r.Reason
	if r.FromStore {
		text += " by Redis"
	}
	if r.Headers {
		text += " with RateLimit"
	}
	return text
}

// Report is what checks have come to.
type Report struct {
	Rows   []Row
	Micros []int64 // how long each took
	// Late is how late the worst of the bare timers was that ran meanwhile,
	// microseconds.
	Late int64
	// Order is the checks one after the other, where there was one at a time
	// and one limiter.
	Order []Row
	// Bursts are what the emergency buckets admitted, one for each that did.
	Bursts []Burst
	// LastFailure is when the last check ended that Redis has not decided, Unix
	// microseconds; 0: none.
	LastFailure int64
	// LastDecision is when the last one ended that it has.
	LastDecision int64
}

// merge adds o to r, but for the order.
func (r *Report) merge(o *Report) {
	counts := map[Row]int{}
	for _, row := range append(slices.Clone(r.Rows), o.Rows...) {
		n := row.N
		row.N = 0
		counts[row] += n
	}
	r.Rows = sortedRows(counts)
	r.Micros = append(r.Micros, o.Micros...)
	r.Late = max(r.Late, o.Late)
	r.Bursts = append(r.Bursts, o.Bursts...)
	r.LastFailure = max(r.LastFailure, o.LastFailure)
	r.LastDecision = max(r.LastDecision, o.LastDecision)
}

// Burst is what one emergency bucket admitted, and in which time.
type Burst struct {
	Admitted int
	Micros   int64
}

// tally gathers a Report. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	counts map[Row]int
	report Report
	first  map[string]time.Time // when the first emergency admission's check began, by endpoint
	last   map[string]time.Time // when the last one's ended
	admits map[string]int
}

func newTally() *tally {
	t := &tally{}
	t.reset()
	return t
}

func (t *tally) reset() {
	t.counts, t.report = map[Row]int{}, Report{}
	t.first, t.last, t.admits = map[string]time.Time{}, map[string]time.Time{}, map[string]int{}
}

// add adds a check without its time.
func (t *tally) add(row Row, start, end time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[row]++
	if row.FromStore {
		t.report.LastDecision = max(t.report.LastDecision, end.UnixMicro())
		return
	}
	t.report.LastFailure = max(t.report.LastFailure, end.UnixMicro())
	if !row.Allowed {
		return
	}
	// Whoever is told first need not have begun first.
	if t.admits[row.Endpoint] == 0 || start.Before(t.first[row.Endpoint]) {
		t.first[row.Endpoint] = start
	}
	t.admits[row.Endpoint]++
	if end.After(t.last[row.Endpoint]) {
		t.last[row.Endpoint] = end
	}
}

// took adds the time of a check.
func (t *tally) took(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Micros = append(t.report.Micros, d.Microseconds())
}

// addTo moves all that was gathered into r.
func (t *tally) addTo(r *Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Rows = sortedRows(t.counts)
	for id, n := range t.admits {
		t.report.Bursts = append(t.report.Bursts, Burst{Admitted: n, Micros: t.last[id].Sub(t.first[id]).Microseconds()})
	}
	r.merge(&t.report)
	t.reset()
}

// tick is the length of a bare timer.
const tick = 20 * time.Millisecond

// control is bare timers, one after the other and side by side:
// what a machine that is late does to them, it may do to a check.
type control struct {
	worst  atomic.Int64
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startControl(timers int) *control {
	ctx, cancel := context.WithCancel(context.Background())
	c := &control{cancel: cancel}
	for i := range timers {
		c.done.Go(func() {
			wait := tick * time.Duration(i+1) / time.Duration(timers)
			for ctx.Err() == nil {
				start := time.Now()
				timer := time.NewTimer(wait)
				select {
				case <-timer.C:
					c.note(time.Since(start) - wait)
				case <-ctx.Done():
					timer.Stop()
				}
				wait = tick
			}
		})
	}
	return c
}

func (c *control) note(late time.Duration) {
	for old := c.worst.Load(); late.Microseconds() > old; old = c.worst.Load() {
		if c.worst.CompareAndSwap(old, late.Microseconds()) {
			return
		}
	}
}

// stop ends the timers and returns how late the worst one was.
func (c *control) stop() int64 {
	c.cancel()
	c.done.Wait()
	return c.worst.Load()
}

// Volley is checks that are made at the same moment.
type Volley struct {
	Group  string
	Crowd  int // goroutines on each limiter
	Rounds int // checks of each goroutine, one after the other
}

// Volley has crowds check, on one limiter of a group after the other. Of a cold
// group each limiter is opened the moment before.
func (s *service) Volley(v Volley, r *Report) error {
	g, err := s.group(v.Group)
	if err != nil {
		return err
	}
	control := startControl(20)
	for n, i := range g.limiters {
		if i == nil { // cold
			if i, err = g.open(); err != nil {
				continue // Open has refused it: there is nothing to ask
			}
			g.limiters[n] = i
		}
		t, order := newTally(), []Row(nil)
		volley(v.Crowd, v.Rounds, func(who, round int) {
			id := []string{failOpenID, failClosedID}[(who+round)%2]
			row := g.timed(i, id, t)
			if v.Crowd == 1 {
				order = append(order, row)
			}
		})
		t.addTo(r)
		r.Order = append(r.Order, order...)
	}
	r.Late = control.stop()
	return nil
}

// timed is one check, with its time, into t.
func (g *group) timed(i *instance, id string, t *tally) Row {
	start := time.Now()
	row := g.check(i, id)
	end := time.Now()
	t.took(end.Sub(start))
	t.add(row, start, end)
	return row
}

// volley runs f in crowd goroutines that start at the same moment.
func volley(crowd, rounds int, f func(who, round int)) {
	begin := make(chan struct{})
	var done sync.WaitGroup
	for who := range crowd {
		done.Go(func() {
			<-begin
			for round := range rounds {
				f(who, round)
			}
		})
	}
	close(begin)
	done.Wait()
}

// Storm is a crowd that checks again and again.
type Storm struct {
	Group  string
	Crowd  int
	Millis int // for how long
	// CloseAfter closes the limiters in the middle, after so many
	// milliseconds; 0: not.
	CloseAfter int
	Pause      int // microseconds between two checks of one goroutine
}

// Storm has a crowd check on every limiter of a group, all at the same time.
func (s *service) Storm(st Storm, r *Report) error {
	g, err := s.group(st.Group)
	if err != nil {
		return err
	}
	control := startControl(20)
	end := time.Now().Add(time.Duration(st.Millis) * time.Millisecond)
	t := newTally()
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, i := range g.live() {
		all.Go(func() {
			volley(st.Crowd, 1, func(who, _ int) {
				for n := who; time.Now().Before(end); n++ {
					g.timed(i, []string{failOpenID, failClosedID}[n%2], t)
					time.Sleep(time.Duration(st.Pause) * time.Microsecond)
				}
			})
		})
		if st.CloseAfter > 0 {
			all.Go(func() {
				time.Sleep(time.Duration(st.CloseAfter) * time.Millisecond)
				if g.Flaw == flawLeak {
					return
				}
				if err := i.limiter.Close(); err != nil {
					failed.Store(&err)
				}
			})
		}
	}
	all.Wait()
	t.addTo(r)
	r.Late = control.stop()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// front is the service itself: a net/http server with a guarded route for each
// fail mode, and clients that call it, or the limiter, without end.
type front struct {
	server  *http.Server
	client  *http.Client
	url     string
	pace    atomic.Int64 // between two checks of a client, microseconds; 0: none
	control atomic.Pointer[control]
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// clients is how many call each service; half go through HTTP.
const clients = 4

func serve(g *group, i *instance) (*front, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &front{
		server: &http.Server{Handler: guarded(g, i), ReadHeaderTimeout: time.Minute},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}, Timeout: 10 * time.Second},
		url:    "http://" + ln.Addr().String() + "/",
		cancel: cancel,
	}
	f.done.Go(func() { _ = f.server.Serve(ln) }) // ends with stop
	for who := range clients {
		f.done.Go(func() { f.live(ctx, g, i, who) })
	}
	return f, nil
}

// guarded is the handler of the service. Its times are taken around the guard,
// as the server sees them: what the client adds is none of Sentinel's.
func guarded(g *group, i *instance) http.Handler {
	mux := http.NewServeMux()
	for _, id := range []string{failOpenID, failClosedID} {
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d, _ := sentinel.FromContext(r.Context())
			tell(w, d)
			w.WriteHeader(http.StatusOK)
		})
		mux.Handle("/"+id, sentinelhttp.Guard(id+"."+g.Group)(handler))
	}
	middleware := sentinelhttp.Middleware(i.limiter, sentinelhttp.WithDenial(
		func(w http.ResponseWriter, r *http.Request, d sentinelhttp.Denial) {
			tell(w, d.Decision)
			d.ServeHTTP(w, r)
		}))(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		middleware.ServeHTTP(w, r)
		i.tally.took(time.Since(start))
	})
}

// tell adds what the client could not know otherwise.
func tell(w http.ResponseWriter, d sentinel.Decision) {
	w.Header().Set("X-Reason", string(d.Reason))
	if d.FromStore {
		w.Header().Set("X-Store", "yes")
	}
}

// live is one client. It does not wait for what it was told to do next longer
// than a moment, so that a new pace counts at once.
func (f *front) live(ctx context.Context, g *group, i *instance, who int) {
	id := []string{failOpenID, failClosedID}[who%2]
	last, jitter := time.Now(), rand.Float64()
	for ctx.Err() == nil {
		pace := time.Duration(f.pace.Load()) * time.Microsecond
		next := last.Add(pace/2 + time.Duration(jitter*float64(pace))) // not in step with the others
		if pace == 0 || time.Now().Before(next) {
			select {
			case <-time.After(min(10*time.Millisecond, max(time.Until(next), time.Millisecond))):
			case <-ctx.Done():
			}
			continue
		}
		last, jitter = time.Now(), rand.Float64()
		if who < clients/2 {
			start := time.Now()
			i.tally.add(f.get(ctx, g, id), start, time.Now())
			continue
		}
		g.timed(i, id, i.tally)
	}
}

// get is one request through HTTP. Its time is taken by the server.
func (f *front) get(ctx context.Context, g *group, id string) Row {
	row := Row{Endpoint: id, Status: -1}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+id, nil)
	if err != nil {
		row.Reason = "error: " + err.Error()
		return row
	}
	r.Header.Set("Authorization", g.token)
	resp, err := f.client.Do(r)
	if err != nil {
		row.Reason = "error: " + err.Error()
		return row
	}
	_, _ = io.Copy(io.Discard, resp.Body) // a body that breaks off is of no interest
	_ = resp.Body.Close()
	row.Status, row.Allowed = resp.StatusCode, resp.StatusCode == http.StatusOK
	row.Reason, row.FromStore = resp.Header.Get("X-Reason"), resp.Header.Get("X-Store") != ""
	row.Headers = resp.Header.Get("Ratelimit") != ""
	return row
}

// stop ends the traffic, then the server.
func (f *front) stop() {
	f.cancel()
	f.client.CloseIdleConnections()
	_ = f.server.Close() // the listener's error is of no interest
	f.done.Wait()
	if c := f.control.Swap(nil); c != nil {
		c.stop()
	}
}

// Pace is how often each client of a group's services calls.
type Pace struct {
	Group  string
	Millis int // between two calls; 0: not at all
	Timers int // of the control
}

// Pace sets the live traffic of a group.
func (s *service) Pace(p Pace, _ *int) error {
	g, err := s.group(p.Group)
	if err != nil {
		return err
	}
	for _, i := range g.limiters {
		i.front.pace.Store(int64(p.Millis) * 1000)
		if c := i.front.control.Swap(nil); c != nil {
			i.tally.late(c.stop())
		}
		if p.Timers > 0 {
			i.front.control.Store(startControl(p.Timers))
		}
	}
	return nil
}

func (t *tally) late(micros int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Late = max(t.report.Late, micros)
}

// Harvest replies what the live traffic of a group has come to since the last
// harvest.
func (s *service) Harvest(name string, r *Report) error {
	g, err := s.group(name)
	if err != nil {
		return err
	}
	for _, i := range g.limiters {
		if c := i.front.control.Load(); c != nil {
			i.tally.late(c.worst.Swap(0))
		}
		i.tally.addTo(r)
	}
	return nil
}
