// Package limit is a quota for each client in this process's memory: `mode: local`.
//
// Buckets are those of core/bucket: whole microtokens, no lock for a client that is
// known, and a refusal writes nothing. Their time is the monotonic clock, so that a
// step of the wall clock changes nobody's quota.
package limit

import (
	"hash/maphash"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// Store holds the buckets of the clients of all routes, for as long as the process
// runs. It is safe for concurrent use.
//
// Its memory is bounded: a client takes about 150 bytes, and the store has as many
// as it was made for. Only buckets that are full are dropped. Where there is none,
// clients that are new share one bucket for each policy.
type Store struct {
	table *bucket.Table
	epoch time.Time

	mu       sync.Mutex
	quotas   map[string]*quota // of each id that there has been, the latest
	numbered uint32            // quotas so far
	seeds    [2]maphash.Seed   // of the values of headers
}

// quota is an id's numbers, and the number by which its clients' keys begin.
type quota struct {
	number         uint32
	capacity, rate int64
	key            KeySpec
	bucket         *bucket.Bucket
}

// NewStore returns a store of up to maxClients clients, at least 1; fewer are a
// programmer's mistake and panic.
func NewStore(maxClients int) *Store {
	if maxClients < 1 {
		panic("limit: NewStore expects at least 1 client")
	}
	return &Store{
		table:  bucket.NewTable(maxClients),
		epoch:  time.Now(),
		seeds:  [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		quotas: make(map[string]*quota),
	}
}

// Len returns how many clients the store knows.
func (s *Store) Len() int { return s.table.Len() }

// Overflowed returns how many requests so far found the store full, and shared a
// bucket.
func (s *Store) Overflowed() uint64 { return s.table.Overflowed() }

// now is the microseconds since the store was made.
func (s *Store) now() int64 { return time.Since(s.epoch).Microseconds() }

// Policy returns the quota of an id: capacity and rate are microtokens, and
// microtokens a second. They are 1 token and 1 microtoken at least, and
// [bucket.MaxExact] at most: other numbers are a programmer's mistake, for the
// file is checked before, and panic.
//
// An id that has the numbers that it had keeps its buckets. One that has others
// keeps the fraction that each of them misses: who had used up half of the old
// capacity has half of the new one. One that has another key begins anew.
//
// The store remembers each id that it was given, some 200 bytes.
func (s *Store) Policy(id string, capacity, rate int64, key KeySpec) *Policy {
	if rate < 1 {
		panic("limit: Policy expects a rate of at least 1 microtoken a second")
	}
	rule := bucket.NewTokenBucket(capacity, rate)
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.quotas[id]
	switch {
	case q == nil || q.key != key:
		s.numbered++
		q = &quota{number: s.numbered, bucket: bucket.New(rule)}
	case q.capacity != capacity || q.rate != rate:
		q = &quota{number: q.number, bucket: q.bucket.Successor(rule, s.now())}
	}
	q.capacity, q.rate, q.key = capacity, rate, key
	s.quotas[id] = q
	return newPolicy(s, id, q)
}

// Policy is a quota, as a [proxy.Limiter]. It is immutable, and safe for
// concurrent use.
type Policy struct {
	store   *Store
	number  uint32
	key     KeySpec
	bucket  *bucket.Bucket // the rule, and what those share who do not fit
	headers headers
}

var _ proxy.Limiter = (*Policy)(nil)

func newPolicy(s *Store, id string, q *quota) *Policy {
	return &Policy{store: s, number: q.number, key: q.key, bucket: q.bucket, headers: newHeaders(id, q.capacity, q.rate)}
}

// Allow implements [proxy.Limiter]. An allowed response has the headers RateLimit
// and RateLimit-Policy.
func (p *Policy) Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (bool, proxy.Reason) {
	var a bucket.Answer
	if p.Take(r, client, &a) {
		p.headers.set(w.Header(), &a)
		return true, proxy.OK
	}
	p.refuse(w, r, &a)
	return false, proxy.RateLimited
}

// Take takes a token of the client's, if there is one. What is left is in a.
func (p *Policy) Take(r *http.Request, client netip.Addr, a *bucket.Answer) bool {
	var room [maxKey]byte
	return p.store.table.Take(p.store.now(), p.appendKey(room[:0], r, client), p.bucket, a)
}
