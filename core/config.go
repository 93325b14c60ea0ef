package sentinel

import (
	"crypto"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Defaults of App and Policy: what a zero field of a Config built in code, and
// an absent one in a file, stands for.
const (
	defaultCookieName  = "sentinel_anon_id"
	defaultCookieTTL   = 30 * 24 * time.Hour
	defaultRedisBudget = 20 * time.Millisecond
	defaultIPv6Prefix  = 64
	defaultWindow      = time.Minute
	defaultTenantClaim = "sub"
)

// Bounds of the numbers. Up to maxExact the script's doubles hold every amount
// and every product exactly.
const (
	maxExact       = 1 << 52
	maxVersion     = 1 << 53 // what every JSON reader holds exactly
	minSecretBytes = 32
	// maxSecrets bounds what a forged token or cookie makes us compute.
	maxSecrets = 8
	maxLeeway  = 5 * time.Minute
)

// UnreadableRedisPolicy is what to do with a Redis that lets nobody read its
// eviction policy. The zero value means [UnreadableWarn].
type UnreadableRedisPolicy string

// The choices, spelled as in the configuration file.
const (
	// UnreadableWarn says so at WARN and goes on.
	UnreadableWarn UnreadableRedisPolicy = "warn"
	// UnreadableRefuse treats such a Redis as a wrong one.
	UnreadableRefuse UnreadableRedisPolicy = "refuse"
)

// Authentication is who finds out which tenant asks. The zero value means
// [ByToken].
type Authentication string

// The choices, spelled as in the configuration file.
const (
	// ByToken takes the tenant from a bearer token that this package verifies.
	ByToken Authentication = "jwt"
	// ByApplication takes the tenant from the application, which has verified it:
	// with [WithTenant], or as the argument of Allow. No token is read.
	ByApplication Authentication = "application"
)

// Config is the whole of what is data and not code: one App and a policy for
// each endpoint. [LoadConfig] reads it from a file; it may as well be built in
// code, where a zero field means the default that its comment gives. It is
// plain data: a limiter copies what it needs, later changes reach none.
type Config struct {
	// App holds what all endpoints share.
	App App
	// Policies maps an endpoint id to its policy; at least one.
	Policies map[string]Policy
	// Tenants maps a tenant to the name of its plan, which some policy has; nil
	// for none.
	Tenants map[string]string
}

// App holds what all endpoints share. Booleans are named so that false, their
// zero value, is the default and the safe side.
type App struct {
	// RedisURL is redis://, rediss://, unix:// or memory://; required by
	// [Open]. It counts as a secret, for it may hold a password.
	RedisURL Secret
	// Authentication is who finds out which tenant asks; "" means ByToken.
	Authentication Authentication
	// JWTSecret verifies bearer tokens: a token counts that any of these has
	// signed; 1 to 8, each at least 32 bytes, required where JWTAlgorithms has
	// one of HMAC.
	JWTSecret Secrets
	// JWTKeys are public keys that verify bearer tokens, by their ids (kid): an
	// *rsa.PublicKey of 2048 to 8192 bits, an *ecdsa.PublicKey on P-256, P-384 or
	// P-521, or an ed25519.PublicKey. The key decides on its algorithms.
	JWTKeys map[string]crypto.PublicKey
	// JWKSURL is where more public keys are fetched, https://, or http:// on the
	// loopback; "" for nowhere. It goes with [WithKeys].
	JWKSURL string
	// JWTAlgorithms are the accepted ones of HS256, HS384, HS512, RS256, RS384,
	// RS512, ES256, ES384, ES512 and EdDSA; nil means HS256 alone.
	JWTAlgorithms []string

	// JWTTenantClaim is the claim whose text is the tenant, a name of the
	// token's own object, "https://example.com/org" say, and none that decides
	// on the token itself; "" means sub. It must be there; sub need not then.
	JWTTenantClaim string
	// JWTPlanClaim is the claim whose text is the name of the tenant's plan; ""
	// means that tokens name none.
	JWTPlanClaim string
	// JWTIssuer is what iss must be, to the letter; "" does not ask.
	JWTIssuer string
	// JWTAudience is what aud must be or hold; "" does not ask.
	JWTAudience string
	// JWTLeeway is how far the clock of whoever made the token may be off, for
	// exp, nbf and iat; 0 to 5 minutes.
	JWTLeeway time.Duration

	// AnonymousCookieName is the name of the anonymous cookie; "" means
	// sentinel_anon_id.
	AnonymousCookieName string
	// AnonymousCookieTTL is the cookie's life in whole seconds, 1 hour to 90
	// days; 0 means 30 days.
	AnonymousCookieTTL time.Duration
	// InsecureAnonymousCookie leaves the Secure attribute off, for development
	// over plain HTTP (anonymous_cookie_secure: false).
	InsecureAnonymousCookie bool
	// AnonymousCookieSecret signs the cookie: the first does, all verify; 1 to
	// 8, each at least 32 bytes and none of JWTSecret; required once a policy is
	// anonymous.
	AnonymousCookieSecret Secrets

	// RedisBudget is the time within which a decision is made, whatever Redis
	// does; 1ms to 1s, 0 means 20ms.
	RedisBudget time.Duration
	// IPv6Prefix is how many leading bits of an IPv6 peer are one client, 32
	// to 128; 0 means 64. IPv4 peers always count as whole addresses.
	IPv6Prefix int
	// DisableRateLimitHeaders keeps RateLimit and RateLimit-Policy off
	// responses (ratelimit_headers: false).
	DisableRateLimitHeaders bool
	// DisableKnownDenials asks the store even about a bucket that is known to
	// deny (known_denials: false).
	DisableKnownDenials bool
	// UnreadableRedisPolicy is what to do with a Redis whose eviction policy
	// cannot be read; "" means UnreadableWarn.
	UnreadableRedisPolicy UnreadableRedisPolicy
}

// Validate checks every rule and returns one error with a line for each fault,
// nil if there is none. Faults are named as in the configuration file. It
// changes nothing.
func (c *Config) Validate() error {
	return c.check(true)
}

// check is Validate; without urlRequired redis_url may be unset: the caller brings
// a client of its own.
func (c *Config) check(urlRequired bool) error {
	if c == nil {
		return errors.New("sentinel: the configuration is nil; use LoadConfig, or a Config of your own")
	}
	return joinFaults(c.faults(nil, urlRequired))
}

func (c *Config) faults(src *source, urlRequired bool) []fault {
	k := checker{src: src}
	anonymous := false
	for _, id := range slices.Sorted(maps.Keys(c.Policies)) {
		k.policy(id, c.Policies[id])
		anonymous = anonymous || c.Policies[id].Identity == Anonymous
	}
	k.tenants(c)
	k.clustered(c)
	if at := src.object("policies"); len(c.Policies) == 0 && !at.broken {
		k.add(at, "at least one policy is required")
	}
	if at := src.object("app"); !at.broken {
		k.app(c.App, urlRequired, anonymous)
	}
	return k.faults
}

// withDefaults returns a deep copy in which every default is filled in.
func (c *Config) withDefaults() *Config {
	full := &Config{App: c.App, Policies: make(map[string]Policy, len(c.Policies)), Tenants: maps.Clone(c.Tenants)}
	a := &full.App
	a.JWTSecret, a.AnonymousCookieSecret = slices.Clone(a.JWTSecret), slices.Clone(a.AnonymousCookieSecret)
	a.JWTAlgorithms, a.JWTKeys = slices.Clone(a.JWTAlgorithms), maps.Clone(a.JWTKeys)
	defaultTo(&a.Authentication, ByToken)
	if a.Authentication == ByToken {
		if a.JWTAlgorithms == nil {
			a.JWTAlgorithms = []string{"HS256"}
		}
		defaultTo(&a.JWTTenantClaim, defaultTenantClaim)
	}
	defaultTo(&a.AnonymousCookieName, defaultCookieName)
	defaultTo(&a.AnonymousCookieTTL, defaultCookieTTL)
	defaultTo(&a.RedisBudget, defaultRedisBudget)
	defaultTo(&a.IPv6Prefix, defaultIPv6Prefix)
	defaultTo(&a.UnreadableRedisPolicy, UnreadableWarn)
	for id, p := range c.Policies {
		defaultTo(&p.Identity, TenantJWT)
		if p.Algorithm == SlidingWindow {
			defaultTo(&p.Window, defaultWindow)
		}
		p.Also = withWindows(p.Also)
		if p.Candidate != nil {
			p.Candidate = &Candidate{Quota: withWindows([]Quota{p.Candidate.Quota})[0], Also: withWindows(p.Candidate.Also)}
		}
		p.Plans, p.Tenants = maps.Clone(p.Plans), maps.Clone(p.Tenants)
		full.Policies[id] = p
	}
	return full
}

// withWindows returns a copy in which the default windows are filled in.
func withWindows(quotas []Quota) []Quota {
	quotas = slices.Clone(quotas)
	for i := range quotas {
		if quotas[i].Algorithm == SlidingWindow {
			defaultTo(&quotas[i].Window, defaultWindow)
		}
	}
	return quotas
}

// defaultTo sets a zero value to its default.
func defaultTo[T comparable](v *T, byDefault T) {
	var zero T
	if *v == zero {
		*v = byDefault
	}
}

// Warnings returns what is allowed but worth a line at WARN, which [Open] and
// [New] write at start. The Config is valid; of one that is nil there is nothing
// to say.
func (c *Config) Warnings() []Fault {
	if c == nil {
		return nil
	}
	var found []Fault
	if c.App.skipsTLSVerify() {
		found = append(found, Fault{
			Path: "app.redis_url",
			Text: "skip_verify=true encrypts but does not prove who the server is",
		})
	}
	for _, id := range slices.Sorted(maps.Keys(c.Policies)) {
		p := c.Policies[id]
		if p.Unenforced {
			found = append(found, Fault{
				Path: policyPath(id) + ".enforce",
				Text: "false: decides and counts, and lets every request through",
			})
		}
		if p.Identity == Anonymous {
			found = append(found, neverExpire(policyPath(id), p.quotas())...)
			found = append(found, neverExpire(policyPath(id)+".candidate", p.Candidate.quotas())...)
		}
	}
	return found
}

// neverExpire warns of an anonymous policy's limits, or its candidate's, in
// object, whose keys nobody removes.
func neverExpire(object string, quotas []Quota) (found []Fault) {
	for i, q := range quotas {
		if q.Algorithm == TokenBucket && q.RefillRate == 0 {
			found = append(found, Fault{
				Path: limitPath(object, i) + ".refill_rate_micro_per_sec",
				Text: "0 with anonymous identity: these keys never expire, and every new client adds one",
			})
		}
	}
	return found
}

// limitPath names limit i of object: its own, or a further one.
func limitPath(object string, i int) string {
	if i == 0 {
		return object
	}
	return fmt.Sprintf("%s.also[%d]", object, i-1)
}

// fault is one thing that is wrong with a configuration.
type fault struct {
	at   int    // where, in bytes from the beginning of the file; 0 in code
	path string // as in policies["auth.login"].limit; "" is the whole file
	text string // what is wrong and what mends it

	line, column int // of at; 0 in code
}

func (f fault) Error() string {
	if f.path == "" {
		return f.text
	}
	return f.path + ": " + f.text
}

// joinFaults returns one error with a line for each fault, in the order of the
// file, nil if there is none.
func joinFaults(faults []fault) error {
	slices.SortStableFunc(faults, func(a, b fault) int { return a.at - b.at })
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// place is a field of the configuration, as it was written.
type place struct {
	path    string
	at      int
	written bool // it stands in the file; always false in code
	broken  bool // its value could not be read, which is a fault already
}

// entry is the place of one of n entries, named where there are several.
func (p place) entry(i, n int) place {
	if n > 1 {
		p.path = fmt.Sprintf("%s[%d]", p.path, i)
	}
	return p
}

// source remembers where and under which name the fields of a Config were
// written. A nil *source stands for a Config built in code.
type source struct {
	places map[string]place // by the path with the canonical name
}

// object returns the place of app, policies or one policy.
func (s *source) object(path string) place {
	if s == nil {
		return place{path: path}
	}
	p, ok := s.places[path]
	if !ok {
		p = place{path: path}
	}
	return p
}

// field returns the place of a field by its canonical name; of one that was
// not written, where it would have to be.
func (s *source) field(object, name string) place {
	path := object + "." + name
	if s == nil {
		return place{path: path}
	}
	p, ok := s.places[path]
	if !ok {
		p = place{path: path, at: s.places[object].at}
	}
	return p
}

// checker holds a Config against the rules and collects the faults.
type checker struct {
	src    *source
	faults []fault
}

func (k *checker) add(p place, text string) {
	k.faults = append(k.faults, fault{at: p.at, path: p.path, text: text})
}

// cookieName is a token of RFC 9110, which RFC 6265 wants a cookie name to be.
var cookieName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// ownClaims are those that say something about the token and not about a tenant.
var ownClaims = []string{"exp", "nbf", "iat", "iss", "aud", "jti"}

// tellable reports whether a token can hold this text.
func tellable(text string) bool {
	return strings.TrimSpace(text) != "" && len(text) <= maxTenantBytes && !strings.ContainsRune(text, utf8.RuneError)
}

func (k *checker) app(a App, urlRequired, anonymous bool) {
	k.redisURL(a.RedisURL, urlRequired)
	k.setting("authentication", a.Authentication == "", a.Authentication == ByToken || a.Authentication == ByApplication,
		"must be jwt or application")
	if a.Authentication == ByApplication {
		k.noTokens(a)
	} else {
		k.tokens(a)
	}

	k.setting("anonymous_cookie_name", a.AnonymousCookieName == "", cookieName.MatchString(a.AnonymousCookieName),
		"must be a cookie name: letters, digits and any of !#$%&'*+-.^_`|~")
	k.setting("anonymous_cookie_ttl_seconds", a.AnonymousCookieTTL == 0,
		within(a.AnonymousCookieTTL, time.Hour, 90*24*time.Hour) && a.AnonymousCookieTTL%time.Second == 0,
		"must be 3600 to 7776000, in whole seconds")
	need := ""
	if anonymous {
		need = "required, because a policy is anonymous; at least 32 bytes"
	}
	k.secrets("anonymous_cookie_secret", a.AnonymousCookieSecret, need)
	for i, s := range a.AnonymousCookieSecret {
		if !s.IsZero() && slices.Contains(a.JWTSecret.reveal(), s.reveal()) {
			k.add(k.src.field("app", "anonymous_cookie_secret").entry(i, len(a.AnonymousCookieSecret)),
				"must not equal jwt_secret: one that leaks would give away the other")
		}
	}

	k.setting("redis_budget_ms", a.RedisBudget == 0, within(a.RedisBudget, time.Millisecond, time.Second),
		"must be 1 to 1000 milliseconds")
	k.setting("ipv6_prefix", a.IPv6Prefix == 0, within(a.IPv6Prefix, 32, 128), "must be 32 to 128 bits")
	k.setting("unreadable_redis_policy", a.UnreadableRedisPolicy == "",
		a.UnreadableRedisPolicy == UnreadableWarn || a.UnreadableRedisPolicy == UnreadableRefuse,
		`must be "warn" or "refuse"`)
}

// setting checks a field of app that has a default. Zero means the default
// only where nobody wrote it.
func (k *checker) setting(name string, zero, ok bool, rule string) {
	p := k.src.field("app", name)
	if ok || p.broken || zero && !p.written {
		return
	}
	k.add(p, rule)
}

// redisURL keeps to the word password: the error may hold no piece of one, and
// "secret" is a piece of too many.
func (k *checker) redisURL(url Secret, required bool) {
	p := k.src.field("app", "redis_url")
	switch {
	case p.broken, url.IsZero() && !required:
	case url.IsZero() && !p.written:
		k.add(p, "required; for one process without Redis write memory://")
	default:
		if _, reason := parseRedisURL(url.reveal()); reason != "" {
			k.add(p, reason)
		}
	}
}

// bareVariable is a variable as shells of other kinds write it. Its name may be
// long enough for a secret, and is anybody's to guess.
var bareVariable = regexp.MustCompile(`^(\$[A-Za-z_][A-Za-z0-9_]*|\$\([A-Za-z_][A-Za-z0-9_]*\)|%[A-Za-z_][A-Za-z0-9_]*%)$`)

// secrets checks signing secrets. need says why they are required, "" that they
// are not.
func (k *checker) secrets(name string, list Secrets, need string) {
	p := k.src.field("app", name)
	if p.broken {
		return
	}
	if len(list) > maxSecrets {
		k.add(p, "has more than 8 entries; remove the oldest")
	}
	if len(list) == 0 {
		list = Secrets{{}}
	}
	for i, s := range list {
		at := p.entry(i, len(list))
		if len(list) > 1 {
			at.written = true // an entry cannot be left out
		}
		k.secret(at, s.reveal(), need)
		if first := slices.IndexFunc(list, func(other Secret) bool { return other.reveal() == s.reveal() }); first < i && !s.IsZero() {
			k.add(at, fmt.Sprintf("is the same as %s[%d]; keep one", name, first))
		}
	}
}

func (k *checker) secret(p place, text, need string) {
	switch {
	case text == "" && !p.written && need == "":
	case text == "" && !p.written:
		k.add(p, need)
	case text == "":
		k.add(p, "must not be empty; at least 32 bytes")
	case strings.TrimSpace(text) == "":
		k.add(p, "must not be blank")
	case strings.Contains(text, "${"):
		k.add(p, unexpanded)
	case bareVariable.MatchString(text):
		k.add(p, `looks like a variable that nobody has expanded; write "${NAME}"`)
	case strings.HasPrefix(strings.TrimSpace(text), "-----BEGIN "):
		k.add(p, "is a key in PEM, and anybody may know a public one; put it into jwt_keys")
	case len(text) < minSecretBytes:
		k.add(p, "is too short; at least 32 bytes")
	}
}

// tokens checks how bearer tokens are verified.
func (k *checker) tokens(a App) {
	names := a.JWTAlgorithms
	if names == nil {
		names = []string{"HS256"}
	}
	hmac := slices.ContainsFunc(names, func(name string) bool { return jwtMethods[name] != nil })
	public := slices.ContainsFunc(names, func(name string) bool { return publicMethods[name] != nil })
	allowlist := k.src.field("app", "jwt_algorithm_allowlist")
	need := ""
	if hmac && !allowlist.broken {
		need = "required; at least 32 bytes"
	}
	k.secrets("jwt_secret", a.JWTSecret, need)
	k.algorithms(allowlist, a.JWTAlgorithms)
	k.setting("jwt_plan_claim", a.JWTPlanClaim == "", tellable(a.JWTPlanClaim) && !slices.Contains(ownClaims, a.JWTPlanClaim),
		"must be the name of a claim that is a plan's name, not exp, nbf, iat, iss, aud or jti")
	k.keys(a.JWTKeys, names, !allowlist.broken)
	k.keysURL(a.JWKSURL)
	switch keys, url := k.src.field("app", "jwt_keys"), k.src.field("app", "jwt_jwks_url"); {
	case allowlist.broken || keys.broken || url.broken:
	case !hmac && public && len(a.JWTSecret) > 0:
		k.add(k.src.field("app", "jwt_secret"), "no algorithm of jwt_algorithm_allowlist uses it; remove it, or add HS256")
	case public && len(a.JWTKeys) == 0 && a.JWKSURL == "":
		k.add(allowlist, "names an algorithm with public keys, and there are none; add jwt_keys or jwt_jwks_url")
	case !public && a.JWKSURL != "":
		k.add(url, "no algorithm of jwt_algorithm_allowlist uses it; add RS256, or what its keys are for")
	}
	k.setting("jwt_tenant_claim", a.JWTTenantClaim == "", tellable(a.JWTTenantClaim) && !slices.Contains(ownClaims, a.JWTTenantClaim),
		"must be the name of a claim that is a tenant's name, not exp, nbf, iat, iss, aud or jti")
	k.setting("jwt_issuer", a.JWTIssuer == "", tellable(a.JWTIssuer), "must be what iss is, 1 to 1024 bytes")
	k.setting("jwt_audience", a.JWTAudience == "", tellable(a.JWTAudience), "must be what aud is or holds, 1 to 1024 bytes")
	k.setting("jwt_leeway", a.JWTLeeway == 0, within(a.JWTLeeway, 0, maxLeeway), "must be 0s to 5m")
}

// noTokens refuses what would look as if tokens were verified.
func (k *checker) noTokens(a App) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"jwt_secret", len(a.JWTSecret) > 0},
		{"jwt_keys", len(a.JWTKeys) > 0},
		{"jwt_jwks_url", a.JWKSURL != ""},
		{"jwt_algorithm_allowlist", a.JWTAlgorithms != nil},
		{"jwt_tenant_claim", a.JWTTenantClaim != ""},
		{"jwt_plan_claim", a.JWTPlanClaim != ""},
		{"jwt_issuer", a.JWTIssuer != ""},
		{"jwt_audience", a.JWTAudience != ""},
		{"jwt_leeway", a.JWTLeeway != 0},
	} {
		if p := k.src.field("app", f.name); p.written && !p.broken || f.set {
			k.add(p, `only where authentication is "jwt"; remove it`)
		}
	}
}

func (k *checker) algorithms(p place, names []string) {
	const words = "HS256, HS384, HS512, RS256, RS384, RS512, ES256, ES384, ES512, EdDSA"
	if p.broken || names == nil && !p.written {
		return
	}
	if len(names) == 0 {
		k.add(p, "must name at least one of "+words)
	}
	seen := make(map[string]bool)
	for i, name := range names {
		at := place{path: fmt.Sprintf("%s[%d]", p.path, i), at: p.at}
		switch {
		case jwtMethods[name] == nil && publicMethods[name] == nil:
			k.add(at, "must be one of "+words)
		case seen[name]:
			k.add(at, "is named twice; keep one")
		}
		seen[name] = true
	}
}

// keys checks public keys; whether the allowlist has an algorithm for each,
// where listed says that it can be read.
func (k *checker) keys(keys map[string]crypto.PublicKey, allowed []string, listed bool) {
	p := k.src.field("app", "jwt_keys")
	switch {
	case p.broken:
		return
	case len(keys) == 0 && p.written:
		k.add(p, "must have at least one key, or be left out")
	case len(keys) > maxKeys:
		k.add(p, "has more than 64 keys; remove old ones")
	}
	for _, id := range slices.Sorted(maps.Keys(keys)) {
		at := place{path: p.path + "[" + shortQuote(id) + "]", at: p.at}
		algorithms := algorithmsOf(keys[id])
		switch {
		case !tellable(id):
			k.add(at, "must be a key's id: the kid of its tokens")
		case len(algorithms) == 0:
			k.add(at, "must be a public key: RSA of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, or Ed25519")
		case listed && !slices.ContainsFunc(algorithms, func(name string) bool { return slices.Contains(allowed, name) }):
			k.add(at, "no algorithm of jwt_algorithm_allowlist is for this key; add "+algorithms[0])
		}
	}
}

func (k *checker) keysURL(text string) {
	p := k.src.field("app", "jwt_jwks_url")
	if p.broken || text == "" && !p.written {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Fragment != "" || strings.TrimSpace(text) != text:
		k.add(p, "must be a URL: https://HOST/PATH")
	case u.User != nil:
		k.add(p, "must hold no credentials: public keys need none")
	case u.Scheme == "https":
	case u.Scheme == "http" && loopback(u.Hostname()):
	default:
		k.add(p, "must be https://: whoever can change the answer can sign for everybody; http:// is for localhost")
	}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

var endpointID = regexp.MustCompile(`^[a-z0-9._-]+$`)

// policyPath names a policy in faults.
func policyPath(id string) string {
	return "policies[" + strconv.Quote(id) + "]"
}

func (k *checker) policy(id string, p Policy) {
	object := policyPath(id)
	at := k.src.object(object)
	if at.broken {
		return
	}
	if !endpointID.MatchString(id) {
		k.add(at, "an endpoint id is made of a-z, 0-9, dot, hyphen and underscore")
	}
	k.choice(object, "endpoint_id", p.EndpointID == id, "equal to the policy's key")
	k.choice(object, "fail_mode", p.FailMode == FailOpen || p.FailMode == FailClosed, "fail_open or fail_closed")
	if f := k.src.field(object, "identity"); p.Identity != "" || f.written {
		k.choice(object, "identity", p.Identity == TenantJWT || p.Identity == Anonymous, "tenant_jwt or anonymous")
	}
	k.number(object, "fallback_rate_per_process_micro", "fallback_per_second", int64(p.FallbackRate), 1,
		"must be 1 to 4503599627370496 microtokens per second (0.000001 to 4503599627.370496 tokens)")
	k.bounded(object, "policy_version", p.Version, 1, maxVersion, "required", "must be 1 to 9007199254740992")

	if f := k.src.field(object, "carry_over"); !f.broken && (p.CarryOver != 0 || f.written) && !within(p.CarryOver, 1, p.Version-1) {
		k.add(f, "must be an earlier policy_version: 1 or more, and less than policy_version")
	}

	k.quotas(object, p.quotas())
	if c := object + ".candidate"; !k.src.object(c).broken {
		k.quotas(c, p.Candidate.quotas())
	}
	k.plans(object, "plans", p, p.Plans)
	k.plans(object, "tenants", p, p.Tenants)
}

// quotas checks the limits of object, of which it has as many.
func (k *checker) quotas(object string, quotas []Quota) {
	also := k.src.field(object, "also")
	for i, q := range quotas {
		if i == 0 || !also.broken {
			k.quota(limitPath(object, i), q)
		}
	}
	if len(quotas) > maxLimits {
		k.add(also, "must hold at most 3 limits")
	}
}

// plans checks the plans of a policy, or the numbers of its tenants.
func (k *checker) plans(policy, name string, p Policy, plans map[string]Plan) {
	at := k.src.field(policy, name)
	if at.broken || len(plans) == 0 {
		return
	}
	if p.Identity == Anonymous {
		k.add(at, "only for tenant_jwt: an anonymous client has no name and no plan")
	}
	for _, of := range slices.Sorted(maps.Keys(plans)) {
		object := namedPath(policy+"."+name, of)
		plan := plans[of]
		if blank(of) || len(of) > maxTenantBytes {
			k.add(k.src.object(object), "must be a name that is not blank, of up to 1024 bytes")
		}
		if plan.Also != nil && len(plan.Also) != len(p.Also) && !k.src.field(policy, "also").broken {
			k.add(k.src.field(object, "also"), fmt.Sprintf("must hold the numbers of all %d further limits, or be left out", len(p.Also)))
			plan.Also = nil
		}
		for i, q := range p.planned(plan) {
			switch {
			case i == 0:
				k.numbers(object, q)
			case plan.Also != nil:
				k.numbers(limitPath(object, i), q)
			}
		}
	}
}

// numbers checks those of a plan. What is wrong with the algorithm or the window
// is a fault of the policy's.
func (k *checker) numbers(object string, q Quota) {
	switch {
	case k.src.object(object).broken:
	case q.Algorithm == TokenBucket:
		q.Window = 0
		k.tokenBucket(object, q)
	case q.Algorithm == SlidingWindow && (q.Window == 0 || q.Window >= time.Millisecond && q.Window%time.Microsecond == 0):
		k.slidingWindow(object, q)
	}
}

// tenants checks that the plans of the tenants exist.
func (k *checker) tenants(c *Config) {
	if k.src.object("tenants").broken {
		return
	}
	plans, unread := c.planNames(), k.src.object("policies").broken
	for id := range c.Policies {
		unread = unread || k.src.object(policyPath(id)).broken || k.src.field(policyPath(id), "plans").broken
	}
	for _, tenant := range slices.Sorted(maps.Keys(c.Tenants)) {
		at := k.src.object(namedPath("tenants", tenant))
		switch {
		case at.broken:
		case blank(tenant) || len(tenant) > maxTenantBytes:
			k.add(at, "must be a name that is not blank, of up to 1024 bytes")
		case !plans[c.Tenants[tenant]] && !unread:
			k.add(at, "names a plan that no policy has; add it under plans there")
		}
	}
}

// clustered refuses what a cluster could not decide in one step: a client's cookie
// and its address are in two slots, and so are the keys of two versions.
func (k *checker) clustered(c *Config) {
	target, err := c.App.target()
	if err != nil || target.kind != clusterTarget {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.Policies)) {
		p := c.Policies[id]
		if at := k.src.field(policyPath(id), "candidate"); p.Identity == Anonymous && p.Candidate != nil && !at.broken {
			k.add(at, "not with anonymous identity in a Redis Cluster: a client's cookie and its address are in two slots; remove it")
		}
		if at := k.src.field(policyPath(id), "carry_over"); p.CarryOver != 0 && !at.broken {
			k.add(at, carryOverInCluster)
		}
	}
}

const carryOverInCluster = "not in a Redis Cluster: the keys of two versions are in two slots, which no script may read together; remove it, and the new version begins with fresh buckets"

// carryOvers returns a fault for every policy that carries over, for a cluster which
// the application has brought.
func (c *Config) carryOvers() (faults []fault) {
	for _, id := range slices.Sorted(maps.Keys(c.Policies)) {
		if c.Policies[id].CarryOver != 0 {
			faults = append(faults, fault{path: policyPath(id) + ".carry_over", text: carryOverInCluster})
		}
	}
	return faults
}

// planNames are the plans that some policy has.
func (c *Config) planNames() map[string]bool {
	names := make(map[string]bool)
	for _, p := range c.Policies {
		for name := range p.Plans {
			names[name] = true
		}
	}
	return names
}

// namedPath is the path of a member that is named by the user.
func namedPath(object, name string) string { return object + "[" + shortQuote(name) + "]" }

// quota checks one limit, whose fields stand in object.
func (k *checker) quota(object string, q Quota) {
	if k.src.object(object).broken {
		return
	}
	k.choice(object, "algorithm", q.Algorithm == TokenBucket || q.Algorithm == SlidingWindow,
		"token_bucket or sliding_window")
	switch q.Algorithm {
	case TokenBucket:
		k.tokenBucket(object, q)
	case SlidingWindow:
		k.slidingWindow(object, q)
	}
}

func (k *checker) tokenBucket(object string, q Quota) {
	k.number(object, "capacity_micro", "capacity", int64(q.Capacity), int64(Token),
		"must be 1000000 to 4503599627370496 microtokens (1 to 4503599627.370496 tokens); a request costs one token")
	k.number(object, "refill_rate_micro_per_sec", "refill_per_second", int64(q.RefillRate), 0,
		"must be 0 to 4503599627370496 microtokens per second (0 to 4503599627.370496 tokens); 0 never refills")
	k.onlyFor(SlidingWindow, object, "limit", q.Limit == 0)
	k.onlyFor(SlidingWindow, object, "window_size_micro", q.Window == 0)
}

func (k *checker) slidingWindow(object string, q Quota) {
	k.onlyFor(TokenBucket, object, "capacity_micro", q.Capacity == 0)
	k.onlyFor(TokenBucket, object, "refill_rate_micro_per_sec", q.RefillRate == 0)
	limit := q.Limit
	if !k.bounded(object, "limit", limit, 1, maxExact,
		"required for sliding_window", "must be 1 to 4503599627370496 requests") {
		limit = 1 // the window has to fit at least that
	}
	f := k.src.field(object, "window_size_micro")
	window := q.Window
	if window == 0 && !f.written {
		window = defaultWindow
	}
	switch {
	case f.broken:
	case window < time.Millisecond || window%time.Microsecond != 0:
		k.add(f, "must be at least 1000 microseconds (1ms), and whole microseconds")
	case !productFits(limit, window.Microseconds()):
		k.add(f, "limit times the window in microseconds must be at most 4503599627370496; lower one of them")
	}
}

// productFits reports whether limit times window is exact in the script.
func productFits(limit, windowMicro int64) bool {
	hi, lo := bits.Mul64(uint64(limit), uint64(windowMicro))
	return hi == 0 && lo <= maxExact
}

// choice checks a required field that takes one of a few words.
func (k *checker) choice(object, name string, ok bool, words string) {
	p := k.src.field(object, name)
	switch {
	case ok, p.broken:
	case k.src != nil && !p.written:
		k.add(p, "required; must be "+words)
	default:
		k.add(p, "must be "+words)
	}
}

// number checks an amount of microtokens, lo to 2^52, that can also be written
// in tokens, as twin.
func (k *checker) number(object, name, twin string, v, lo int64, rule string) {
	k.bounded(object, name, v, lo, maxExact, "required, or "+twin+" in tokens", rule)
}

// bounded checks a required number and reports whether it is there and right.
func (k *checker) bounded(object, name string, v, lo, hi int64, missing, rule string) bool {
	p := k.src.field(object, name)
	switch {
	case p.broken:
		return false
	case k.src != nil && !p.written:
		k.add(p, missing)
		return false
	case !within(v, lo, hi):
		k.add(p, rule)
		return false
	}
	return true
}

// onlyFor refuses a field of the other algorithm, even one that says zero.
func (k *checker) onlyFor(a Algorithm, object, name string, zero bool) {
	if p := k.src.field(object, name); p.written || !zero {
		k.add(p, "only for "+string(a)+"; remove it or change algorithm")
	}
}

func within[T int | int64 | time.Duration](v, lo, hi T) bool {
	return lo <= v && v <= hi
}

// shortQuote quotes a name or value from the file, cut to a readable length.
func shortQuote(s string) string {
	const longest = 64
	if len(s) > longest {
		return strconv.Quote(strings.ToValidUTF8(s[:longest], "")) + "..."
	}
	return strconv.Quote(s)
}
