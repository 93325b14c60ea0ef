package sentinel

import "errors"

// The errors that a caller may want to tell apart, with errors.Is. A Redis
// failure is not among those of Check and Allow: there it is a [Decision].
var (
	// ErrUnauthenticated: no valid bearer token, or a blank tenant (401).
	ErrUnauthenticated = errors.New("sentinel: authentication required")
	// ErrUnknownEndpoint: the configuration has no such endpoint (404).
	ErrUnknownEndpoint = errors.New("sentinel: unknown endpoint")
	// ErrAnonymousEndpoint: Allow, Peek or Reset was called for an endpoint
	// whose policy counts anonymous clients; use Check, which gets the cookie
	// and the peer.
	ErrAnonymousEndpoint = errors.New("sentinel: the endpoint is anonymous; use Check with the request's cookies and peer")
	// ErrStoreUnavailable: Peek or Reset got no answer from the store. Check
	// and Allow never return it.
	ErrStoreUnavailable = errors.New("sentinel: the store did not answer")
)
