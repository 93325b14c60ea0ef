// Package observe is what an operator sees: metrics, the access log, and the
// admin listener.
package observe
