package sentinel

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Larger files are not read: they are none of ours.
const (
	maxConfigBytes     = 16 << 20
	maxSecretFileBytes = 64 << 10
)

// LoadConfig reads a configuration file and checks every rule. Its error has a
// line for each fault, in the order of the file; it holds nothing secret. A
// relative path in a _file field starts at the file's own folder.
//
// The Config that it returns has every default filled in.
func LoadConfig(path string) (*Config, error) {
	data, err := readFile(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("sentinel: read configuration: %w", err)
	}
	return parseConfig(data, filepath.Dir(path))
}

// ParseConfig is [LoadConfig] for a file's contents. A relative path in a
// _file field starts at the working directory.
func ParseConfig(data []byte) (*Config, error) {
	return parseConfig(data, "")
}

func parseConfig(data []byte, dir string) (*Config, error) {
	root, err := parseJSON(data)
	if err != nil {
		return nil, err
	}
	d := decoder{data: data, dir: dir, places: make(map[string]place)}
	if root.kind != jsonObject {
		return nil, fault{text: "the configuration must be an object with app and policies", line: 1, column: 1}
	}
	d.root(root)
	faults := append(d.faults, d.config.faults(&source{places: d.places}, true)...)
	locate(data, faults)
	if err := joinFaults(faults); err != nil {
		return nil, err
	}
	return d.config.withDefaults(), nil
}

// readFile is os.ReadFile that gives up on a file larger than most.
func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", most)}
	}
	return data, nil
}

// decoder turns JSON into a Config. It checks shape and types; what the values
// must be is the checker's.
type decoder struct {
	data   []byte
	dir    string // where relative paths start
	config Config
	places map[string]place
	faults []fault
	// reading is the path of the field that is being read.
	reading string
}

// configField is one name that an object of the file may have. Several names may set
// the same canonical field, in different units or from a file.
type configField[T any] struct {
	name string
	sets string // the canonical name
	read func(d *decoder, into *T, v jsonValue) (problem string)
}

var rootFields = []configField[Config]{
	{"app", "app", func(d *decoder, c *Config, v jsonValue) string {
		if v.kind != jsonObject {
			return "must be an object"
		}
		readObject(d, "app", v, appFields, &c.App)
		return ""
	}},
	{"policies", "policies", func(d *decoder, c *Config, v jsonValue) string {
		if v.kind != jsonObject {
			return "must be an object from endpoint id to policy"
		}
		d.policies(v)
		return ""
	}},
	{"tenants", "tenants", func(d *decoder, c *Config, v jsonValue) string {
		return readNamed(d, v, "an object from tenant to the name of its plan", &c.Tenants, func(_ string, v jsonValue, plan *string) string {
			return readText(v, plan)
		})
	}},
}

var appFields = []configField[App]{
	{"redis_url", "redis_url", func(_ *decoder, a *App, v jsonValue) string { return readSecret(v, &a.RedisURL) }},
	{"redis_url_file", "redis_url", func(d *decoder, a *App, v jsonValue) string { return d.readSecretFile(v, &a.RedisURL) }},
	{"jwt_secret", "jwt_secret", func(d *decoder, a *App, v jsonValue) string {
		return d.readSecrets("app.jwt_secret", v, readSecret, &a.JWTSecret)
	}},
	{"jwt_secret_file", "jwt_secret", func(d *decoder, a *App, v jsonValue) string {
		return d.readSecrets("app.jwt_secret", v, d.readSecretFile, &a.JWTSecret)
	}},
	{"jwt_algorithm_allowlist", "jwt_algorithm_allowlist", func(_ *decoder, a *App, v jsonValue) string {
		return readTexts(v, &a.JWTAlgorithms)
	}},
	{"authentication", "authentication", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.Authentication) }},
	{"jwt_keys", "jwt_keys", func(d *decoder, a *App, v jsonValue) string { return d.readKeys(v, &a.JWTKeys) }},
	{"jwt_jwks_url", "jwt_jwks_url", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.JWKSURL) }},
	{"jwt_plan_claim", "jwt_plan_claim", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.JWTPlanClaim) }},
	{"jwt_tenant_claim", "jwt_tenant_claim", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.JWTTenantClaim) }},
	{"jwt_issuer", "jwt_issuer", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.JWTIssuer) }},
	{"jwt_audience", "jwt_audience", func(_ *decoder, a *App, v jsonValue) string { return readText(v, &a.JWTAudience) }},
	{"jwt_leeway", "jwt_leeway", func(_ *decoder, a *App, v jsonValue) string { return readWindow(v, &a.JWTLeeway) }},
	{"anonymous_cookie_name", "anonymous_cookie_name", func(_ *decoder, a *App, v jsonValue) string {
		return readText(v, &a.AnonymousCookieName)
	}},
	{"anonymous_cookie_ttl_seconds", "anonymous_cookie_ttl_seconds", func(_ *decoder, a *App, v jsonValue) string {
		return readDuration(v, time.Second, &a.AnonymousCookieTTL)
	}},
	{"anonymous_cookie_secure", "anonymous_cookie_secure", func(_ *decoder, a *App, v jsonValue) string {
		return readNot(v, &a.InsecureAnonymousCookie)
	}},
	{"anonymous_cookie_secret", "anonymous_cookie_secret", func(d *decoder, a *App, v jsonValue) string {
		return d.readSecrets("app.anonymous_cookie_secret", v, readSecret, &a.AnonymousCookieSecret)
	}},
	{"anonymous_cookie_secret_file", "anonymous_cookie_secret", func(d *decoder, a *App, v jsonValue) string {
		return d.readSecrets("app.anonymous_cookie_secret", v, d.readSecretFile, &a.AnonymousCookieSecret)
	}},
	{"redis_budget_ms", "redis_budget_ms", func(_ *decoder, a *App, v jsonValue) string {
		return readDuration(v, time.Millisecond, &a.RedisBudget)
	}},
	{"ipv6_prefix", "ipv6_prefix", func(_ *decoder, a *App, v jsonValue) string {
		n, problem := readWhole(v)
		a.IPv6Prefix = int(max(math.MinInt32, min(n, math.MaxInt32)))
		return problem
	}},
	{"ratelimit_headers", "ratelimit_headers", func(_ *decoder, a *App, v jsonValue) string {
		return readNot(v, &a.DisableRateLimitHeaders)
	}},
	{"known_denials", "known_denials", func(_ *decoder, a *App, v jsonValue) string {
		return readNot(v, &a.DisableKnownDenials)
	}},
	{"unreadable_redis_policy", "unreadable_redis_policy", func(_ *decoder, a *App, v jsonValue) string {
		return readText(v, &a.UnreadableRedisPolicy)
	}},
}

var policyFields = slices.Concat([]configField[Policy]{
	{"endpoint_id", "endpoint_id", func(_ *decoder, p *Policy, v jsonValue) string { return readText(v, &p.EndpointID) }},
	{"fail_mode", "fail_mode", func(_ *decoder, p *Policy, v jsonValue) string { return readText(v, &p.FailMode) }},
	{"fallback_rate_per_process_micro", "fallback_rate_per_process_micro", func(_ *decoder, p *Policy, v jsonValue) string {
		return readMicro(v, &p.FallbackRate)
	}},
	{"fallback_per_second", "fallback_rate_per_process_micro", func(_ *decoder, p *Policy, v jsonValue) string {
		return readTokens(v, &p.FallbackRate)
	}},
	{"policy_version", "policy_version", func(_ *decoder, p *Policy, v jsonValue) (problem string) {
		p.Version, problem = readWhole(v)
		return problem
	}},
	{"carry_over", "carry_over", func(_ *decoder, p *Policy, v jsonValue) (problem string) {
		p.CarryOver, problem = readWhole(v)
		return problem
	}},
	{"identity", "identity", func(_ *decoder, p *Policy, v jsonValue) string { return readText(v, &p.Identity) }},
	{"enforce", "enforce", func(_ *decoder, p *Policy, v jsonValue) string { return readNot(v, &p.Unenforced) }},
	{"candidate", "candidate", func(d *decoder, p *Policy, v jsonValue) string {
		if v.kind != jsonObject {
			return v.not("an object with a limit")
		}
		p.Candidate = new(Candidate)
		readObject(d, d.reading, v, candidateFields, p.Candidate)
		return ""
	}},
	{"also", "also", func(d *decoder, p *Policy, v jsonValue) string {
		return readObjects(d, v, "limits", quotaFields, &p.Also)
	}},
	{"plans", "plans", func(d *decoder, p *Policy, v jsonValue) string {
		return readNamed(d, v, "an object from plan to its numbers", &p.Plans, d.readPlan)
	}},
	{"tenants", "tenants", func(d *decoder, p *Policy, v jsonValue) string {
		return readNamed(d, v, "an object from tenant to its numbers", &p.Tenants, d.readPlan)
	}},
}, algorithmFields(func(p *Policy) *Algorithm { return &p.Algorithm }, func(p *Policy) *time.Duration { return &p.Window }),
	numberFields(func(p *Policy) numbers { return numbers{&p.Capacity, &p.RefillRate, &p.Limit} }))

// quotaFields are the fields of a further limit.
var quotaFields = slices.Concat(
	algorithmFields(func(q *Quota) *Algorithm { return &q.Algorithm }, func(q *Quota) *time.Duration { return &q.Window }),
	numberFields(func(q *Quota) numbers { return numbers{&q.Capacity, &q.RefillRate, &q.Limit} }),
)

// candidateFields are the fields of a candidate.
var candidateFields = slices.Concat([]configField[Candidate]{
	{"also", "also", func(d *decoder, c *Candidate, v jsonValue) string {
		return readObjects(d, v, "limits", quotaFields, &c.Also)
	}},
}, algorithmFields(func(c *Candidate) *Algorithm { return &c.Algorithm }, func(c *Candidate) *time.Duration { return &c.Window }),
	numberFields(func(c *Candidate) numbers { return numbers{&c.Capacity, &c.RefillRate, &c.Limit} }))

// planFields are the fields of a plan.
var planFields = append([]configField[Plan]{
	{"also", "also", func(d *decoder, p *Plan, v jsonValue) string {
		return readObjects(d, v, "numbers", numberFields(func(n *Numbers) numbers { return numbers{&n.Capacity, &n.RefillRate, &n.Limit} }), &p.Also)
	}},
}, numberFields(func(p *Plan) numbers { return numbers{&p.Capacity, &p.RefillRate, &p.Limit} })...)

func (d *decoder) readPlan(path string, v jsonValue, into *Plan) string {
	if v.kind != jsonObject {
		return v.not("an object with numbers")
	}
	readObject(d, path, v, planFields, into)
	return ""
}

// algorithmFields are those that say how a limit counts.
func algorithmFields[T any](algorithm func(*T) *Algorithm, window func(*T) *time.Duration) []configField[T] {
	return []configField[T]{
		{"algorithm", "algorithm", func(_ *decoder, t *T, v jsonValue) string { return readText(v, algorithm(t)) }},
		{"window_size_micro", "window_size_micro", func(_ *decoder, t *T, v jsonValue) string {
			return readDuration(v, time.Microsecond, window(t))
		}},
		{"window", "window_size_micro", func(_ *decoder, t *T, v jsonValue) string { return readWindow(v, window(t)) }},
	}
}

// numbers are where the numbers of a limit go.
type numbers struct {
	capacity, refill *Micro
	limit            *int64
}

// numberFields are those that say how much.
func numberFields[T any](of func(*T) numbers) []configField[T] {
	return []configField[T]{
		{"capacity_micro", "capacity_micro", func(_ *decoder, t *T, v jsonValue) string { return readMicro(v, of(t).capacity) }},
		{"capacity", "capacity_micro", func(_ *decoder, t *T, v jsonValue) string { return readTokens(v, of(t).capacity) }},
		{"refill_rate_micro_per_sec", "refill_rate_micro_per_sec", func(_ *decoder, t *T, v jsonValue) string {
			return readMicro(v, of(t).refill)
		}},
		{"refill_per_second", "refill_rate_micro_per_sec", func(_ *decoder, t *T, v jsonValue) string {
			return readTokens(v, of(t).refill)
		}},
		{"limit", "limit", func(_ *decoder, t *T, v jsonValue) (problem string) {
			*of(t).limit, problem = readWhole(v)
			return problem
		}},
	}
}

func (d *decoder) root(v jsonValue) {
	d.places[""] = place{written: true}
	readObject(d, "", v, rootFields, &d.config)
	for _, name := range []string{"app", "policies"} {
		if _, ok := d.places[name]; !ok {
			d.add(place{path: name}, "required")
			d.places[name] = place{path: name, broken: true}
		}
	}
}

func (d *decoder) policies(v jsonValue) {
	d.config.Policies = make(map[string]Policy, len(v.members))
	for _, m := range v.members {
		at := place{path: policyPath(m.name), at: m.at, written: true}
		if first, ok := d.places[at.path]; ok {
			d.duplicate(at, first)
			continue
		}
		d.places[at.path] = at
		var p Policy
		if m.value.kind != jsonObject {
			d.broken(at.path, at, "must be an object")
		} else {
			readObject(d, at.path, m.value, policyFields, &p)
		}
		d.config.Policies[m.name] = p
	}
}

// readObject reads the members of one object by its table of fields.
func readObject[T any](d *decoder, path string, v jsonValue, fields []configField[T], into *T) {
	prefix := path
	if path != "" {
		prefix += "."
	}
	names := make(map[string]place, len(v.members))
	var misspelt []place // what was meant, most likely: not to be missed as well
	for _, m := range v.members {
		at := place{path: prefix + plainName(m.name), at: m.at, written: true}
		if first, ok := names[m.name]; ok {
			d.duplicate(at, first)
			continue
		}
		names[m.name] = at
		i := slices.IndexFunc(fields, func(f configField[T]) bool { return f.name == m.name })
		if i < 0 {
			text, meant := unknownName(m.name, fields)
			d.add(at, text)
			if meant != "" {
				misspelt = append(misspelt, place{path: prefix + meant, at: m.at, broken: true})
			}
			continue
		}
		canonical := prefix + fields[i].sets
		if first, ok := d.places[canonical]; ok {
			d.add(at, "sets what "+strings.TrimPrefix(first.path, prefix)+" sets; keep one of them")
			continue
		}
		d.places[canonical] = at
		d.reading = canonical
		if problem := fields[i].read(d, into, m.value); problem != "" {
			d.broken(canonical, at, problem)
		}
	}
	for _, p := range misspelt {
		if _, ok := d.places[p.path]; !ok {
			d.places[p.path] = p
		}
	}
}

// readNamed reads an object whose names are the user's.
func readNamed[T any](d *decoder, v jsonValue, what string, into *map[string]T, read func(path string, v jsonValue, into *T) string) string {
	if v.kind != jsonObject {
		return v.not(what)
	}
	path := d.reading
	*into = make(map[string]T, len(v.members))
	for _, m := range v.members {
		at := place{path: namedPath(path, m.name), at: m.at, written: true}
		if _, ok := (*into)[m.name]; ok {
			d.duplicate(at, d.places[at.path])
			continue
		}
		d.places[at.path] = at
		var t T
		if problem := read(at.path, m.value, &t); problem != "" {
			d.broken(at.path, at, problem)
		}
		(*into)[m.name] = t
	}
	return ""
}

// readObjects reads a list of objects, each by the same table of fields.
func readObjects[T any](d *decoder, v jsonValue, what string, fields []configField[T], into *[]T) string {
	if v.kind != jsonArray {
		return v.not("a list of " + what)
	}
	path, list := d.reading, d.places[d.reading]
	*into = make([]T, len(v.items))
	for i, item := range v.items {
		at := place{path: fmt.Sprintf("%s[%d]", path, i), at: list.at, written: true}
		d.places[at.path] = at
		if item.kind != jsonObject {
			d.broken(at.path, at, item.not("an object"))
			continue
		}
		readObject(d, at.path, item, fields, &(*into)[i])
	}
	return ""
}

func (d *decoder) add(at place, text string) {
	d.faults = append(d.faults, fault{at: at.at, path: at.path, text: text})
}

// broken reports a value that cannot be read, and keeps the checker off it.
func (d *decoder) broken(canonical string, at place, problem string) {
	d.add(at, problem)
	at.broken = true
	d.places[canonical] = at
}

func (d *decoder) duplicate(at, first place) {
	line, _ := lineAndColumn(d.data, first.at)
	again, _ := lineAndColumn(d.data, at.at)
	d.add(at, fmt.Sprintf("is written twice, on lines %d and %d; keep one", line, again))
}

// plainName is a member's name as it stands in a path: quoted where it is no
// plain word, so that a fault stays on one line.
func plainName(name string) string {
	if plainWord.MatchString(name) {
		return name
	}
	return shortQuote(name)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// elsewhere is what belongs in another object than where it stands.
var elsewhere []names

type names struct {
	of   []string
	text string
}

func init() { // the tables themselves refer to what reads it
	elsewhere = []names{
		{fieldNames(appFields), "belongs in app; move it there"},
		{fieldNames(policyFields), "belongs in a policy; move it there"},
	}
}

// unknownName says what to do with a name that fields does not have, and which
// canonical field was meant, "" for none.
func unknownName[T any](name string, fields []configField[T]) (text, meant string) {
	best, distance := configField[T]{}, 4 // further off is no misspelling
	for _, f := range fields {
		if n := editDistance(strings.ToLower(name), f.name); n < distance && n < len(f.name)/2 {
			best, distance = f, n
		}
	}
	for _, where := range elsewhere {
		if slices.Contains(where.of, name) {
			return where.text, ""
		}
	}
	if best.name != "" {
		return "is unknown; did you mean " + best.name + "?", best.sets
	}
	return "is unknown; remove it", ""
}

func fieldNames[T any](fields []configField[T]) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// editDistance is how many letters must be put in, taken out or changed to
// make b of a; names far too long are simply far.
func editDistance(a, b string) int {
	if len(a) > 2*len(b) {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// readSecrets reads one secret, or a list of them, into what canonical names.
func (d *decoder) readSecrets(canonical string, v jsonValue, read func(jsonValue, *Secret) string, into *Secrets) string {
	if v.kind != jsonArray {
		*into = make(Secrets, 1)
		return read(v, &(*into)[0])
	}
	*into = make(Secrets, len(v.items))
	at := d.places[canonical]
	for i, item := range v.items {
		if problem := read(item, &(*into)[i]); problem != "" {
			entry := at
			entry.path = fmt.Sprintf("%s[%d]", at.path, i)
			d.broken(canonical, entry, problem)
		}
	}
	return ""
}

// readSecret reads a secret or redis_url: the text itself, or "${NAME}" for the
// value of an environment variable.
func readSecret(v jsonValue, into *Secret) string {
	if v.kind != jsonString {
		return v.not("a string")
	}
	text := v.text
	if name := variable.FindStringSubmatch(text); name != nil {
		text = os.Getenv(name[1])
		if text == "" {
			return "environment variable " + name[1] + " is unset or empty"
		}
	}
	*into = NewSecret(text)
	return ""
}

var variable = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)

// readSecretFile reads a secret from the file that v names, without the one
// line end that editors and echo add.
func (d *decoder) readSecretFile(v jsonValue, into *Secret) string {
	switch {
	case v.kind != jsonString:
		return v.not("a string, the path of a file")
	case v.text == "":
		return "must not be empty; it is the path of a file"
	case strings.Contains(v.text, "://"):
		return "must be the path of a file, not a URL" // which may hold a password
	}
	path := v.text
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.dir, path)
	}
	data, err := readFile(path, maxSecretFileBytes)
	if err != nil {
		// The path is not repeated: it may be the secret itself, in the wrong field.
		return "cannot be read: " + reasonOf(err)
	}
	text, found := strings.CutSuffix(string(data), "\r\n")
	if !found {
		text = strings.TrimSuffix(text, "\n")
	}
	if text == "" {
		return "names a file that is empty"
	}
	*into = NewSecret(text)
	return ""
}

// readKeys reads an object from key id to a public key in PEM, or to the path of
// a file that holds one.
func (d *decoder) readKeys(v jsonValue, into *map[string]crypto.PublicKey) string {
	const canonical = "app.jwt_keys"
	if v.kind != jsonObject {
		return v.not("an object from key id to a public key in PEM, or to its file")
	}
	*into = make(map[string]crypto.PublicKey, len(v.members))
	at := d.places[canonical]
	for _, m := range v.members {
		entry := place{path: at.path + "[" + shortQuote(m.name) + "]", at: m.at}
		if _, ok := (*into)[m.name]; ok {
			d.broken(canonical, entry, "is written twice; keep one")
			continue
		}
		key, problem := d.readKey(m.value)
		if problem != "" {
			d.broken(canonical, entry, problem)
		}
		(*into)[m.name] = key
	}
	return ""
}

func (d *decoder) readKey(v jsonValue) (key crypto.PublicKey, problem string) {
	if v.kind != jsonString {
		return nil, v.not("a public key in PEM, or the path of its file")
	}
	text := v.text
	if !strings.HasPrefix(text, "-----BEGIN ") {
		var file Secret
		if problem := d.readSecretFile(v, &file); problem != "" {
			return nil, problem
		}
		text = file.reveal()
	}
	key, err := parsePublicKey(text)
	if err != nil {
		return nil, err.Error()
	}
	return key, ""
}

// reasonOf is what the system said, without the path again.
func reasonOf(err error) string {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

func readText[T ~string](v jsonValue, into *T) string {
	if v.kind != jsonString {
		return v.not("a string")
	}
	*into = T(v.text)
	return ""
}

func readTexts(v jsonValue, into *[]string) string {
	if v.kind != jsonArray {
		return v.not("a list of strings")
	}
	*into = make([]string, len(v.items))
	for i, item := range v.items {
		if item.kind != jsonString {
			return item.not("a list of strings")
		}
		(*into)[i] = item.text
	}
	return ""
}

// readNot reads a boolean whose field in App is named after its opposite.
func readNot(v jsonValue, into *bool) string {
	if v.kind != jsonBool {
		return v.not("true or false")
	}
	*into = v.text == "false"
	return ""
}

// readWhole reads a whole number; one beyond int64 becomes the nearest int64,
// which every rule refuses as it would the number itself.
func readWhole(v jsonValue) (int64, string) {
	if v.kind != jsonNumber {
		return 0, v.not("a whole number")
	}
	n, exact := scaledDecimal(v.text, 0)
	if !exact {
		return 0, "must be a whole number"
	}
	return n, ""
}

func readMicro(v jsonValue, into *Micro) string {
	n, problem := readWhole(v)
	*into = Micro(n)
	return problem
}

// readTokens reads tokens as an exact decimal of up to six places.
func readTokens(v jsonValue, into *Micro) string {
	if v.kind != jsonNumber {
		return v.not("a number")
	}
	n, exact := scaledDecimal(v.text, 6)
	if !exact {
		return "has more than 6 decimals; a token has 1000000 parts"
	}
	*into = Micro(n)
	return ""
}

// readDuration reads a whole number of units, saturating as readWhole does.
func readDuration(v jsonValue, unit time.Duration, into *time.Duration) string {
	n, problem := readWhole(v)
	longest := int64(math.MaxInt64 / unit)
	*into = time.Duration(max(-longest, min(n, longest))) * unit
	return problem
}

// windowUnits are the units of a window's text: how many microseconds, as a
// factor and a power of ten.
var windowUnits = map[string]struct {
	factor uint64
	zeros  int
}{
	"us": {1, 0}, "µs": {1, 0}, "ms": {1, 3}, "s": {1, 6}, "m": {60, 6}, "h": {3_600, 6}, "d": {86_400, 6},
}

var (
	windowText = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(us|µs|ms|s|m|h|d))+$`)
	windowPart = regexp.MustCompile(`([0-9.]+)([a-zµ]+)`)
)

// readWindow reads "1m30s": Go's text of a duration, with d for 24 hours, and
// exact where [time.ParseDuration] goes through a float.
func readWindow(v jsonValue, into *time.Duration) string {
	const rule = `a duration like "1m", "1.5s" or "1h30m", with the units us, ms, s, m, h, d`
	if v.kind != jsonString {
		return v.not(rule)
	}
	if !windowText.MatchString(v.text) {
		return "must be " + rule
	}
	var sum uint64 // in microseconds
	for _, part := range windowPart.FindAllStringSubmatch(v.text, -1) {
		unit := windowUnits[part[2]]
		n, exact := scaledDecimal(part[1], unit.zeros) // one beyond int64 is the nearest int64
		if !exact {
			return "must be whole microseconds, with up to 6 decimals"
		}
		hi, micros := bits.Mul64(uint64(n), unit.factor)
		if hi > 0 || micros > math.MaxInt64 {
			micros = math.MaxInt64
		}
		sum = min(sum+micros, math.MaxInt64)
	}
	*into = time.Duration(min(sum, math.MaxInt64/1_000)) * time.Microsecond
	return ""
}

// scaledDecimal returns the number of JSON text times 10^scale, exactly, and
// false if it is not whole then. Beyond int64 it is the nearest int64. Neither
// a float nor a loop over an exponent takes part.
func scaledDecimal(text string, scale int) (n int64, exact bool) {
	mantissa, exponentText, _ := strings.Cut(strings.ToLower(text), "e")
	unsigned, negative := strings.CutPrefix(mantissa, "-")
	integer, fraction, _ := strings.Cut(unsigned, ".")
	digits := strings.TrimLeft(integer+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return 0, true
	}
	exponent := 0
	if exponentText != "" {
		var err error
		if exponent, err = strconv.Atoi(exponentText); err != nil || exponent != max(-maxConfigBytes, min(exponent, maxConfigBytes)) {
			exponent = maxConfigBytes // longer than any fraction in a file
			if exponentText[0] == '-' {
				exponent = -exponent
			}
		}
	}
	zeros := exponent + scale - len(fraction) + len(digits) - len(significant)
	if zeros < 0 {
		return 0, false
	}
	n = math.MaxInt64
	if len(significant)+zeros <= 19 {
		v, err := strconv.ParseInt(significant+strings.Repeat("0", zeros), 10, 64)
		if err == nil {
			n = v
		}
	}
	if negative {
		n = -n
	}
	return n, true
}
