package sentinel

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// pairs are key pairs of every kind, made once; to make them takes a while.
var pairs = sync.OnceValue(func() map[string]crypto.Signer {
	must := func(key crypto.Signer, err error) crypto.Signer {
		if err != nil {
			panic(err)
		}
		return key
	}
	rsaPair := func(bits int) crypto.Signer {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		return must(key, err)
	}
	ec := func(curve elliptic.Curve) crypto.Signer {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		return must(key, err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	return map[string]crypto.Signer{
		"rsa": rsaPair(2048), "rsa2": rsaPair(2048), "p256": ec(elliptic.P256()), "p384": ec(elliptic.P384()), "p521": ec(elliptic.P521()),
		"ed": must(ed, err), "p224": ec(elliptic.P224()),
	}
})

// publicKeys are the public halves of the named pairs.
func publicKeys(names ...string) map[string]crypto.PublicKey {
	keys := make(map[string]crypto.PublicKey)
	for _, name := range names {
		keys[name] = pairs()[name].Public()
	}
	return keys
}

var allPublic = []string{"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA"}

// pairSigned is a token that a pair has signed with this header.
func pairSigned(t testing.TB, method jwt.SigningMethod, pair, header, payload string) string {
	t.Helper()
	return forge(header, payload, func(text string) []byte {
		signature, err := method.Sign(text, pairs()[pair])
		if err != nil {
			t.Fatal(err)
		}
		return signature
	})
}

func pemOf(t testing.TB, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// keyFor tells which pair an algorithm is for.
var keyFor = map[string]string{"RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed"}

// Signatures that others have made: RFC 7515, A.3, and RFC 8037, A.4.
func TestPublicKeyVectors(t *testing.T) {
	decode := func(text string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	point := slices.Concat([]byte{4}, decode("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"), decode("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"))
	p256, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]crypto.PublicKey{
		"ES256": p256,
		"EdDSA": ed25519.PublicKey(decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")),
	}
	for alg, token := range map[string]string{
		"ES256": "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ." +
			"DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
		"EdDSA": "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc." +
			"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
	} {
		r := newKeyring(App{JWTAlgorithms: allPublic, JWTKeys: keys}, nil)
		signature := decode(token[strings.LastIndexByte(token, '.')+1:])
		if h, failure := r.verifies(token, signature); failure != "" || h.Algorithm != alg {
			t.Errorf("%s: %+v, %q", alg, h, failure)
		}
		signature[5] ^= 1
		if _, failure := r.verifies(token, signature); failure != authSignature {
			t.Errorf("%s, one bit: %q", alg, failure)
		}
	}
}

// Every algorithm with every key, with and without an id: it counts where the
// key is for it and the allowlist names it.
func TestVerifyPublicKeys(t *testing.T) {
	for _, allowed := range append([][]string{allPublic}, []string{"RS256"}, []string{"ES384", "EdDSA"}) {
		v := newTokenVerifier(App{JWTAlgorithms: allowed, JWTKeys: publicKeys("rsa", "p256", "p384", "p521", "ed")}, nil)
		for alg, pair := range keyFor {
			for _, header := range []string{fmt.Sprintf(`{"alg":%q,"kid":%q}`, alg, pair), fmt.Sprintf(`{"typ":"JWT","alg":%q}`, alg)} {
				token := pairSigned(t, publicMethods[alg], pair, header, `{"sub":"acme","exp":1790000060}`)
				want := authSignature
				if slices.Contains(allowed, alg) {
					want = ""
				}
				tenant, failure := v.verify([]string{"Bearer " + token}, tokenNow)
				if failure != want || (tenant == "acme") != (want == "") {
					t.Errorf("%s of %v: tenant %q, failure %q, want %q", header, allowed, tenant, failure, want)
				}
			}
		}
	}
}

// fetched is a KeySource by hand.
type fetched struct {
	keys    atomic.Pointer[map[string]crypto.PublicKey]
	missing atomic.Int64
}

func (f *fetched) set(keys map[string]crypto.PublicKey)    { f.keys.Store(&keys) }
func (f *fetched) PublicKeys() map[string]crypto.PublicKey { return *f.keys.Load() }
func (f *fetched) Missing()                                { f.missing.Add(1) }

// Keys come and go while the limiter is at work; a key that is not there is
// asked for, and the request is refused.
func TestKeySource(t *testing.T) {
	source := &fetched{}
	source.set(nil)
	l := attackLimiter(t, func(c *Config) {
		c.App.JWTSecret, c.App.JWTAlgorithms, c.App.JWKSURL = nil, []string{"RS256", "ES256"}, "https://login.example.com/keys"
		c.App.JWTKeys = publicKeys("p256")
	}, WithKeys(source))
	token := pairSigned(t, jwt.SigningMethodRS256, "rsa", `{"alg":"RS256","kid":"rsa"}`, inForce("acme"))
	staysOut(t, l, "before the key is there", token)
	if n := source.missing.Load(); n != 1 {
		t.Errorf("the source was told %d times", n)
	}
	source.set(publicKeys("rsa", "rsa2"))
	getsIn(t, l, "with its key", token, "acme")
	getsIn(t, l, "the fixed key", pairSigned(t, jwt.SigningMethodES256, "p256", `{"alg":"ES256","kid":"p256"}`, inForce("acme")), "acme")
	staysOut(t, l, "no id, two keys", pairSigned(t, jwt.SigningMethodRS256, "rsa", `{"alg":"RS256"}`, inForce("acme")))
	source.set(publicKeys("rsa2"))
	staysOut(t, l, "after its key has gone", token)
	getsIn(t, l, "no id, one key", pairSigned(t, jwt.SigningMethodRS256, "rsa2", `{"alg":"RS256"}`, inForce("acme")), "acme")
	if n := source.missing.Load(); n != 2 {
		t.Errorf("the source was told %d times", n)
	}
}

func TestOptionsFitTheConfiguration(t *testing.T) {
	source := &fetched{}
	source.set(nil)
	vouch := WithTenant(func(context.Context) (string, error) { return "acme", nil })
	for name, c := range map[string]struct {
		app  func(*App)
		opts []Option
	}{
		"a URL that nobody fetches": {func(a *App) { a.JWTSecret, a.JWTAlgorithms, a.JWKSURL = nil, []string{"RS256"}, "https://h/k" }, nil},
		"keys without a URL":        {func(*App) {}, []Option{WithKeys(source)}},
		"a tenant, and tokens":      {func(*App) {}, []Option{vouch}},
	} {
		cfg := memoryConfig(bucketPolicy("jobs", Token, 0))
		c.app(&cfg.App)
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: the configuration alone: %v", name, err)
		}
		if l, err := Open(t.Context(), cfg, append(c.opts, WithLogger(silent))...); err == nil {
			l.Close()
			t.Errorf("%s: opens", name)
		}
	}
}

func TestParsePublicKey(t *testing.T) {
	rsaKey := pairs()["rsa"]
	private, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now()}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, rsaKey.Public(), rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	for _, good := range []string{
		pemOf(t, rsaKey.Public()), "\n" + pemOf(t, rsaKey.Public()) + "\n\n",
		block("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(rsaKey.Public().(*rsa.PublicKey))), block("CERTIFICATE", certificate),
	} {
		if key, err := parsePublicKey(good); err != nil || !rsaKey.Public().(*rsa.PublicKey).Equal(key) {
			t.Errorf("%s: %v, %v", good, key, err)
		}
	}
	for _, bad := range []string{
		"", "no PEM", block("PRIVATE KEY", private), block("PUBLIC KEY", private), block("PUBLIC KEY", nil), block("EC PARAMETERS", nil),
		pemOf(t, rsaKey.Public()) + pemOf(t, rsaKey.Public()), block("CERTIFICATE", certificate[1:]),
	} {
		if key, err := parsePublicKey(bad); err == nil {
			t.Errorf("%q is %v", bad, key)
		} else if strings.Contains(err.Error(), "MII") {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

func FuzzParsePublicKey(f *testing.F) {
	for _, key := range publicKeys("rsa", "p256", "ed", "p224") {
		f.Add(pemOf(f, key))
	}
	f.Add("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := parsePublicKey(text)
		if err == nil && key == nil {
			t.Error("neither key nor error")
		}
		algorithmsOf(key) // does not panic
	})
}

// Whatever the header says, without a signature of ours it ends in a refusal.
func FuzzTokenHeader(f *testing.F) {
	for _, header := range []string{`{"alg":"RS256","kid":"rsa"}`, `{"alg":"ES256"}`, `{"kid":7}`, `[]`, `null`, `{"alg":"RS256","kid":"rsa","kid":"p256"}`, `{"ALG":"EdDSA","KID":"ed"}`, ``} {
		f.Add(header, []byte("signature"))
	}
	v := newTokenVerifier(App{JWTAlgorithms: allPublic, JWTKeys: publicKeys("rsa", "p256", "ed")}, nil)
	f.Fuzz(func(t *testing.T, header string, signature []byte) {
		token := forge(header, `{"sub":"acme","exp":1790000060}`, func(string) []byte { return signature })
		if tenant, failure := v.verify([]string{"Bearer " + token}, tokenNow); tenant != "" || failure == "" {
			t.Errorf("%q: tenant %q", header, tenant)
		}
	})
}

// keyFile is a configuration with these members of app.
func keyFile(app string) []byte {
	return []byte(`{"app":{"redis_url":"memory://",` + app + `},"policies":{"a":{"endpoint_id":"a","algorithm":"sliding_window",
		"fail_mode":"fail_closed","fallback_per_second":1,"policy_version":1,"limit":1}}}`)
}

func TestKeysInTheFile(t *testing.T) {
	quoted := func(text string) string {
		b, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	path := filepath.Join(t.TempDir(), "ec.pem")
	if err := os.WriteFile(path, []byte(pemOf(t, pairs()["p256"].Public())), 0o600); err != nil {
		t.Fatal(err)
	}
	inline, p224 := quoted(pemOf(t, pairs()["rsa"].Public())), quoted(pemOf(t, pairs()["p224"].Public()))
	c, err := ParseConfig(keyFile(`"jwt_algorithm_allowlist":["RS256","ES256"],"jwt_keys":{"1":` + inline + `,"2":` + quoted(path) + `}`))
	if err != nil {
		t.Fatal(err)
	}
	if !pairs()["rsa"].Public().(*rsa.PublicKey).Equal(c.App.JWTKeys["1"]) || !pairs()["p256"].Public().(*ecdsa.PublicKey).Equal(c.App.JWTKeys["2"]) {
		t.Errorf("keys %v", c.App.JWTKeys)
	}
	const secret = `"jwt_secret":"` + testJWTSecret + `"`
	for want, app := range map[string]string{
		"":                   `"authentication":"application"`,
		"app.authentication": `"authentication":"oauth",` + secret,
		`app.jwt_secret: only where authentication is "jwt"; remove it`:                                                      `"authentication":"application",` + secret,
		`app.jwt_leeway: only where authentication is "jwt"; remove it`:                                                      `"authentication":"application","jwt_leeway":"0s"`,
		"app.jwt_secret: required; at least 32 bytes":                                                                        `"jwt_algorithm_allowlist":["RS256","HS256"],"jwt_keys":{"1":` + inline + `}`,
		"app.jwt_secret: no algorithm of jwt_algorithm_allowlist uses it; remove it, or add HS256":                           secret + `,"jwt_algorithm_allowlist":["RS256"],"jwt_keys":{"1":` + inline + `}`,
		"app.jwt_secret: is a key in PEM, and anybody may know a public one; put it into jwt_keys":                           `"jwt_secret":` + inline,
		`app.jwt_keys["1"]: no algorithm of jwt_algorithm_allowlist is for this key; add RS256`:                              secret + `,"jwt_keys":{"1":` + inline + `}`,
		`app.jwt_keys["1"]: must be a public key: RSA of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, or Ed25519`:      `"jwt_algorithm_allowlist":["ES256"],"jwt_keys":{"1":` + p224 + `}`,
		`app.jwt_keys["1"]: is written twice; keep one`:                                                                      `"jwt_algorithm_allowlist":["RS256"],"jwt_keys":{"1":` + inline + `,"1":` + inline + `}`,
		`app.jwt_keys[" "]: must be a key's id: the kid of its tokens`:                                                       `"jwt_algorithm_allowlist":["RS256"],"jwt_keys":{" ":` + inline + `}`,
		`app.jwt_keys["1"]: cannot be read: no such file or directory`:                                                       `"jwt_algorithm_allowlist":["RS256"],"jwt_keys":{"1":"no_such_file.pem"}`,
		`app.jwt_keys["1"]: must be a public key in PEM, or the path of its file, not a number`:                              `"jwt_algorithm_allowlist":["RS256"],"jwt_keys":{"1":1}`,
		"app.jwt_keys: must be an object from key id to a public key in PEM, or to its file, not a list":                     `"jwt_algorithm_allowlist":["RS256"],"jwt_keys":[]`,
		"app.jwt_algorithm_allowlist: names an algorithm with public keys, and there are none; add jwt_keys or jwt_jwks_url": `"jwt_algorithm_allowlist":["ES256"]`,
		"app.jwt_jwks_url: no algorithm of jwt_algorithm_allowlist uses it; add RS256, or what its keys are for":             secret + `,"jwt_jwks_url":"https://h/k"`,
		"app.jwt_jwks_url: must be https://: whoever can change the answer can sign for everybody; http:// is for localhost": `"jwt_algorithm_allowlist":["ES256"],"jwt_jwks_url":"http://login.example.com/keys"`,
		"app.jwt_jwks_url: must hold no credentials: public keys need none":                                                  `"jwt_algorithm_allowlist":["ES256"],"jwt_jwks_url":"https://a:b@login.example.com/keys"`,
		"app.jwt_jwks_url: must be a URL: https://HOST/PATH":                                                                 `"jwt_algorithm_allowlist":["ES256"],"jwt_jwks_url":"keys.json"`,
	} {
		_, err := ParseConfig(keyFile(app))
		switch {
		case want == "" && err != nil, want != "" && err == nil:
			t.Errorf("%s: error %v", app, err)
		case want != "" && err.Error() != want && !strings.HasPrefix(err.Error(), want+": must be"):
			t.Errorf("error %v\nwant  %s", err, want)
		}
	}
}

// What a key pair has signed counts under that key, its kind of algorithm and
// the allowlist, all three; a public key is never a secret.
func TestAttackConfusionOfPublicKeys(t *testing.T) {
	l := attackLimiter(t, func(c *Config) {
		c.App.JWTKeys = publicKeys("rsa", "p256", "ed")
		c.App.JWTAlgorithms = []string{"HS256", "HS384", "HS512", "RS256", "ES256", "EdDSA"}
	})
	hashes := map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}
	for id, key := range publicKeys("rsa", "p256", "ed") {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		text := pemOf(t, key)
		materials := [][]byte{der, []byte(text), []byte(strings.TrimSpace(text)), []byte(id), {}}
		switch k := key.(type) {
		case *rsa.PublicKey:
			materials = append(materials, k.N.Bytes(), x509.MarshalPKCS1PublicKey(k))
		case *ecdsa.PublicKey:
			point, err := k.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			materials = append(materials, point)
		case ed25519.PublicKey:
			materials = append(materials, k)
		}
		for i, material := range materials {
			for alg, newHash := range hashes {
				for _, named := range []string{alg, "RS256", "ES256", "EdDSA", "none"} {
					header := fmt.Sprintf(`{"alg":%q,"kid":%q}`, named, id)
					staysOut(t, l, fmt.Sprintf("%s with material %d of %s", header, i, id), forge(header, inForce("acme"), byHMAC(newHash, material)))
				}
			}
		}
	}
	// Another key's id, another algorithm's name, another's key.
	for made, pair := range keyFor {
		for _, named := range []string{"RS256", "RS384", "ES256", "ES384", "EdDSA", "HS256", "PS256", "none"} {
			for _, id := range []string{"rsa", "p256", "ed", "", "RSA", "nobody", "../rsa"} {
				header := fmt.Sprintf(`{"alg":%q,"kid":%q}`, named, id)
				token := pairSigned(t, publicMethods[made], pair, header, inForce("acme"))
				if named == made && (id == pair || id == "") && slices.Contains([]string{"RS256", "ES256", "EdDSA"}, made) {
					getsIn(t, l, header, token, "acme")
				} else {
					staysOut(t, l, header+" by "+pair+" with "+made, token)
				}
			}
		}
	}
	for name, token := range map[string]string{
		"a pair of his own":     pairSigned(t, jwt.SigningMethodRS256, "rsa2", `{"alg":"RS256","kid":"rsa"}`, inForce("acme")),
		"its own jwk":           pairSigned(t, jwt.SigningMethodRS256, "rsa2", `{"alg":"RS256","jwk":{"kty":"RSA","n":"`+b64(pairs()["rsa2"].Public().(*rsa.PublicKey).N.Bytes())+`","e":"AQAB"}}`, inForce("acme")),
		"its own jku":           pairSigned(t, jwt.SigningMethodRS256, "rsa2", `{"alg":"RS256","kid":"x","jku":"http://127.0.0.1:1/"}`, inForce("acme")),
		"PSS":                   pairSigned(t, jwt.SigningMethodPS256, "rsa", `{"alg":"PS256","kid":"rsa"}`, inForce("acme")),
		"PSS named PKCS1":       pairSigned(t, jwt.SigningMethodPS256, "rsa", `{"alg":"RS256","kid":"rsa"}`, inForce("acme")),
		"crit":                  pairSigned(t, jwt.SigningMethodES256, "p256", `{"alg":"ES256","kid":"p256","crit":["exp"]}`, inForce("acme")),
		"names in another case": pairSigned(t, jwt.SigningMethodES256, "p256", `{"ALG":"ES256","KID":"p256"}`, inForce("acme")),
		"kid in another case":   pairSigned(t, jwt.SigningMethodES256, "p256", `{"alg":"ES256","Kid":"p256"}`, inForce("acme")),
		"kid of another type":   pairSigned(t, jwt.SigningMethodES256, "p256", `{"alg":"ES256","kid":["p256"]}`, inForce("acme")),
		"a header beyond 2 KiB": pairSigned(t, jwt.SigningMethodES256, "p256", `{"alg":"ES256","kid":"p256","x":"`+strings.Repeat("x", maxHeaderChars)+`"}`, inForce("acme")),
		"zeros for r and s":     forge(`{"alg":"ES256","kid":"p256"}`, inForce("acme"), func(string) []byte { return make([]byte, 64) }),
		"the order for r and s": forge(`{"alg":"ES256","kid":"p256"}`, inForce("acme"), func(string) []byte { n := elliptic.P256().Params().N.Bytes(); return append(n, n...) }),
		"no signature":          forge(`{"alg":"ES256","kid":"p256"}`, inForce("acme"), func(string) []byte { return nil }),
		"a signature in ASN.1":  forge(`{"alg":"ES256","kid":"p256"}`, inForce("acme"), asn1Signature(t)),
		"zeros for an EdDSA":    forge(`{"alg":"EdDSA","kid":"ed"}`, inForce("acme"), func(string) []byte { return make([]byte, 64) }),
		"zeros for an RSA":      forge(`{"alg":"RS256","kid":"rsa"}`, inForce("acme"), func(string) []byte { return make([]byte, 256) }),
		"the text as its RSA":   forge(`{"alg":"RS256","kid":"rsa"}`, inForce("acme"), func(text string) []byte { return []byte(text) }),
	} {
		staysOut(t, l, name, token)
	}
	getsIn(t, l, "the secret", forge(`{"alg":"HS256","kid":"rsa"}`, inForce("acme"), byHMAC(sha256.New, []byte(attackJWTKey))), "acme")
}

func asn1Signature(t *testing.T) func(string) []byte {
	return func(text string) []byte {
		sum := sha256.Sum256([]byte(text))
		signature, err := pairs()["p256"].Sign(rand.Reader, sum[:], crypto.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
}

// A source of keys can be led to hold what is none: it opens nothing.
func TestAttackKeysThatAreNone(t *testing.T) {
	source := &fetched{}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 No parser gives such a point.
	offCurve := &ecdsa.PublicKey{Curve: elliptic.P256(), X: big.NewInt(1), Y: big.NewInt(1)} //nolint:staticcheck // the same, for golangci-lint
	source.set(map[string]crypto.PublicKey{
		"oct": []byte("secret-of-a-jwks-0123456789abcdef"), "text": "secret", "nil": nil, "rsa nil": (*rsa.PublicKey)(nil), "ec nil": (*ecdsa.PublicKey)(nil),
		"rsa empty": &rsa.PublicKey{}, "ec empty": &ecdsa.PublicKey{}, "ed short": ed25519.PublicKey("short"), "weak": short.Public(),
		"private": pairs()["rsa"], "p224": pairs()["p224"].Public(), "point": offCurve,
	})
	l := attackLimiter(t, func(c *Config) {
		c.App.JWTSecret, c.App.JWTAlgorithms, c.App.JWKSURL = nil, allPublic, "https://login.example.com/keys"
	}, WithKeys(source))
	for id := range source.PublicKeys() {
		for _, alg := range append([]string{"HS256", "none"}, allPublic...) {
			header := fmt.Sprintf(`{"alg":%q,"kid":%q}`, alg, id)
			for _, key := range []string{"secret-of-a-jwks-0123456789abcdef", "secret", "short", ""} {
				staysOut(t, l, header, forge(header, inForce("acme"), byHMAC(sha256.New, []byte(key))))
			}
			if method := publicMethods[alg]; method != nil {
				staysOut(t, l, header, pairSigned(t, method, keyFor[alg], header, inForce("acme")))
			}
		}
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Hour).Unix()}).SignedString(short)
	if err != nil {
		t.Fatal(err)
	}
	staysOut(t, l, "a key of 1024 bits", token)
}

// The application's word on the tenant is all that counts, and it must be a name.
func TestWithTenant(t *testing.T) {
	type userKey struct{}
	failed := errors.New("acme-secret-reason")
	open := func(opts ...Option) *Limiter {
		return attackLimiter(t, func(c *Config) { c.App.Authentication, c.App.JWTSecret = ByApplication, nil }, opts...)
	}
	l := open(WithTenant(func(ctx context.Context) (string, error) {
		user, ok := ctx.Value(userKey{}).(string)
		if !ok {
			return "acme", failed // the error counts
		}
		return user, nil
	}))
	token := forge(`{"alg":"HS256"}`, inForce("mallory"), byHMAC(sha256.New, []byte(attackJWTKey)))
	check := func(l *Limiter, ctx context.Context) (Decision, error) {
		return l.Check(ctx, Request{EndpointID: "jobs", Authorization: []string{"Bearer " + token}})
	}
	for _, tenant := range []string{"acme", "über", strings.Repeat("a", maxTenantBytes), " padded "} {
		d, err := check(l, context.WithValue(t.Context(), userKey{}, tenant))
		if err != nil || !d.Allowed || d.IdentityHash != hashIdentity(tenant) {
			t.Errorf("%.20q: %+v, %v", tenant, d, err)
		}
	}
	for _, tenant := range []any{"", " ", "\t\n", "\xff", "a\uFFFDb", strings.Repeat("a", maxTenantBytes+1), 7} {
		if d, err := check(l, context.WithValue(t.Context(), userKey{}, tenant)); !errors.Is(err, ErrUnauthenticated) || d != (Decision{}) {
			t.Errorf("%.20q: %+v, %v", tenant, d, err)
		} else if strings.Contains(err.Error(), failed.Error()) {
			t.Errorf("the application's error is passed on: %v", err)
		}
	}
	// Where the application names nobody at all, no token does instead.
	if d, err := check(open(), t.Context()); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("without WithTenant: %+v, %v", d, err)
	}
	if d, err := open().Allow(t.Context(), "acme", "jobs"); err != nil || !d.Allowed {
		t.Errorf("Allow: %+v, %v", d, err)
	}
	if _, err := l.Check(context.WithValue(t.Context(), userKey{}, "acme"), Request{EndpointID: "unknown"}); !errors.Is(err, ErrUnknownEndpoint) {
		t.Errorf("unknown endpoint: %v", err)
	}
	if _, err := l.Check(t.Context(), Request{EndpointID: "unknown"}); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("unknown endpoint, a stranger: %v", err)
	}
}
