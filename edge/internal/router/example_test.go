package router_test

import (
	"fmt"

	"github.com/sentinelgo/sentinel/edge/internal/router"
)

func Example() {
	patterns := []router.Pattern{
		{Path: "/users/:id", Methods: []string{"GET", "PATCH"}},
		{Path: "/users/me"},
		{Path: "/files/*name"},
	}
	r, faults := router.New(patterns)
	for _, f := range faults {
		fmt.Println(f.Text)
	}

	var m router.Match // reused from one request to the next
	for _, path := range []string{"/users/me", "/users/a%2Fb", "/files/css/site.css", "/users"} {
		if r.Match("GET", path, &m) != router.Found {
			fmt.Println(path, "has no route")
			continue
		}
		fmt.Println(path, "goes to", patterns[m.Pattern].Path)
		m.Captures(func(name, value string) { fmt.Printf("  %s is %s\n", name, value) })
	}
	if r.Match("DELETE", "/users/7", &m) == router.MethodNotAllowed {
		fmt.Println("Allow:", m.Allow)
	}
	if r.Match("GET", "/files/..%2fsecret", &m) == router.BadPath {
		fmt.Println(m.Why)
	}
	// Output:
	// /users/me goes to /users/me
	// /users/a%2Fb goes to /users/:id
	//   id is a/b
	// /files/css/site.css goes to /files/*name
	//   name is css/site.css
	// /users has no route
	// Allow: GET, HEAD, PATCH
	// the path has a segment . or .., plain or encoded
}
