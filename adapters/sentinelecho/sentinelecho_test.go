package sentinelecho_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

const jwtSecret = "tests-only-secret-0123456789abcdefghij"

// open returns a limiter with one request for each endpoint and identity; five
// at anon.five. Nothing refills.
func open(t testing.TB, log io.Writer) *sentinel.Limiter {
	t.Helper()
	cfg := &sentinel.Config{
		App: sentinel.App{
			RedisURL:              sentinel.NewSecret("memory://"),
			JWTSecret:             sentinel.NewSecrets(jwtSecret),
			AnonymousCookieSecret: sentinel.NewSecrets("tests-only-cookie-secret-0123456789abcdef"),
		},
		Policies: map[string]sentinel.Policy{},
	}
	for id, p := range map[string]sentinel.Policy{
		"tenant.one": {Capacity: 1 * sentinel.Token, Identity: sentinel.TenantJWT},
		"tenant.two": {Capacity: 1 * sentinel.Token, Identity: sentinel.TenantJWT},
		"anon.one":   {Capacity: 1 * sentinel.Token, Identity: sentinel.Anonymous},
		"anon.five":  {Capacity: 5 * sentinel.Token, Identity: sentinel.Anonymous},
	} {
		p.EndpointID, p.Algorithm, p.FailMode, p.FallbackRate, p.Version = id, sentinel.TokenBucket, sentinel.FailClosed, 1, 1
		cfg.Policies[id] = p
	}
	l, err := sentinel.Open(t.Context(), cfg, sentinel.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// closed returns a limiter whose store gives no answer.
func closed(t testing.TB) *sentinel.Limiter {
	t.Helper()
	l := open(t, io.Discard)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l
}

// bearer is the Authorization of a tenant.
func bearer(sub string) string {
	enc := base64.RawURLEncoding.EncodeToString
	signed := enc([]byte(`{"alg":"HS256"}`)) + "." + enc(fmt.Appendf(nil, `{"sub":%q,"exp":%d}`, sub, time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte(jwtSecret))
	mac.Write([]byte(signed))
	return "Bearer " + signed + "." + enc(mac.Sum(nil))
}

// get serves one request; header holds names and values in turn.
func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// wantProblem checks that the response is one problem document.
func wantProblem(t testing.TB, w *httptest.ResponseRecorder, status int) {
	t.Helper()
	var body struct{ Status int }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Errorf("the body is not one JSON document: %v: %q", err, w.Body)
	}
	if w.Code != status || body.Status != status || w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %v %s, want %d and a problem document", w.Code, w.Header(), w.Body, status)
	}
}

func ok(c echo.Context) error { return c.String(http.StatusOK, "ok") }

// server returns an echo with middlewares, which logs nothing.
func server(mw ...echo.MiddlewareFunc) *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Use(mw...)
	return e
}

// A custom HTTPErrorHandler that does not look at Committed writes on top of
// whatever is there. It is not called for a denial.
func TestEveryDenialIsOneResponse(t *testing.T) {
	defaultLog(t, io.Discard)
	acme := bearer("acme")
	for _, tc := range []struct {
		status int
		id     string
		auth   string
		mw     []echo.MiddlewareFunc
	}{
		{401, "tenant.one", "", []echo.MiddlewareFunc{sentinelecho.Middleware(open(t, io.Discard))}},
		{404, "not.configured", acme, []echo.MiddlewareFunc{sentinelecho.Middleware(open(t, io.Discard))}},
		{429, "tenant.one", acme, []echo.MiddlewareFunc{sentinelecho.Middleware(open(t, io.Discard))}},
		{503, "tenant.one", acme, []echo.MiddlewareFunc{sentinelecho.Middleware(closed(t))}},
		{503, "tenant.one", acme, nil},
	} {
		for _, group := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.status, tc.id, group), func(t *testing.T) {
				e := server(tc.mw...)
				calls := 0
				e.HTTPErrorHandler = func(_ error, c echo.Context) {
					calls++
					_ = c.JSON(http.StatusInternalServerError, echo.Map{"error": "a second body"})
				}
				if tc.status == 429 {
					e.GET("/take", ok, sentinelecho.Guard(tc.id))
					get(e, "/take", "Authorization", acme)
				}
				ran := 0
				handler := func(c echo.Context) error { ran++; return ok(c) }
				if group {
					e.Group("/g", sentinelecho.Guard(tc.id)).GET("/x", handler)
				} else {
					e.GET("/g/x", handler, sentinelecho.Guard(tc.id))
				}

				w := get(e, "/g/x", "Authorization", tc.auth)

				wantProblem(t, w, tc.status)
				if tc.status == 401 && w.Header().Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("headers %v", w.Header())
				}
				if calls != 0 || ran != 0 {
					t.Errorf("the error handler was called %d times, the handler ran %d times", calls, ran)
				}
			})
		}
	}
}

func TestWithDenial(t *testing.T) {
	failed := errors.New("failed")
	for _, tc := range []struct {
		name    string
		write   func(echo.Context, sentinelhttp.Denial) error
		status  int
		body    string // "" where it is the default
		handled int    // calls of the error handler
	}{
		{"JSON", func(c echo.Context, d sentinelhttp.Denial) error { return c.JSON(d.Status, d.Detail) }, 429, "\"rate limit exceeded\"\n", 0},
		{"another status", func(c echo.Context, _ sentinelhttp.Denial) error { return c.String(http.StatusTeapot, "tea") }, 418, "tea", 0},
		{"a body alone", func(c echo.Context, _ sentinelhttp.Denial) error {
			_, err := io.WriteString(c.Response(), "wait")
			return err
		}, 429, "wait", 0},
		{"no body", func(c echo.Context, d sentinelhttp.Denial) error { return c.NoContent(d.Status) }, 429, "-", 0},
		{"the default", func(c echo.Context, d sentinelhttp.Denial) error { d.ServeHTTP(c.Response(), c.Request()); return nil }, 429, "", 0},
		{"nothing", func(echo.Context, sentinelhttp.Denial) error { return nil }, 429, "", 0},
		{"an error", func(_ echo.Context, d sentinelhttp.Denial) error { return echo.NewHTTPError(d.Status, d.Detail) }, 429, "handled", 1},
		{"any error", func(echo.Context, sentinelhttp.Denial) error { return failed }, 500, "handled", 1},
		{"a response and an error", func(c echo.Context, d sentinelhttp.Denial) error {
			return errors.Join(c.String(d.Status, "wait"), failed)
		}, 429, "wait", 0},
		{"an error that nobody renders", func(echo.Context, sentinelhttp.Denial) error { return errUnrendered }, 429, "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := server(
				// Such a logger calls the error handler for each error that comes
				// by, and returns it to echo, which calls it again.
				middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
					HandleError: true, LogValuesFunc: func(echo.Context, middleware.RequestLoggerValues) error { return nil },
				}),
				sentinelecho.Middleware(open(t, io.Discard), sentinelecho.WithDenial(tc.write)),
			)
			handled := 0
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				handled++
				status := http.StatusInternalServerError
				if he := (*echo.HTTPError)(nil); errors.As(err, &he) {
					status = he.Code
				}
				if !errors.Is(err, errUnrendered) {
					_ = c.String(status, "handled")
				}
			}
			ran := 0
			e.GET("/", func(echo.Context) error { ran++; return nil }, sentinelecho.Guard("tenant.one"))
			get(e, "/", "Authorization", bearer("acme"))
			w := get(e, "/", "Authorization", bearer("acme"))
			if ran != 1 || handled != tc.handled {
				t.Errorf("the handler ran %d times, want once; the error handler %d, want %d", ran, handled, tc.handled)
			}
			if tc.body == "" {
				wantProblem(t, w, tc.status)
			} else if w.Code != tc.status || w.Body.String() != strings.TrimPrefix(tc.body, "-") {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body, tc.status, tc.body)
			}
			if w.Header().Get("RateLimit") == "" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

var errUnrendered = errors.New("the error handler writes nothing")

func TestErrorsOfTheHandlerPass(t *testing.T) {
	e := server(sentinelecho.Middleware(open(t, io.Discard)))
	handled := 0
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		handled++
		_ = c.String(http.StatusConflict, err.Error())
	}
	e.GET("/", func(echo.Context) error { return errors.New("broken") }, sentinelecho.Guard("anon.one"))
	if w := get(e, "/"); w.Code != http.StatusConflict || w.Body.String() != "broken" || handled != 1 {
		t.Errorf("%d %q, the error handler was called %d times", w.Code, w.Body, handled)
	}
}

// echo runs the middlewares of a group for its 404s, too.
func TestPathsWithoutRouteAreFree(t *testing.T) {
	l := open(t, io.Discard)
	e := server(sentinelecho.Middleware(l))
	g := e.Group("/api", sentinelecho.Guard("tenant.one"))
	g.GET("/x", ok)
	acme := bearer("acme")
	for range 3 {
		for _, path := range []string{"/api", "/api/", "/api/nothing", "/nothing"} {
			if w := get(e, path, "Authorization", acme); w.Code != http.StatusNotFound || w.Header().Get("RateLimit") != "" {
				t.Errorf("%s: %d %v, want echo's 404", path, w.Code, w.Header())
			}
		}
	}
	if w := get(e, "/api/x", "Authorization", acme); w.Code != http.StatusOK {
		t.Errorf("the route: %d", w.Code)
	}
}

// page is not inlined, so that all pages are the same code.
//
//go:noinline
func page(name string) echo.HandlerFunc {
	return func(c echo.Context) error { return c.String(http.StatusOK, name) }
}

// An application's answer to unknown paths is a handler like any other.
func TestOwnNotFoundHandlerIsGuarded(t *testing.T) {
	before := echo.NotFoundHandler
	t.Cleanup(func() { echo.NotFoundHandler = before })
	echo.NotFoundHandler = page("index")
	e := server(sentinelecho.Middleware(open(t, io.Discard)))
	e.GET("/x", page("x"), sentinelecho.Guard("anon.one"))
	e.RouteNotFound("/files/*", page("file"), sentinelecho.Guard("anon.one"))
	if w := get(e, "/x"); w.Body.String() != "x" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	for _, path := range []string{"/x", "/files/1"} {
		wantProblem(t, get(e, path), 429)
	}
	if w := get(e, "/anything"); w.Body.String() != "index" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func TestDecisionInBothContexts(t *testing.T) {
	type seen struct {
		d     sentinel.Decision
		found bool
	}
	var logged, own, request seen
	e := server(
		func(next echo.HandlerFunc) echo.HandlerFunc { // an access log
			return func(c echo.Context) error {
				err := next(c)
				logged.d, logged.found = sentinelecho.Decision(c)
				return err
			}
		},
		func(next echo.HandlerFunc) echo.HandlerFunc { // a tracer, which puts its request back
			return func(c echo.Context) error {
				defer c.SetRequest(c.Request())
				return next(c)
			}
		},
		sentinelecho.Middleware(open(t, io.Discard), sentinelecho.WithSkip(middleware.Skipper(func(c echo.Context) bool { return c.QueryParam("skip") != "" }))),
	)
	e.GET("/", func(c echo.Context) error {
		own.d, own.found = sentinelecho.Decision(c)
		request.d, request.found = sentinel.FromContext(c.Request().Context())
		return nil
	}, sentinelecho.Guard("tenant.one"), sentinelecho.Guard("tenant.two"))

	acme := bearer("acme")
	get(e, "/", "Authorization", acme)
	if !own.found || own.d.EndpointID != "tenant.two" || !own.d.Allowed || own != request || own != logged {
		t.Errorf("echo's %+v\nrequest's %+v\nlogged %+v", own, request, logged)
	}
	get(e, "/", "Authorization", acme)
	if !logged.found || logged.d.EndpointID != "tenant.one" || logged.d.Allowed || logged.d.Reason != sentinel.ReasonRateLimited {
		t.Errorf("a denial is logged as %+v", logged)
	}
	if get(e, "/"); logged.found {
		t.Errorf("401: the limiter decided nothing, and yet %+v", logged)
	}
	if get(e, "/?skip=1"); own.found || request.found || logged.found {
		t.Errorf("skipped, and yet %+v, %+v, %+v", own, request, logged)
	}
}

// What echo takes from headers where it is told to, the guard does not.
func TestDefaultPeerIsTheSockets(t *testing.T) {
	e := server(sentinelecho.Middleware(open(t, io.Discard)))
	_, everybody, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		t.Fatal(err)
	}
	e.IPExtractor = echo.ExtractIPFromRealIPHeader(echo.TrustIPRange(everybody))
	believed := 0
	e.GET("/", func(c echo.Context) error {
		if c.RealIP() != "192.0.2.1" {
			believed++
		}
		return nil
	}, sentinelecho.Guard("anon.five"))
	for i := range 50 {
		ip := fmt.Sprintf("198.51.100.%d", i)
		get(e, "/", "X-Forwarded-For", ip, "X-Real-Ip", ip, "True-Client-Ip", ip, "Cf-Connecting-Ip", ip, "Forwarded", "for="+ip)
	}
	if believed != 5 { // and thereby, that c.RealIP() is no default
		t.Errorf("%d of 50 allowed, want 5", believed)
	}
}

func TestTrustedPeer(t *testing.T) {
	e := server()
	_, proxy, err := net.ParseCIDR("192.0.2.1/32") // httptest's peer
	if err != nil {
		t.Fatal(err)
	}
	e.IPExtractor = echo.ExtractIPFromXFFHeader(echo.TrustIPRange(proxy))
	calls := 0
	e.Use(sentinelecho.Middleware(open(t, io.Discard), sentinelecho.WithTrustedPeer(func(c echo.Context) string {
		calls++
		return c.RealIP()
	})))
	e.GET("/", ok, sentinelecho.Guard("anon.one"), sentinelecho.Guard("anon.five"))
	for _, step := range []struct {
		forwarded string
		status    int
	}{
		{"198.51.100.1", 200},
		{"198.51.100.1", 429},
		{"198.51.100.2", 200},
		{"203.0.113.9, 198.51.100.1", 429}, // the client's own claim, and what the proxy saw
	} {
		if w := get(e, "/", "X-Forwarded-For", step.forwarded); w.Code != step.status {
			t.Errorf("%s: %d, want %d", step.forwarded, w.Code, step.status)
		}
	}
	if calls != 4 {
		t.Errorf("WithTrustedPeer's function was called %d times for 4 requests", calls)
	}
}

// A group's own Middleware counts inside it, with its options.
func TestInnerMiddlewareCounts(t *testing.T) {
	text := func(s string) sentinelecho.Option {
		return sentinelecho.WithDenial(func(c echo.Context, d sentinelhttp.Denial) error { return c.String(d.Status, s) })
	}
	e := server(sentinelecho.Middleware(open(t, io.Discard), text("outer")))
	e.GET("/outer", ok, sentinelecho.Guard("tenant.one"))
	e.Group("/v2", sentinelecho.Middleware(open(t, io.Discard), text("inner"))).GET("/inner", ok, sentinelecho.Guard("tenant.one"))
	e.Group("/v3", sentinelecho.Middleware(open(t, io.Discard))).GET("/plain", ok, sentinelecho.Guard("tenant.one"))
	for path, body := range map[string]string{"/outer": "outer", "/v2/inner": "inner", "/v3/plain": ""} {
		if w := get(e, path, "Authorization", bearer("acme")); w.Code != http.StatusOK {
			t.Errorf("%s: %d, want a quota of its own", path, w.Code)
		}
		w := get(e, path, "Authorization", bearer("acme"))
		if body == "" {
			wantProblem(t, w, 429)
		} else if w.Code != 429 || w.Body.String() != body {
			t.Errorf("%s: %d %q, want %q", path, w.Code, w.Body, body)
		}
	}
}

func TestMiddlewareBeforeTheRouter(t *testing.T) {
	e := server()
	e.Pre(sentinelecho.Middleware(open(t, io.Discard)))
	e.GET("/", ok, sentinelecho.Guard("anon.one"))
	if w := get(e, "/"); w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, get(e, "/"), 429)
}

func TestPanicsGoToRecover(t *testing.T) {
	e := server(middleware.Recover(), sentinelecho.Middleware(open(t, io.Discard)))
	e.GET("/", func(echo.Context) error { panic("broken") }, sentinelecho.Guard("anon.one"))
	if w := get(e, "/"); w.Code != http.StatusInternalServerError {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, get(e, "/"), 429)
}

func TestResponseIsEchos(t *testing.T) {
	var outside *echo.Response
	var writer http.ResponseWriter
	e := server(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			outside, writer = c.Response(), c.Response().Writer
			return next(c)
		}
	}, sentinelecho.Middleware(open(t, io.Discard)))
	e.GET("/", func(c echo.Context) error {
		if c.Response() != outside || c.Response().Writer != writer {
			t.Errorf("the response is %T on %T, not echo's", c.Response(), c.Response().Writer)
		}
		return nil
	}, sentinelecho.Guard("anon.one"))
	get(e, "/")
}

// defaultLog sends slog's default logger to w while the test runs.
func defaultLog(t *testing.T, w io.Writer) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(w, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
}

func TestGuardWithoutMiddleware(t *testing.T) {
	var log bytes.Buffer
	defaultLog(t, &log)
	e := server()
	e.GET("/", ok, sentinelecho.Guard("anon.one"))
	for range 3 {
		wantProblem(t, get(e, "/"), 503)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "e.Use(sentinelecho.Middleware(limiter))") {
		t.Errorf("%d lines: %s", n, &log)
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	for name, wire := range map[string]func(){
		"nil limiter":  func() { sentinelecho.Middleware(nil) },
		"nil peer":     func() { sentinelecho.WithTrustedPeer(nil) },
		"nil denial":   func() { sentinelecho.WithDenial(nil) },
		"nil skip":     func() { sentinelecho.WithSkip(nil) },
		"empty id":     func() { sentinelecho.Guard("") },
		"a path as id": func() { sentinelecho.Guard("/export") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "sentinelecho: ") {
					t.Errorf("panic %q", got)
				}
			}()
			wire()
		})
	}
}

// The context of a client that is gone is nobody's quota.
func TestEndedContext(t *testing.T) {
	e := server(sentinelecho.Middleware(open(t, io.Discard)))
	ran := 0
	e.GET("/", func(echo.Context) error { ran++; return nil }, sentinelecho.Guard("anon.one"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil))
	if ran != 0 {
		t.Error("the handler ran for nobody")
	}
	if get(e, "/"); ran != 1 {
		t.Error("nobody was charged")
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
	e.Use(sentinelecho.Middleware(open(t, io.Discard)))
	e.POST("/anon.one", func(c echo.Context) error {
		if err := c.Request().ParseMultipartForm(1); err != nil || files() != 1 {
			t.Errorf("%d files, %v: nothing is tested", files(), err)
		}
		return c.NoContent(http.StatusOK)
	}, sentinelecho.Guard("anon.one"))
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
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/anon.one", &body)
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
