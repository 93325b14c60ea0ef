package sentinel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	testJWTSecret    = "jwt-secret-for-tests-0123456789abcdef"
	testCookieSecret = "cookie-secret-for-tests-0123456789abcd"
)

// testConfig is valid and has one policy of each kind.
func testConfig() *Config {
	return &Config{
		App: App{
			RedisURL:              NewSecret("redis://:hunter2hunter2@localhost:6379/0"),
			JWTSecret:             NewSecrets(testJWTSecret),
			AnonymousCookieSecret: NewSecrets(testCookieSecret),
		},
		Policies: map[string]Policy{
			"auth.login": {
				EndpointID: "auth.login", Algorithm: TokenBucket, FailMode: FailOpen, FallbackRate: Token, Version: 1,
				Identity: Anonymous, Capacity: 10 * Token, RefillRate: Token,
			},
			"api.search": {
				EndpointID: "api.search", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: Token, Version: 1,
				Limit: 100,
			},
		},
	}
}

func TestBustedConfigs(t *testing.T) {
	t.Setenv("SENTINEL_TEST_EMPTY", "")
	files, err := filepath.Glob("testdata/config/busted_*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".err")
			if err != nil {
				t.Fatal(err)
			}
			config, err := LoadConfig(file)
			if err == nil || config != nil {
				t.Fatalf("loads as %+v, error %v", config, err)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("error:\n%swant:\n%s", got, want)
			}
			for _, text := range []string{testJWTSecret, testCookieSecret, "hunter2", "ransom"} {
				if strings.Contains(err.Error(), text) {
					t.Errorf("the error holds a secret: %v", err)
				}
			}
		})
	}
}

func TestWorkingConfigs(t *testing.T) {
	defaults := App{
		RedisURL:              NewSecret("redis://localhost:6379/0"),
		JWTSecret:             NewSecrets(testJWTSecret),
		JWTAlgorithms:         []string{"HS256"},
		Authentication:        ByToken,
		JWTTenantClaim:        "sub",
		AnonymousCookieName:   "sentinel_anon_id",
		AnonymousCookieTTL:    30 * 24 * time.Hour,
		RedisBudget:           20 * time.Millisecond,
		IPv6Prefix:            64,
		UnreadableRedisPolicy: UnreadableWarn,
	}
	app := func(change func(*App)) App {
		a := defaults
		change(&a)
		return a
	}
	jobs := Policy{
		EndpointID: "jobs.ocr", Algorithm: TokenBucket, FailMode: FailOpen, FallbackRate: Token, Version: 1,
		Identity: TenantJWT, Capacity: 10 * Token, RefillRate: Token,
	}
	bucket := func(fallback, capacity, refill Micro) Policy {
		p := jobs
		p.FallbackRate, p.Capacity, p.RefillRate = fallback, capacity, refill
		return p
	}
	search := func(window time.Duration) Policy {
		return Policy{
			EndpointID: "api.search", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: Token, Version: 1,
			Identity: TenantJWT, Limit: 100, Window: window,
		}
	}
	login := Policy{
		EndpointID: "auth.login", Algorithm: TokenBucket, FailMode: FailOpen, FallbackRate: 2000, Version: 1,
		Identity: Anonymous, Capacity: Token, RefillRate: Token / 2,
	}
	oneMillisecond := search(time.Millisecond)
	oneMillisecond.Version = 1<<31 - 1

	for name, want := range map[string]*Config{
		"ancestor_example": {
			App: app(func(a *App) {
				a.JWTSecret = NewSecrets("dev-only-secret-change-me-0123456789abcdef")
				a.AnonymousCookieSecret = NewSecrets("anon-dev-only-secret-change-me-0123456789abcdef")
				a.InsecureAnonymousCookie = true
			}),
			Policies: map[string]Policy{
				"auth.login": login,
				"pdftalk.ingest": {
					EndpointID: "pdftalk.ingest", Algorithm: SlidingWindow, FailMode: FailClosed, FallbackRate: 5000,
					Version: 1, Identity: TenantJWT, Limit: 1000, Window: time.Minute,
				},
				"resumint.tailor": {
					EndpointID: "resumint.tailor", Algorithm: TokenBucket, FailMode: FailOpen, FallbackRate: 2000,
					Version: 1, Identity: TenantJWT, Capacity: 10 * Token, RefillRate: 10_000,
				},
			},
		},
		"minimal": {
			App:      app(func(a *App) { a.RedisURL = NewSecret("memory://") }),
			Policies: map[string]Policy{"jobs.ocr": jobs},
		},
		"friendly_units": {
			App: app(func(a *App) { a.RedisURL = NewSecret("memory://?max_keys=1000") }),
			Policies: map[string]Policy{
				"jobs.ocr":   bucket(1, 1<<52, 10_000),
				"api.search": search(90 * time.Minute),
			},
		},
		"whole_decimals": {
			App:      defaults,
			Policies: map[string]Policy{"jobs.ocr": bucket(Token, 1_500_000, 2_500_000), "api.search": search(time.Minute)},
		},
		"several_limits": {
			App: defaults,
			Policies: map[string]Policy{"jobs.ocr": func() Policy {
				p := jobs
				p.Also = []Quota{
					{Algorithm: SlidingWindow, Limit: 1000, Window: 24 * time.Hour},
					{Algorithm: SlidingWindow, Limit: 100, Window: time.Minute},
					{Algorithm: TokenBucket, Capacity: 20_000 * Token, RefillRate: 7},
				}
				return p
			}()},
		},
		"plans": {
			App: app(func(a *App) { a.JWTPlanClaim = "https://example.com/plan" }),
			Policies: map[string]Policy{"jobs.ocr": func() Policy {
				p := jobs
				p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 1000, Window: 24 * time.Hour}}
				p.Plans = map[string]Plan{
					"pro":   {Numbers: Numbers{Capacity: 100 * Token, RefillRate: 10}, Also: []Numbers{{Limit: 5000}}},
					"trial": {Numbers: Numbers{Capacity: Token}},
				}
				p.Tenants = map[string]Plan{"acme": {Numbers: Numbers{Capacity: Token + 1, RefillRate: 2 * Token}}}
				return p
			}()},
			Tenants: map[string]string{"acme": "pro", "Über {x}\n": "pro"},
		},
		"secret_files": {
			App:      app(func(a *App) { a.RedisURL = NewSecret("redis://:hunter2hunter2@localhost:6379/0") }),
			Policies: map[string]Policy{"jobs.ocr": jobs},
		},
		"secret_lists": {
			App: app(func(a *App) {
				a.RedisURL = NewSecret("memory://")
				a.JWTSecret = NewSecrets(testJWTSecret, "jwt-secret-of-last-year-0123456789abcdef")
				a.AnonymousCookieSecret = NewSecrets("cookie-secret-of-next-year-0123456789ab", testCookieSecret)
			}),
			Policies: map[string]Policy{"jobs.ocr": jobs},
		},
		"every_field": {
			App: App{
				RedisURL:                NewSecret("rediss://app:hunter2hunter2@redis.example.com:6380/3"),
				JWTSecret:               NewSecrets(testJWTSecret),
				JWTAlgorithms:           []string{"HS512", "HS256"},
				Authentication:          ByToken,
				JWTTenantClaim:          "https://example.com/org",
				JWTIssuer:               "https://login.example.com/",
				JWTAudience:             "billing-api",
				JWTLeeway:               90 * time.Second,
				AnonymousCookieName:     "device",
				AnonymousCookieTTL:      time.Hour,
				InsecureAnonymousCookie: true,
				AnonymousCookieSecret:   NewSecrets(testCookieSecret),
				RedisBudget:             50 * time.Millisecond,
				IPv6Prefix:              56,
				DisableRateLimitHeaders: true,
				DisableKnownDenials:     true,
				UnreadableRedisPolicy:   UnreadableRefuse,
			},
			Policies: map[string]Policy{"auth.login": login, "api.search": oneMillisecond},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := LoadConfig("testdata/config/working_" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if err := got.Validate(); err != nil {
				t.Errorf("what was loaded is invalid: %v", err)
			}
		})
	}
	files, err := filepath.Glob("testdata/config/working_*.json")
	if err != nil || len(files) != 9 {
		t.Errorf("%d working fixtures, of which 9 are tested (%v)", len(files), err)
	}
}

func TestLoadConfigNoFile(t *testing.T) {
	_, err := LoadConfig("testdata/config/no_such_file.json")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "no_such_file.json") {
		t.Errorf("error %v", err)
	}
	if _, err := LoadConfig("testdata/config"); err == nil {
		t.Error("a folder loads")
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SENTINEL_TEST_URL", "redis://:hunter2hunter2@redis:6379")
	t.Setenv("SENTINEL_TEST_JWT", testJWTSecret)
	t.Setenv("SENTINEL_TEST_UNEXPANDED", "${SENTINEL_TEST_JWT}")
	file := func(url, jwt string) []byte {
		return fmt.Appendf(nil, `{"app": {"redis_url": %q, "jwt_secret": %q}, "policies": {"a": {
			"endpoint_id": "a", "algorithm": "sliding_window", "fail_mode": "fail_closed",
			"fallback_per_second": 1, "policy_version": 1, "limit": 1}}}`, url, jwt)
	}
	c, err := ParseConfig(file("${SENTINEL_TEST_URL}", "${SENTINEL_TEST_JWT}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.App.RedisURL.reveal(); got != "redis://:hunter2hunter2@redis:6379" {
		t.Errorf("redis_url %q", got)
	}
	if got := c.App.JWTSecret.reveal(); !slices.Equal(got, []string{testJWTSecret}) {
		t.Errorf("jwt_secret %q", got)
	}
	for _, jwt := range []string{
		"${SENTINEL_TEST_UNEXPANDED}", // the variable holds the name of a variable
		"${SENTINEL_TEST_JWT} ",
		"x${SENTINEL_TEST_JWT}",
		"${SENTINEL_TEST_JWT}${SENTINEL_TEST_JWT}",
		"${1SENTINEL_TEST_JWT}0123456789abcdef",
		"${SENTINEL_TEST_JWT-0123456789abcdef",
	} {
		_, err := ParseConfig(file("memory://", jwt))
		if err == nil || err.Error() != "app.jwt_secret: "+unexpanded {
			t.Errorf("%q: error %v", jwt, err)
		}
	}
	_, err = ParseConfig(file("redis://:${SENTINEL_TEST_JWT}@redis", testJWTSecret))
	if err == nil || err.Error() != "app.redis_url: "+unexpanded {
		t.Errorf("a variable within redis_url: error %v", err)
	}
}

func TestParseConfigRelativeFile(t *testing.T) {
	data, err := os.ReadFile("testdata/config/working_secret_files.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("testdata/config")
	if _, err := ParseConfig(data); err != nil {
		t.Errorf("from the folder itself: %v", err)
	}
	t.Chdir("../..")
	if _, err := ParseConfig(data); err == nil {
		t.Error("a path that does not lead there from the working directory loads")
	}
}

// One line end goes, and no more: a second one is the secret's.
func TestSecretFileLineEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jwt")
	for content, want := range map[string]string{
		testJWTSecret:            testJWTSecret,
		testJWTSecret + "\n":     testJWTSecret,
		testJWTSecret + "\r\n":   testJWTSecret,
		testJWTSecret + "\n\n":   testJWTSecret + "\n",
		testJWTSecret + "\r":     testJWTSecret + "\r",
		" " + testJWTSecret + "": " " + testJWTSecret,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		d := decoder{}
		var got Secret
		if problem := d.readSecretFile(jsonValue{kind: jsonString, text: path}, &got); problem != "" || got.reveal() != want {
			t.Errorf("%q: %q, problem %q", content, got.reveal(), problem)
		}
	}
	large := bytes.Repeat([]byte("x"), maxSecretFileBytes+1)
	if err := os.WriteFile(path, large, 0o600); err != nil {
		t.Fatal(err)
	}
	d := decoder{}
	var got Secret
	if problem := d.readSecretFile(jsonValue{kind: jsonString, text: path}, &got); !strings.Contains(problem, "larger than") {
		t.Errorf("a large file: problem %q", problem)
	}
}

func TestValidateInCode(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Fatalf("the test's own config: %v", err)
	}
	for want, breakIt := range map[string]func(*Config){
		"app.redis_url: required; for one process without Redis write memory://":          func(c *Config) { c.App.RedisURL = Secret{} },
		"app.jwt_secret: required; at least 32 bytes":                                     func(c *Config) { c.App.JWTSecret = NewSecrets("") },
		`app.jwt_secret: looks like a variable that nobody has expanded; write "${NAME}"`: func(c *Config) { c.App.JWTSecret = NewSecrets("$SENTINEL_PRODUCTION_JWT_SIGNING_KEY") },
		"app.jwt_secret: " + unexpanded:                                                   func(c *Config) { c.App.JWTSecret = NewSecrets("${JWT_SECRET_OF_THE_APPLICATION}") },
		"app.jwt_secret[1]: is too short; at least 32 bytes":                              func(c *Config) { c.App.JWTSecret = NewSecrets(testJWTSecret, "hunter2") },
		"app.jwt_secret[1]: must not be empty; at least 32 bytes":                         func(c *Config) { c.App.JWTSecret = NewSecrets(testJWTSecret, "") },
		"app.jwt_secret[2]: is the same as jwt_secret[0]; keep one":                       func(c *Config) { c.App.JWTSecret = NewSecrets(testJWTSecret, testJWTSecret+"2", testJWTSecret) },
		"app.jwt_secret: has more than 8 entries; remove the oldest":                      func(c *Config) { c.App.JWTSecret = NewSecrets(manySecrets(9)...) },
		"app.anonymous_cookie_secret[1]: must not equal jwt_secret: one that leaks would give away the other": func(c *Config) {
			c.App.JWTSecret = NewSecrets(testJWTSecret, testJWTSecret+"2")
			c.App.AnonymousCookieSecret = NewSecrets(testCookieSecret, testJWTSecret+"2")
		},
		"app.anonymous_cookie_secret: required, because a policy is anonymous; at least 32 bytes":                                     func(c *Config) { c.App.AnonymousCookieSecret = nil },
		"app.jwt_algorithm_allowlist: must name at least one of HS256, HS384, HS512, RS256, RS384, RS512, ES256, ES384, ES512, EdDSA": func(c *Config) { c.App.JWTAlgorithms = []string{} },
		"app.jwt_algorithm_allowlist[0]: must be one of HS256, HS384, HS512, RS256, RS384, RS512, ES256, ES384, ES512, EdDSA":         func(c *Config) { c.App.JWTAlgorithms = []string{"none"} },
		"app.jwt_tenant_claim: must be the name of a claim that is a tenant's name, not exp, nbf, iat, iss, aud or jti":               func(c *Config) { c.App.JWTTenantClaim = "aud" },
		"app.jwt_issuer: must be what iss is, 1 to 1024 bytes":                                                                        func(c *Config) { c.App.JWTIssuer = " " },
		"app.jwt_audience: must be what aud is or holds, 1 to 1024 bytes":                                                             func(c *Config) { c.App.JWTAudience = strings.Repeat("a", 1025) },
		"app.jwt_leeway: must be 0s to 5m":                                                                                                     func(c *Config) { c.App.JWTLeeway = 5*time.Minute + 1 },
		"app.anonymous_cookie_ttl_seconds: must be 3600 to 7776000, in whole seconds":                                                          func(c *Config) { c.App.AnonymousCookieTTL = time.Hour + 1 },
		"app.redis_budget_ms: must be 1 to 1000 milliseconds":                                                                                  func(c *Config) { c.App.RedisBudget = -1 },
		"app.ipv6_prefix: must be 32 to 128 bits":                                                                                              func(c *Config) { c.App.IPv6Prefix = 31 },
		"policies: at least one policy is required":                                                                                            func(c *Config) { c.Policies = nil },
		`policies["auth.login"].policy_version: must be 1 to 9007199254740992`:                                                                 policy("auth.login", func(p *Policy) { p.Version = 0 }),
		`policies["auth.login"].endpoint_id: must be equal to the policy's key`:                                                                policy("auth.login", func(p *Policy) { p.EndpointID = "" }),
		`policies["auth.login"].identity: must be tenant_jwt or anonymous`:                                                                     policy("auth.login", func(p *Policy) { p.Identity = "jwt" }),
		`policies["auth.login"].limit: only for sliding_window; remove it or change algorithm`:                                                 policy("auth.login", func(p *Policy) { p.Limit = 1 }),
		`policies["api.search"].capacity_micro: only for token_bucket; remove it or change algorithm`:                                          policy("api.search", func(p *Policy) { p.Capacity = 1 }),
		`policies["api.search"].window_size_micro: must be at least 1000 microseconds (1ms), and whole microseconds`:                           policy("api.search", func(p *Policy) { p.Window = time.Second + 1 }),
		`policies["api.search"].window_size_micro: limit times the window in microseconds must be at most 4503599627370496; lower one of them`: policy("api.search", func(p *Policy) { p.Limit, p.Window = 1<<40, math.MaxInt64/1000*1000 }),
	} {
		c := testConfig()
		breakIt(c)
		before := *c
		before.Policies = maps.Clone(c.Policies)
		before.App.JWTAlgorithms = slices.Clone(c.App.JWTAlgorithms)
		err := c.Validate()
		if err == nil || err.Error() != want {
			t.Errorf("error %v\nwant  %s", err, want)
		}
		if !reflect.DeepEqual(*c, before) {
			t.Errorf("Validate changed the config: %s", want)
		}
	}
	c := testConfig()
	c.App.RedisURL = Secret{}
	if err := c.check(false); err != nil {
		t.Errorf("without a redis_url, for a given client: %v", err)
	}
}

// manySecrets are n good ones.
func manySecrets(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("%s-%d", testJWTSecret, i)
	}
	return texts
}

func TestSecretLength(t *testing.T) {
	c := testConfig()
	c.App.JWTSecret = NewSecrets(strings.Repeat("j", 32))
	c.App.AnonymousCookieSecret = NewSecrets(strings.Repeat("\u00fc", 16)) // bytes count, not characters
	if err := c.Validate(); err != nil {
		t.Errorf("32 bytes: %v", err)
	}
	c.App.JWTSecret = NewSecrets(manySecrets(8)...)
	if err := c.Validate(); err != nil {
		t.Errorf("8 secrets: %v", err)
	}
}

func policy(id string, change func(*Policy)) func(*Config) {
	return func(c *Config) {
		p := c.Policies[id]
		change(&p)
		c.Policies[id] = p
	}
}

// The corner of limit * window: 2^52 itself is in, the next number out.
func TestProductFits(t *testing.T) {
	most := new(big.Int).Lsh(big.NewInt(1), 52)
	numbers := []int64{1, 2, 3, 1000, 60_000_000, 1<<26 - 1, 1 << 26, 1<<26 + 1, 1 << 31, 1<<52 - 1, 1 << 52, math.MaxInt64}
	for _, a := range numbers {
		for _, b := range numbers {
			want := new(big.Int).Mul(big.NewInt(a), big.NewInt(b)).Cmp(most) <= 0
			if got := productFits(a, b); got != want {
				t.Errorf("%d * %d: %v", a, b, got)
			}
		}
	}
}

func TestWithDefaultsCopies(t *testing.T) {
	c := testConfig()
	c.App.JWTAlgorithms = []string{"HS384"}
	full := c.withDefaults()
	c.App.JWTAlgorithms[0] = "none"
	delete(c.Policies, "auth.login")
	if full.App.JWTAlgorithms[0] != "HS384" || len(full.Policies) != 2 {
		t.Errorf("later changes reach the copy: %+v", full)
	}
	if full.Policies["api.search"].Window != time.Minute || full.Policies["auth.login"].Window != 0 {
		t.Errorf("windows: %+v", full.Policies)
	}
}

func TestWarnings(t *testing.T) {
	c := testConfig()
	if found := c.Warnings(); len(found) != 0 {
		t.Errorf("warns of a sound config: %v", found)
	}
	policy("auth.login", func(p *Policy) { p.RefillRate = 0 })(c)
	c.App.RedisURL = NewSecret("rediss://:hunter2hunter2@redis?skip_verify=true")
	found := c.Warnings()
	if len(found) != 2 || !strings.HasPrefix(found[0].String(), "app.redis_url: skip_verify") || found[1].Path != `policies["auth.login"].refill_rate_micro_per_sec` {
		t.Errorf("warnings %v", found)
	}
	policy("auth.login", func(p *Policy) { p.Identity = TenantJWT })(c)
	if found := c.Warnings(); len(found) != 1 {
		t.Errorf("warnings %v", found)
	}
	c = testConfig()
	policy("auth.login", func(p *Policy) {
		p.Unenforced = true
		p.Candidate = &Candidate{Quota: Quota{Algorithm: SlidingWindow, Limit: 1}, Also: []Quota{{Algorithm: TokenBucket, Capacity: Token}}}
	})(c)
	found = c.Warnings()
	if len(found) != 2 || found[0].Path != `policies["auth.login"].enforce` || found[1].Path != `policies["auth.login"].candidate.also[0].refill_rate_micro_per_sec` {
		t.Errorf("warnings %v", found)
	}
}

// carry_over is a version's number in a file.
func TestCarryOverInTheFile(t *testing.T) {
	c, err := ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "` + testJWTSecret + `"},
		"policies": {"a": {"endpoint_id": "a", "algorithm": "token_bucket", "fail_mode": "fail_closed", "fallback_per_second": 1,
			"policy_version": 7, "carry_over": 5, "capacity": 1, "refill_per_second": 1}}
	}`))
	if err != nil || c.Policies["a"].CarryOver != 5 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A candidate is copied with its defaults filled in, and the original is left.
func TestCandidateDefaults(t *testing.T) {
	c := testConfig()
	policy("auth.login", func(p *Policy) {
		p.Candidate = &Candidate{Quota: Quota{Algorithm: SlidingWindow, Limit: 1}, Also: []Quota{{Algorithm: SlidingWindow, Limit: 1}}}
	})(c)
	full := c.withDefaults().Policies["auth.login"].Candidate
	if full.Window != time.Minute || full.Also[0].Window != time.Minute {
		t.Errorf("%+v", full)
	}
	if given := c.Policies["auth.login"].Candidate; given.Window != 0 || given.Also[0].Window != 0 {
		t.Errorf("the given one was changed: %+v", given)
	}
}

// A file says it as code does.
func TestShadowInTheFile(t *testing.T) {
	c, err := ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "` + testJWTSecret + `"},
		"policies": {
			"on": {"endpoint_id": "on", "algorithm": "token_bucket", "fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1,
				"capacity": 1, "refill_per_second": 1, "enforce": true},
			"off": {"endpoint_id": "off", "algorithm": "token_bucket", "fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1,
				"capacity": 1, "refill_per_second": 1, "enforce": false,
				"candidate": {"algorithm": "sliding_window", "limit": 5, "window": "1h", "also": [{"algorithm": "token_bucket", "capacity": 2, "refill_per_second": 0.5}]}}
		}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Candidate{
		Quota: Quota{Algorithm: SlidingWindow, Limit: 5, Window: time.Hour},
		Also:  []Quota{{Algorithm: TokenBucket, Capacity: 2 * Token, RefillRate: Token / 2}},
	}
	on, off := c.Policies["on"], c.Policies["off"]
	if on.Unenforced || on.Candidate != nil || !off.Unenforced || !reflect.DeepEqual(off.Candidate, want) {
		t.Errorf("%+v, %+v, %+v", on, off, off.Candidate)
	}
}

func TestFaults(t *testing.T) {
	_, err := ParseConfig([]byte("{\n  \"app\": {\"redis_url\": \"memory://\", \"ipv6_prefx\": 64},\n  \"policies\": {}\n}"))
	got := Faults(err)
	want := []Fault{
		{"app.jwt_secret", 2, 3, "required; at least 32 bytes"},
		{"app.ipv6_prefx", 2, 37, "is unknown; did you mean ipv6_prefix?"},
		{"policies", 3, 3, "at least one policy is required"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults %#v, want %#v", got, want)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 3 || lines[0] != got[0].String() {
		t.Errorf("the lines of the error %q are not the faults", lines)
	}
	for text, want := range map[string]Fault{
		"{\n\"app\": x": {Line: 2, Column: 8, Text: "is not JSON: unexpected character looking for beginning of value"},
		"[]":            {Line: 1, Column: 1, Text: "the configuration must be an object with app and policies"},
	} {
		if _, err := ParseConfig([]byte(text)); !slices.Equal(Faults(err), []Fault{want}) {
			t.Errorf("%q: %+v, want %+v", text, Faults(err), want)
		}
	}
	for _, err := range []error{nil, errors.New("other"), errors.Join(errors.New("other"))} {
		if got := Faults(err); got != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
	if got := Faults((&Config{}).Validate()); len(got) == 0 || got[0].Line != 0 {
		t.Errorf("in code: %+v", got)
	}
}

// Nothing that prints, encodes or logs a Secret shows it, however deep it lies.
func TestSecretIsNeverPrinted(t *testing.T) {
	c := testConfig()
	type hidden struct{ app App }
	values := map[string]any{
		"Secret": c.App.JWTSecret[0], "*Secret": &c.App.JWTSecret[0], "Secrets": c.App.JWTSecret, "Config": *c, "*Config": c, "App": c.App,
		"unexported": hidden{c.App}, "pointer to unexported": &hidden{c.App}, "in a slice": []any{c.App.JWTSecret, hidden{c.App}},
		"in a map": map[Secret]Secret{c.App.JWTSecret[0]: c.App.RedisURL},
	}
	var out strings.Builder
	for _, value := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%c", "%U", "%e", "%p", "%T", "%10.3s", "%!"} {
			fmt.Fprintf(&out, verb, value)
		}
		fmt.Fprintln(&out, value)
		if text, err := json.Marshal(value); err == nil {
			out.Write(text)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("text", "value", value)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "value", value)
		func() {
			defer func() { fmt.Fprint(&out, recover()) }()
			panic(value)
		}()
	}
	for _, secret := range []string{testJWTSecret, testCookieSecret, "hunter2"} {
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("% x", secret)} {
			if strings.Contains(out.String(), form) {
				t.Errorf("%q is printed", form)
			}
		}
	}
	if !strings.Contains(out.String(), "[redacted]") {
		t.Error("nothing was printed at all")
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%10.3s"} {
		if got := fmt.Sprintf(verb, c.App.JWTSecret[0]); got != "[redacted]" {
			t.Errorf("%s: %q", verb, got)
		}
	}
	if got, err := json.Marshal(c.App.JWTSecret[0]); err != nil || string(got) != `"[redacted]"` {
		t.Errorf("as JSON: %s, %v", got, err)
	}
	if got := fmt.Sprint(Secret{}, NewSecret("")); got != "[unset] [unset]" {
		t.Errorf("unset secrets print %q", got)
	}
}

// A window's text is exact, as far as a window may go.
func TestWindowText(t *testing.T) {
	for text, want := range map[string]int64{
		"1ms": 1_000, "1.5s": 1_500_000, "1h30m": 5_400_000_000, "2d": 172_800_000_000,
		"1000.0us": 1_000, "1.001ms": 1_001, "1m0.000001s": 60_000_001,
		"10000000000000us": 10_000_000_000_000, "4503599627370496us": 1 << 52, "4503599627.370496s": 1 << 52,
		"52124d23h": 4_503_596_400_000_000,
	} {
		var d time.Duration
		if problem := readWindow(jsonValue{kind: jsonString, text: text}, &d); problem != "" || d.Microseconds() != want {
			t.Errorf("%s: %d microseconds, want %d; %s", text, d.Microseconds(), want, problem)
		}
	}
	for _, text := range []string{"0.5us", "1.0005ms", "0.0000001s", "0.0000001m"} {
		if problem := readWindow(jsonValue{kind: jsonString, text: text}, new(time.Duration)); !strings.Contains(problem, "whole") {
			t.Errorf("%s: %q", text, problem)
		}
	}
	// Whatever is beyond every window stays so.
	for _, text := range []string{"4503599627370497us", "99999999999999999999us", "99999999999999999999ms", "99999999999999d", "9223372036854775807us1us"} {
		var d time.Duration
		if problem := readWindow(jsonValue{kind: jsonString, text: text}, &d); problem != "" || d.Microseconds() <= maxExact {
			t.Errorf("%s: %d microseconds; %s", text, d.Microseconds(), problem)
		}
	}
}
