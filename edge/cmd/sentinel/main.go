// Command sentinel is the edge's data plane.
package main

func main() {}
