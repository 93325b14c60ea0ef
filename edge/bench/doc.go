// Command bench shows the edge beside its peers, in one run.
//
// It starts a backend and, before it, every proxy that is there: nginx, HAProxy,
// Caddy, httputil.ReverseProxy, a bare handler on http.Transport, and sentinel with its own client and without.
// Each is a process of its own. Then it measures them in turn: each cell of a
// table is measured once in every round, in an order that rotates, so that a
// machine which slows down slows everybody down. What counts are the ratios within
// one round; printed is their median and, in parentheses, the least and the
// greatest. Load, proxy and backend share the machine, so that ratios are nearer
// to 1 than they would be apart; the proxy's own CPU time is not.
//
// From the root of the workspace:
//
//	go run ./edge/bench                                   short: does it run, is it right
//	go run ./edge/bench -full -o docs/edge-benchmarks.md  the tables
//
// A wrong answer ends it with status 1. A bar that is missed does not: it is
// printed, with what is missing. A peer that is not installed is named.
package main
