package sentinelhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

const (
	// topShards is in how many parts decisions are counted, so that cores seldom
	// wait for each other.
	topShards = 16
	// topPeriod is how long a count grows. The last and the running one are shown.
	topPeriod = 5 * time.Minute
	maxTop    = 1000
	// topRows is how many are shown unless the request says more.
	topRows = 10
)

const topWarning = "For operators only. This page must not face the public: it tells which clients call what, and how often."

// TopTenants knows who asks most and who is denied most at each endpoint, by the
// hash of the identity and never by its name, over the last five to ten minutes
// of this process. It is an [http.Handler] for a debug server:
//
//	top := sentinelhttp.NewTopTenants(100)
//	limiter, err := sentinel.Open(ctx, cfg, sentinel.WithObserver(top.Observe))
//	...
//	debug.Handle("GET /debug/sentinel/top", top)
//
// That server must not face the public: what it shows is who your customers are
// and what they do, and nothing here asks who wants to know.
//
// It is exact up to a bound, and its memory is bounded, however many clients
// there are. Each count is given as two numbers, at_least and at_most, and the
// true one is between them; they differ by at most 1/(k+1) of all requests of the
// endpoint that are counted, and not at all where there were no more than k
// clients. Whoever made more than that part of the requests is among the first k
// rows. It keeps at most 64 k hashes for each endpoint (16 parts, two periods,
// asked and denied), at some 200 bytes.
//
// It is safe for concurrent use. Make it with [NewTopTenants].
type TopTenants struct {
	k      int
	began  time.Time
	shards [topShards]topShard
}

// topShard counts a part of the decisions.
type topShard struct {
	mu                sync.Mutex
	period            int64 // number of the running one
	current, previous map[string]*topCounts
	_                 [96]byte // two cache lines for each
}

// topCounts is one endpoint in one period.
type topCounts struct{ asked, denied tops }

// tops counts the most frequent of a stream in bounded memory, by Misra and
// Gries: a newcomer who finds no room takes one from everybody, himself
// included. So each of k+1 has lost one together with k others, and nobody has
// lost more than 1/(k+1) of the total.
type tops struct {
	counts map[string]uint64 // at most k
	lost   uint64            // by everybody, at most
	total  uint64
}

// add counts one more of hash. Over many calls it takes constant time.
func (t *tops) add(hash string, k int) {
	t.total++
	if _, known := t.counts[hash]; known || len(t.counts) < k {
		if t.counts == nil {
			t.counts = make(map[string]uint64)
		}
		t.counts[hash]++
		return
	}
	t.lost++
	for other, n := range t.counts {
		if n == 1 {
			delete(t.counts, other)
		} else {
			t.counts[other] = n - 1
		}
	}
}

// merge adds what another has counted. The bounds hold for the sum.
func (t *tops) merge(other *tops) {
	if t.counts == nil {
		t.counts = make(map[string]uint64)
	}
	for hash, n := range other.counts {
		t.counts[hash] += n
	}
	t.lost += other.lost
	t.total += other.total
}

// NewTopTenants returns an empty TopTenants that finds whoever makes more than
// 1/(k+1) of an endpoint's requests; k is 1 to 1000, and it panics for another.
func NewTopTenants(k int) *TopTenants {
	if k < 1 || k > maxTop {
		panic(fmt.Sprintf("sentinelhttp: NewTopTenants(%d): it must be 1 to %d", k, maxTop))
	}
	return &TopTenants{k: k, began: time.Now()}
}

// Observe is for [sentinel.WithObserver]: it counts one decision, whatever its
// cost. As denied counts whom a quota denied, enforced or not, and not whom a
// failure did. It takes well below a microsecond.
func (t *TopTenants) Observe(_ context.Context, d sentinel.Decision, start time.Time, _ time.Duration) {
	s := t.shard()
	defer s.mu.Unlock()
	s.turn(t.periodOf(start))
	c := s.current[d.EndpointID]
	if c == nil {
		c = new(topCounts)
		s.current[d.EndpointID] = c
	}
	c.asked.add(d.IdentityHash, t.k)
	if d.Reason == sentinel.ReasonRateLimited {
		c.denied.add(d.IdentityHash, t.k)
	}
}

// shard returns a part that nobody else has now, locked.
func (t *TopTenants) shard() *topShard {
	first := rand.IntN(topShards)
	for i := range topShards {
		if s := &t.shards[(first+i)%topShards]; s.mu.TryLock() {
			return s
		}
	}
	s := &t.shards[first]
	s.mu.Lock()
	return s
}

func (t *TopTenants) periodOf(at time.Time) int64 { return int64(at.Sub(t.began) / topPeriod) }

// turn begins a period, if it is a later one than that which runs.
func (s *topShard) turn(period int64) {
	switch {
	case period <= s.period && s.current != nil:
		return
	case period == s.period+1:
		s.previous = s.current
	default:
		s.previous = nil
	}
	s.current, s.period = make(map[string]*topCounts), period
}

// topPage is what is shown.
type topPage struct {
	Warning   string        `json:"warning"`
	Since     time.Time     `json:"since"`
	Endpoints []topEndpoint `json:"endpoints"`
}

type topEndpoint struct {
	ID     string  `json:"endpoint_id"`
	Asked  topList `json:"asked"`
	Denied topList `json:"denied"`
}

// topList is who is at the top of all, and by how much at_least may be short of
// the truth for everybody, also for those who are not listed.
type topList struct {
	Total uint64   `json:"total"`
	Error uint64   `json:"error"`
	Top   []topRow `json:"top"`
}

type topRow struct {
	Hash    string `json:"identity_hash"`
	AtLeast uint64 `json:"at_least"`
	AtMost  uint64 `json:"at_most"`
}

// page returns the first rows of each endpoint, at this moment.
func (t *TopTenants) page(rows int) topPage {
	period := t.periodOf(time.Now())
	found := make(map[string]*topCounts)
	for i := range t.shards {
		t.shards[i].addTo(found, period)
	}
	p := topPage{
		Warning:   topWarning,
		Since:     t.began.Add(time.Duration(max(period-1, 0)) * topPeriod).UTC().Truncate(time.Second),
		Endpoints: []topEndpoint{},
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		c := found[id]
		p.Endpoints = append(p.Endpoints, topEndpoint{id, c.asked.list(rows), c.denied.list(rows)})
	}
	return p
}

// addTo adds what was counted in the period and the one before it.
func (s *topShard) addTo(found map[string]*topCounts, period int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(period)
	for _, counted := range []map[string]*topCounts{s.previous, s.current} {
		for id, c := range counted {
			if found[id] == nil {
				found[id] = new(topCounts)
			}
			found[id].asked.merge(&c.asked)
			found[id].denied.merge(&c.denied)
		}
	}
}

func (t *tops) list(rows int) topList {
	all := make([]topRow, 0, len(t.counts))
	for hash, n := range t.counts {
		all = append(all, topRow{hash, n, n + t.lost})
	}
	slices.SortFunc(all, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.AtLeast, a.AtLeast), strings.Compare(a.Hash, b.Hash))
	})
	return topList{t.total, t.lost, all[:min(rows, len(all))]}
}

// ServeHTTP shows the top ten of each endpoint as a table of text, or as JSON
// where the request accepts application/json; ?rows=50 shows more, up to 1000.
func (t *TopTenants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rows, err := topRows, error(nil)
	if text := r.URL.Query().Get("rows"); text != "" {
		rows, err = strconv.Atoi(text)
	}
	if err != nil || rows < 1 || rows > maxTop {
		http.Error(w, fmt.Sprintf("rows must be 1 to %d", maxTop), http.StatusBadRequest)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	p := t.page(rows)
	// Who hangs up does not need the rest.
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		h.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	p.write(w)
}

// write writes the page as text.
func (p *topPage) write(w io.Writer) {
	fmt.Fprintf(w, "%s\nThis process alone, since %s.\n", p.Warning, p.Since.Format(time.RFC3339))
	for _, e := range p.Endpoints {
		for _, l := range []struct {
			what string
			topList
		}{{"asked", e.Asked}, {"denied", e.Denied}} {
			fmt.Fprintf(w, "\n%s: %d %s\n", e.ID, l.Total, l.what)
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
			for _, row := range l.Top {
				fmt.Fprintf(table, "%d\t%s\t  %s\n", row.AtLeast, upTo(row), row.Hash)
			}
			_ = table.Flush()
		}
	}
}

// upTo says what the true number may be at most, if that is not known already.
func upTo(r topRow) string {
	if r.AtMost == r.AtLeast {
		return ""
	}
	return fmt.Sprintf("to %d", r.AtMost)
}
