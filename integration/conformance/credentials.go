package conformance

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
	"time"
)

// bearer is the Authorization of a tenant whose token is valid for an hour.
func bearer(tenant string) string {
	return "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"sub":%q,"exp":%d}`, tenant, inOneHour()))
}

func inOneHour() int64 { return time.Now().Add(time.Hour).Unix() }

// token signs claims. Written by hand, so that what a library would refuse to
// sign can be sent, too.
func token(algorithm, secret, claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	signed := enc(fmt.Appendf(nil, `{"alg":%q,"typ":"JWT"}`, algorithm)) + "." + enc([]byte(claims))
	var sum func() hash.Hash
	switch algorithm {
	case "HS256":
		sum = sha256.New
	case "HS512":
		sum = sha512.New
	default: // "none" has no signature
		return signed + "."
	}
	mac := hmac.New(sum, []byte(secret))
	mac.Write([]byte(signed))
	return signed + "." + enc(mac.Sum(nil))
}

// cookieValue is an anonymous cookie's value as Sentinel signs it.
func cookieValue(secret, clientID string, exp int64) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "sentinel-anon:v1:%s:%d", clientID, exp)
	return clientID + "." + strconv.FormatInt(exp, 10) + "." + hex.EncodeToString(mac.Sum(nil))
}

// goodCookie is the valid cookie of a client, as a pair for the Cookie header.
func goodCookie(clientID string) string {
	return cookieName + "=" + cookieValue(cookieSecret, clientID, inOneHour())
}

// clientID is the n-th of many well-formed client ids.
func clientID(n int) string { return fmt.Sprintf("%032x", n) }

// hashOf is the hash under which an identity is counted.
func hashOf(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:])
}
