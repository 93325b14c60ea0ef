package sentinel

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// The two key spaces. A tenant can never meet an anonymous client in a bucket,
// not even where their raw identities are the same text.
const (
	tenantKeyPrefix    = "sentinel:v1:"
	anonymousKeyPrefix = "sentinel:v2:"
)

// tenantKey returns the key of a tenant's bucket,
// sentinel:v1:{hash}:{endpoint_id}:{policy_version}, and the hash in it. Both
// share one piece of memory.
func tenantKey(tenant, endpointID string, version int64) (key, hash string) {
	return bucketKey(tenantKeyPrefix, tenant, endpointID, version)
}

// anonymousKey is tenantKey for an identity that cookieIdentity or
// peerIdentity made, in the key space of the anonymous.
func anonymousKey(identity, endpointID string, version int64) (key, hash string) {
	return bucketKey(anonymousKeyPrefix, identity, endpointID, version)
}

// RedisKey returns the key of the bucket that an identity has at the policy's
// endpoint. The identity is the tenant; where the policy counts anonymous
// clients, anon:ip:ADDRESS or anon:cookie:CLIENT_ID.
func (p Policy) RedisKey(identity string) string {
	prefix := tenantKeyPrefix
	if p.Identity == Anonymous {
		prefix = anonymousKeyPrefix
	}
	key, _ := bucketKey(prefix, identity, p.EndpointID, p.Version)
	return key
}

// previousKey is RedisKey under the version that the policy carries over, "" if it
// carries none.
func (p Policy) previousKey(identity string) string {
	if p.CarryOver == 0 {
		return ""
	}
	p.Version = p.CarryOver
	return p.RedisKey(identity)
}

func bucketKey(prefix, identity, endpointID string, version int64) (key, hash string) {
	var room [192]byte // on the stack; most identities and most keys fit
	sum := sha256.Sum256(append(room[:0], identity...))
	b := append(room[:0], prefix...)
	b = hex.AppendEncode(b, sum[:])
	b = append(b, ':')
	b = append(b, endpointID...)
	b = append(b, ':')
	b = strconv.AppendInt(b, version, 10)
	key = string(b)
	return key, key[len(prefix) : len(prefix)+hex.EncodedLen(len(sum))]
}

// furtherKey returns the key of a further limit, the second or a later one:
// sentinel:{first}:{number}, where the braces around the first limit's key are
// written. No first key holds a brace, so it is the hash tag of this one: Redis
// Cluster keeps both in one slot, and a script may have them together. Nor can
// it be another bucket's key, for all others begin with sentinel:v.
func furtherKey(first string, number int) string {
	return "sentinel:{" + first + "}:" + strconv.Itoa(number)
}

// candidateKey returns the key of a candidate's limit, the first being 1:
// sentinel:{first}:c{number}, and b for a token bucket or w and the window's
// microseconds, where only the braces around the live key are written. So it is
// in the live key's slot, and is no further limit's. A candidate that counts in
// another way than before begins with fresh buckets, whatever its version.
func candidateKey(first string, number int, q Quota) string {
	key := "sentinel:{" + first + "}:c" + strconv.Itoa(number)
	if q.Algorithm == SlidingWindow {
		return key + "w" + strconv.FormatInt(q.Window.Microseconds(), 10)
	}
	return key + "b"
}

// hashIdentity returns the SHA-256 of a raw identity in lower-case hex, the
// only form of it that may leave the process.
func hashIdentity(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:])
}
