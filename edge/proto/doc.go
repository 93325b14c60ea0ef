// Package proto is what nodes and the control plane say to each other. All of it
// but this file is generated from control.proto: see `make proto`.
package proto
