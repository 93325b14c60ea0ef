package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/lua"
)

// verdict is what doctor thinks of one thing, and the exit code that it is worth.
type verdict int

const (
	good verdict = exitFine
	warn verdict = exitFound
	fail verdict = exitRedis
)

func (v verdict) String() string {
	return map[verdict]string{good: "ok", warn: "warn", fail: "FAIL"}[v]
}

// MarshalText implements [encoding.TextMarshaler].
func (v verdict) MarshalText() ([]byte, error) { //nolint:unparam // The interface wants it.
	return []byte(strings.ToLower(v.String())), nil
}

// symptom is one thing that doctor has looked at.
type symptom struct {
	What    string  `json:"what"`
	Server  string  `json:"server,omitempty"` // where there are several
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
}

// diagnosis is the JSON of doctor.
type diagnosis struct {
	Worst    verdict   `json:"worst"`
	Symptoms []symptom `json:"symptoms"`
	server   string    // the one that is being looked at
}

func (d *diagnosis) add(what string, v verdict, format string, args ...any) {
	d.Worst = max(d.Worst, v)
	d.Symptoms = append(d.Symptoms, symptom{what, d.server, v, fmt.Sprintf(format, args...)})
}

func (c *cli) doctor(fs *flag.FlagSet, args []string) int {
	samples := fs.Int("samples", 200, "how many decisions are timed")
	name, code, ok := c.parse(fs, args)
	switch {
	case !ok:
		return code
	case *samples < 1 || *samples > 100_000:
		return c.usage("-samples must be 1 to 100000")
	}
	f := c.load(name, false)
	if f == nil {
		return exitUsage
	}
	var d diagnosis
	if f.cfg.App.InMemory() {
		d.add("redis", good, "redis_url is memory://, so there is none: each process limits alone")
	} else {
		d.examine(f, *samples)
	}
	if c.asJSON {
		c.json(d)
		return int(d.Worst)
	}
	var rows [][]string
	for _, s := range d.Symptoms {
		what := s.What
		if s.Server != "" {
			what += " " + s.Server
		}
		rows = append(rows, []string{s.Verdict.String(), what, s.Text})
	}
	fmt.Fprint(c.out, table([]string{"", "what", "found"}, "lll", rows))
	return int(d.Worst)
}

// examine looks at each master, and then at decisions as the library makes them.
func (d *diagnosis) examine(f *policyFile, samples int) {
	ctx := context.Background()
	masters, err := sentinel.Masters(ctx, f.cfg)
	if err != nil {
		d.add("redis", fail, "%s", strings.TrimPrefix(err.Error(), "sentinel: redis_url: "))
		return
	}
	for i, client := range masters {
		if len(masters) > 1 {
			d.server = fmt.Sprintf("%d of %d", i+1, len(masters))
		}
		d.examineServer(ctx, client, len(masters) > 1)
		_ = client.Close()
	}
	d.server = ""
	d.decide(ctx, f, samples)
}

func (d *diagnosis) examineServer(ctx context.Context, client *redis.Client, clustered bool) {
	info := infoOf(ctx, client)
	d.version(info)
	d.memory(ctx, client, info)
	d.persistence(info)
	d.replicas(ctx, client, info)
	d.clock(ctx, client)
	d.rights(ctx, client, clustered || info["redis_mode"] == "cluster")
}

// infoOf is what INFO says; nothing where it is forbidden.
func infoOf(ctx context.Context, client *redis.Client) map[string]string {
	fields := map[string]string{}
	text, _ := client.Info(ctx).Result() // rights says what is forbidden
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

const noInfo = "INFO is forbidden to this user; allow +info to have it looked at"

func (d *diagnosis) version(info map[string]string) {
	name, version := "Redis", info["redis_version"]
	if v := info["valkey_version"]; v != "" {
		name, version = "Valkey", v
	}
	major, _, _ := strings.Cut(version, ".")
	switch n, err := strconv.Atoi(major); {
	case version == "":
		d.add("version", warn, "%s", noInfo)
	case err != nil || n < 6:
		d.add("version", fail, "%s %s; Sentinel needs 6.0 or newer", name, version)
	default:
		d.add("version", good, "%s %s", name, version)
	}
}

func (d *diagnosis) memory(ctx context.Context, client *redis.Client, info map[string]string) {
	policy, most := info["maxmemory_policy"], info["maxmemory"]
	if config, err := client.ConfigGet(ctx, "maxmemory*").Result(); err == nil {
		policy, most = config["maxmemory-policy"], config["maxmemory"]
	}
	if policy == "" {
		d.add("memory", warn, "neither CONFIG GET nor INFO may be asked; make sure that maxmemory-policy is noeviction and maxmemory is set")
		return
	}
	if policy != "noeviction" {
		d.add("eviction", fail, "maxmemory-policy is %s, so Redis may evict quotas, which resets them; run: CONFIG SET maxmemory-policy noeviction", policy)
	} else {
		d.add("eviction", good, "noeviction")
	}
	limit, _ := strconv.ParseFloat(most, 64)
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	switch {
	case limit <= 0:
		d.add("memory", fail, "maxmemory is 0, so Redis may fill the host; run: CONFIG SET maxmemory 256mb")
	case used > 0.8*limit:
		d.add("memory", warn, "%.0f %% of %.0f MiB are used; at 100 %% nobody is admitted any more", 100*used/limit, limit/(1<<20))
	default:
		d.add("memory", good, "%.0f %% of %.0f MiB are used", 100*used/limit, limit/(1<<20))
	}
}

func (d *diagnosis) persistence(info map[string]string) {
	switch info["aof_enabled"] {
	case "": // it cannot be asked
	case "1":
		d.add("persistence", good, "appendonly: a restart forgets about a second")
	default:
		d.add("persistence", warn, "no append-only file: a restart makes every bucket fresh, or as old as the last snapshot; run: CONFIG SET appendonly yes")
	}
}

func (d *diagnosis) replicas(ctx context.Context, client *redis.Client, info map[string]string) {
	switch role := info["role"]; {
	case role == "" || role == "master" && info["connected_slaves"] == "0":
		return
	case role != "master":
		d.add("role", fail, "it is a %s, and refuses the writes of admissions; redis_url must lead to the master", role)
		return
	}
	config, err := client.ConfigGet(ctx, "min-replicas-to-write").Result()
	if err == nil && config["min-replicas-to-write"] == "0" {
		d.add("role", warn, "master, with replicas: %s; one that is cut off from them goes on counting; run: CONFIG SET min-replicas-to-write 1", info["connected_slaves"])
		return
	}
	d.add("role", good, "master, with replicas: %s", info["connected_slaves"])
}

// clock compares the clock of Redis, by which all buckets go, with this one's.
func (d *diagnosis) clock(ctx context.Context, client *redis.Client) {
	var best, ahead time.Duration
	for i := range 5 {
		before := time.Now()
		theirs, err := client.Time(ctx).Result()
		took := time.Since(before)
		if err == nil && (i == 0 || best == 0 || took < best) {
			best, ahead = took, theirs.Sub(before.Add(took/2))
		}
	}
	switch {
	case best == 0:
		return // rights says why
	case ahead.Abs() > time.Second+best:
		d.add("clock", warn, "that of Redis is %s; one of the two is wrong. Buckets go by that of Redis, tokens expire by this one", apart(ahead))
	default:
		d.add("clock", good, "within a second of this machine's")
	}
}

func apart(ahead time.Duration) string {
	if ahead < 0 {
		return span(-ahead.Seconds()) + " behind this machine's"
	}
	return span(ahead.Seconds()) + " ahead of this machine's"
}

// The key that the library rehearses a decision on: nobody's, and soon gone.
const probeKey = "sentinel:start-check"

// attempt is a command that was tried, and the right that it takes.
type attempt struct {
	right string
	err   error
}

// clusterAttempts are of what a cluster takes beside: its map, and to follow a
// slot on its way. Users are not replicated, so every node is asked.
func clusterAttempts(ctx context.Context, client *redis.Client) []attempt {
	return []attempt{
		{"+cluster|slots", client.Do(ctx, "cluster", "slots").Err()},
		{"+cluster|info", client.ClusterInfo(ctx).Err()},
		{"+asking", client.Do(ctx, "asking").Err()},
	}
}

// rights tries each command that Sentinel uses, as the file's user.
func (d *diagnosis) rights(ctx context.Context, client *redis.Client, clustered bool) {
	sha, loadErr := client.ScriptLoad(ctx, lua.Decide).Result()
	now, timeErr := client.Time(ctx).Result()
	state := fmt.Sprintf("1000000:%d", now.UnixMicro())
	tried := []attempt{
		{"+script|load", loadErr},
		{"+evalsha", client.EvalSha(ctx, sha, nil, "p").Err()},
		{"+time", timeErr},
		{"+get", client.Get(ctx, probeKey).Err()},
		{"+set", client.Set(ctx, probeKey, state, time.Second).Err()},
		{"+info", client.Info(ctx, "memory").Err()},
	}
	if clustered {
		tried = append(tried, clusterAttempts(ctx, client)...)
	}
	var missing []string
	for _, t := range tried {
		switch text := errorText(t.err); {
		case !strings.Contains(text, "NOPERM"):
		case strings.Contains(text, "access a key"), strings.Contains(text, "the keys"):
			missing = append(missing, "~sentinel:*")
		default:
			missing = append(missing, t.right)
		}
	}
	slices.Sort(missing)
	missing = slices.Compact(missing)
	switch {
	case len(missing) == 1 && missing[0] == "+info" && client.ConfigGet(ctx, "maxmemory*").Err() == nil:
		d.add("rights", good, "sufficient")
	case len(missing) == 1 && missing[0] == "+info":
		d.add("rights", warn, "sufficient to decide; with +info the memory policy could be looked at, too")
	case len(missing) > 0:
		d.add("rights", fail, "the user lacks %s; run: ACL SETUSER <user> %s", strings.Join(missing, " "), strings.Join(missing, " "))
	default:
		d.add("rights", good, "sufficient")
	}
	if loadErr == nil {
		d.add("script", good, "loads, as %.8s", sha)
	} else if !strings.Contains(errorText(loadErr), "NOPERM") {
		d.add("script", fail, "does not load: Redis answers %s", firstWord(errorText(loadErr)))
	}
}

// errorText is what Redis answered, "" if it was no error.
func errorText(err error) string {
	var reply redis.Error
	if errors.As(err, &reply) && !errors.Is(err, redis.Nil) {
		return reply.Error()
	}
	return ""
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// decide opens a limiter as a service does, and times what it takes to ask Redis
// with the script. Nothing is charged.
func (d *diagnosis) decide(ctx context.Context, f *policyFile, samples int) {
	const id = "sentinelctl.doctor"
	own := *f
	cfg := *f.cfg
	cfg.Policies = map[string]sentinel.Policy{id: {
		EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed, FallbackRate: sentinel.Token, Version: 1,
		Capacity: sentinel.Token, RefillRate: sentinel.Token,
	}}
	own.cfg = &cfg
	l, err := open(&own, "")
	if err != nil {
		d.add("start", fail, "a service would not start: %s", strings.TrimPrefix(err.Error(), "sentinel: redis_url: "))
		return
	}
	defer l.Close()
	d.add("start", good, "a service would start, and decide")
	took := make([]time.Duration, 0, samples)
	for i := range samples {
		before := time.Now()
		if _, err := l.Peek(ctx, "doctor-"+strconv.Itoa(i), id); err != nil {
			d.add("latency", fail, "of %s one got no answer within a second: %v", plural(len(took)+1, "decision"), err)
			return
		}
		took = append(took, time.Since(before))
	}
	slices.Sort(took)
	d.latency(took[len(took)/2], took[len(took)*99/100], f.cfg.App.RedisBudget)
}

func (d *diagnosis) latency(p50, p99, budget time.Duration) {
	v, more := good, ""
	switch {
	case p50 >= budget:
		v, more = fail, ": most decisions would take their failure row; raise redis_budget_ms, or move closer"
	case p99 >= budget:
		v, more = warn, ": more than one decision in a hundred would take its failure row"
	case p99 > budget/2:
		v, more = warn, ": little room is left; on a busy day decisions will take their failure row"
	}
	d.add("latency", v, "p50 %s, p99 %s, of a budget of %s%s", span(p50.Seconds()), span(p99.Seconds()), span(budget.Seconds()), more)
}
