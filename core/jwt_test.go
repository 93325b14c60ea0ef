package sentinel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var tokenNow = time.Unix(1_790_000_000, 500_000_000)

func testVerifier(algorithms ...string) *tokenVerifier {
	return newTokenVerifier(App{JWTSecret: NewSecrets(testJWTSecret), JWTAlgorithms: algorithms}, nil)
}

// signed is an HS256 token with these very texts as header and payload.
func signed(key, header, payload string) string {
	return signedText(key, base64.RawURLEncoding.EncodeToString([]byte(header))+"."+base64.RawURLEncoding.EncodeToString([]byte(payload)))
}

func signedText(key, text string) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func hs256(payload string) string {
	return signed(testJWTSecret, `{"alg":"HS256","typ":"JWT"}`, payload)
}

// As the library itself signs.
func TestVerifyAlgorithms(t *testing.T) {
	claims := jwt.MapClaims{"sub": "acme", "exp": tokenNow.Unix() + 60, "iat": tokenNow.Unix(), "nbf": tokenNow.Unix()}
	for name, method := range jwtMethods {
		token, err := jwt.NewWithClaims(method, claims).SignedString([]byte(testJWTSecret))
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range []string{"Bearer " + token, "bearer " + token, "BEARER   " + token, " Bearer " + token + " "} {
			if tenant, failure := testVerifier("HS256", "HS384", "HS512").verify([]string{header}, tokenNow); tenant != "acme" || failure != "" {
				t.Errorf("%s, %q: tenant %q, failure %q", name, header, tenant, failure)
			}
		}
		others := slices.DeleteFunc([]string{"HS256", "HS384", "HS512"}, func(other string) bool { return other == name })
		if tenant, failure := testVerifier(others...).verify([]string{"Bearer " + token}, tokenNow); tenant != "" || failure != authSignature {
			t.Errorf("%s, not in the allowlist: tenant %q, failure %q", name, tenant, failure)
		}
	}
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	if _, failure := testVerifier("HS256").verify([]string{"Bearer " + none}, tokenNow); failure != authSignature {
		t.Errorf("none: failure %q", failure)
	}
}

// Any of the secrets may have signed, and nothing else; the order changes nothing.
func TestVerifySecrets(t *testing.T) {
	const older, oldest = "jwt-secret-of-last-year-0123456789abcdef", "jwt-secret-of-before-0123456789abcdefgh"
	v := newTokenVerifier(App{JWTSecret: NewSecrets(testJWTSecret, older), JWTAlgorithms: []string{"HS256", "HS512"}}, nil)
	for key, want := range map[string]authFailure{testJWTSecret: "", older: "", oldest: authSignature, "": authSignature} {
		for _, method := range []*jwt.SigningMethodHMAC{jwt.SigningMethodHS256, jwt.SigningMethodHS512} {
			token, err := jwt.NewWithClaims(method, jwt.MapClaims{"sub": "acme", "exp": tokenNow.Unix() + 60}).SignedString([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			if _, failure := v.verify([]string{"Bearer " + token}, tokenNow); failure != want {
				t.Errorf("%s under %q: failure %q, want %q", method.Name, key, failure, want)
			}
		}
	}
	if _, failure := newTokenVerifier(App{JWTSecret: NewSecrets("", ""), JWTAlgorithms: []string{"HS256"}}, nil).verify(
		[]string{"Bearer " + signed("", `{"alg":"HS256"}`, `{"sub":"acme","exp":1790000060}`)}, tokenNow); failure != authSignature {
		t.Errorf("secrets that are unset: failure %q", failure)
	}
}

func TestVerifyFailures(t *testing.T) {
	good := hs256(`{"sub":"acme","exp":1790000060}`)
	dot := strings.LastIndexByte(good, '.')
	for name, c := range map[string]struct {
		authorization []string
		want          authFailure
	}{
		"no header":           {nil, authMissing},
		"empty header":        {[]string{""}, authMissing},
		"scheme alone":        {[]string{"Bearer"}, authMissing},
		"scheme and space":    {[]string{"Bearer   "}, authMissing},
		"other scheme":        {[]string{"Basic dTpw"}, authMissing},
		"token alone":         {[]string{good}, authMissing},
		"scheme cut":          {[]string{"Beare " + good}, authMissing},
		"two headers":         {[]string{"Bearer " + good, "Bearer " + good}, authMalformed},
		"two in one":          {[]string{"Bearer " + good + ", Bearer " + good}, authSignature},
		"no dots":             {[]string{"Bearer abc"}, authMalformed},
		"two parts":           {[]string{"Bearer " + good[:dot]}, authSignature},
		"four parts":          {[]string{"Bearer " + good + ".x"}, authMalformed},
		"dots alone":          {[]string{"Bearer .."}, authSignature},
		"padding":             {[]string{"Bearer " + good + "="}, authMalformed},
		"line end within":     {[]string{"Bearer " + good[:dot] + "\n" + good[dot:]}, authSignature},
		"header no JSON":      {[]string{"Bearer " + signed(testJWTSecret, `{`, `{}`)}, authMalformed},
		"header null":         {[]string{"Bearer " + signed(testJWTSecret, `null`, `{}`)}, authAlgorithm},
		"header a list":       {[]string{"Bearer " + signed(testJWTSecret, `[]`, `{}`)}, authMalformed},
		"no alg":              {[]string{"Bearer " + signed(testJWTSecret, `{"typ":"JWT"}`, `{}`)}, authAlgorithm},
		"alg in another case": {[]string{"Bearer " + signed(testJWTSecret, `{"ALG":"HS256"}`, `{}`)}, authAlgorithm},
		"alg a number":        {[]string{"Bearer " + signed(testJWTSecret, `{"alg":256}`, `{}`)}, authAlgorithm},
		"crit":                {[]string{"Bearer " + signed(testJWTSecret, `{"alg":"HS256","crit":["b64"],"b64":false}`, `{}`)}, authMalformed},
		"alg none":            {[]string{"Bearer " + signed(testJWTSecret, `{"alg":"none"}`, `{}`)}, authAlgorithm},
		"alg RS256":           {[]string{"Bearer " + signed(testJWTSecret, `{"alg":"RS256"}`, `{}`)}, authAlgorithm},
		"alg hs256":           {[]string{"Bearer " + signed(testJWTSecret, `{"alg":"hs256"}`, `{}`)}, authAlgorithm},
		"other key":           {[]string{"Bearer " + signed(testCookieSecret, `{"alg":"HS256"}`, `{"sub":"acme","exp":1790000060}`)}, authSignature},
		"empty key":           {[]string{"Bearer " + signed("", `{"alg":"HS256"}`, `{"sub":"acme","exp":1790000060}`)}, authSignature},
		"no signature":        {[]string{"Bearer " + good[:dot+1]}, authSignature},
		"signature cut":       {[]string{"Bearer " + good[:dot+1+20]}, authSignature},
		"no claims before the signature holds": {
			[]string{"Bearer " + signed(testCookieSecret, `{"alg":"HS256"}`, `no JSON`)},
			authSignature,
		},
		"too large":    {[]string{"Bearer " + strings.Repeat("a", maxTokenBytes+1)}, authTooLarge},
		"500,000 dots": {[]string{"Bearer " + strings.Repeat(".", 500_000)}, authTooLarge},
		"signed, sub of 700,000 characters": {
			[]string{"Bearer " + hs256(`{"exp":1790000060,"sub":"`+strings.Repeat("a", 700_000)+`"}`)},
			authTooLarge,
		},
		"signed, four parts": {[]string{"Bearer " + signedText(testJWTSecret, good[:dot]+".e30")}, authMalformed},
		"loose last bits":    {[]string{"Bearer " + good[:len(good)-1] + string(good[len(good)-1]+1)}, authMalformed},
	} {
		if tenant, failure := testVerifier("HS256").verify(c.authorization, tokenNow); tenant != "" || failure != c.want {
			t.Errorf("%s: tenant %q, failure %q, want %q", name, tenant, failure, c.want)
		}
	}
}

func TestVerifyClaims(t *testing.T) {
	longest := strings.Repeat("a", maxTenantBytes)
	for payload, want := range map[string]struct {
		tenant  string
		failure authFailure
	}{
		`{"sub":"acme","exp":1790000060}`:                       {"acme", ""},
		`{"sub":"acme","exp":1790000001}`:                       {"acme", ""},
		`{"sub":"acme","exp":1790000000}`:                       {"", authExpired},
		`{"sub":"acme","exp":1790000000.9}`:                     {"", authExpired}, // fractions do not count
		`{"sub":"acme","exp":0}`:                                {"", authClaims},
		`{"sub":"acme","exp":-1}`:                               {"", authExpired},
		`{"sub":"acme","exp":1.79000006e9}`:                     {"acme", ""},
		`{"sub":"acme","exp":9007199254740992}`:                 {"acme", ""},
		`{"sub":"acme","exp":9007199254740994}`:                 {"acme", ""},
		`{"sub":"acme","exp":1e400}`:                            {"", authMalformed},
		`{"sub":"acme","exp":"1790000060"}`:                     {"", authClaims},
		`{"sub":"acme","exp":null}`:                             {"", authClaims},
		`{"sub":"acme","exp":true}`:                             {"", authClaims},
		`{"sub":"acme"}`:                                        {"", authClaims},
		`{"sub":"acme","EXP":1790000060}`:                       {"", authClaims},
		`{"exp":1790000060}`:                                    {"", authClaims},
		`{"exp":1790000060,"SUB":"acme"}`:                       {"", authClaims},
		`{"exp":1790000060,"sub":"acme","SUB":"other"}`:         {"acme", ""},
		`{"exp":1790000060,"sub":"first","sub":"last"}`:         {"last", ""},
		`{"exp":1790000060,"sub":"first","\u0073ub":"last"}`:    {"last", ""},
		`{"exp":1790000060,"sub":"first","sub":null}`:           {"", authClaims},
		`{"exp":1790000060,"exp":1,"sub":"acme"}`:               {"", authExpired},
		`{"exp":1790000060,"x":{"sub":"inner"}}`:                {"", authClaims},
		`{"exp":1790000060,"sub":null}`:                         {"", authClaims},
		`{"exp":1790000060,"sub":7}`:                            {"", authClaims},
		`{"exp":1790000060,"sub":["acme"]}`:                     {"", authClaims},
		`{"exp":1790000060,"sub":""}`:                           {"", authClaims},
		`{"exp":1790000060,"sub":" \t\n\u00a0\u2003"}`:          {"", authClaims},
		`{"exp":1790000060,"sub":" spaced "}`:                   {" spaced ", ""},
		`{"exp":1790000060,"sub":"\u00fc\ud83d\ude00"}`:         {"ü😀", ""},
		`{"exp":1790000060,"sub":"\ud800"}`:                     {"", authClaims},
		"{\"exp\":1790000060,\"sub\":\"\xff\"}":                 {"", authClaims},
		`{"exp":1790000060,"sub":"` + longest + `"}`:            {longest, ""},
		`{"exp":1790000060,"sub":"` + longest + `a"}`:           {"", authClaims},
		`{"exp":1790000060,"sub":"acme","nbf":1790000000}`:      {"acme", ""},
		`{"exp":1790000060,"sub":"acme","nbf":1790000001}`:      {"", authNotYetValid},
		`{"exp":1790000060,"sub":"acme","iat":1790000000.9}`:    {"acme", ""},
		`{"exp":1790000060,"sub":"acme","iat":1790000001}`:      {"", authNotYetValid},
		`{"exp":1790000060,"sub":"acme","nbf":"1"}`:             {"", authClaims},
		`{"exp":1790000060,"sub":"acme","iat":null}`:            {"", authClaims},
		`{"exp":1790000060,"sub":"acme","aud":["a"],"x":[[1]]}`: {"acme", ""},
		``:                                   {"", authMalformed},
		`null`:                               {"", authClaims},
		`"acme"`:                             {"", authMalformed},
		`{"exp":1790000060,"sub":"acme"} {}`: {"", authMalformed},
	} {
		tenant, failure := testVerifier("HS256").verify([]string{"Bearer " + hs256(payload)}, tokenNow)
		if tenant != want.tenant || failure != want.failure {
			t.Errorf("%.80s: tenant %.20q, failure %q, want %.20q, %q", payload, tenant, failure, want.tenant, want.failure)
		}
	}
}

// Which claim is the tenant, and what iss and aud must be, is the configuration's.
func TestVerifyConfiguredClaims(t *testing.T) {
	const strict = `{"iss":"us","aud":["others","we"],"org":"acme","exp":1790000060}`
	app := App{JWTTenantClaim: "org", JWTIssuer: "us", JWTAudience: "we"}
	for _, c := range []struct {
		payload string
		app     App
		tenant  string
		failure authFailure
	}{
		{strict, app, "acme", ""},
		{`{"iss":"us","aud":"we","org":"acme","sub":"other","exp":1790000060}`, app, "acme", ""},
		{`{"iss":"us","aud":"we","org":"acme","exp":1790000060}`, App{}, "", authClaims}, // no sub
		{`{"iss":"us","aud":"we","sub":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","org":["acme"],"exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","org":7,"exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","org":" ","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","ORG":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","x":{"org":"acme"},"exp":1790000060}`, app, "", authClaims},
		{`{"iss":"US","aud":"we","org":"acme","exp":1790000060}`, app, "", authIssuer},
		{`{"iss":["us"],"aud":"we","org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"aud":"we","org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"they","org":"acme","exp":1790000060}`, app, "", authAudience},
		{`{"iss":"us","aud":["we",7],"org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":[["we"]],"org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":[],"org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","org":"acme","exp":1790000060}`, app, "", authClaims},
		{`{"iss":"us","aud":"we","aud":"they","org":"acme","exp":1790000060}`, app, "", authAudience},
		{`{"sub":"acme","exp":1789999970}`, App{JWTLeeway: 31 * time.Second}, "acme", ""},
		{`{"sub":"acme","exp":1789999970}`, App{JWTLeeway: 30 * time.Second}, "", authExpired},
		{`{"sub":"acme","exp":1790000060,"nbf":1790000031}`, App{JWTLeeway: 30 * time.Second}, "", authNotYetValid},
		{`{"sub":"acme","exp":1790000060,"nbf":1790000030,"iat":1790000030}`, App{JWTLeeway: 30 * time.Second}, "acme", ""},
		{`{"sub":"acme","exp":1790000060,"iat":1790000001}`, App{}, "", authNotYetValid},
	} {
		c.app.JWTSecret, c.app.JWTAlgorithms = NewSecrets(testJWTSecret), []string{"HS256"}
		tenant, failure := newTokenVerifier(c.app, nil).verify([]string{"Bearer " + hs256(c.payload)}, tokenNow)
		if tenant != c.tenant || failure != c.failure {
			t.Errorf("%s: tenant %q, failure %q, want %q, %q", c.payload, tenant, failure, c.tenant, c.failure)
		}
	}
}

// Our key under one allowed algorithm is no word for another one.
func TestVerifyAlgorithmOfTheHeader(t *testing.T) {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS512"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"acme","exp":1790000060}`))
	if tenant, failure := testVerifier("HS256", "HS512").verify([]string{"Bearer " + signedText(testJWTSecret, text)}, tokenNow); tenant != "" || failure != authAlgorithm {
		t.Errorf("tenant %q, failure %q", tenant, failure)
	}
}

// Verifications side by side, good and bad, share no part of a token.
func TestVerifyConcurrently(t *testing.T) {
	v := testVerifier("HS256", "HS384", "HS512")
	var group sync.WaitGroup
	for worker := range 8 {
		want := fmt.Sprint("tenant-", worker)
		good := []string{"Bearer " + hs256(`{"sub":"`+want+`","exp":1790000060}`)}
		late := []string{"Bearer " + hs256(`{"sub":"late","exp":1}`)}
		nobody := []string{"Bearer " + hs256(`{"exp":1790000060}`)}
		forged := []string{good[0][:len(good[0])-4] + "AAAA"}
		group.Go(func() {
			for range 500 {
				for _, c := range []struct {
					authorization []string
					tenant        string
					failure       authFailure
				}{{good, want, ""}, {late, "", authExpired}, {nobody, "", authClaims}, {forged, "", authSignature}} {
					if tenant, failure := v.verify(c.authorization, tokenNow); tenant != c.tenant || failure != c.failure {
						t.Errorf("tenant %q, failure %q, want %q, %q", tenant, failure, c.tenant, c.failure)
					}
				}
			}
		})
	}
	group.Wait()
}

// A verifier without a key, or without algorithms, refuses even a token that
// is signed with no key.
func TestVerifyWithoutKey(t *testing.T) {
	token := []string{"Bearer " + signed("", `{"alg":"HS256"}`, `{"sub":"acme","exp":1790000060}`)}
	if tenant, failure := newTokenVerifier(App{JWTAlgorithms: []string{"HS256"}}, nil).verify(token, tokenNow); tenant != "" || failure != authSignature {
		t.Errorf("no key: tenant %q, failure %q", tenant, failure)
	}
	if tenant, failure := new(tokenVerifier).verify(token, tokenNow); tenant != "" || failure != authSignature {
		t.Errorf("zero value: tenant %q, failure %q", tenant, failure)
	}
}

// A stranger cannot make a request cost more than 64 KiB of memory, also not
// with a token that is as large as we read.
func TestVerifyAllocation(t *testing.T) {
	const segment = 6000 // of payload, so that the token stays within its bound
	headers := map[string]string{
		"500,000 dots":        strings.Repeat(".", 500_000),
		"dots":                strings.Repeat(".", maxTokenBytes),
		"base64":              strings.Repeat("a", maxTokenBytes),
		"nested header":       signed("x", strings.Repeat(`[`, 1500), ``),
		"header of names":     signed("x", `{`+manyNames(200)+`"alg":"HS256"}`, ``),
		"header of objects":   signed("x", `{"x":`+strings.Repeat(`{"":`, 300)+`1`+strings.Repeat(`}`, 300)+`}`, ``),
		"nested payload":      signed("x", `{"alg":"HS256"}`, strings.Repeat(`[`, segment)),
		"payload of lists":    signed("x", `{"alg":"HS256"}`, `{"sub":[`+strings.Repeat(`[],`, segment/3)+`1]}`),
		"payload of names":    signed("x", `{"alg":"HS256"}`, `{`+manyNames(segment/10)+`"sub":"acme"}`),
		"signed, 700,000 sub": hs256(`{"exp":1790000060,"sub":"` + strings.Repeat("a", 700_000) + `"}`),
		"signature":           signed("x", `{"alg":"HS256"}`, `{}`) + strings.Repeat("a", 7000),
	}
	v := testVerifier("HS256")
	for name, token := range headers {
		authorization := []string{"Bearer " + token}
		const runs, workers = 20, 10
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var group sync.WaitGroup
		for range workers {
			group.Go(func() {
				for range runs {
					if tenant, failure := v.verify(authorization, tokenNow); tenant != "" || failure == "" {
						t.Errorf("%s: tenant %q", name, tenant)
					}
				}
			})
		}
		group.Wait()
		runtime.ReadMemStats(&after)
		each := (after.TotalAlloc - before.TotalAlloc) / (runs * workers)
		t.Logf("%s: %d bytes", name, each)
		if each > 64<<10 {
			t.Errorf("%s: %d bytes for each request", name, each)
		}
	}
}

func manyNames(n int) string {
	var names strings.Builder
	for i := range n {
		fmt.Fprintf(&names, `"%d":1,`, i)
	}
	return names.String()
}

// FuzzAuthorization: no header but one that holds the good token gets in, and
// every failure is one of the eight.
func FuzzAuthorization(f *testing.F) {
	good := hs256(`{"sub":"acme","exp":1790000060}`)
	for _, header := range []string{
		"Bearer " + good, "bearer  " + good, "Basic " + good, good, "", "Bearer ..", "Bearer " + good + ".", "Bearer a.b.c",
		"Bearer " + signed("", `{"alg":"none"}`, `{}`),
	} {
		f.Add(header)
	}
	v := testVerifier("HS256", "HS384", "HS512")
	f.Fuzz(func(t *testing.T, header string) {
		tenant, failure := v.verify([]string{header}, tokenNow)
		if failure == "" {
			if tenant != "acme" || !strings.HasSuffix(strings.TrimRight(header, " \t"), " "+good) {
				t.Errorf("%q gets in as %q", header, tenant)
			}
		} else if tenant != "" || !slices.Contains(authFailures, failure) {
			t.Errorf("%q: tenant %q, failure %q", header, tenant, failure)
		}
	})
}

// FuzzSignedToken: whatever our own secret signs, we take nothing that the
// library would refuse under the same rules.
func FuzzSignedToken(f *testing.F) {
	f.Add(`{"alg":"HS256","typ":"JWT"}`, `{"sub":"acme","exp":1790000060,"nbf":1,"iat":1.5e3}`)
	f.Add(`{"alg":"HS256","crit":[]}`, `{"sub":" ","exp":1e400}`)
	f.Add(`{}`, `null`)
	v := testVerifier("HS256")
	library := jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithExpirationRequired(), jwt.WithIssuedAt(),
		jwt.WithStrictDecoding(), jwt.WithTimeFunc(func() time.Time { return tokenNow }))
	f.Fuzz(func(t *testing.T, header, payload string) {
		token := signed(testJWTSecret, header, payload)
		tenant, failure := v.verify([]string{"Bearer " + token}, tokenNow)
		if failure != "" {
			if tenant != "" || !slices.Contains(authFailures, failure) {
				t.Errorf("tenant %q, failure %q", tenant, failure)
			}
			return
		}
		parsed, err := library.Parse(token, func(*jwt.Token) (any, error) { return []byte(testJWTSecret), nil })
		if err != nil && !errors.Is(err, jwt.ErrTokenUsedBeforeIssued) && !errors.Is(err, jwt.ErrTokenNotValidYet) {
			t.Fatalf("we say %q, the library %v", tenant, err) // the two above look at fractions
		}
		if err != nil {
			return
		}
		if subject, err := parsed.Claims.GetSubject(); err != nil || subject != tenant {
			t.Errorf("we say %q, the library %q, %v", tenant, subject, err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	v := testVerifier("HS256")
	authorization := []string{"Bearer " + hs256(`{"sub":"acme","exp":1790000060,"iat":1790000000}`)}
	b.ReportAllocs()
	for b.Loop() {
		if _, failure := v.verify(authorization, tokenNow); failure != "" {
			b.Fatal(failure)
		}
	}
}
