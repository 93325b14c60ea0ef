package main

import "fmt"

func goroutines(n int) string { return plural(n, "goroutine") }

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
