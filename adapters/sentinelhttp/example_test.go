package sentinelhttp_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// One login attempt at once and one every two seconds, for anonymous clients.
const example = `{
	"app": {
		"redis_url": "memory://",
		"jwt_secret": "example-only-secret-0123456789abcdef",
		"jwt_algorithm_allowlist": ["HS256"],
		"anonymous_cookie_secret": "example-only-cookie-secret-0123456789"
	},
	"policies": {
		"auth.login": {
			"endpoint_id": "auth.login",
			"identity": "anonymous",
			"algorithm": "token_bucket",
			"fail_mode": "fail_open",
			"policy_version": 1,
			"capacity": 1,
			"refill_per_second": 0.5,
			"fallback_per_second": 1
		}
	}
}`

func ExampleGuard() {
	cfg, err := sentinel.ParseConfig([]byte(example))
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := sentinel.Open(context.Background(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()

	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := sentinel.FromContext(r.Context())
		fmt.Fprintf(w, "welcome, %d more", d.Remaining)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /login", sentinelhttp.Guard("auth.login")(login))
	srv := httptest.NewServer(sentinelhttp.Middleware(limiter)(mux))
	defer srv.Close()

	for range 2 {
		resp, err := http.Post(srv.URL+"/login", "", nil)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, string(body))
		fmt.Printf("RateLimit: %s, Retry-After: %q\n", resp.Header.Get("RateLimit"), resp.Header.Get("Retry-After"))
	}
	// Output:
	// 200 welcome, 0 more
	// RateLimit: "auth.login";r=0;t=2, Retry-After: ""
	// 429 {"type":"about:blank","title":"Too Many Requests","status":429,"detail":"rate limit exceeded"}
	// RateLimit: "auth.login";r=0;t=2, Retry-After: "2"
}

// A custom denial keeps the headers and chooses its own body.
func ExampleWithDenial() {
	denial := sentinelhttp.WithDenial(func(w http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(d.Status)
		fmt.Fprintf(w, "sorry: %s", d.Detail)
	})
	_ = denial // sentinelhttp.Middleware(limiter, denial)
}

func ExampleTopTenants() {
	cfg, err := sentinel.ParseConfig([]byte(example))
	if err != nil {
		log.Fatal(err)
	}
	top := sentinelhttp.NewTopTenants(100)
	limiter, err := sentinel.Open(context.Background(), cfg, sentinel.WithObserver(top.Observe))
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	for range 3 {
		if _, err := limiter.Check(context.Background(), sentinel.Request{EndpointID: "auth.login", Peer: "192.0.2.1"}); err != nil {
			log.Fatal(err)
		}
	}

	// A service would serve it where only its operators are, as with
	// http.Serve(socket, top) on a listener of 127.0.0.1.
	w := httptest.NewRecorder()
	top.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	_, tables, _ := strings.Cut(w.Body.String(), "\n\n")
	fmt.Print(tables)
	// Output:
	// auth.login: 3 asked
	//   3    29d3613c4ff9d5cb391fbc87226c6b4316564e3157d265286da54a7008298d05
	//
	// auth.login: 2 denied
	//   2    29d3613c4ff9d5cb391fbc87226c6b4316564e3157d265286da54a7008298d05
}
