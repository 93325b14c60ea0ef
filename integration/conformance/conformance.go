package conformance

import (
	"net/http"
	"testing"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// Adapter is the thing under test. Name and New are required.
type Adapter struct {
	// Name is what the tests are called after.
	Name string
	// New builds app in the adapter's framework. It is called anew for each
	// case, also by several cases at once. It panics where the adapter does:
	// with a nil limiter, and with an endpoint id that is none.
	New func(l *sentinel.Limiter, app App) http.Handler
	// Errors says that handlers of the framework can fail, and that it has a
	// place where an application handles that: see [App].OnError and
	// [Route].Err. Without it the cases that need both do not exist.
	Errors bool
}

// App is a server to be built. The zero App has no route; of its functions,
// those that are nil are left out. Every function takes the request and the
// response in the form that the framework hands to net/http handlers, at the
// place where it is called.
//
// From the outside in, the layers are: Recovery, OnError, Before, Sentinel's
// Middleware, and the routes.
type App struct {
	// Recovery asks for the framework's own middleware that turns a panic into
	// a 500.
	Recovery bool
	// OnError handles the errors of handlers, as an application would that
	// never heard of a response that was sent already: it writes, whatever
	// happened before. It is only set where Adapter.Errors is.
	OnError func(http.ResponseWriter, *http.Request, error)
	// Before runs in a middleware of the framework that then goes on.
	Before http.HandlerFunc

	// WithoutMiddleware leaves Sentinel's Middleware out.
	WithoutMiddleware bool
	// TrustedPeer, Skip and Denial are for the Middleware's options
	// WithTrustedPeer, WithSkip and WithDenial.
	TrustedPeer func(*http.Request) string
	Skip        func(*http.Request) bool
	Denial      func(http.ResponseWriter, *http.Request, sentinelhttp.Denial)

	// Root is the group of the whole server: its Path is "" and its Chain is
	// empty.
	Root Group
}

// Group is a group of routes, or a nested router, in the framework's words.
type Group struct {
	// Path is the prefix that all paths in the group have in addition to that
	// of the group around it: "/admin". It has no parameters.
	Path string
	// Chain is what the group does before the chains of what is in it.
	Chain  []Link
	Routes []Route
	Groups []Group
}

// Route is one method on one path.
type Route struct {
	Method string
	// Path follows the group's. It has no parameters.
	Path string
	// Chain runs from the first to the last, then Handler.
	Chain   []Link
	Handler http.HandlerFunc
	// Err is the error that the framework's handler reports, in the
	// framework's way, after it has called Handler. It is only set where
	// Adapter.Errors is.
	Err error
	// Own, where it is not nil, is called before Handler with the decision as
	// the framework's users find it in the framework's own context; where the
	// framework has none, with what [sentinel.FromContext] finds.
	Own func(d sentinel.Decision, found bool)
}

// Link is a middleware on a route or a group, one of two kinds.
type Link struct {
	// Guard is the endpoint id of a guard. A Link that has one is the guard.
	Guard string
	// Cost is what the guard is given as its cost; 0 is none.
	Cost sentinel.Cost
	// Then runs, and the chain goes on.
	Then http.HandlerFunc
}

// Costs are the guard's further arguments: its cost, or nothing.
func (l Link) Costs() []sentinel.Cost {
	if l.Cost == 0 {
		return nil
	}
	return []sentinel.Cost{l.Cost}
}

// Run runs every case for one adapter on one store, as parallel subtests of t
// named after the adapter: it returns before they have ended. store is what
// the configuration calls redis_url: memory://, or the URL of a Redis whose
// settings Sentinel accepts.
func Run(t *testing.T, a Adapter, store string) {
	t.Helper()
	if a.Name == "" || a.New == nil {
		t.Fatal("conformance: Adapter.Name and Adapter.New are required")
	}
	t.Run(a.Name, func(t *testing.T) {
		t.Parallel()
		for _, c := range cases() {
			if c.errors && !a.Errors {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(&stage{T: t, adapter: a, store: store})
			})
		}
	})
}

// testCase is one promise. Its name is a sentence.
type testCase struct {
	name   string
	run    func(*stage)
	errors bool // needs Adapter.Errors
}

func cases() []testCase {
	var all []testCase
	for _, some := range [][]testCase{
		outcomes, tenants, anonymous, quotas, failures, routing, middleware, handlers,
	} {
		all = append(all, some...)
	}
	return all
}
