package explain

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

const file = `
server: {trusted_proxies: [10.0.0.0/8]}
rate_limit: {capacity: 100, refill_rate: 0.5}
sentinel: policies.json
routes:
  - {path: /users, backend: users, methods: [GET, POST]}
  - {path: "/users/:id", backend: users, methods: [GET], rate_limit: {capacity: 1, refill_rate: 1, key: "header:X-Api-Key"}}
  - {path: /users/me, backend: users, rate_limit: {mode: distributed, policy: auth.login}}
  - {path: "/files/*rest", backend: files, rate_limit: {enabled: false}}
  - {path: /api/v1/orders, backend: files}
backends:
  - name: users
    servers: [{url: "http://a:1", weight: 1}, {url: "http://b:2", weight: 3}, {url: "http://c:3", weight: 0}]
  - {name: files, url: "http://d", max_in_flight: 2, retry: off}
`

func setup(t *testing.T) (*config.Config, *router.Router) {
	t.Helper()
	c, err := config.Parse("edge.yaml", []byte(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, faults := router.New(c.Patterns())
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return c, r
}

func TestTheTextSaysWhereARequestGoesAndWhy(t *testing.T) {
	c, r := setup(t)
	for _, test := range []struct {
		question Question
		want     []string // parts of the text
	}{
		{
			Question{URL: "http://edge.example/users/a%2Fb?x=1", Header: http.Header{"X-Api-Key": {"k1"}}},
			[]string{
				"GET /users/a%2Fb\ngoes to GET /users/:id (line 7, place 5)", `  id = "a/b"`, "timeout 30s, trailing slash strict, retries: 3 attempts, same_backend, base 25ms, cap 250ms, budget 20% or 3",
				"rate limit GET /users/:id: local, 1 tokens, 1 a second, by header:X-Api-Key", "counted for X-Api-Key: k1",
				"backend: users, round_robin", "http://a:1  weight 1  1 of 4 requests", "http://b:2  weight 3  3 of 4 requests", "x http://c:3  weight 0  weight 0: gets nothing",
			},
		},
		{
			Question{URL: "/users/7", Header: http.Header{"X-Api-Key": {""}}},
			[]string{"counted for the client's address: the request has no X-Api-Key"},
		},
		{
			Question{URL: "/users/7", Peer: netip.MustParseAddr("192.0.2.7")},
			[]string{"counted for 192.0.2.7: the request has no X-Api-Key, so its client's address counts"},
		},
		{
			Question{Method: "HEAD", URL: "/users", Peer: netip.MustParseAddr("2001:db8:1:2:3::1")},
			[]string{"goes to GET,POST /users (line 6", "rate limit default: local, 100 tokens, 0.5 a second, by client", "counted for 2001:db8:1:2::/64", "has all"},
		},
		{
			Question{URL: "/users", Peer: netip.MustParseAddr("::ffff:192.0.2.7")},
			[]string{"counted for 192.0.2.7: the limit's key is the client's address"},
		},
		{
			Question{URL: "/users", Peer: netip.MustParseAddr("10.0.0.1"), Header: http.Header{"X-Forwarded-For": {"198.51.100.1, 192.0.2.7"}}},
			[]string{"counted for 192.0.2.7: the limit's key is the client's address; X-Forwarded-For says which, and 10.0.0.1 is a trusted proxy"},
		},
		{
			Question{URL: "/users", Peer: netip.MustParseAddr("11.0.0.1"), Header: http.Header{"X-Forwarded-For": {"192.0.2.7"}}},
			[]string{"counted for 11.0.0.1: the limit's key is the client's address\n"},
		},
		{Question{URL: "/users/me"}, []string{"distributed, policy auth.login", "counted for tenant"}},
		{
			Question{URL: "/files/x/y"},
			[]string{"goes to * /files/*rest", `rest = "x/y"`, "rate limit: none", "http://d  weight 1  the only one"},
		},
		{
			Question{Method: "DELETE", URL: "/users"},
			[]string{"is answered 405 method_not_allowed", "none takes DELETE", "Allow: GET, HEAD, POST", "closest:\n  GET,POST /users (line 6): takes this path with GET"},
		},
		{Question{URL: "/users/"}, []string{"is answered 404 no_route", "GET,POST /users (line 6): takes the path without the slash"}},
		{Question{URL: "/files"}, []string{"* /files/*rest (line 9): takes the path with a slash at its end"}},
		{Question{URL: "//users"}, []string{"takes the path with single slashes"}},
		{Question{URL: "/Users"}, []string{"takes the path in lower case"}},
		{Question{URL: "/api/v1%2Forders"}, []string{"takes the path with a plain slash"}},
		{Question{URL: "/api/v1/invoices"}, []string{"* /api/v1/orders (line 10): begins with /api/v1, and goes on with orders instead of invoices"}},
		{Question{URL: "/api/v1/orders/7"}, []string{"begins with /api/v1/orders, and ends there"}},
		{Question{URL: "/api"}, []string{"begins with /api, and goes on with /v1/orders"}},
		{Question{URL: "/users/../x"}, []string{"is answered 400 bad_path: the path has a segment . or .."}},
		{Question{URL: "/users/a b"}, []string{"bad_path: the path has a byte that must be escaped, as %20 for a space"}},
		{Question{URL: "/users/é"}, []string{"bad_path: the path has a byte that must be escaped"}},
		{Question{URL: "/users/%zz"}, []string{"bad_path: the path has a % without two hexadecimal digits"}},
		{Question{URL: "/users/\x1b[31m"}, []string{`GET "/users/\x1b[31m"`, "a control byte"}},
		{Question{Method: "CONNECT", URL: "example.com:443"}, []string{"405 method_not_allowed: CONNECT is never forwarded"}},
		{Question{Method: "TRACE", URL: "/users"}, []string{"TRACE is never forwarded"}},
		{Question{Method: "OPTIONS", URL: "*"}, []string{"is answered 204 ok"}},
		{Question{URL: "http://edge.example"}, []string{"GET /\nis answered 404"}},
		{Question{URL: "/" + strings.Repeat("a", 9000)}, []string{"is answered 414", "server.max_url_bytes is 8192"}},
	} {
		t.Run(test.question.Method+" "+test.question.URL[:min(30, len(test.question.URL))], func(t *testing.T) {
			a := Request(c, r, test.question, nil)
			var b strings.Builder
			if err := a.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			for _, part := range test.want {
				if !strings.Contains(b.String(), part) {
					t.Errorf("%q is not in\n%s", part, b.String())
				}
			}
			if (a.Reason == "ok" && a.Status == 0) != (a.Route != nil && a.Pool != nil) {
				t.Errorf("reason %s, route %v, pool %v", a.Reason, a.Route, a.Pool)
			}
			if _, err := json.Marshal(a); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStatesOfBackendsAreShownWhereTheyAreKnown(t *testing.T) {
	c, r := setup(t)
	a := Request(c, r, Question{URL: "/users"}, []State{
		{Pool: "users", Backend: "a:1", Health: "unhealthy", Breaker: "closed", InFlight: 2},
		{Pool: "users", Backend: "b:2", Health: "healthy", Breaker: "open", Candidate: true},
		{Pool: "files", Backend: "c:3", Candidate: true},
	})
	d := Request(c, r, Question{URL: "/files/"}, []State{{Pool: "files", Backend: "d:80", Health: "unknown", Breaker: "closed", Candidate: true}})
	if why := d.Pool.Candidates[0].Why; why != "the only one; health unknown, breaker closed, 0 in flight" {
		t.Errorf("%s", why)
	}
	got := a.Pool.Candidates
	if got[0].Eligible || !strings.Contains(got[0].Why, "health unhealthy, breaker closed, 2 in flight") || !got[1].Eligible || got[2].Eligible {
		t.Errorf("%+v", got)
	}
}

func TestABackendWithoutRoomIsNotEligible(t *testing.T) {
	c, r := setup(t)
	for inFlight, want := range map[int64]bool{1: true, 2: false, 3: false} {
		a := Request(c, r, Question{URL: "/files/"}, []State{{Pool: "files", Backend: "d:80", Health: "healthy", Breaker: "closed", InFlight: inFlight, Candidate: true}})
		if got := a.Pool.Candidates[0]; got.Eligible != want || strings.HasSuffix(got.Why, "in flight, which is max_in_flight") == want {
			t.Errorf("%d in flight: %+v", inFlight, got)
		}
		var b strings.Builder
		if err := a.WriteText(&b); err != nil || !strings.Contains(b.String(), "backend: files, round_robin, at most 2 in flight on each\n") || !strings.Contains(b.String(), "retries: none") {
			t.Errorf("%v %s", err, b.String())
		}
	}
}

func TestRoutesAreListedByPrecedence(t *testing.T) {
	c, r := setup(t)
	var got []string
	for i, route := range Routes(c, r) {
		if route.Place != i+1 {
			t.Errorf("%s has place %d", route.Path, route.Place)
		}
		got = append(got, route.Path)
	}
	if want := []string{"/api/v1/orders", "/files/*rest", "/users", "/users/me", "/users/:id"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var b strings.Builder
	if err := WriteRoutes(&b, Routes(c, r)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"PLACE  METHODS   PATH", "3      GET,POST  /users ", "100 tokens, 0.5 a second, by client", "policy auth.login", "3 attempts, same_backend, base 25ms"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("%q is not in\n%s", part, b.String())
		}
	}
}
