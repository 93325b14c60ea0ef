package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/operator"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

// healthAuto is what `type: auto` is until the path is known.
const healthAuto HealthType = "auto"

var (
	poolName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?$`)
	word     = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$") // what HTTP calls a token
)

func badName(text string) string {
	if !poolName.MatchString(text) {
		return "must be up to 63 letters, digits, dots, dashes and underscores, a letter or a digit first"
	}
	return ""
}

func badPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err != nil || strconv.FormatUint(n, 10) != text
}

func badHost(text string) bool {
	_, err := netip.ParseAddr(text)
	return err != nil && !hostName.MatchString(text)
}

// badAddress checks an address to listen on.
func badAddress(text string) string {
	host, port, err := net.SplitHostPort(text)
	if err != nil || badPort(port) || host != "" && badHost(host) {
		return "must be host:port, as 127.0.0.1:8080 or :8080"
	}
	return ""
}

func adminHost(text string) (string, string) {
	if !hostName.MatchString(text) {
		return "", "must be a host's name, without a port; addresses may always be used"
	}
	return strings.ToLower(text), ""
}

func network(text string) (netip.Prefix, string) {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
		return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()), ""
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, "must be a network or an address, as 10.0.0.0/8 or 10.1.2.3"
	case p.Addr().Is4In6():
		return p, "must be written as an IPv4 network, as 10.0.0.0/8"
	case p != p.Masked():
		return p, "has bits behind the prefix; the network would be " + p.Masked().String()
	}
	return p, ""
}

func badKey(text string) string {
	name, header := strings.CutPrefix(text, "header:")
	if good := text == "client" || header && word.MatchString(name); !good {
		return "must be client, or header: with a header's name, as header:X-Api-Key"
	}
	return ""
}

var standardMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

func method(text string) (string, string) {
	upper := strings.ToUpper(text)
	switch {
	case !word.MatchString(text):
		return "", "is no method"
	case upper == "CONNECT" || upper == "TRACE":
		return "", "is never forwarded"
	case upper != text && slices.Contains(standardMethods, upper):
		return "", "methods have a case; write " + upper
	}
	return text, ""
}

func upgrade(text string) (string, string) {
	switch text = strings.ToLower(text); {
	case !word.MatchString(text):
		return "", "is no protocol's name"
	case text == "h2c":
		return "", "h2c is never switched to"
	}
	return text, ""
}

func failureStatus(text string) (int, string) {
	n, err := whole(text)
	if err != nil || n < 400 || n > 599 {
		return 0, "must be a status from 400 to 599"
	}
	return int(n), ""
}

func badHealthPath(text string) string {
	if _, err := url.ParseRequestURI(text); err != nil || text[0] != '/' || strings.ContainsAny(text, " #") {
		return "must be a path, as /healthz"
	}
	return ""
}

// backendURL reads scheme and host. What it says shows nothing of the text,
// which may hold a password.
func backendURL(text string) (*url.URL, string) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, "must be scheme and host, as http://10.0.0.5:9001"
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "must begin with http:// or https://"
	case u.User != nil:
		return nil, "must not have a user or a password; clients' own credentials are passed on"
	case u.Hostname() == "":
		return nil, "has no host; write it as http://10.0.0.5:9001"
	case u.Path != "" || strings.ContainsAny(text, "?#"):
		return nil, "must end behind the host: requests keep their own path"
	case badHost(u.Hostname()) || strings.HasSuffix(u.Host, ":") || u.Port() != "" && (badPort(u.Port()) || u.Port() == "0"):
		return nil, "must have a host name or an address, and a port from 1 to 65535 if any"
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host)}, ""
}

// Address is the server's host and port, the scheme's own where the URL has none.
func (b Backend) Address() string {
	port := b.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[b.URL.Scheme]
	}
	return net.JoinHostPort(b.URL.Hostname(), port)
}

func (h *Health) readStatus(v value) {
	text, ok := v.scalar("a status or a range, as 200-399", "!!str", "!!int")
	if !ok {
		return
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err1 := whole(first)
	to, err2 := whole(last)
	if err1 != nil || err2 != nil || from < 100 || to > 599 || from > to {
		v.fault("must be a status or a range of them, as 200-399")
		return
	}
	h.Status = [2]int{int(from), int(to)}
}

func (h *Health) statusText() string {
	return fmt.Sprintf("%d-%d", h.Status[0], h.Status[1])
}

func (b *Breaker) readFailures(v value) {
	if v.node.Value == "off" {
		b.Failures = -1
		return
	}
	text, ok := v.scalar("a whole number, or off", "!!int")
	if !ok {
		return
	}
	n, err := whole(text)
	switch {
	case text == "off": // from the environment
		b.Failures = -1
	case err != nil || n < 1 || n > 1_000_000:
		v.fault("must be from 1 to 1000000, or off")
	default:
		b.Failures = int(n)
	}
}

// check looks at the fields of a rate limit together.
func (l *RateLimit) check(v value) {
	if v.r.broken[v.path] {
		return
	}
	written := func(key string) bool { return v.r.lines[v.path+"."+key] > 0 }
	need, mustNot := []string{"capacity", "refill_rate"}, []string{"policy"}
	if l.Mode == Distributed {
		need, mustNot = []string{"policy"}, []string{"capacity", "refill_rate", "key"}
	} else if l.Key == "" {
		l.Key = "client"
	}
	if v.r.broken[v.path+".mode"] {
		return
	}
	for _, key := range need {
		if !written(key) {
			v.r.at(v.path+"."+key, "required for mode %s", l.Mode)
		}
	}
	for _, key := range mustNot {
		if written(key) {
			v.r.at(v.path+"."+key, "is not for mode %s; remove it", l.Mode)
		}
	}
	if l.Mode == Local && v.r.fine(v.path+".capacity", v.path+".refill_rate") && l.Capacity/mostFill > l.RefillRate {
		v.r.at(v.path+".refill_rate", "fills the bucket in more than a year; raise it, or lower capacity")
	}
}

// finish sets what depends on other fields, and checks fields against each other.
func (r *reader) finish(c *Config) {
	r.addresses(c)
	pools := r.pools(c)
	for i := range c.Routes {
		r.route(c, i, pools)
	}
	if c.RateLimit != nil {
		c.RateLimit.ID = "default"
		r.sentinel(c, c.RateLimit, "rate_limit")
	}
	for _, key := range []string{"routes", "backends"} {
		if n := map[string]int{"routes": len(c.Routes), "backends": len(c.Pools)}[key]; n == 0 && r.lines[key] > 0 && r.fine(key) {
			r.at(key, "is empty; write at least one")
		}
	}
	r.patterns(c)
}

func (r *reader) addresses(c *Config) {
	if r.lines["server.port"] > 0 && r.lines["server.listen"] > 0 {
		r.at("server.port", "is short for listen; keep one of them")
	}
	if !r.fine("admin.listen", "server.listen", "server.port", "admin.allow_remote") {
		return
	}
	if !c.Admin.AllowRemote && !operator.Loopback(c.Admin.Listen) {
		r.at("admin.listen", "is open to other machines; use 127.0.0.1, or set admin.allow_remote: true")
	}
	_, port, _ := net.SplitHostPort(c.Admin.Listen)
	_, traffic, _ := net.SplitHostPort(c.Server.Listen)
	if port == traffic && port != "0" {
		r.at("admin.listen", "has the port of the traffic; take another")
	}
}

func (r *reader) route(c *Config, i int, pools map[string]int) {
	route, path := &c.Routes[i], fmt.Sprintf("routes[%d]", i)
	if r.lines[path+".timeout"] == 0 {
		route.Timeout = c.Server.RequestTimeout
	}
	switch {
	case r.lines[path+".rate_limit"] == 0:
		route.RateLimit = c.RateLimit
	case route.RateLimit != nil:
		route.RateLimit.ID = route.id()
		r.sentinel(c, route.RateLimit, path+".rate_limit")
	}
	_, known := pools[route.Backend]
	_, unnamed := pools[""] // it may be the one
	if !known && !unnamed && route.Backend != "" && r.fine("backends") {
		r.at(path+".backend", "there is no backend with this name; the names are %s", namesOf(c.Pools))
	}
}

// namesOf lists the pools for people, the first few.
func namesOf(pools []Pool) string {
	var names []string
	for _, p := range pools {
		switch {
		case p.Name == "":
		case len(names) == 10:
			return strings.Join(names, ", ") + ", ..."
		default:
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return "all missing"
	}
	return strings.Join(names, ", ")
}

func (r *reader) sentinel(c *Config, l *RateLimit, path string) {
	if l.Mode == Distributed && c.Sentinel == "" && r.fine("sentinel", path) {
		r.at(path+".mode", "distributed needs sentinel, the path of the library's configuration")
	}
}

// pools checks each pool, and returns where each name is.
func (r *reader) pools(c *Config) map[string]int {
	names := make(map[string]int, len(c.Pools))
	for i := range c.Pools {
		p, path := &c.Pools[i], fmt.Sprintf("backends[%d]", i)
		if first, ok := names[p.Name]; ok && p.Name != "" {
			r.at(path+".name", "is the name of backends[%d] on line %d too; names are unique", first, c.Pools[first].Line)
		} else {
			names[p.Name] = i
		}
		r.servers(p, path)
		r.health(&p.Health, path+".health")
		r.retry(&p.Retry, path+".retry")
		slices.Sort(p.Breaker.FailureStatus)
	}
	return names
}

func (r *reader) servers(p *Pool, path string) {
	var written []string
	for _, key := range []string{"url", "urls", "servers"} {
		if r.lines[path+"."+key] > 0 {
			written = append(written, path+"."+key)
		}
	}
	switch {
	case r.broken[path]:
	case len(written) == 0:
		r.at(path, "has no backend; write url, urls or servers")
	case len(written) > 1:
		r.at(written[1], "url, urls and servers exclude each other; keep one of them")
	case len(p.Backends) == 0:
		if r.fine(written[0]) {
			r.at(written[0], "is empty; write at least one")
		}
	default:
		r.distinct(p, written[0])
	}
}

func (r *reader) distinct(p *Pool, path string) {
	first := make(map[string]int, len(p.Backends))
	weights := 0
	for i, b := range p.Backends {
		weights += b.Weight
		if b.URL == nil {
			continue
		}
		if line, ok := first[b.Address()]; ok { // by it logs and metrics know a server
			r.fault(b.Line, fmt.Sprintf("%s[%d]", path, i), "has the host and the port of line %d; keep one, with the sum of the weights", line)
			continue
		}
		first[b.Address()] = b.Line
	}
	if weights == 0 {
		r.at(path, "every weight is 0; nobody would get a request")
	}
}

func (r *reader) health(h *Health, path string) {
	if r.fine(path, path+".type", path+".path") {
		r.healthType(h, path)
	}
	if h.Timeout > h.Interval && r.fine(path, path+".timeout", path+".interval") {
		r.at(path+".timeout", "is %s, longer than the interval of %s", duration(h.Timeout), duration(h.Interval))
	}
}

// healthType settles what a check does.
func (r *reader) healthType(h *Health, path string) {
	switch {
	case h.Type == healthAuto && h.Path != "":
		h.Type = HealthHTTP
	case h.Type == healthAuto:
		h.Type = HealthTCP
	case h.Type == HealthHTTP && h.Path == "":
		r.at(path+".path", "required for type http")
	case h.Type != HealthHTTP && h.Path != "":
		r.at(path+".path", "is not for type %s; remove it", h.Type)
	}
}

func (r *reader) retry(t *Retry, path string) {
	if t.Base > t.Cap && r.fine(path, path+".base", path+".cap") {
		r.at(path+".base", "is %s, longer than the cap of %s", duration(t.Base), duration(t.Cap))
	}
}

// patterns lets the router check the routes' paths.
func (r *reader) patterns(c *Config) {
	var patterns []router.Pattern
	var routes []int // by the pattern's index
	for i, route := range c.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		if route.Path != "" && r.fine(path, path+".methods", path+".trailing_slash") {
			patterns = append(patterns, route.pattern())
			routes = append(routes, i)
		}
	}
	_, faults := router.New(patterns)
	for _, f := range faults {
		text := f.Text
		if f.Other >= 0 {
			other := routes[f.Other]
			text += fmt.Sprintf(" (the other is routes[%d] on line %d)", other, c.Routes[other].Line)
		}
		r.at(fmt.Sprintf("routes[%d].path", routes[f.Pattern]), "%s", text)
	}
}

// id is the route's methods, whatever their order, and its path.
func (r Route) id() string {
	if len(r.Methods) == 0 {
		return r.Path
	}
	return strings.Join(slices.Sorted(slices.Values(r.Methods)), ",") + " " + r.Path
}

func (r Route) pattern() router.Pattern {
	return router.Pattern{Path: r.Path, Methods: r.Methods, EitherSlash: r.EitherSlash}
}

// Patterns are the routes' patterns, by the same indices.
func (c *Config) Patterns() []router.Pattern {
	patterns := make([]router.Pattern, len(c.Routes))
	for i, r := range c.Routes {
		patterns[i] = r.pattern()
	}
	return patterns
}
