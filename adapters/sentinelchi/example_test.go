package sentinelchi_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/go-chi/chi/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
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

	r := chi.NewRouter()
	r.Use(sentinelchi.Middleware(limiter))
	r.With(sentinelchi.Guard("auth.login")).Post("/login", func(w http.ResponseWriter, r *http.Request) {
		d, _ := sentinel.FromContext(r.Context())
		fmt.Fprintf(w, "welcome, %d more", d.Remaining)
	})

	for range 2 {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
		fmt.Println(w.Code, w.Body)
		fmt.Printf("RateLimit: %s, Retry-After: %q\n", w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 welcome, 0 more
	// RateLimit: "auth.login";r=0;t=2, Retry-After: ""
	// 429 {"type":"about:blank","title":"Too Many Requests","status":429,"detail":"rate limit exceeded"}
	// RateLimit: "auth.login";r=0;t=2, Retry-After: "2"
}

// A custom denial keeps the headers and chooses its own body.
func ExampleWithDenial() {
	denial := sentinelchi.WithDenial(func(w http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(d.Status)
		fmt.Fprintf(w, "sorry: %s", d.Detail)
	})
	_ = denial // sentinelchi.Middleware(limiter, denial)
}
