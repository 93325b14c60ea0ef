package sentinelecho_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
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

	e := echo.New()
	e.Use(sentinelecho.Middleware(limiter))
	e.POST("/login", func(c echo.Context) error {
		d, _ := sentinelecho.Decision(c)
		return c.String(http.StatusOK, fmt.Sprintf("welcome, %d more", d.Remaining))
	}, sentinelecho.Guard("auth.login"))

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
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
	denial := sentinelecho.WithDenial(func(c echo.Context, d sentinelhttp.Denial) error {
		return c.JSON(d.Status, echo.Map{"error": d.Detail})
	})
	_ = denial // sentinelecho.Middleware(limiter, denial)
}

// An error goes to echo's HTTPErrorHandler, once.
func ExampleWithDenial_errorHandler() {
	denial := sentinelecho.WithDenial(func(_ echo.Context, d sentinelhttp.Denial) error {
		return echo.NewHTTPError(d.Status, d.Detail)
	})
	_ = denial // sentinelecho.Middleware(limiter, denial)
}

// Health checks cost nothing.
func ExampleWithSkip() {
	skip := sentinelecho.WithSkip(func(c echo.Context) bool { return c.Path() == "/healthz" })
	_ = skip // sentinelecho.Middleware(limiter, skip)
}

// An access log waits for the handlers, and sees denials, too.
func ExampleDecision() {
	accessLog := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			if d, ok := sentinelecho.Decision(c); ok {
				log.Print(c.Path(), " ", d.Reason, " ", d.IdentityHash)
			}
			return err
		}
	}
	_ = accessLog // e.Use(accessLog, sentinelecho.Middleware(limiter))
}
