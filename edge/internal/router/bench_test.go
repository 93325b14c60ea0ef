package router

import (
	"fmt"
	"testing"
)

// service is routes as a small service has them.
var service = paths(
	"/", "/users", "/users/:id", "/users/:id/posts", "/users/:id/posts/:post", "/users/me", "/videos/:id", "/files/*",
	"/healthz", "/readyz", "/login", "/logout", "/api/v1/orders", "/api/v1/orders/:order", "/api/v1/orders/:order/items/:item",
)

func benchmark(b *testing.B, patterns []Pattern, path string, want Outcome) {
	b.Helper()
	r := mustNew(b, patterns...)
	var m Match
	if got := r.Match("GET", path, &m); got != want {
		b.Fatalf("outcome %d, want %d", got, want)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Match("GET", path, &m)
	}
}

// A path without parameters is found in a hash table; the tree is not asked.
func BenchmarkStaticByHash(b *testing.B) { benchmark(b, service, "/api/v1/orders", Found) }

// The same path through the tree, which is what an escape in it costs.
func BenchmarkStaticByTree(b *testing.B) { benchmark(b, service, "/api/v1/order%73", Found) }

func BenchmarkOneParameter(b *testing.B) { benchmark(b, service, "/users/1234567", Found) }

func BenchmarkTwoParameters(b *testing.B) { benchmark(b, service, "/users/1234567/posts/42", Found) }

func BenchmarkRest(b *testing.B) { benchmark(b, service, "/files/css/site.min.css", Found) }

func BenchmarkEscapedParameter(b *testing.B) { benchmark(b, service, "/users/a%2Fb%20c", Found) }

func BenchmarkNotFound(b *testing.B) { benchmark(b, service, "/api/v2/orders/17", NotFound) }

func BenchmarkBacktracking(b *testing.B) {
	benchmark(b, paths("/a/b/c/d/e", "/a/b/c/:p/f", "/a/:p/c/d/g", "/:p/b/c/d/h"), "/a/b/c/d/h", Found)
}

// services are so many routes, half of them with a parameter.
func services(routes int) (patterns []Pattern) {
	for i := range routes / 2 {
		patterns = append(patterns, paths(fmt.Sprintf("/service-%d/v1/things", i), fmt.Sprintf("/service-%d/v1/things/:id", i))...)
	}
	return patterns
}

func BenchmarkOneParameterOfTwoThousandRoutes(b *testing.B) {
	benchmark(b, services(2000), "/service-777/v1/things/1234567", Found)
}

func BenchmarkOneParameterOfTenThousandRoutes(b *testing.B) {
	benchmark(b, services(10_000), "/service-4777/v1/things/1234567", Found)
}

func BenchmarkStaticOfTenThousandRoutes(b *testing.B) {
	benchmark(b, services(10_000), "/service-4777/v1/things", Found)
}
