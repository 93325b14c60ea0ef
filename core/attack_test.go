package sentinel

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// The tests named TestAttack do what an attacker would, from outside: through
// Check and Allow. docs/security.md lists which claim each of them holds; where
// another test holds one already, it is listed there and not written again.

const (
	attackJWTKey    = "unit-jwt-key-0123456789-abcdefghij"    // memoryConfig's
	attackCookieKey = "unit-cookie-key-0123456789-abcdefghij" // memoryConfig's
)

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// forge is a token with this header and payload, signed by sign over its first
// two parts.
func forge(header, payload string, sign func(text string) []byte) string {
	text := b64([]byte(header)) + "." + b64([]byte(payload))
	return text + "." + b64(sign(text))
}

func byHMAC(newHash func() hash.Hash, key []byte) func(string) []byte {
	return func(text string) []byte {
		mac := hmac.New(newHash, key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
}

// inForce is a payload of the tenant that is valid for an hour.
func inForce(tenant string) string {
	return fmt.Sprintf(`{"sub":%q,"exp":%d}`, tenant, time.Now().Add(time.Hour).Unix())
}

// knock is a request of whoever holds this token.
func knock(t testing.TB, l *Limiter, token string) (Decision, error) {
	t.Helper()
	d, err := l.Check(context.Background(), Request{EndpointID: "jobs", Authorization: []string{"Bearer " + token}})
	if err != nil && d != (Decision{}) {
		t.Errorf("an error and a decision: %+v, %v", d, err)
	}
	return d, err
}

// staysOut fails unless the token proves nobody.
func staysOut(t testing.TB, l *Limiter, name, token string) {
	t.Helper()
	if d, err := knock(t, l, token); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("%s gets in: %+v, %v", name, d, err)
	}
}

func getsIn(t testing.TB, l *Limiter, name, token, tenant string) {
	t.Helper()
	if d, err := knock(t, l, token); err != nil || !d.Allowed || d.IdentityHash != hashIdentity(tenant) {
		t.Errorf("%s stays out: %+v, %v", name, d, err)
	}
}

func attackLimiter(t testing.TB, change func(*Config), opts ...Option) *Limiter {
	t.Helper()
	login := bucketPolicy("login", 5*Token, 0)
	login.Identity = Anonymous
	cfg := memoryConfig(bucketPolicy("jobs", 1<<40, 1<<40), login)
	if change != nil {
		change(cfg)
	}
	l := openMemory(t, cfg, opts...)
	t.Cleanup(func() { l.Close() })
	return l
}

// A token counts under the algorithm that the allowlist names, its header names
// and its signature was made with, all three, and under no other.
func TestAttackAlgorithmConfusion(t *testing.T) {
	hmacs := map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}
	for allowed := range hmacs {
		l := attackLimiter(t, func(c *Config) { c.App.JWTAlgorithms = []string{allowed} })
		for named := range hmacs {
			for made, newHash := range hmacs {
				token := forge(`{"alg":"`+named+`"}`, inForce("acme"), byHMAC(newHash, []byte(attackJWTKey)))
				name := fmt.Sprintf("allowed %s, named %s, made %s", allowed, named, made)
				if named == allowed && made == allowed {
					getsIn(t, l, name, token, "acme")
				} else {
					staysOut(t, l, name, token)
				}
			}
		}
	}
}

// No header gets a token in that our key has not signed, and none that our key
// has signed makes another algorithm or key of it.
func TestAttackNoneAndOddAlgorithms(t *testing.T) {
	l := attackLimiter(t, func(c *Config) { c.App.JWTAlgorithms = []string{"HS256", "HS384", "HS512"} })
	ours := byHMAC(sha256.New, []byte(attackJWTKey))
	empty := func(string) []byte { return nil }
	for _, alg := range []string{
		"none", "None", "NONE", "nOnE", "", " none", "none ", "null", "HS", "HS0", "HS1", "HS2560", "hs256", "Hs256", " HS256", "HS256 ", "HS256\x00",
		"RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA", "dir", "A256KW", "ECDH-ES", "PBES2-HS256+A128KW", "b64",
	} {
		header, err := json.Marshal(map[string]string{"alg": alg})
		if err != nil {
			t.Fatal(err)
		}
		for name, sign := range map[string]func(string) []byte{
			"no signature": empty, "our signature": ours, "the empty key's": byHMAC(sha256.New, nil), "zeros": func(string) []byte { return make([]byte, 32) },
		} {
			staysOut(t, l, fmt.Sprintf("alg %q, %s", alg, name), forge(string(header), inForce("acme"), sign))
		}
	}
	for _, header := range []string{
		`{}`, `{"alg":null}`, `{"alg":["HS256"]}`, `{"alg":{"HS256":1}}`, `{"alg":256}`, `{"alg":true}`, `{"Alg":"HS256"}`, `{"ALG":"HS256"}`,
		`{"alg":"HS256","crit":["exp"]}`, `{"alg":"HS256","crit":[]}`, `{"alg":"HS256","b64":false,"crit":["b64"]}`, `[]`, `"HS256"`, `null`, ``, `{"alg":"HS256"`,
	} {
		staysOut(t, l, "header "+header, forge(header, inForce("acme"), ours))
	}
	for _, header := range []string{
		`{"alg":"HS256"}`, `{"alg":"HS256","typ":"JWT"}`, `{"typ":"at+jwt","alg":"HS256","kid":"1"}`,
	} {
		getsIn(t, l, "header "+header, forge(header, inForce("acme"), ours), "acme")
	}
	token := forge(`{"alg":"HS256"}`, inForce("acme"), ours)
	staysOut(t, l, "five parts, as a JWE has", token+".AAAA.AAAA")
	staysOut(t, l, "a token within a token", forge(`{"alg":"HS256","cty":"JWT"}`, token, ours))
}

// Keys that an attacker has, names in the header, or leads us to: none is ours.
// The header's own key, a file, a URL or a query is never looked at.
func TestAttackKeyConfusion(t *testing.T) {
	l := attackLimiter(t, nil)
	for name, key := range map[string]string{
		"the cookie's secret": attackCookieKey, "the empty key": "", "a known key": "secret", "the endpoint": "jobs", "zeros": strings.Repeat("\x00", 32),
		"the secret with a line end": attackJWTKey + "\n", "the secret cut": attackJWTKey[:len(attackJWTKey)-1], "the secret in hex": hex.EncodeToString([]byte(attackJWTKey)),
		"the secret in base64": base64.StdEncoding.EncodeToString([]byte(attackJWTKey)), "the secret in upper case": strings.ToUpper(attackJWTKey), "redacted": Secret{}.String(),
		"[redacted]": NewSecret("x").String(),
	} {
		for _, header := range []string{
			`{"alg":"HS256"}`, `{"alg":"HS256","kid":"/dev/null"}`, `{"alg":"HS256","kid":"../../../../dev/null"}`, `{"alg":"HS256","kid":"' UNION SELECT 'secret"}`,
			`{"alg":"HS256","jku":"http://127.0.0.1:1/keys"}`, `{"alg":"HS256","x5u":"http://127.0.0.1:1/cert"}`,
			`{"alg":"HS256","jwk":{"kty":"oct","k":"` + b64([]byte(key)) + `"}}`, `{"alg":"HS256","x5c":["` + b64([]byte(key)) + `"]}`,
		} {
			staysOut(t, l, name+", "+header, forge(header, inForce("acme"), byHMAC(sha256.New, []byte(key))))
		}
	}
	getsIn(t, l, "our key, with a kid", forge(`{"alg":"HS256","kid":"/dev/null"}`, inForce("acme"), byHMAC(sha256.New, []byte(attackJWTKey))), "acme")
}

// Whoever signs with a key pair of his own, or takes a public key for a secret,
// stays out.
func TestAttackPublicKeys(t *testing.T) {
	l := attackLimiter(t, func(c *Config) { c.App.JWTAlgorithms = []string{"HS256", "HS384", "HS512"} })
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range []struct {
		method jwt.SigningMethod
		key    crypto.Signer
	}{
		{jwt.SigningMethodRS256, rsaKey},
		{jwt.SigningMethodRS512, rsaKey},
		{jwt.SigningMethodPS256, rsaKey},
		{jwt.SigningMethodES256, ecKey},
		{jwt.SigningMethodEdDSA, edKey},
	} {
		token, err := jwt.NewWithClaims(pair.method, jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Hour).Unix()}).SignedString(pair.key)
		if err != nil {
			t.Fatal(err)
		}
		staysOut(t, l, pair.method.Alg(), token)
		der, err := x509.MarshalPKIXPublicKey(pair.key.Public())
		if err != nil {
			t.Fatal(err)
		}
		for _, public := range [][]byte{der, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
			for _, alg := range []string{"HS256", pair.method.Alg()} {
				staysOut(t, l, pair.method.Alg()+"'s public key as a secret", forge(`{"alg":"`+alg+`"}`, inForce("acme"), byHMAC(sha256.New, public)))
			}
		}
	}
}

// Each single byte of a token counts: whatever one of them becomes, or where one
// is missing or one too many, it proves nobody.
func TestAttackEveryByteOfAToken(t *testing.T) {
	l := attackLimiter(t, nil)
	token := forge(`{"alg":"HS256"}`, inForce("acme"), byHMAC(sha256.New, []byte(attackJWTKey)))
	getsIn(t, l, "the token", token, "acme")
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \t\n\x00\x7f\x80\xff,;\"%"
	for i := range token {
		for _, c := range []byte(alphabet) {
			if c != token[i] {
				staysOut(t, l, fmt.Sprintf("byte %d as %q", i, c), token[:i]+string([]byte{c})+token[i+1:])
			}
		}
		staysOut(t, l, fmt.Sprintf("without byte %d", i), token[:i]+token[i+1:])
		staysOut(t, l, fmt.Sprintf("cut at byte %d", i), token[:i])
		staysOut(t, l, fmt.Sprintf("byte %d twice", i), token[:i+1]+token[i:])
	}
}

// What one token says is never said of the next: not of one that lacks it, and
// not of one that is checked at the same time.
func TestAttackNoTokenSpeaksForAnother(t *testing.T) {
	l := attackLimiter(t, nil)
	ours := byHMAC(sha256.New, []byte(attackJWTKey))
	exp := time.Now().Add(time.Hour).Unix()
	lacking := []string{
		`{}`, `null`, `{"sub":"acme"}`, fmt.Sprintf(`{"exp":%d}`, exp), fmt.Sprintf(`{"sub":null,"exp":%d}`, exp), `{"sub":"acme","exp":null}`,
		fmt.Sprintf(`{"sub":"","exp":%d}`, exp), `{"sub":"acme","exp":1}`, fmt.Sprintf(`{"sub":"acme","exp":%d,"nbf":%d}`, exp, exp), fmt.Sprintf(`{"sub":["acme"],"exp":%d}`, exp),
	}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			tenant := fmt.Sprint("tenant-", g)
			good := forge(`{"alg":"HS256"}`, inForce(tenant), ours)
			for i := range 400 {
				getsIn(t, l, tenant, good, tenant)
				payload := lacking[i%len(lacking)]
				staysOut(t, l, payload, forge(`{"alg":"HS256"}`, payload, ours))
				staysOut(t, l, "an empty header", forge(`{}`, inForce(tenant), ours))
				staysOut(t, l, "another's signature", good[:strings.LastIndexByte(good, '.')+1]+b64(ours("x")))
			}
		})
	}
	all.Wait()
}

// anonymous is a visit of an anonymous client; cookies are Cookie headers.
func anonymous(t testing.TB, l *Limiter, peer string, cookies ...string) Decision {
	t.Helper()
	d, err := l.Check(context.Background(), Request{EndpointID: "login", Peer: peer, Cookies: cookies})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func sent(c *Cookie) string { return c.Name + "=" + c.Value }

// One cookie at many addresses, and many cookies at one address: each is
// counted, and so neither gains anything.
func TestAttackReplayedCookies(t *testing.T) {
	l := attackLimiter(t, nil) // 5 for each bucket, for ever
	cookie := sent(anonymous(t, l, "192.0.2.1").Cookie)
	admitted := 0
	for i := range 200 {
		if anonymous(t, l, fmt.Sprintf("198.51.100.%d", i), cookie).Allowed {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("one cookie at 200 addresses: %d admitted, want 5", admitted)
	}

	var harvest []string
	for range 200 {
		if d := anonymous(t, l, "192.0.2.2"); d.Cookie != nil {
			harvest = append(harvest, sent(d.Cookie))
		}
	}
	if len(harvest) != 5 {
		t.Errorf("an address that admits 5 gave %d cookies away", len(harvest))
	}
	admitted = 0
	for _, cookie := range harvest {
		for _, peer := range []string{"192.0.2.2", "192.0.2.3"} {
			for range 5 {
				if anonymous(t, l, peer, cookie).Allowed {
					admitted++
				}
			}
		}
	}
	if admitted != 5 { // all of them at the second address
		t.Errorf("harvested cookies are admitted %d times, want 5", admitted)
	}
}

// A cookie that somebody else has put there: one that is not ours changes
// nothing, one of the attacker's own has its visitor share a bucket, which may
// be empty, beside the address's, and gives nobody more.
func TestAttackPlantedCookies(t *testing.T) {
	l := attackLimiter(t, nil)
	own := sent(anonymous(t, l, "192.0.2.1").Cookie)
	ownHash := hashIdentity("anon:cookie:" + own[len("sentinel_anon_id="):][:clientIDChars])
	peer := 0
	for name, planted := range map[string][]string{ // five, as often as ours is admitted
		"before ours":       {"sentinel_anon_id=x; " + own},
		"in another header": {"sentinel_anon_id=" + strings.Repeat("a", 4000), own},
		"many":              {strings.Repeat("sentinel_anon_id=a.b.c; ", 1000) + own},
		"names like ours":   {"sentinel_anon_id2=x; xsentinel_anon_id=x; SENTINEL_ANON_ID=x; " + own},
		"control bytes":     {"sentinel_anon_id=\x00\r\n\x1b[2J; " + own},
	} {
		peer++
		if d := anonymous(t, l, fmt.Sprint("203.0.113.", peer), planted...); !d.Allowed || d.IdentityHash != ownHash || d.Cookie != nil {
			t.Errorf("%s: %+v", name, d)
		}
	}

	l = attackLimiter(t, nil)
	attackers := sent(anonymous(t, l, "192.0.2.66").Cookie)
	for range 10 { // four of them: its address has no more
		anonymous(t, l, "192.0.2.66", attackers)
	}
	visits := func(cookies ...string) (admitted int) {
		for range 10 {
			if anonymous(t, l, "198.51.100.1", cookies...).Allowed {
				admitted++
			}
		}
		return admitted
	}
	if n := visits(attackers); n != 1 {
		t.Errorf("with the attacker's cookie, which has one request left: %d admitted", n)
	}
	if n := visits(attackers + "; " + own); n != 0 {
		t.Errorf("with the attacker's cookie first: %d admitted", n)
	}
	if n := visits(); n != 4 {
		t.Errorf("without the cookie, at an address of which four are left: %d admitted", n)
	}
}

// Names that are easily taken for one another are identities of their own, each
// with a bucket of its own; nothing in a name reaches into another's key.
func TestAttackIdentityCollisions(t *testing.T) {
	page := bucketPolicy("a.b", Token, 0)
	page.Identity = Anonymous
	l := openMemory(t, memoryConfig(bucketPolicy("a", Token, 0), bucketPolicy("a.a", Token, 0), page))
	defer l.Close()
	names := []string{
		"acme", "Acme", "acme ", " acme", "acme.", "acme\x00", "acme\n", "acme:", "acme:a", "acme:a:1", "a:acme", ":a:1", "{acme}", "acme}", "acme*", "acme?",
		"\u00e9", "e\u0301", "\u212b", "\u00c5", "\u0430cme", "acme\u200b", "acme\ufeff", "anon:ip:192.0.2.1", "anon:ip:unknown", "anon:cookie:", "unknown",
		"192.0.2.1", "sentinel:v1:", hashIdentity("acme"), "sentinel:v1:" + hashIdentity("acme") + ":a:1", strings.Repeat("a", 1023), strings.Repeat("a", 1024),
		"sentinel:start-check", "a.a", "..", "../acme", "acme/../globex", "%61cme", "NULL", "0", "false",
	}
	seen := map[string]string{}
	for _, id := range []string{"a", "a.a"} {
		for _, name := range names {
			first, second := mustAllow(t, l, name, id), mustAllow(t, l, name, id)
			if !first.Allowed || second.Allowed || first.IdentityHash != hashIdentity(name) {
				t.Errorf("%q at %s: allowed %t, then %t", name, id, first.Allowed, second.Allowed)
			}
			key, _ := tenantKey(name, id, 1)
			if other, ok := seen[key]; ok {
				t.Errorf("%q at %s has the bucket of %s", name, id, other)
			}
			seen[key] = name + " at " + id
		}
	}
	// A tenant of that name has been here; the visitor has not.
	for _, peer := range []string{"192.0.2.1:99", "not an address"} {
		d, err := l.Check(t.Context(), Request{EndpointID: "a.b", Peer: peer})
		if err != nil || !d.Allowed {
			t.Errorf("peer %q: %+v, %v", peer, d, err)
		}
	}
}

// hostile are texts that would be noticed in a log, a label or a terminal.
func hostile(n int) string {
	texts := []string{
		"x\nlevel=ERROR msg=\"sentinel: circuit breaker open\"", "x\r\n\r\nHTTP/1.1 200 OK", "\x1b[2J\x1b[31mMARK\x1b[0m", `","level":"ERROR","x":"MARK`,
		"x\\nMARK", "\u2028MARK\u202e", "endpoint_id=MARK suppressed=99", `{endpoint_id="MARK"} 1` + "\n# TYPE MARK counter", "\x00MARK", "${jndi:ldap://MARK}", "<script>MARK</script>",
	}
	return fmt.Sprintf("%s MARK%d", texts[n%len(texts)], n)
}

// Nothing that a client sends becomes a line, a field or a label: each denial is
// one line, which a parser reads, with a hash where the client was.
func TestAttackLogInjection(t *testing.T) {
	for format, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler {
			return slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
		"json": func(b *bytes.Buffer) slog.Handler {
			return slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
	} {
		var log bytes.Buffer
		l := attackLimiter(t, func(c *Config) { c.Policies["jobs"] = bucketPolicy("jobs", Token, 0) },
			WithLogger(slog.New(handler(&log))), WithEveryDenialLogged())
		log.Reset()
		denied := assail(l, 300)
		lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
		if len(lines) != denied || denied < 300 {
			t.Errorf("%s: %d lines for %d denials", format, len(lines), denied)
		}
		for _, line := range lines {
			if strings.Contains(line, "MARK") || strings.ContainsAny(line, "\x00\x1b\r") || !strings.Contains(line, "sentinel: denied") {
				t.Fatalf("%s: %q", format, line)
			}
			if format == "json" && !json.Valid([]byte(line)) {
				t.Fatalf("no JSON: %q", line)
			}
		}
	}
}

// assail sends n requests of each kind with hostile texts in every place that
// a client writes, and returns how many of them were denied.
func assail(l *Limiter, n int) (denied int) {
	ours := byHMAC(sha256.New, []byte(attackJWTKey))
	count := func(d Decision, err error) {
		if err == nil && !d.Allowed {
			denied++
		}
	}
	for i := range n {
		bad := hostile(i)
		for range 2 {
			count(l.Allow(context.Background(), bad, "jobs"))
			payload, _ := json.Marshal(map[string]any{"sub": bad, "exp": time.Now().Add(time.Hour).Unix(), bad: bad})
			count(l.Check(context.Background(), Request{
				EndpointID: "jobs", Peer: bad, Cookies: []string{bad},
				Authorization: []string{"Bearer " + forge(`{"alg":"HS256"}`, string(payload), ours)},
			}))
		}
		count(l.Check(context.Background(), Request{EndpointID: "login", Peer: bad, Cookies: []string{"sentinel_anon_id=" + bad}, Authorization: []string{bad}}))
		count(l.Check(context.Background(), Request{EndpointID: bad, Authorization: []string{"Bearer " + bad}}))
		count(l.Check(context.Background(), Request{EndpointID: bad, Authorization: []string{"Bearer " + forge(`{"alg":"HS256"}`, inForce("acme"), ours)}}))
		count(l.Check(context.Background(), Request{EndpointID: "jobs", Authorization: []string{bad, bad}}))
	}
	return denied
}

// However many tenants, cookies, peers, tokens and endpoint ids come, the series
// are as many as endpoints and reasons make, and hold none of them.
func TestAttackMetricCardinality(t *testing.T) {
	registry := prometheus.NewRegistry()
	l := attackLimiter(t, func(c *Config) { c.Policies["jobs"] = bucketPolicy("jobs", Token, 0) }, WithRegisterer(registry))
	series := func() (n int) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
			if strings.Contains(f.String(), "MARK") {
				t.Fatalf("a client's text in %s", f)
			}
		}
		return n
	}
	assail(l, 11)
	before := series()
	assail(l, 2000)
	if after := series(); after != before || after > 2*2*reasons+len(authFailures)+8 {
		t.Errorf("%d series, and %d before", after, before)
	}
}

// No printable form of any type shows a secret, a credential or a client:
// nothing that an error page, a log line or a dump of a value might hold.
func TestAttackSecretsInEveryForm(t *testing.T) {
	const password = "redis-password-0123456789"
	cfg := memoryConfig(bucketPolicy("jobs", Token, 0))
	cfg.App.RedisURL = NewSecret("redis://user:" + password + "@127.0.0.1:1/0")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // does not wait for the Redis that is not there
	l, err := Open(ctx, cfg, WithLogger(silent))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	token := forge(`{"alg":"HS256"}`, inForce("raw-tenant"), byHMAC(sha256.New, []byte(attackJWTKey)))
	const visitor = "198.51.100.77"
	d := anonymous(t, attackLimiter(t, nil), visitor)
	request := Request{EndpointID: "jobs", Authorization: []string{"Bearer " + token}, Cookies: []string{sent(d.Cookie)}, Peer: visitor}
	_, refused := l.Check(t.Context(), Request{EndpointID: "jobs", Authorization: []string{"Bearer " + token + "x"}})
	decided, err := l.Check(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	bad := *cfg
	bad.App.RedisURL = NewSecret("redis://user:" + password + "@127.0.0.1:port/0")
	_, badURL := Open(t.Context(), &bad)
	_, badFile := ParseConfig([]byte(`{"app":{"redis_url":"redis://user:` + password + `@h","jwt_secret":"` + attackJWTKey + `","jwt_secret":"` + attackJWTKey + `"},"policies":{"` + password + `":7}}`))
	_, away := l.Peek(t.Context(), "raw-tenant", "jobs")
	l.Close() // fmt reads what a limiter at work writes
	values := map[string]any{
		"Secret": cfg.App.JWTSecret, "App": cfg.App, "Config": *cfg, "Policy": cfg.Policies["jobs"],
		"Request": request, "*Request": &request, "Cookie": *d.Cookie, "*Cookie": d.Cookie,
		"Decision": d, "decided": decided, "Limiter": l, "Status": l.Status(), "refused": refused, "bad URL": badURL, "away": away,
		"Option": WithLogger(silent), "context": NewContext(t.Context(), d),
	}
	if badFile == nil || badURL == nil || refused == nil || away == nil {
		t.Fatalf("%v, %v, %v, %v", badFile, badURL, refused, away)
	}
	secrets := []string{attackJWTKey, attackCookieKey, password, token, d.Cookie.Value, d.Cookie.Value[:clientIDChars], visitor, "raw-tenant"}
	for name, value := range values {
		for form, text := range everyForm(value) {
			if fmtAsksNobody(name, form) {
				continue
			}
			for _, secret := range secrets {
				bytes := []byte(secret)
				for _, shape := range []string{secret, fmt.Sprintf("%x", bytes), fmt.Sprintf("%X", bytes), fmt.Sprintf("% x", bytes), fmt.Sprintf("%d", bytes), base64.StdEncoding.EncodeToString(bytes)} {
					if strings.Contains(text, shape) {
						t.Errorf("%s as %s shows %q", name, form, secret)
					}
				}
			}
		}
	}
	// Names of fields and policies may be repeated, values may not.
	for form, text := range everyForm(badFile) {
		if strings.Contains(text, attackJWTKey) {
			t.Errorf("the error of a file as %s: %s", form, text)
		}
	}
}

// fmtAsksNobody reports whether fmt prints the value without asking it how: in an
// unexported field, and for %p, which is no verb for what is no pointer. A Secret
// withstands that, too; a Request and a Cookie have their texts in plain fields,
// so that there they are safe only behind a pointer, with a verb for pointers.
func fmtAsksNobody(name, form string) bool {
	hidden := strings.Contains(form, "hidden")
	switch name {
	case "Request", "Cookie":
		return hidden || strings.HasSuffix(form, "%p")
	case "*Request", "*Cookie", "Decision":
		return hidden && !strings.HasSuffix(form, "v") && !strings.HasSuffix(form, "d") && !strings.HasSuffix(form, "x")
	default:
		return false
	}
}

// everyForm is a value in all the forms in which it may be printed, alone and
// within other values.
func everyForm(value any) map[string]string {
	type exported struct{ X any }
	type unexported struct{ x any }
	forms := map[string]string{}
	for within, v := range map[string]any{
		"itself": value, "a pointer": &value, "a list": []any{value}, "a map": map[string]any{"x": value}, "a field": exported{value}, "a hidden field": unexported{value}, "a pointer to a hidden field": &unexported{value},
		"an error": fmt.Errorf("wrapped: %v", value), "two errors": errors.Join(errors.New("x"), fmt.Errorf("%+v", value)),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%c", "%U", "%e", "%t", "%p", "%T", "%10.3s", "%-40v", "%08.3f", "%!"} {
			forms[within+" by "+verb] = fmt.Sprintf(verb, v)
		}
		forms[within+" by Println"] = fmt.Sprintln(v)
		if text, err := json.MarshalIndent(v, "", " "); err == nil {
			forms[within+" in JSON"] = string(text)
		}
		var text, object bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).With("with", v).WithGroup("g").Info("m", "value", v, "args", []any{v})
		slog.New(slog.NewJSONHandler(&object, nil)).With("with", v).WithGroup("g").Info("m", "value", v, "args", []any{v})
		forms[within+" in a text log"], forms[within+" in a JSON log"] = text.String(), object.String()
		func() {
			defer func() { forms[within+" in a panic"] = fmt.Sprint(recover()) }()
			panic(v)
		}()
	}
	return forms
}

// heap is how much is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Many more identities than any table holds, each with the longest name that
// there may be: what the process keeps of them stops to grow.
func TestAttackMemoryIsBounded(t *testing.T) {
	name := strings.Repeat("x", maxTenantBytes-10)
	long := func(i int) string { return fmt.Sprintf("%s%010d", name, i) }
	for kind, change := range map[string]func(*Config){
		"memory://":                func(c *Config) { c.App.RedisURL = NewSecret("memory://?max_keys=2000") },
		"Redis is away, fail open": func(c *Config) { c.App.RedisURL = NewSecret("redis://127.0.0.1:1") },
	} {
		t.Run(kind, func(t *testing.T) {
			cfg := memoryConfig(bucketPolicy("jobs", Token, 0))
			p := cfg.Policies["jobs"]
			p.FailMode = FailOpen
			cfg.Policies["jobs"] = p
			change(cfg)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			l, err := Open(ctx, cfg, WithLogger(silent), WithRegisterer(prometheus.NewRegistry()))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			crowd := func(from, to int) {
				for i := from; i < to; i++ {
					mustAllow(t, l, long(i), "jobs")
				}
			}
			const enough = 5 * subjectSets * subjectWays / 2 // to fill the table of subjects, too
			crowd(0, enough)
			before := heap()
			crowd(enough, enough+30_000)
			if grown := heap() - before; grown > 4<<20 {
				t.Errorf("%d bytes more after 30,000 further identities", grown)
			}
			runtime.KeepAlive(l)
		})
	}
}

// A name that is a piece of something large, a request's body say, does not keep
// it in memory.
func TestAttackNamesHoldNothingElse(t *testing.T) {
	l := attackLimiter(t, nil)
	before := heap()
	const each, bodies = 64 << 10, 1000
	for i := range bodies {
		body := fmt.Sprintf("tenant-%06d", i) + strings.Repeat("x", each)
		mustAllow(t, l, body[:13], "jobs")
	}
	if grown := heap() - before; grown > bodies*each/4 {
		t.Errorf("%d bytes are kept of %d names of 13 bytes", grown, bodies)
	}
	runtime.KeepAlive(l)
}
