// Package conformance proves that an adapter of a web framework keeps
// Sentinel's promises: every status, header and body of a denial, the rules of
// the anonymous cookie, what is charged and what is not, and that a guard
// leaves alone what is not its own (streams, upgrades, panics, the headers of
// other middleware).
//
// Sentinel's own adapters pass it, and it is published for those that Sentinel
// does not have. An adapter costs one file: a function that builds an [App] in
// its framework.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Adapter{Name: "my framework", New: newServer}, "memory://")
//	}
//
// [Run] takes the store as a URL. memory:// needs nothing; with the URL of a
// Redis the same cases run on it. That Redis may be shared with other tests:
// every limiter counts under a policy version of its own, and nothing is
// flushed.
//
// The client's side is real: each case starts an HTTP server on the loopback
// interface, speaks to it through net/http or, where the bytes matter, through
// a socket. So whatever the framework does to a request and to a response is
// part of what is tested.
//
// The suite does not test the limiter. It opens one with [sentinel.Open] and
// takes its decisions for granted.
package conformance
