package sentinel

import "fmt"

// Request is what a decision needs to know of an incoming request, framework
// and transport left behind. An adapter builds it; an application without HTTP
// calls [Limiter.Allow] instead. Nothing here is trusted: the limiter verifies
// the token and the cookie itself. The zero Request is an unauthenticated one
// for an unknown endpoint.
type Request struct {
	// EndpointID is the configured id of the endpoint, never a piece of a URL.
	EndpointID string
	// Authorization holds the values of the Authorization header. Anything but
	// exactly one value is no authentication. Like the two below it is left out
	// of JSON, and so of a log in JSON.
	Authorization []string `json:"-"`
	// Cookies holds the raw values of the Cookie header, each "a=1; b=2".
	Cookies []string `json:"-"`
	// Peer is the socket's remote address, "ip:port" or "ip", or the address
	// of a peer that the application trusts. It is never read from a header.
	Peer string `json:"-"`
	// Cost is as how many requests this one counts; 0 means 1. It is the
	// server's to say, where the route is, and never read from the request.
	Cost Cost
}

// Format prints the endpoint alone, whatever the verb: the other fields hold
// credentials and addresses, which belong into no log. fmt does not ask a
// value in an unexported field of another: print no struct that hides a Request.
func (r Request) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "sentinel.Request{EndpointID:%q, ...}", r.EndpointID)
}
