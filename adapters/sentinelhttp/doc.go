// Package sentinelhttp guards net/http handlers with a [sentinel.Limiter].
//
// Put [Middleware] around the whole server once, and a [Guard] with the
// endpoint's id around each route:
//
//	mux := http.NewServeMux()
//	mux.Handle("POST /export", sentinelhttp.Guard("billing.export")(export))
//	http.ListenAndServe(addr, sentinelhttp.Middleware(limiter)(mux))
//
// A guarded handler runs only when the limiter said yes, and reads the decision
// with sentinel.FromContext(r.Context()). Its ResponseWriter is the server's
// own, never a wrapped one, so streams and upgrades work behind a guard. A
// denial is answered here, with one RFC 9457 problem document:
//
//	no or bad token                      401  WWW-Authenticate: Bearer
//	endpoint not configured              404
//	rate_limited, emergency_local_limit  429  Retry-After, if there is a time
//	the store failed, fail closed        503  Retry-After, if it is known
//
// A denial that the limiter decided has a Sentinel-Decision-Id, which is the
// decision_id of the log.
//
// The same id twice on one request, on a group and on a route of it for
// example, is decided and charged once. Two ids are two decisions in the order
// of the guards; the first stays charged if the second denies.
//
// The client's address, which counts at anonymous endpoints, is the socket's
// remote address. Forwarding headers are never read, because a client can write
// them too: behind a proxy, say with [WithTrustedPeer] which peer you trust.
//
// This package is also what the adapters for other frameworks are built on:
// [Attach] and [Gate] are for them, and no application needs either.
package sentinelhttp
