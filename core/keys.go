package sentinel

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// KeySource knows public keys that come and go, those of a JWKS say. Package
// sentineljwks has one. It is safe for concurrent use, and neither method may
// block: they are called while a request waits.
type KeySource interface {
	// PublicKeys returns the keys by their ids. The map is never changed.
	PublicKeys() map[string]crypto.PublicKey
	// Missing is told that a token names a key that PublicKeys has not. Anybody
	// can send such tokens, as many as they like.
	Missing()
}

// publicMethods are the algorithms with a key pair that an allowlist may name.
var publicMethods = map[string]jwt.SigningMethod{
	"RS256": jwt.SigningMethodRS256, "RS384": jwt.SigningMethodRS384, "RS512": jwt.SigningMethodRS512,
	"ES256": jwt.SigningMethodES256, "ES384": jwt.SigningMethodES384, "ES512": jwt.SigningMethodES512,
	"EdDSA": jwt.SigningMethodEdDSA,
}

// Bounds on keys. Below the smallest RSA key signatures can be forged, beyond
// the largest a forged token costs too much. RFC 7518, 3.3.
const (
	minRSABits = 2048
	maxRSABits = 8192
	maxKeys    = 64
	// maxHeaderChars bounds the header that is read before the signature holds.
	maxHeaderChars = 2 << 10
)

// algorithmsOf returns the algorithms that a key is for, none where it is no
// public key that we take. The key says what it may verify, never the token: so
// a public key is no secret of HMAC, and a curve is no other curve.
func algorithmsOf(key crypto.PublicKey) []string {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k != nil && k.N != nil && k.E > 1 && within(k.N.BitLen(), minRSABits, maxRSABits) {
			return []string{"RS256", "RS384", "RS512"}
		}
	case *ecdsa.PublicKey:
		switch {
		case k == nil:
		case k.Curve == elliptic.P256():
			return []string{"ES256"}
		case k.Curve == elliptic.P384():
			return []string{"ES384"}
		case k.Curve == elliptic.P521():
			return []string{"ES512"}
		}
	case ed25519.PublicKey:
		if len(k) == ed25519.PublicKeySize {
			return []string{"EdDSA"}
		}
	}
	return nil
}

// keyring is where a verifier looks for public keys. The zero value has none.
type keyring struct {
	methods map[string]jwt.SigningMethod // of the allowlist
	fixed   map[string]crypto.PublicKey
	source  KeySource // nil for none
}

func newKeyring(app App, source KeySource) *keyring {
	r := &keyring{methods: make(map[string]jwt.SigningMethod), fixed: app.JWTKeys, source: source}
	for _, name := range app.JWTAlgorithms {
		if method := publicMethods[name]; method != nil {
			r.methods[name] = method
		}
	}
	return r
}

// key returns the key of this id if it is for the algorithm. A token without an
// id is for the only key that is; where there are several, for none.
func (r *keyring) key(id, algorithm string) crypto.PublicKey {
	fits := func(key crypto.PublicKey) bool { return slices.Contains(algorithmsOf(key), algorithm) }
	var fetched map[string]crypto.PublicKey
	if r.source != nil {
		fetched = r.source.PublicKeys()
	}
	if id != "" {
		key, known := r.fixed[id]
		if !known {
			key, known = fetched[id]
		}
		if !known && r.source != nil {
			r.source.Missing()
		}
		if fits(key) {
			return key
		}
		return nil
	}
	var only crypto.PublicKey
	for _, keys := range []map[string]crypto.PublicKey{r.fixed, fetched} {
		for _, key := range keys {
			switch {
			case !fits(key):
			case only != nil:
				return nil
			default:
				only = key
			}
		}
	}
	return only
}

// tokenHeader is what says which key a token is to be verified with. It is no
// more than a question until the signature holds.
type tokenHeader struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
}

// verifies reports under which algorithm and key a public key of ours has
// signed the token, whose signature is given: one is tried, and no more.
func (r *keyring) verifies(token string, signature []byte) (tokenHeader, authFailure) {
	var h tokenHeader
	text, rest, _ := strings.Cut(token, ".")
	if len(text) > maxHeaderChars || strings.IndexByte(rest, '.') < 0 {
		return h, authMalformed
	}
	header, err := base64URL.DecodeString(text)
	if err != nil || json.Unmarshal(header, &h) != nil {
		return h, authMalformed
	}
	method := r.methods[h.Algorithm]
	if method == nil {
		return h, authSignature
	}
	key := r.key(h.KeyID, h.Algorithm)
	if key == nil {
		return h, authKey
	}
	if method.Verify(token[:strings.LastIndexByte(token, '.')], signature, key) != nil {
		return h, authSignature
	}
	return h, ""
}

// parsePublicKey reads a key in PEM, as openssl and most issuers write it, or
// the key of a certificate, whose dates say nothing about tokens.
func parsePublicKey(text string) (crypto.PublicKey, error) {
	block, rest := pem.Decode([]byte(text))
	switch {
	case block == nil:
		return nil, errors.New("is no PEM: -----BEGIN PUBLIC KEY-----")
	case strings.TrimSpace(string(rest)) != "":
		return nil, errors.New("has something behind its first PEM block; give each key its own id")
	case strings.Contains(block.Type, "PRIVATE"):
		return nil, errors.New("is a private key; give the public one, and replace this one if others can read it here")
	}
	var key crypto.PublicKey
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var certificate *x509.Certificate
		if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = certificate.PublicKey
		}
	default:
		return nil, errors.New("must be a PUBLIC KEY, an RSA PUBLIC KEY or a CERTIFICATE in PEM")
	}
	if err != nil {
		return nil, errors.New("is no key that can be read")
	}
	return key, nil
}
