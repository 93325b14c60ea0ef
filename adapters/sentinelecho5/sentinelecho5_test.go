package sentinelecho5_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho5"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// What every adapter does is tested by integration/conformance. Here is what
// only echo v5 has.

// open returns a limiter that admits one request for each peer and endpoint.
func open(t testing.TB) *sentinel.Limiter {
	t.Helper()
	cfg := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret("memory://"),
			JWTSecret:             sentinel.NewSecrets("tests-only-secret-0123456789abcdefghij"),
			AnonymousCookieSecret: sentinel.NewSecrets("tests-only-cookie-secret-0123456789abcdef"),
		},
		Policies: map[string]sentinel.Policy{},
	}
	for _, id := range []string{"one", "two"} {
		cfg.Policies[id] = sentinel.Policy{
			EndpointID: id, Algorithm: sentinel.TokenBucket, FailMode: sentinel.FailClosed, Identity: sentinel.Anonymous,
			FallbackRate: 1, Version: 1, Capacity: sentinel.Token, RefillRate: 1,
		}
	}
	l, err := sentinel.Open(t.Context(), cfg, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func ok(c *echo.Context) error { return c.String(http.StatusOK, "ok") }

// wantProblem checks that the body is one problem document and nothing else.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	var body struct{ Status int }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Status != status || w.Code != status {
		t.Errorf("%d %q, want one problem document with %d (%v)", w.Code, w.Body, status, err)
	}
}

func TestDenialIsNoError(t *testing.T) {
	e, calls := echo.New(), 0
	e.HTTPErrorHandler = func(*echo.Context, error) { calls++ }
	e.Use(sentinelecho5.Middleware(open(t)))
	e.GET("/", ok, sentinelecho5.Guard("one"))
	if w := get(e, "/"); w.Code != http.StatusOK || w.Body.String() != "ok" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	wantProblem(t, get(e, "/"), http.StatusTooManyRequests)
	if calls != 0 {
		t.Errorf("the error handler was called %d times", calls)
	}
}

func TestWithDenial(t *testing.T) {
	for name, tt := range map[string]struct {
		write func(*echo.Context, sentinelhttp.Denial) error
		code  int
		body  string // "" for the default
	}{
		"a response": {func(c *echo.Context, d sentinelhttp.Denial) error { return c.String(d.Status, "later") }, 429, "later"},
		"a body without status": {func(c *echo.Context, _ sentinelhttp.Denial) error {
			_, err := io.WriteString(c.Response(), "later")
			return err
		}, 429, "later"},
		"an error": {func(*echo.Context, sentinelhttp.Denial) error { return errors.New("later") }, 418, "handled: later"},
		"nothing":  {func(*echo.Context, sentinelhttp.Denial) error { return nil }, 429, ""},
		"an error after a reply": {func(c *echo.Context, d sentinelhttp.Denial) error {
			return errors.Join(c.String(d.Status, "later"), io.EOF)
		}, 429, "later"},
		"early hints, no more": {func(c *echo.Context, _ sentinelhttp.Denial) error {
			c.Response().WriteHeader(http.StatusEarlyHints)
			return nil
		}, 429, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := echo.New()
			e.HTTPErrorHandler = func(c *echo.Context, err error) { _ = c.String(http.StatusTeapot, "handled: "+err.Error()) }
			e.Use(sentinelecho5.Middleware(open(t), sentinelecho5.WithDenial(tt.write)))
			e.GET("/", ok, sentinelecho5.Guard("one"))
			server := httptest.NewServer(e)
			defer server.Close()
			var code int
			var body []byte
			for range 2 {
				resp, err := http.Get(server.URL)
				if err != nil {
					t.Fatal(err)
				}
				code = resp.StatusCode
				body, _ = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if tt.body == "" {
				tt.body = `{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"rate limit exceeded"}`
			}
			if code != tt.code || string(body) != tt.body {
				t.Errorf("%d %q, want %d %q", code, body, tt.code, tt.body)
			}
		})
	}
}

// opaque hides echo's response, as a middleware that does not know Unwrap.
type opaque struct{ http.ResponseWriter }

func TestAnotherResponseWriter(t *testing.T) {
	hide := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			c.SetResponse(opaque{c.Response()})
			return next(c)
		}
	}
	own := sentinelecho5.WithDenial(func(c *echo.Context, d sentinelhttp.Denial) error { return c.String(d.Status, "later") })
	for name, opts := range map[string][]sentinelecho5.Option{"default": nil, "own": {own}} {
		e := echo.New()
		e.Use(hide, sentinelecho5.Middleware(open(t), opts...))
		e.GET("/", ok, sentinelecho5.Guard("one"))
		get(e, "/")
		w := get(e, "/")
		if opts == nil {
			wantProblem(t, w, http.StatusTooManyRequests)
		} else if w.Code != http.StatusTooManyRequests || w.Body.String() != "later" {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
	}
}

// The router's own answers cost nothing; the application's are guarded.
func TestPathsWithoutARoute(t *testing.T) {
	group, everywhere := echo.New(), echo.New()
	group.Use(sentinelecho5.Middleware(open(t)))
	group.Group("/g", sentinelecho5.Guard("one")).GET("/x", ok)
	everywhere.Use(sentinelecho5.Middleware(open(t)), sentinelecho5.Guard("one"))
	everywhere.GET("/g/x", ok)
	for _, e := range []*echo.Echo{group, everywhere} {
		for range 3 {
			for _, path := range []string{"/nothing", "/g/nothing", "/g"} {
				if w := get(e, path); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "Not Found") {
					t.Errorf("%s: %d %s, want echo's 404", path, w.Code, w.Body)
				}
			}
		}
		if w := get(e, "/g/x"); w.Code != http.StatusOK {
			t.Errorf("something was charged before: %d %s", w.Code, w.Body)
		}
	}

	e := echo.New()
	e.Use(sentinelecho5.Middleware(open(t)))
	e.RouteNotFound("/*", ok, sentinelecho5.Guard("one"))
	get(e, "/anything")
	wantProblem(t, get(e, "/else"), http.StatusTooManyRequests)
}

func TestDecision(t *testing.T) {
	var seen []sentinel.Decision
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			err := next(c)
			d, _ := sentinelecho5.Decision(c)
			seen = append(seen, d)
			return err
		}
	}, sentinelecho5.Middleware(open(t)))
	e.GET("/", func(c *echo.Context) error {
		d, _ := sentinelecho5.Decision(c)
		if again, _ := sentinel.FromContext(c.Request().Context()); again != d || !d.Allowed {
			t.Errorf("in the handler: %+v and %+v", d, again)
		}
		return nil
	}, sentinelecho5.Guard("one"))
	get(e, "/")
	get(e, "/")
	if len(seen) != 2 || !seen[0].Allowed || seen[1].Reason != sentinel.ReasonRateLimited {
		t.Errorf("after it: %+v", seen)
	}
}

func TestWiring(t *testing.T) {
	for name, f := range map[string]func(){
		"nil limiter": func() { sentinelecho5.Middleware(nil) },
		"an id":       func() { sentinelecho5.Guard("Not An Id") },
		"nil peer":    func() { sentinelecho5.WithTrustedPeer(nil) },
		"nil denial":  func() { sentinelecho5.WithDenial(nil) },
		"nil skip":    func() { sentinelecho5.WithSkip(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if r := recover(); r == nil || !strings.HasPrefix(r.(string), "sentinelecho5: ") {
					t.Errorf("recovered %v, want a panic of this package", r)
				}
			}()
			f()
		})
	}

	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	e := echo.New()
	e.GET("/", ok, sentinelecho5.Guard("one"))
	for range 3 {
		wantProblem(t, get(e, "/"), http.StatusServiceUnavailable)
	}
	if strings.Count(log.String(), "e.Use(sentinelecho5.Middleware(limiter))") != 1 {
		t.Errorf("the line to add is not logged once: %s", log.String())
	}
}

// The server removes the files of an upload when the handler is done, which are
// on the disk where they are large.
func TestUploadsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	e := echo.New()
	e.Use(sentinelecho5.Middleware(open(t)))
	e.POST("/one", func(c *echo.Context) error {
		if err := c.Request().ParseMultipartForm(1); err != nil || files() != 1 {
			t.Errorf("%d files, %v: nothing is tested", files(), err)
		}
		return c.NoContent(http.StatusOK)
	}, sentinelecho5.Guard("one"))
	srv := httptest.NewServer(e)
	defer srv.Close()

	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "large")
	if err == nil {
		_, err = part.Write(make([]byte, 1<<20))
	}
	if err = errors.Join(err, form.Close()); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/one", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	srv.Close() // when the last request is done
	if resp.StatusCode != http.StatusOK || files() != 0 {
		t.Errorf("%d, and %d files are left", resp.StatusCode, files())
	}
}
