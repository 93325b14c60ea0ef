// Package node is a running data plane: it turns a configuration into a snapshot,
// listens, reloads and stops.
package node
