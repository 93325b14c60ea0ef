// Package edgetest has the tests of the whole: they start the edge and its backends
// as processes. The little that it exports is for the tests of the parts.
package edgetest
