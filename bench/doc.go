// Command bench shows Sentinel beside its peers, in one run.
//
// It starts a Redis of its own, has every contestant prove that it admits what
// its quota says and no more, and then measures all of them in turn: each cell
// of a table is measured once in every round, in an order that rotates, so that
// a machine which slows down slows everybody down. What counts are the ratios
// within one round; printed is their median and, in parentheses, the least and
// the greatest.
//
// From the root of the workspace:
//
//	go run ./bench                              short: does it run, is it right
//	go run ./bench -full -o docs/benchmarks.md  the tables
//
// A wrong answer or a contestant that does not run ends it with status 1. A bar
// that is missed does not: it is printed, with what is missing.
package main
