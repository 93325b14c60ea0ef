package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// What the tour is patient enough for.
const (
	longestQuota  = 5000             // requests that it fires to use up a quota
	fastestRefill = 100              // requests a second that come back meanwhile
	longestWait   = 10 * time.Second // a Retry-After that it keeps
	recovery      = 75 * time.Second // the breaker stays open for 30 s
)

// tour serves, fires requests at the server and prints a row for each, with
// what was promised and what came. It returns an error if they differ.
func tour(ctx context.Context, f flags, stdout, stderr io.Writer) (err error) {
	s, err := load(f.config)
	if err != nil {
		return err
	}
	var rs *redisServer
	if f.redisServer {
		if rs, err = startRedis(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rs.close()) }()
		s.config.App.RedisURL = sentinel.NewSecret("redis://" + rs.addr() + "/0")
		// On a busy machine a healthy Redis may need more than 20 ms now and
		// then. A service lives with that; a table of promises does not.
		s.config.App.RedisBudget = time.Second
		fmt.Fprintf(stdout, "a redis-server of its own listens on %s\n", rs.addr())
	}
	// Every denial is a log line at WARN, which the table tells already.
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	svc, err := newService(ctx, f.framework, s, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.limiter.Close()) }()
	ln, err := net.Listen("tcp", f.addr)
	if err != nil {
		return err
	}
	srv := newServer(svc.handler)
	go func() { _ = srv.Serve(ln) }() // ends with Close
	defer func() { err = errors.Join(err, srv.Close()) }()

	g := &guide{ctx: ctx, out: stdout, base: "http://" + ln.Addr().String(), policies: s.config.Policies, client: &http.Client{Timeout: 10 * time.Second}}
	// A tenant of this run alone: a Redis may remember the tour before.
	g.run = strconv.FormatInt(time.Now().UnixNano(), 36)
	fmt.Fprintf(stdout, "%s serves on %s\n\n", f.framework.name, g.base)
	g.header()
	g.tenants()
	g.anonymous()
	g.scrape()
	if rs != nil {
		g.outage(rs)
	}
	return g.verdict()
}

// guide walks the tour and writes its table.
type guide struct {
	ctx      context.Context
	out      io.Writer
	base     string
	run      string
	policies map[string]sentinel.Policy
	client   *http.Client

	rows   int
	broken int   // rows that are not as promised
	err    error // the tour cannot go on; every later step is skipped
}

// reply is what came back, and why.
type reply struct {
	status int
	header http.Header
	// body holds what the tour reads of any of the server's answers.
	body struct {
		Reason    string `json:"reason"`
		Remaining *int64 `json:"remaining"`
		Detail    string `json:"detail"`
		Token     string `json:"token"`
		Breaker   string `json:"breaker"`
	}
}

func (r reply) String() string {
	parts := []string{strconv.Itoa(r.status)}
	if r.body.Reason != "" {
		parts = append(parts, r.body.Reason)
	}
	if r.body.Remaining != nil {
		parts = append(parts, fmt.Sprintf("%d remaining", *r.body.Remaining))
	}
	if r.body.Detail != "" && r.body.Reason == "" {
		parts = append(parts, r.body.Detail)
	}
	if v := r.header.Get("Retry-After"); v != "" {
		parts = append(parts, "Retry-After "+v)
	}
	if v := r.header.Get("WWW-Authenticate"); v != "" {
		parts = append(parts, v)
	}
	if r.header.Get("Set-Cookie") != "" {
		parts = append(parts, "a cookie")
	}
	return strings.Join(parts, ", ")
}

// retryAfter is the promised wait; 0 if there is none.
func (r reply) retryAfter() time.Duration {
	s, err := strconv.Atoi(r.header.Get("Retry-After"))
	if err != nil {
		return 0
	}
	return time.Duration(s) * time.Second
}

// get sends a request. header is nil or its header.
func (g *guide) get(path string, header http.Header) reply {
	var r reply
	if g.err != nil {
		return r
	}
	req, err := http.NewRequestWithContext(g.ctx, http.MethodGet, g.base+path, nil)
	if err != nil {
		g.err = err
		return r
	}
	maps.Copy(req.Header, header)
	resp, err := g.client.Do(req)
	if err != nil {
		g.err = err
		return r
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.err = err
		return r
	}
	r.status, r.header = resp.StatusCode, resp.Header
	_ = json.Unmarshal(body, &r.body) // not every answer is JSON
	return r
}

// guarded asks at an endpoint and learns why from the metrics, for a denial
// tells the client no reason.
func (g *guide) guarded(id string, header http.Header) reply {
	before := g.reasons(id)
	r := g.get("/guarded/"+id, header)
	g.explain(&r, id, before)
	return r
}

// explain fills in the reason of a denial that was counted since before.
func (g *guide) explain(r *reply, id string, before map[string]string) {
	if r.status == 200 {
		return
	}
	for reason, n := range g.reasons(id) {
		if reason != string(sentinel.ReasonAllowed) && n != before[reason] {
			r.body.Reason = reason
		}
	}
}

// reasons reads how often each reason was given at an endpoint.
func (g *guide) reasons(id string) map[string]string {
	found := map[string]string{}
	for line := range strings.SplitSeq(g.metrics(), "\n") {
		labels, value, ok := strings.Cut(line, "} ")
		if !ok || !strings.HasPrefix(labels, "sentinel_decisions_total{") || !strings.Contains(labels, fmt.Sprintf("endpoint_id=%q", id)) {
			continue
		}
		_, reason, _ := strings.Cut(labels, `decision_reason="`)
		reason, _, _ = strings.Cut(reason, `"`)
		found[reason] = value
	}
	return found
}

func (g *guide) metrics() string {
	if g.err != nil {
		return ""
	}
	req, err := http.NewRequestWithContext(g.ctx, http.MethodGet, g.base+"/metrics", nil)
	if err != nil {
		g.err = err
		return ""
	}
	resp, err := g.client.Do(req)
	if err != nil {
		g.err = err
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		g.err = err
	}
	return string(body)
}

// bearer is the header of a tenant, minted by the server itself.
func (g *guide) bearer(tenant string) http.Header {
	r := g.get("/token?ttl=600&tenant="+tenant+"-"+g.run, nil)
	return http.Header{"Authorization": {"Bearer " + r.body.Token}}
}

// wait sleeps, unless the tour is over.
func (g *guide) wait(d time.Duration) {
	if g.err != nil {
		return
	}
	select {
	case <-time.After(d):
	case <-g.ctx.Done():
		g.err = g.ctx.Err()
	}
}

func (g *guide) header() {
	fmt.Fprintf(g.out, "%-3s %-38s %-25s %-36s %-44s %s\n", "", "STEP", "REQUEST", "EXPECTED", "GOT", "OK")
}

// row writes one promise and what became of it.
func (g *guide) row(step, request, expected string, got fmt.Stringer, ok bool) {
	if g.err != nil {
		return
	}
	g.rows++
	word := "yes"
	if !ok {
		g.broken++
		word = "NO"
	}
	fmt.Fprintf(g.out, "%-3d %-38s %-25s %-36s %-44s %s\n", g.rows, step, request, expected, got, word)
}

// say writes progress between the rows.
func (g *guide) say(format string, args ...any) {
	if g.err == nil {
		fmt.Fprintf(g.out, "    -- "+format+"\n", args...)
	}
}

func (g *guide) verdict() error {
	switch {
	case g.err != nil:
		return fmt.Errorf("the tour ended early: %w", g.err)
	case g.broken > 0:
		return fmt.Errorf("%d of %d outcomes are not the promised ones", g.broken, g.rows)
	}
	fmt.Fprintf(g.out, "\nall %d outcomes are the promised ones\n", g.rows)
	return nil
}

// text is a got that is no reply.
type text string

func (t text) String() string { return string(t) }

// quota is how many requests a fresh bucket admits at once.
func quota(p sentinel.Policy) int64 {
	if p.Algorithm == sentinel.SlidingWindow {
		return p.Limit
	}
	return int64(p.Capacity / sentinel.Token)
}

// pick returns the endpoint with the smallest quota of those that match, ""
// if there is none.
func (g *guide) pick(match func(sentinel.Policy) bool) string {
	best := ""
	for _, id := range slices.Sorted(maps.Keys(g.policies)) {
		p := g.policies[id]
		if match(p) && (best == "" || quota(p) < quota(g.policies[best])) {
			best = id
		}
	}
	return best
}

func forTenants(p sentinel.Policy) bool { return p.Identity != sentinel.Anonymous }

// tenants shows 200, 401, 404 and 429 at an endpoint for tenants.
func (g *guide) tenants() {
	r := g.get("/healthz", nil)
	g.row("the process lives", "GET /healthz", "200", r, r.status == 200)
	r = g.get("/readyz", nil)
	g.row("decisions come from the store", "GET /readyz", "200", r, r.status == 200)

	acme := g.bearer("acme")
	id := g.pick(forTenants)
	if id == "" {
		g.say("no policy counts tenants; their steps are left out")
		return
	}
	path := "/guarded/" + id
	r = g.get(path, nil)
	g.row("no token", path, "401, Bearer", r, r.status == 401 && r.header.Get("WWW-Authenticate") == "Bearer")
	forged := http.Header{"Authorization": {acme.Get("Authorization") + "x"}}
	r = g.get(path, forged)
	g.row("a token that nobody signed", path, "401, Bearer", r, r.status == 401 && r.header.Get("WWW-Authenticate") == "Bearer")
	if _, configured := g.policies[notConfigured]; !configured {
		r = g.get("/guarded/"+notConfigured, acme)
		g.row("an endpoint without a policy", "/guarded/"+notConfigured, "404", r, r.status == 404)
		r = g.get("/guarded/"+notConfigured, nil)
		g.row("... as a stranger sees it", "/guarded/"+notConfigured, "401: strangers cannot map them", r, r.status == 401)
	}

	q := quota(g.policies[id])
	r = g.guarded(id, acme)
	g.row("tenant acme, first request", path, fmt.Sprintf("200, allowed, %d remaining", q-1), r,
		r.status == 200 && r.body.Reason == "allowed" && r.body.Remaining != nil && *r.body.Remaining == q-1)
	if !exhaustible(q, g.policies[id]) {
		g.say("%s admits more than the tour can ask for; its 429 is left out", id)
		return
	}
	r, admitted := g.exhaust(id, acme, q)
	admitted++ // the first request
	g.row(fmt.Sprintf("acme goes on; %d admitted in all", admitted), path, "429, rate_limited", r,
		r.status == 429 && r.body.Reason == "rate_limited" && admitted >= q)
	g.keep(r, path, acme)
	r = g.guarded(id, g.bearer("globex"))
	g.row("tenant globex has a quota of its own", path, "200, allowed", r, r.status == 200 && r.body.Reason == "allowed")
}

// exhaustible reports whether a tour, one request after the other, can use up
// the quota.
func exhaustible(quota int64, p sentinel.Policy) bool {
	perSecond := int64(p.RefillRate / sentinel.Token)
	if p.Algorithm == sentinel.SlidingWindow {
		perSecond = int64(float64(p.Limit) / cmp.Or(p.Window, time.Minute).Seconds())
	}
	return quota <= longestQuota && perSecond <= fastestRefill
}

// exhaust asks until it is denied. It returns the denial and how many were
// admitted before.
func (g *guide) exhaust(id string, header http.Header, quota int64) (reply, int64) {
	before := g.reasons(id)
	var admitted int64
	r := g.get("/guarded/"+id, header)
	for r.status == 200 && admitted <= 2*quota+10 {
		admitted++
		r = g.get("/guarded/"+id, header)
	}
	g.explain(&r, id, before)
	return r, admitted
}

// keep waits for exactly the Retry-After of a denial, and no longer.
func (g *guide) keep(denied reply, path string, header http.Header) {
	wait := denied.retryAfter()
	if wait == 0 || wait > longestWait {
		g.say("Retry-After is %q; that is not waited for", denied.header.Get("Retry-After"))
		return
	}
	g.say("waiting %s, as told", wait)
	g.wait(wait)
	r := g.get(path, header)
	g.row("after exactly the Retry-After", path, "200: it is kept", r, r.status == 200)
}

// anonymous shows the cookie's way.
func (g *guide) anonymous() {
	id := g.pick(func(p sentinel.Policy) bool { return p.Identity == sentinel.Anonymous })
	if id == "" {
		g.say("no policy counts anonymous clients; their steps are left out")
		return
	}
	path := "/guarded/" + id
	r := g.guarded(id, nil)
	if wait := r.retryAfter(); r.status == 429 { // a shared Redis remembers
		if wait == 0 || wait > longestWait {
			g.say("%s remembers this address from before; the steps of anonymous clients are left out", id)
			return
		}
		g.say("%s remembers this address from before; waiting %s", id, wait)
		g.wait(wait)
		r = g.guarded(id, nil)
	}
	var cookie *http.Cookie
	if set := r.header.Values("Set-Cookie"); len(set) == 1 {
		cookie, _ = http.ParseSetCookie(set[0])
	}
	good := cookie != nil && cookie.HttpOnly && cookie.SameSite == http.SameSiteLaxMode && cookie.Path == "/"
	g.row("a client without a name", path, "200, allowed, and a signed cookie", r, r.status == 200 && r.body.Reason == "allowed" && good)
	if cookie == nil || !exhaustible(quota(g.policies[id]), g.policies[id]) {
		return
	}
	known := http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}}
	r, _ = g.exhaust(id, known, quota(g.policies[id]))
	denied := r
	g.row("the same client, over its quota", path, "429, rate_limited, no cookie", r,
		r.status == 429 && r.body.Reason == "rate_limited" && r.header.Get("Set-Cookie") == "")
	if denied.retryAfter() > time.Second { // there is time to ask again
		r = g.guarded(id, nil)
		g.row("... throws its cookie away", path, "429: its address counts too", r,
			r.status == 429 && r.header.Get("Set-Cookie") == "")
	}
	g.keep(denied, path, known)
}

// scrape shows that the decisions were counted.
func (g *guide) scrape() {
	n := strings.Count(g.metrics(), "\nsentinel_decisions_total{")
	g.row("what happened is counted", "GET /metrics", "sentinel_decisions_total", text(fmt.Sprintf("%d series", n)), n > 0)
}

// outage kills the Redis and starts it again.
func (g *guide) outage(rs *redisServer) {
	open := g.pick(func(p sentinel.Policy) bool { return forTenants(p) && p.FailMode == sentinel.FailOpen })
	closed := g.pick(func(p sentinel.Policy) bool { return forTenants(p) && p.FailMode == sentinel.FailClosed })
	if open == "" || closed == "" {
		g.say("the outage needs a tenant endpoint of each fail mode; it is left out")
		return
	}
	tenant := g.bearer("initech")
	if g.err != nil {
		return
	}
	rs.kill()
	g.say("the redis-server was killed")

	r := g.guarded(open, tenant)
	g.row("fail open: the emergency bucket admits", "/guarded/"+open, "200, redis_..., no remaining", r,
		r.status == 200 && strings.HasPrefix(r.body.Reason, "redis_") && r.body.Remaining == nil)
	r = g.guarded(closed, tenant)
	g.row("fail closed: nobody is admitted", "/guarded/"+closed, "503, fail_closed", r, r.status == 503 && r.body.Reason == "fail_closed")
	for range 4 { // with the two above, one more than the breaker bears
		g.get("/guarded/"+closed, tenant)
	}
	r = g.guarded(closed, tenant)
	g.row("five failures open the breaker", "/guarded/"+closed, "503, circuit_open", r, r.status == 503 && r.body.Reason == "circuit_open")
	r = g.get("/readyz", nil)
	g.row("... and that can be seen", "GET /readyz", "503, breaker open", r, r.status == 503 && r.body.Breaker == "open")
	g.emergency(open, tenant)

	if g.err != nil {
		return
	}
	if g.err = rs.start(g.ctx); g.err != nil {
		return
	}
	g.say("the redis-server is back, empty; a breaker that saw calls fail, not only connections, waits out its 30 s")
	g.recover(closed, open, tenant)
}

// emergency uses up what an endpoint that fails open admits in one process.
func (g *guide) emergency(id string, header http.Header) {
	capacity := max(int64(g.policies[id].FallbackRate/sentinel.Token), 1)
	if capacity > fastestRefill { // one second of its rate
		g.say("the emergency bucket of %s holds %d; it is not used up", id, capacity)
		return
	}
	r, _ := g.exhaust(id, header, capacity)
	g.row("fail open is not unlimited", "/guarded/"+id, "429, emergency_local_limit", r,
		r.status == 429 && r.body.Reason == "emergency_local_limit")
}

// recover asks until Redis decides again.
func (g *guide) recover(closed, open string, header http.Header) {
	begin := time.Now()
	r := g.guarded(closed, header)
	for told := begin; r.status == 503 && time.Since(begin) < recovery && g.err == nil; {
		if time.Since(told) >= 5*time.Second {
			told = time.Now()
			g.say("%.0f s: %s", time.Since(begin).Seconds(), r)
		}
		g.wait(250 * time.Millisecond)
		r = g.guarded(closed, header)
	}
	g.row(fmt.Sprintf("recovered after %.0f s", time.Since(begin).Seconds()), "/guarded/"+closed, "200, allowed", r,
		r.status == 200 && r.body.Reason == "allowed")
	r = g.guarded(open, header)
	g.row("... everywhere", "/guarded/"+open, "200, allowed", r, r.status == 200 && r.body.Reason == "allowed")
	r = g.get("/readyz", nil)
	g.row("... and that can be seen", "GET /readyz", "200, breaker closed", r, r.status == 200 && r.body.Breaker == "closed")
}
