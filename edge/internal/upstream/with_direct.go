//go:build !sentinel_transport

package upstream

// hasDirect is false in a program that is built with the tag sentinel_transport: it
// leaves all requests to http.Transport. It is for edge/bench, which measures both.
const hasDirect = true
