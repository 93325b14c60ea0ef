package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/bucket"
)

// request is one that is decided.
type request struct {
	at     int64 // microseconds
	stream *stream
	denied bool
}

// stream is one tenant at one endpoint: who has a bucket.
type stream struct {
	endpoint, tenant string
	rules            []bucket.Rule
	states           []bucket.State // of each rule

	requests, denied int
	first, last      int64 // denials
	longest          int64 // wait, in microseconds; bucket.Never
	denials          []denials
}

// denials are those of a stream without a long time between them.
type denials struct {
	from, to int64
	count    int
}

// simulation is a run on virtual time.
type simulation struct {
	cfg       *sentinel.Config
	candidate bool // decides where an endpoint has one
	streams   map[[2]string]*stream
	requests  []request
	noTenant  int // 401
	noPolicy  int // requests to no endpoint that the file has
	clock     bool
	from, to  int64
	admitted  int
	denied    int
	described string
}

func newSimulation(cfg *sentinel.Config) *simulation {
	return &simulation{cfg: cfg, streams: map[[2]string]*stream{}}
}

var errTooMany = errors.New("the log has more than " + grouped(maxRequests) + " requests; give a piece of it")

// add takes one request, in any order.
func (s *simulation) add(at int64, endpoint, tenant string) error {
	p, ok := s.cfg.Policies[endpoint]
	switch {
	case !ok:
		s.noPolicy++
		return nil
	case strings.TrimSpace(tenant) == "":
		s.noTenant++
		return nil
	case len(s.requests) == maxRequests:
		return errTooMany
	}
	key := [2]string{endpoint, tenant}
	st := s.streams[key]
	if st == nil {
		p, _ = underPlan(s.cfg, p, tenant, "")
		if c := p.Candidate; s.candidate && c != nil {
			p.Algorithm, p.Capacity, p.RefillRate, p.Limit, p.Window, p.Also = c.Algorithm, c.Capacity, c.RefillRate, c.Limit, c.Window, c.Also
		}
		st = newStream(p, endpoint, tenant)
		s.streams[[2]string{st.endpoint, st.tenant}] = st
	}
	s.requests = append(s.requests, request{at: at, stream: st})
	return nil
}

func newStream(p sentinel.Policy, endpoint, tenant string) *stream {
	st := &stream{endpoint: strings.Clone(endpoint), tenant: strings.Clone(tenant)}
	for _, l := range limitsOf(p) {
		if l.Algorithm == sentinel.SlidingWindow {
			st.rules = append(st.rules, bucket.NewSlidingWindow(l.Limit, l.Window.Microseconds()))
		} else {
			st.rules = append(st.rules, bucket.NewTokenBucket(int64(l.Capacity), int64(l.RefillRate)))
		}
	}
	st.states = make([]bucket.State, len(st.rules))
	return st
}

// decide charges every bucket or, if one denies, none. It returns how long until
// all admit.
func (st *stream) decide(now int64) (denied bool, wait int64) {
	for i, rule := range st.rules {
		if _, a := rule.Decide(st.states[i], now, false); a.Denied {
			denied = true
			if wait != bucket.Never && (a.Wait == bucket.Never || a.Wait > wait) {
				wait = a.Wait
			}
		}
	}
	if denied {
		return true, wait
	}
	for i, rule := range st.rules {
		st.states[i], _ = rule.Decide(st.states[i], now, true)
	}
	return false, 0
}

// run decides them all, in the order of time.
func (s *simulation) run() {
	slices.SortStableFunc(s.requests, func(a, b request) int { return cmp.Compare(a.at, b.at) })
	if s.clock && len(s.requests) > 0 {
		s.from, s.to = s.requests[0].at, s.requests[len(s.requests)-1].at+1
	}
	gap := max((s.to-s.from)/60, 1_000_000)
	for i := range s.requests {
		r := &s.requests[i]
		var wait int64
		r.denied, wait = r.stream.decide(r.at)
		r.stream.requests++
		if !r.denied {
			s.admitted++
			continue
		}
		s.denied++
		r.stream.deny(r.at, wait, gap)
	}
}

func (st *stream) deny(at, wait, gap int64) {
	if st.denied == 0 {
		st.first = at
	}
	st.denied++
	if n := len(st.denials); n == 0 || at-st.denials[n-1].to > gap {
		st.denials = append(st.denials, denials{from: at})
	}
	last := &st.denials[len(st.denials)-1]
	last.to = at
	last.count++
	st.last = at
	if st.longest != bucket.Never && (wait == bucket.Never || wait > st.longest) {
		st.longest = wait
	}
}

// worst are the streams, those with the most denials first.
func (s *simulation) worst() []*stream {
	all := make([]*stream, 0, len(s.streams))
	for _, st := range s.streams {
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b *stream) int {
		return cmp.Or(b.denied-a.denied, b.requests-a.requests, cmp.Compare(a.endpoint, b.endpoint), natural(a.tenant, b.tenant))
	})
	return all
}

// natural compares names so that t2 is before t10.
func natural(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) }

// when is an instant for people.
func (s *simulation) when(at int64) string {
	if s.clock {
		return time.UnixMicro(at).UTC().Format("2006-01-02 15:04:05")
	}
	return span(float64(at) / 1e6)
}

// simulateFlags are what simulate is given.
type simulateFlags struct {
	log, endpoint, rate, pattern, tenantFrom, svg string
	maps                                          list
	tenants, burst, top                           int
	length                                        time.Duration
	seed                                          uint64
	chart, candidate                              bool
}

func (c *cli) simulate(fs *flag.FlagSet, args []string) int {
	var o simulateFlags
	fs.StringVar(&o.log, "log", "", "an access `file` in the common or combined log format, or lines of JSON; - is the standard input")
	fs.Var(&o.maps, "map", "`PATTERN=ENDPOINT` for the paths of a log, as in 'POST /export=billing.export'; may be given several times")
	fs.StringVar(&o.tenantFrom, "tenant-from", "user", "what is the tenant in an access log: user, its third field, or host, its first")
	fs.StringVar(&o.endpoint, "endpoint", "", "the endpoint's `id`, for a described traffic, or where a log has only one")
	fs.StringVar(&o.rate, "rate", "", "a described traffic: what each tenant asks for, as in `12/s`")
	fs.IntVar(&o.tenants, "tenants", 1, "how many tenants ask")
	fs.IntVar(&o.burst, "burst", 0, "requests at once with which each tenant begins")
	fs.DurationVar(&o.length, "for", 10*time.Minute, "how long")
	fs.StringVar(&o.pattern, "pattern", "poisson", "how they come: poisson, as those of many people do, or steady")
	fs.Uint64Var(&o.seed, "seed", 1, "of poisson: the same makes the same requests")
	fs.BoolVar(&o.candidate, "candidate", false, "decide by the candidate of each endpoint that has one")
	fs.IntVar(&o.top, "top", 20, "how many tenants are shown, the most denied first")
	fs.BoolVar(&o.chart, "chart", false, "draw a chart on the terminal")
	fs.StringVar(&o.svg, "svg", "", "draw a chart into this `file`")
	name, code, ok := c.parse(fs, args)
	if !ok {
		return code
	}
	f := c.load(name, true)
	if f == nil {
		return exitUsage
	}
	s := newSimulation(f.cfg)
	s.candidate = o.candidate
	if o.top < 0 {
		return c.usage("-top must not be negative")
	}
	if err := c.feed(s, f, o); err != nil {
		return c.usage("%v", err)
	}
	if len(s.requests) == 0 {
		return c.usage("no request to decide: %s", s.leftOut())
	}
	s.run()
	if o.svg != "" {
		if err := os.WriteFile(o.svg, []byte(s.svg(o.top)), 0o644); err != nil { //nolint:gosec // It is for others to look at.
			return c.usage("%v", err)
		}
	}
	c.tell(s, o)
	if s.denied > 0 {
		return exitFound
	}
	return exitFine
}

// feed gives the simulation its requests.
func (c *cli) feed(s *simulation, f *policyFile, o simulateFlags) error {
	if o.endpoint == "" && len(f.cfg.Policies) == 1 {
		for id := range f.cfg.Policies {
			o.endpoint = id
		}
	}
	if _, ok := f.cfg.Policies[o.endpoint]; !ok && (o.endpoint != "" || o.log == "") {
		return fmt.Errorf("-endpoint: %s has no %q", f.name, o.endpoint)
	}
	tried := slices.ContainsFunc(slices.Collect(maps.Values(f.cfg.Policies)), func(p sentinel.Policy) bool { return p.Candidate != nil })
	switch {
	case o.candidate && !tried:
		return fmt.Errorf("-candidate: no endpoint of %s has one", f.name)
	case (o.log == "") == (o.rate == ""):
		return errors.New("give -log, or -rate with -tenants, -burst and -for")
	case o.rate != "":
		return s.describe(o)
	case o.tenantFrom != "user" && o.tenantFrom != "host":
		return errors.New("-tenant-from must be user or host")
	default:
		return c.feedLog(s, o)
	}
}

// describe makes the requests of a described traffic.
func (s *simulation) describe(o simulateFlags) error {
	rate, err := parseRate(o.rate)
	if err != nil {
		return err
	}
	if o.pattern != "poisson" && o.pattern != "steady" {
		return errors.New("-pattern must be poisson or steady")
	}
	t := traffic{tenants: o.tenants, rate: rate, burst: o.burst, length: o.length, poisson: o.pattern == "poisson", seed: o.seed}
	if err := t.check(); err != nil {
		return err
	}
	s.to = t.length.Microseconds()
	for i := range t.tenants {
		t.each(i, func(at int64) {
			if err == nil {
				err = s.add(at, o.endpoint, fmt.Sprintf("t%d", i+1))
			}
		})
	}
	s.described = fmt.Sprintf("%s at %s each, %s", plural(t.tenants, "tenant"), perTime(rate), o.pattern)
	if t.burst > 0 {
		s.described += fmt.Sprintf(", after a burst of %s", grouped(int64(t.burst)))
	}
	return err
}

// feedLog reads the requests of a log.
func (c *cli) feedLog(s *simulation, o simulateFlags) error {
	routes, err := newRoutes(o.maps)
	if err != nil {
		return err
	}
	for _, id := range routes.endpoint {
		if _, ok := s.cfg.Policies[id]; !ok {
			return fmt.Errorf("-map: the file has no endpoint %q", id)
		}
	}
	in := c.in
	if o.log != "-" {
		file, err := os.Open(o.log)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // only read from
		in = file
	}
	s.clock = true
	var failed error
	bad, err := readLog(in, func(e entry) {
		if failed == nil {
			endpoint := cmp.Or(e.endpoint, routes.of(e.method, e.path))
			if len(o.maps) == 0 {
				endpoint = cmp.Or(endpoint, o.endpoint)
			}
			failed = s.add(e.time, endpoint, s.whose(e, endpoint, o.tenantFrom))
		}
	})
	if bad.lines > 0 {
		fmt.Fprintf(c.err, "sentinelctl: %s of the log left out, the first of them line %d: %v\n", plural(bad.lines, "line"), bad.first, bad.why)
	}
	return errors.Join(err, failed)
}

// whose is the tenant of a log's line, or the address where that is counted.
func (s *simulation) whose(e entry, endpoint, from string) string {
	switch {
	case s.cfg.Policies[endpoint].Identity == sentinel.Anonymous && e.peer != "":
		return s.address(e.peer)
	case s.cfg.Policies[endpoint].Identity == sentinel.Anonymous, from == "host" && e.endpoint == "":
		return e.peer
	default:
		return e.tenant
	}
}

// address is a client's address as the limiter counts it. A log may have the names
// of hosts instead, which are taken as they are.
func (s *simulation) address(peer string) string {
	switch identity := s.cfg.App.PeerIdentity(peer); identity {
	case s.cfg.App.PeerIdentity(""): // of no address
		return peer
	default:
		return strings.TrimPrefix(identity, "anon:ip:")
	}
}

// leftOut says what was not decided, "" if everything was.
func (s *simulation) leftOut() string {
	var parts []string
	if s.noPolicy > 0 {
		parts = append(parts, plural(s.noPolicy, "request")+" to no endpoint of the file (see -map, -endpoint)")
	}
	if s.noTenant > 0 {
		parts = append(parts, plural(s.noTenant, "request")+" without a tenant, as a 401 (see -tenant-from)")
	}
	return strings.Join(parts, ", ")
}
