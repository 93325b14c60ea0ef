package sentinel

import (
	"maps"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The bounds of the embedded store, in keys.
const (
	defaultMemoryKeys = 1_000_000
	maxMemoryKeys     = 100_000_000
)

// targetKind is what redis_url leads to.
type targetKind uint8

const (
	noTarget       targetKind = iota // nothing: the URL was refused
	memoryTarget                     // this process's memory
	serverTarget                     // one Redis
	failoverTarget                   // the master that Redis Sentinels name
	clusterTarget                    // the masters of a Redis Cluster
)

// redisTarget is what redis_url names. Its zero value is nothing at all.
type redisTarget struct {
	kind       targetKind
	memoryKeys int // of memory:// alone

	network string // tcp or unix
	// addrs are the server's, the Sentinels', or those of nodes of the cluster.
	addrs              []string
	username, password string
	db                 int
	tls                *tlsSettings // nil for a plain connection

	// master is what the Sentinels call it; the credentials are for them.
	master                             string
	sentinelUsername, sentinelPassword string
}

// target reads redis_url. It fails for a URL that Validate refuses; the error
// holds nothing of the URL.
func (a App) target() (redisTarget, error) {
	target, reason := parseRedisURL(a.RedisURL.reveal())
	if reason != "" {
		return redisTarget{}, fault{path: "app.redis_url", text: reason}
	}
	return target, nil
}

// InMemory reports whether redis_url is memory://, so that quotas hold in this
// process alone.
func (a App) InMemory() bool {
	target, _ := parseRedisURL(a.RedisURL.reveal())
	return target.kind == memoryTarget
}

// skipsTLSVerify reports whether redis_url switches the server's proof off.
func (a App) skipsTLSVerify() bool {
	target, _ := parseRedisURL(a.RedisURL.reveal())
	return target.tls != nil && target.tls.skipVerify
}

// unexpanded refuses a value in which an environment variable was left as it
// was written, by us or by whatever produced the file or the environment.
const unexpanded = `holds "${": a variable counts only as the whole value, as in "${NAME}"`

// percentEncode is the remedy for most of what goes wrong in a URL.
const percentEncode = "write special characters of user name and password percent-encoded (%40 for @, %23 for #, %2F for /, %3F for ?, %25 for %)"

// schemes of redis_url, and what each means.
var schemes = map[string]struct {
	kind targetKind
	tls  bool
}{
	"memory":          {memoryTarget, false},
	"unix":            {serverTarget, false},
	"redis":           {serverTarget, false},
	"rediss":          {serverTarget, true},
	"redis-sentinel":  {failoverTarget, false},
	"rediss-sentinel": {failoverTarget, true},
	"redis-cluster":   {clusterTarget, false},
	"rediss-cluster":  {clusterTarget, true},
}

// parseRedisURL reads raw, or says in our own words why it cannot. No reason
// holds any piece of raw, for the URL parsers repeat what they were given,
// password included; and where a URL is broken nobody knows which piece of it
// the password is.
func parseRedisURL(raw string) (target redisTarget, reason string) {
	if reason := textFault(raw); reason != "" {
		return redisTarget{}, reason
	}
	raw, others := firstHost(raw)
	u, err := url.Parse(raw)
	if err != nil {
		return redisTarget{}, notAURL
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return redisTarget{}, "has a query that cannot be read; it must look like ?db=1"
	}
	for _, values := range query {
		if len(values) > 1 {
			return redisTarget{}, "gives a query parameter twice; keep one"
		}
	}
	target = redisTarget{kind: schemes[u.Scheme].kind, network: "tcp"}
	switch u.Scheme {
	case "memory":
		reason = target.readMemory(u, others, query)
	case "unix":
		reason = target.readSocket(u, others, query)
	default:
		reason = target.readServer(u, others, query)
	}
	if reason != "" {
		return redisTarget{}, reason
	}
	return target, ""
}

const notAURL = "is not a URL: host and port must read as in redis://:PASSWORD@host:6379/0; " + percentEncode

// textFault finds what is wrong before a URL parser looks at raw.
func textFault(raw string) string {
	scheme, _, found := strings.Cut(raw, "://")
	_, known := schemes[strings.ToLower(scheme)]
	switch {
	case strings.TrimSpace(raw) == "":
		return "must not be empty; for one process without Redis write memory://"
	case strings.Contains(raw, "${"):
		return unexpanded
	case strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "holds white space or a line end; remove it, or " + percentEncode
	case strings.ContainsFunc(raw, func(r rune) bool { return r > 0x7f }):
		return "holds a character beyond ASCII; " + percentEncode
	case !found || !known:
		return "must begin with redis://, redis-sentinel:// or redis-cluster:// (with TLS rediss://, rediss-sentinel:// or rediss-cluster://), unix:// or memory://"
	case strings.Contains(raw, "#"):
		return "holds a #, after which nothing would count; " + percentEncode
	case badEscape(raw):
		return "holds a % that two hexadecimal digits do not follow; " + percentEncode
	}
	return ""
}

// badEscape reports whether some % in s begins no escape.
func badEscape(s string) bool {
	for {
		_, after, found := strings.Cut(s, "%")
		if !found {
			return false
		}
		if len(after) < 2 {
			return true
		}
		if _, err := strconv.ParseUint(after[:2], 16, 8); err != nil {
			return true
		}
		s = after[2:]
	}
}

// firstHost returns raw with the first of its hosts alone, and the others.
func firstHost(raw string) (one string, others []string) {
	scheme, rest, _ := strings.Cut(raw, "://")
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	hosts := strings.Split(rest[begin:end], ",")
	return scheme + "://" + rest[:begin] + hosts[0] + rest[end:], hosts[1:]
}

func (t *redisTarget) readMemory(u *url.URL, others []string, query url.Values) string {
	if u.Host != "" || len(others) > 0 || u.User != nil || u.Path != "" {
		return "memory:// takes no host, credentials or path; only ?max_keys=N"
	}
	for name := range query {
		if name != "max_keys" {
			return "memory:// takes no query parameter but max_keys"
		}
	}
	t.memoryKeys = defaultMemoryKeys
	if !query.Has("max_keys") {
		return ""
	}
	n, ok := parseDigits(query.Get("max_keys"), maxMemoryKeys)
	if !ok || n < 1 {
		return "max_keys must be 1 to 100000000"
	}
	t.memoryKeys = n
	return ""
}

func (t *redisTarget) readSocket(u *url.URL, others []string, query url.Values) string {
	if u.Host != "" || len(others) > 0 || strings.Trim(u.Path, "/") == "" {
		return "must name an absolute path of a socket, as in unix:///run/redis.sock"
	}
	t.network, t.addrs = "unix", []string{u.Path}
	if reason := t.readUser(u); reason != "" {
		return reason
	}
	return t.readQuery(query)
}

// readServer reads what leads to servers over TCP: one, Sentinels, or nodes of a
// cluster.
func (t *redisTarget) readServer(u *url.URL, others []string, query url.Values) string {
	if reason := t.readUser(u); reason != "" {
		return reason
	}
	if reason := t.readHosts(u, others); reason != "" {
		return reason
	}
	if reason := t.readDatabase(u, query); reason != "" {
		return reason
	}
	if schemes[u.Scheme].tls {
		t.tls = &tlsSettings{}
	}
	if reason := t.readQuery(query); reason != "" {
		return reason
	}
	if t.kind == failoverTarget {
		return t.sentinelFault()
	}
	if t.tls != nil {
		return t.tls.fault()
	}
	return ""
}

func (t *redisTarget) readUser(u *url.URL) string {
	t.username = u.User.Username()
	t.password, _ = u.User.Password()
	if t.username != "" && t.password == "" {
		return "has a user name but no password, and would send neither; write :PASSWORD@ or USER:PASSWORD@"
	}
	return ""
}

func (t *redisTarget) readHosts(u *url.URL, others []string) string {
	if t.kind == serverTarget && len(others) > 0 {
		return "must name one host; Redis Sentinels belong behind redis-sentinel://"
	}
	hosts := []*url.URL{u}
	for _, other := range others {
		parsed, err := url.Parse("redis://" + other)
		if err != nil || parsed.User != nil {
			return notAURL
		}
		hosts = append(hosts, parsed)
	}
	for _, host := range hosts {
		addr, reason := t.address(host.Hostname(), host.Port())
		if reason != "" {
			return reason
		}
		if slices.Contains(t.addrs, addr) {
			return "names a host twice; keep one"
		}
		t.addrs = append(t.addrs, addr)
	}
	return ""
}

// address is host:port with what may be left out.
func (t *redisTarget) address(host, port string) (addr, reason string) {
	if strings.ContainsAny(host, " /?#@\\\"'<>|^`{}") {
		return "", "has a host name with a character that no host name has; " + percentEncode
	}
	switch {
	case host != "":
	case t.kind == serverTarget:
		host = "localhost"
	case t.kind == failoverTarget:
		return "", "must name the Redis Sentinels, as in redis-sentinel://:PASSWORD@s1:26379,s2:26379,s3:26379/0?master=NAME"
	default:
		return "", "must name nodes of the cluster, as in redis-cluster://:PASSWORD@n1:6379,n2:6379,n3:6379"
	}
	if port == "" {
		port = "6379"
		if t.kind == failoverTarget {
			port = "26379"
		}
	}
	if n, ok := parseDigits(port, 65535); !ok || n < 1 {
		return "", "has a port that is not 1 to 65535"
	}
	return net.JoinHostPort(host, port), ""
}

// readDatabase reads the path, which is nothing but a database.
func (t *redisTarget) readDatabase(u *url.URL, query url.Values) string {
	database := strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), "/")
	switch n, ok := parseDigits(database, math.MaxInt32); {
	case database == "":
	case !ok:
		return "must have nothing but the number of a database as its path, as in redis://localhost:6379/0"
	case query.Has("db"):
		return "names a database both as path and as db; keep one"
	default:
		t.db = n
	}
	if t.kind == clusterTarget && (t.db != 0 || query.Has("db")) {
		return "names a database, and a cluster has none but 0; remove it"
	}
	return ""
}

// readQuery reads the query, in a fixed order, so that of several faults always
// the same one is told.
func (t *redisTarget) readQuery(query url.Values) string {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(name)
		switch {
		case name == "db":
			n, ok := parseDigits(value, math.MaxInt32)
			if !ok || value == "" {
				return "db must be a number of a database, 0 or more"
			}
			t.db = n
		case t.kind == failoverTarget && t.readSentinel(name, value):
		case t.tls != nil && t.tls.read(name, value):
		case slices.Contains(tlsParameters, name):
			return name + " needs TLS; write rediss:// (rediss-sentinel://, rediss-cluster://)"
		case slices.Contains(ownedByBudget, name):
			return "must not set " + name + ": retries, timeouts and pool follow from redis_budget_ms; remove it"
		default:
			return "has a query parameter that is not known here (only db; for TLS " + strings.Join(tlsParameters, ", ") +
				"; for redis-sentinel:// " + strings.Join(sentinelParameters, ", ") + "); " + percentEncode
		}
	}
	return ""
}

// sentinelParameters are for the Sentinels, not for the server that they name.
var sentinelParameters = []string{"master", "sentinel_username", "sentinel_password"}

// readSentinel reads a parameter, and reports whether it is one for Sentinels.
func (t *redisTarget) readSentinel(name, value string) bool {
	switch name {
	case "master":
		t.master = value
	case "sentinel_username":
		t.sentinelUsername = value
	case "sentinel_password":
		t.sentinelPassword = value
	default:
		return false
	}
	return true
}

func (t *redisTarget) sentinelFault() string {
	switch {
	case t.master == "":
		return "must say what the Redis Sentinels call their master, as in ?master=NAME; it stands behind \"sentinel monitor\" in their configuration"
	case strings.Contains(t.master+t.sentinelUsername+t.sentinelPassword, " "):
		return "holds a + or a space in master, sentinel_username or sentinel_password: a + in a query means a space; write %2B"
	case t.sentinelUsername != "" && t.sentinelPassword == "":
		return "has a sentinel_username but no sentinel_password, and would send neither"
	case t.tls != nil:
		return t.tls.fault()
	}
	return ""
}

// ownedByBudget are the query parameters of go-redis whose wrong value would
// break the budget or charge twice. Sentinel sets what they set.
var ownedByBudget = []string{
	"max_retries", "min_retry_backoff", "max_retry_backoff", "dial_timeout", "read_timeout", "write_timeout",
	"pool_fifo", "pool_size", "pool_timeout", "min_idle_conns", "max_idle_conns", "max_active_conns",
	"max_concurrent_dials", "pipeline_pool_size", "pipeline_read_buffer_size", "pipeline_write_buffer_size",
	"conn_max_idle_time", "idle_timeout", "conn_max_lifetime", "max_conn_age", "conn_max_lifetime_jitter",
	"max_redirects", "read_only", "route_by_latency", "route_randomly", "cluster_state_reload_interval",
}

// parseDigits reads a plain decimal number of at most most.
func parseDigits(s string, most int) (n int, ok bool) {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	v, err := strconv.ParseUint(s, 10, 31)
	return int(v), err == nil && v <= uint64(most)
}
