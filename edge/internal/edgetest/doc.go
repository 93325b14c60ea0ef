// Package edgetest starts the edge and its backends as processes. It has only
// tests: those of the whole.
package edgetest
