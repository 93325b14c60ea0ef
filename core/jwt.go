package sentinel

import (
	"cmp"
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds on a token, checked before anything is parsed or allocated for it, and
// on the tenant in it.
const (
	maxTokenBytes  = 8 << 10
	maxTenantBytes = 1 << 10
)

// authFailure is why a token was refused: a small, closed set, for a metric
// label. "" is no failure.
type authFailure string

const (
	authMissing     authFailure = "missing"       // no bearer token
	authMalformed   authFailure = "malformed"     // several headers, or no token by its form
	authTooLarge    authFailure = "too_large"     // over 8 KiB, never parsed
	authAlgorithm   authFailure = "algorithm"     // signed by us, but its header names another algorithm
	authKey         authFailure = "key"           // names no key of ours, or none that is for its algorithm
	authSignature   authFailure = "signature"     // not signed with a secret or key of ours
	authExpired     authFailure = "expired"       // exp has come
	authNotYetValid authFailure = "not_yet_valid" // nbf or iat is ahead
	authClaims      authFailure = "claims"        // a claim that must be there is missing or of the wrong form
	authIssuer      authFailure = "issuer"        // made by another than jwt_issuer
	authTenant      authFailure = "tenant"        // the application names nobody, or a name that is none
	authAudience    authFailure = "audience"      // made for others than jwt_audience
)

// authFailures are all values but "".
var authFailures = []authFailure{
	authMissing, authMalformed, authTooLarge, authAlgorithm, authKey, authSignature, authExpired, authNotYetValid, authClaims, authIssuer, authAudience, authTenant,
}

// jwtMethods are the algorithms with a secret that an allowlist may name.
var jwtMethods = map[string]*jwt.SigningMethodHMAC{
	"HS256": jwt.SigningMethodHS256,
	"HS384": jwt.SigningMethodHS384,
	"HS512": jwt.SigningMethodHS512,
}

// signer is an algorithm under one of our secrets.
type signer struct {
	method *jwt.SigningMethodHMAC
	mac    *keyedMAC
}

// tokenVerifier turns an Authorization header into a tenant. The zero value
// refuses every token. It keeps no state and is safe for concurrent use.
type tokenVerifier struct {
	usable bool
	desks  sync.Pool // of *tokenDesk
}

// tokenDesk is what one verification works with. Nothing on it counts for the
// next one; it is kept because to make it takes as long as to use it, most of
// all to key the hashes. It is not safe for concurrent use.
type tokenDesk struct {
	signers   []signer
	keys      *keyring
	signature []byte
	parser    *jwt.Parser
	claims    claims
	blank     claims // what claims begin as
	validator *jwt.Validator
	now       time.Time // the validator's
}

// newTokenVerifier takes a valid App with its defaults filled in.
func newTokenVerifier(app App, source KeySource) *tokenVerifier {
	v := &tokenVerifier{}
	secrets := app.JWTSecret.reveal() // none is empty, which is as good as any to HMAC
	var methods []*jwt.SigningMethodHMAC
	for _, name := range app.JWTAlgorithms {
		if method := jwtMethods[name]; method != nil {
			methods = append(methods, method)
		}
	}
	keys := newKeyring(app, source)
	v.usable = len(methods) > 0 && len(secrets) > 0 || len(keys.methods) > 0
	v.desks.New = func() any { return newTokenDesk(methods, secrets, keys, &app) }
	return v
}

func newTokenDesk(methods []*jwt.SigningMethodHMAC, secrets []string, keys *keyring, app *App) *tokenDesk {
	d := &tokenDesk{keys: keys, parser: jwt.NewParser(jwt.WithStrictDecoding())}
	for _, key := range secrets {
		for _, method := range methods {
			d.signers = append(d.signers, signer{method, newKeyedMAC(method.Hash.New, []byte(key))})
		}
	}
	d.blank = claims{
		tenantClaim: cmp.Or(app.JWTTenantClaim, defaultTenantClaim),
		planClaim:   app.JWTPlanClaim,
		reads:       app.JWTIssuer != "" || app.JWTAudience != "",
	}
	rules := []jwt.ParserOption{
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithTimeFunc(func() time.Time { return d.now }),
		jwt.WithLeeway(app.JWTLeeway), jwt.WithIssuer(app.JWTIssuer), // "" is any
	}
	if app.JWTAudience != "" {
		rules = append(rules, jwt.WithAudience(app.JWTAudience))
	}
	d.validator = jwt.NewValidator(rules...)
	return d
}

// verify returns the tenant that the values of the Authorization header prove,
// or why they prove none.
func (v *tokenVerifier) verify(authorization []string, now time.Time) (tenant string, failure authFailure) {
	tenant, _, failure = v.identify(authorization, now)
	return tenant, failure
}

// identify is verify with the plan that the token names, "" for none.
func (v *tokenVerifier) identify(authorization []string, now time.Time) (tenant, plan string, failure authFailure) {
	token, failure := bearerToken(authorization)
	switch {
	case failure != "":
		return "", "", failure
	case !v.usable:
		return "", "", authSignature
	}
	d := v.desks.Get().(*tokenDesk)
	tenant, failure = d.verify(token, now)
	if failure == "" {
		plan = d.claims.plan
	}
	v.desks.Put(d)
	return tenant, plan, failure
}

// verify does in another order what the library's Parser does at once: that
// parses header and claims before it looks at the signature, which would let a
// stranger choose what we parse. Here the signature is checked first, over the
// bare text, and nothing is parsed unless it holds: but for the short header,
// where only it can say which public key to take.
func (d *tokenDesk) verify(token string, now time.Time) (tenant string, failure authFailure) {
	by, failure := d.signedWith(token)
	if failure != "" {
		return "", failure
	}
	d.claims, d.now = d.blank, now
	parsed, _, err := d.parser.ParseUnverified(token, &d.claims)
	switch {
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return "", authAlgorithm // none that the library knows
	case err != nil:
		return "", authMalformed
	case parsed.Method.Alg() != by.Algorithm:
		return "", authAlgorithm
	case by.KeyID != "" && parsed.Header["kid"] != by.KeyID: // in another case, say
		return "", authMalformed
	case parsed.Header["crit"] != nil:
		return "", authMalformed // it demands what we do not know, RFC 7515, 4.1.11
	}
	return d.tenant()
}

// signedWith returns the allowed algorithm under which one of our secrets, on
// which the token's own word is not asked for, or one of our public keys has
// signed the token.
func (d *tokenDesk) signedWith(token string) (by tokenHeader, failure authFailure) {
	dot := strings.LastIndexByte(token, '.')
	if dot < 0 {
		return by, authMalformed
	}
	var err error
	d.signature, err = base64URL.AppendDecode(d.signature[:0], []byte(token[dot+1:]))
	if err != nil {
		return by, authMalformed
	}
	for _, s := range d.signers {
		s.mac.text = append(s.mac.text[:0], token[:dot]...)
		if hmac.Equal(d.signature, s.mac.sum()) {
			return tokenHeader{Algorithm: s.method.Name}, ""
		}
	}
	if len(d.keys.methods) > 0 {
		return d.keys.verifies(token, d.signature)
	}
	return by, authSignature
}

// base64URL is the encoding of tokens. Strict, or several texts are one token.
var base64URL = base64.RawURLEncoding.Strict()

// tenant returns the tenant that the claims name, whose signature holds, if they are in
// force.
func (d *tokenDesk) tenant() (string, authFailure) {
	err := d.validator.Validate(&d.claims)
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return "", authExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return "", authNotYetValid
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return "", authIssuer
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return "", authAudience
	case err != nil:
		return "", authClaims
	}
	tenant, err := d.claims.GetSubject()
	if err != nil || !nameable(tenant) {
		return "", authClaims
	}
	return tenant, ""
}

// nameable reports whether a text may be a tenant's name.
func nameable(tenant string) bool {
	return len(tenant) <= maxTenantBytes && !blank(tenant) &&
		// encoding/json mends a broken text to this rune, and so makes one
		// tenant of two.
		!strings.ContainsRune(tenant, utf8.RuneError)
}

// bearerToken returns the token of the one Authorization header.
func bearerToken(authorization []string) (token string, failure authFailure) {
	if len(authorization) != 1 {
		if len(authorization) == 0 {
			return "", authMissing
		}
		return "", authMalformed
	}
	scheme, token, _ := strings.Cut(strings.Trim(authorization[0], " \t"), " ")
	token = strings.TrimLeft(token, " ")
	switch {
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return "", authMissing
	case len(token) > maxTokenBytes:
		return "", authTooLarge
	}
	return token, ""
}
