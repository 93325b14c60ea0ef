package sentinelgin_test

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
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	os.Exit(m.Run())
}

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

func ok(c *gin.Context) { c.String(http.StatusOK, "ok") }

// In gin, returning is not enough to keep the handler from running.
func TestEveryDenialAborts(t *testing.T) {
	defaultLog(t, io.Discard)
	acme := bearer("acme")
	for _, tc := range []struct {
		status int
		id     string
		auth   string
		engine func(*gin.Engine)
	}{
		{401, "tenant.one", "", func(r *gin.Engine) { r.Use(sentinelgin.Middleware(open(t, io.Discard))) }},
		{404, "not.configured", acme, func(r *gin.Engine) { r.Use(sentinelgin.Middleware(open(t, io.Discard))) }},
		{429, "tenant.one", acme, func(r *gin.Engine) {
			r.Use(sentinelgin.Middleware(open(t, io.Discard)))
			r.GET("/take", sentinelgin.Guard("tenant.one"), ok)
			if w := get(r, "/take", "Authorization", acme); w.Code != http.StatusOK {
				t.Errorf("the first request: %d", w.Code)
			}
		}},
		{503, "tenant.one", acme, func(r *gin.Engine) { r.Use(sentinelgin.Middleware(closed(t))) }},
		{503, "tenant.one", acme, func(*gin.Engine) {}}, // no Middleware
	} {
		for _, group := range []bool{false, true} {
			t.Run(fmt.Sprint(tc.status, tc.id, group), func(t *testing.T) {
				r := gin.New()
				var aborted bool
				var errs []*gin.Error
				r.Use(func(c *gin.Context) {
					c.Next()
					aborted, errs = c.IsAborted(), c.Errors
				})
				tc.engine(r)
				ran := 0
				after := func(c *gin.Context) { ran++; c.String(http.StatusOK, "second body") }
				if group {
					g := r.Group("/g", sentinelgin.Guard(tc.id))
					g.Use(after)
					g.GET("/x", after)
				} else {
					r.GET("/g/x", sentinelgin.Guard(tc.id), after, after)
				}

				w := get(r, "/g/x", "Authorization", tc.auth)

				wantProblem(t, w, tc.status)
				if ran != 0 || !aborted {
					t.Errorf("%d handlers ran after the denial, aborted: %v", ran, aborted)
				}
				if len(errs) != 0 {
					t.Errorf("c.Errors %v, which another middleware may render", errs)
				}
			})
		}
	}
}

func TestDecisionInBothContexts(t *testing.T) {
	type seen struct {
		d     sentinel.Decision
		found bool
	}
	var logged seen
	r := gin.New()
	r.Use(func(c *gin.Context) { // an access log
		logged = seen{}
		c.Next()
		logged.d, logged.found = sentinelgin.Decision(c)
	})
	r.Use(func(c *gin.Context) { // a tracer, which puts its request back
		req := c.Request
		c.Next()
		c.Request = req
	})
	r.Use(sentinelgin.Middleware(open(t, io.Discard), sentinelgin.WithSkip(func(c *gin.Context) bool { return c.Query("skip") != "" })))
	var own, request, copied seen
	r.GET("/", sentinelgin.Guard("tenant.one"), sentinelgin.Guard("tenant.two"), func(c *gin.Context) {
		own.d, own.found = sentinelgin.Decision(c)
		copied.d, copied.found = sentinelgin.Decision(c.Copy())
		request.d, request.found = sentinel.FromContext(c.Request.Context())
	})

	acme := bearer("acme")
	get(r, "/", "Authorization", acme)
	if !own.found || own.d.EndpointID != "tenant.two" || !own.d.Allowed || own != request || own != copied || own != logged {
		t.Errorf("gin's %+v\nrequest's %+v\ncopy's %+v\nlogged %+v", own, request, copied, logged)
	}
	get(r, "/", "Authorization", acme)
	if !logged.found || logged.d.EndpointID != "tenant.one" || logged.d.Allowed || logged.d.Reason != sentinel.ReasonRateLimited {
		t.Errorf("a denial is logged as %+v", logged)
	}
	if get(r, "/"); logged.found {
		t.Errorf("401: the limiter decided nothing, and yet %+v", logged)
	}
	if get(r, "/?skip=1"); own.found || request.found || logged.found {
		t.Errorf("skipped, and yet %+v, %+v, %+v", own, request, logged)
	}
}

// gin's defaults believe the headers of everybody; the guard does not.
func TestDefaultPeerIsTheSockets(t *testing.T) {
	r := gin.New()
	var log bytes.Buffer
	r.Use(sentinelgin.Middleware(open(t, &log)))
	believed := 0
	r.GET("/", sentinelgin.Guard("anon.five"), func(c *gin.Context) {
		if c.ClientIP() != c.RemoteIP() {
			believed++
		}
	})
	for i := range 50 {
		ip := fmt.Sprintf("198.51.100.%d", i)
		get(r, "/", "X-Forwarded-For", ip, "X-Real-Ip", ip, "True-Client-Ip", ip, "Cf-Connecting-Ip", ip, "Forwarded", "for="+ip)
	}
	if believed != 5 { // and thereby, that c.ClientIP() is no default
		t.Errorf("%d of 50 allowed, want 5", believed)
	}
	if strings.Contains(log.String(), "trusts every proxy") {
		t.Errorf("a warning of what does not matter: %s", &log)
	}
}

func TestTrustedPeer(t *testing.T) {
	r := gin.New()
	if err := r.SetTrustedProxies([]string{"192.0.2.1"}); err != nil { // httptest's peer
		t.Fatal(err)
	}
	calls := 0
	r.Use(sentinelgin.Middleware(open(t, io.Discard), sentinelgin.WithTrustedPeer(func(c *gin.Context) string {
		calls++
		return c.ClientIP()
	})))
	r.GET("/", sentinelgin.Guard("anon.one"), sentinelgin.Guard("anon.five"), ok)
	for _, step := range []struct {
		forwarded string
		status    int
	}{
		{"198.51.100.1", 200},
		{"198.51.100.1", 429},
		{"198.51.100.2", 200},
		{"203.0.113.9, 198.51.100.1", 429}, // the client's own claim, and what the proxy saw
	} {
		if w := get(r, "/", "X-Forwarded-For", step.forwarded); w.Code != step.status {
			t.Errorf("%s: %d, want %d", step.forwarded, w.Code, step.status)
		}
	}
	if calls != 4 {
		t.Errorf("WithTrustedPeer's function was called %d times for 4 requests", calls)
	}
}

func TestWarnsOnceOfAnEngineThatTrustsAll(t *testing.T) {
	for _, tc := range []struct {
		name     string
		engine   func(*gin.Engine) error
		warnings int
	}{
		{"gin's default", func(*gin.Engine) error { return nil }, 1},
		{"all of IPv4", func(r *gin.Engine) error { return r.SetTrustedProxies([]string{"0.0.0.0/0"}) }, 1},
		{"a network", func(r *gin.Engine) error { return r.SetTrustedProxies([]string{"10.0.0.0/8"}) }, 0},
		{"none", func(r *gin.Engine) error { return r.SetTrustedProxies(nil) }, 0},
		{"no headers", func(r *gin.Engine) error { r.ForwardedByClientIP = false; return nil }, 0},
		{"a platform's header alone", func(r *gin.Engine) error {
			r.TrustedPlatform = gin.PlatformCloudflare
			return r.SetTrustedProxies(nil)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			r := gin.New()
			if err := tc.engine(r); err != nil {
				t.Fatal(err)
			}
			r.Use(sentinelgin.Middleware(open(t, &log), sentinelgin.WithTrustedPeer((*gin.Context).ClientIP)))
			r.GET("/", sentinelgin.Guard("anon.five"), ok)
			for range 3 {
				if w := get(r, "/"); w.Code != http.StatusOK {
					t.Errorf("status %d", w.Code)
				}
			}
			if got := strings.Count(log.String(), "trusts every proxy"); got != tc.warnings {
				t.Errorf("%d warnings, want %d: %s", got, tc.warnings, &log)
			}
		})
	}
}

func TestWithDenial(t *testing.T) {
	for _, tc := range []struct {
		name   string
		write  func(*gin.Context, sentinelhttp.Denial)
		status int
		body   string // "" where it is the default
	}{
		{"JSON", func(c *gin.Context, d sentinelhttp.Denial) { c.JSON(d.Status, gin.H{"error": d.Detail}) }, 429, `{"error":"rate limit exceeded"}`},
		{"another status", func(c *gin.Context, _ sentinelhttp.Denial) { c.String(http.StatusTeapot, "tea") }, 418, "tea"},
		{"a body alone", func(c *gin.Context, _ sentinelhttp.Denial) { _, _ = c.Writer.WriteString("wait") }, 429, "wait"},
		{"a status alone", func(c *gin.Context, _ sentinelhttp.Denial) { c.Status(http.StatusTeapot) }, 418, "-"},
		{"no body", func(c *gin.Context, d sentinelhttp.Denial) { c.AbortWithStatus(d.Status) }, 429, "-"},
		{"the default", func(c *gin.Context, d sentinelhttp.Denial) { d.ServeHTTP(c.Writer, c.Request) }, 429, ""},
		{"nothing", func(*gin.Context, sentinelhttp.Denial) {}, 429, ""},
		{"Next, which is a mistake", func(c *gin.Context, _ sentinelhttp.Denial) { c.Next() }, 429, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := gin.New()
			r.Use(sentinelgin.Middleware(open(t, io.Discard), sentinelgin.WithDenial(tc.write)))
			ran := 0
			r.GET("/", sentinelgin.Guard("tenant.one"), func(*gin.Context) { ran++ })
			get(r, "/", "Authorization", bearer("acme"))
			w := get(r, "/", "Authorization", bearer("acme"))
			if ran != 1 {
				t.Errorf("the handler ran %d times, want once", ran)
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

// A group's own Middleware counts inside it, with its options.
func TestInnerMiddlewareCounts(t *testing.T) {
	text := func(s string) sentinelgin.Option {
		return sentinelgin.WithDenial(func(c *gin.Context, d sentinelhttp.Denial) { c.String(d.Status, s) })
	}
	r := gin.New()
	r.Use(sentinelgin.Middleware(open(t, io.Discard), text("outer")))
	r.GET("/outer", sentinelgin.Guard("tenant.one"), ok)
	r.Group("/v2", sentinelgin.Middleware(open(t, io.Discard), text("inner"))).GET("/inner", sentinelgin.Guard("tenant.one"), ok)
	r.Group("/v3", sentinelgin.Middleware(open(t, io.Discard))).GET("/plain", sentinelgin.Guard("tenant.one"), ok)
	for path, body := range map[string]string{"/outer": "outer", "/v2/inner": "inner", "/v3/plain": ""} {
		if w := get(r, path, "Authorization", bearer("acme")); w.Code != http.StatusOK {
			t.Errorf("%s: %d, want a quota of its own", path, w.Code)
		}
		w := get(r, path, "Authorization", bearer("acme"))
		if body == "" {
			wantProblem(t, w, 429)
		} else if w.Code != 429 || w.Body.String() != body {
			t.Errorf("%s: %d %q, want %q", path, w.Code, w.Body, body)
		}
	}
}

// An error handler of the usual kind renders c.Errors after the handlers.
func TestErrorsOfTheHandlerPass(t *testing.T) {
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 {
			c.JSON(http.StatusInternalServerError, gin.H{"error": c.Errors.Last().Error()})
		}
	})
	r.Use(sentinelgin.Middleware(open(t, io.Discard)))
	r.GET("/", sentinelgin.Guard("tenant.one"), func(c *gin.Context) { _ = c.Error(errors.New("broken")) })
	if w := get(r, "/", "Authorization", bearer("acme")); w.Code != 500 || w.Body.String() != `{"error":"broken"}` {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	wantProblem(t, get(r, "/", "Authorization", bearer("acme")), 429)
}

func TestPanicsGoToRecovery(t *testing.T) {
	r := gin.New()
	r.Use(gin.RecoveryWithWriter(io.Discard), sentinelgin.Middleware(open(t, io.Discard)))
	r.GET("/", sentinelgin.Guard("anon.one"), func(*gin.Context) { panic("broken") })
	if w := get(r, "/"); w.Code != http.StatusInternalServerError {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, get(r, "/"), 429)
}

func TestWriterIsGins(t *testing.T) {
	r := gin.New()
	var outside gin.ResponseWriter
	r.Use(func(c *gin.Context) { outside = c.Writer }, sentinelgin.Middleware(open(t, io.Discard)))
	r.GET("/", sentinelgin.Guard("anon.one"), func(c *gin.Context) {
		if c.Writer != outside {
			t.Errorf("the writer is %T, not gin's", c.Writer)
		}
	})
	get(r, "/")
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
	r := gin.New()
	r.GET("/", sentinelgin.Guard("anon.one"), ok)
	for range 3 {
		wantProblem(t, get(r, "/"), 503)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "engine.Use(sentinelgin.Middleware(limiter))") {
		t.Errorf("%d lines: %s", n, &log)
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	for name, wire := range map[string]func(){
		"nil limiter":  func() { sentinelgin.Middleware(nil) },
		"nil peer":     func() { sentinelgin.WithTrustedPeer(nil) },
		"nil denial":   func() { sentinelgin.WithDenial(nil) },
		"nil skip":     func() { sentinelgin.WithSkip(nil) },
		"empty id":     func() { sentinelgin.Guard("") },
		"a path as id": func() { sentinelgin.Guard("/export") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "sentinelgin: ") {
					t.Errorf("panic %q", got)
				}
			}()
			wire()
		})
	}
}

// The context of a client that is gone is nobody's quota.
func TestEndedContext(t *testing.T) {
	r := gin.New()
	r.Use(sentinelgin.Middleware(open(t, io.Discard)))
	ran := 0
	r.GET("/", sentinelgin.Guard("anon.one"), func(*gin.Context) { ran++ })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil))
	if ran != 0 {
		t.Error("the handler ran for nobody")
	}
	if get(r, "/"); ran != 1 {
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
	engine := gin.New()
	engine.Use(sentinelgin.Middleware(open(t, io.Discard)))
	engine.POST("/anon.one", sentinelgin.Guard("anon.one"), func(c *gin.Context) {
		if err := c.Request.ParseMultipartForm(1); err != nil || files() != 1 {
			t.Errorf("%d files, %v: nothing is tested", files(), err)
		}
		c.Status(http.StatusOK)
	})
	srv := httptest.NewServer(engine)
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
