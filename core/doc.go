// Package sentinel holds every tenant of an API to a quota per endpoint, across
// all instances of a service, through one Redis. It knows nothing of HTTP: the
// adapters (sentinelhttp, sentinelgin, sentinelecho, sentinelchi) guard routes
// with it, and a program without routes calls [Limiter.Allow].
//
//	cfg, err := sentinel.LoadConfig("sentinel.json")
//	...
//	limiter, err := sentinel.Open(ctx, cfg)
//	...
//	defer limiter.Close()
//
//	d, err := limiter.Allow(ctx, "acme", "jobs.ocr")
//	switch {
//	case err != nil: // a blank tenant, an unknown endpoint, or ctx has ended
//	case d.Allowed: // do the work
//	default: // d.Reason says why, d.RetryAfter for how long
//	}
//
// # Quotas
//
// A [Policy] gives one endpoint its quota: a token bucket (bursts up to a
// capacity, a steady rate after) or a sliding window (a number of requests per
// window), counted in whole numbers, exactly. Each decision is one run of one
// script on Redis, on the clock of Redis: concurrent instances cannot overspend
// together, and their own clocks do not matter. A denial writes nothing, so a
// client that hammers does not postpone its own recovery.
//
// # Who is counted
//
// A tenant is the sub claim of a verified bearer token and nothing else; an
// anonymous client is a signed cookie and the socket's peer together. No
// forwarding header is ever read. See [Request].
//
// # When Redis is away
//
// [Limiter.Check] and [Limiter.Allow] return within the budget (20 ms unless
// configured) whatever Redis does, and never return a Redis error: a failure is
// a [Decision]. An endpoint that fails closed denies; one that fails open
// admits, under an emergency bucket in this process. After five failed calls in
// a row a circuit breaker spares Redis, and everybody's time, for 30 s, then
// lets one call probe.
//
// # Without a Redis
//
// redis_url "memory://" keeps the same quotas in this process alone, for tests
// and for a service that has one instance. It must be written, never assumed.
//
// # What this is not for
//
// It does not shape traffic or queue requests, it does not stop a flood that
// saturates the network or the TLS handshake, and its quotas are as durable as
// the Redis that holds them: a flush is a refill.
package sentinel
