package sentinelchi_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
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

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

func clientIP(r *http.Request) string { return middleware.GetClientIP(r.Context()) }

func TestGuardOnRoutesGroupsAndNestedRouters(t *testing.T) {
	r := chi.NewRouter()
	r.Use(sentinelchi.Middleware(open(t, io.Discard)))
	r.With(sentinelchi.Guard("anon.one")).Get("/with", ok)
	r.Group(func(r chi.Router) {
		r.Use(sentinelchi.Guard("tenant.one"))
		r.With(sentinelchi.Guard("tenant.one")).Get("/group/{name}", func(w http.ResponseWriter, r *http.Request) {
			d, found := sentinel.FromContext(r.Context())
			fmt.Fprint(w, chi.URLParam(r, "name"), " ", chi.RouteContext(r.Context()).RoutePattern(), " ", d.EndpointID, " ", found)
		})
	})
	r.Route("/nested", func(r chi.Router) {
		r.Route("/deep", func(r chi.Router) { r.With(sentinelchi.Guard("tenant.two")).Get("/x", ok) })
	})
	acme := bearer("acme")
	for path, body := range map[string]string{
		"/with": "ok", "/group/a": "a /group/{name} tenant.one true", "/nested/deep/x": "ok",
	} {
		for range 2 {
			if w := get(r, path+"/nothing", "Authorization", acme); w.Code != 404 || w.Header().Get("RateLimit") != "" {
				t.Errorf("%s/nothing: %d %v, want chi's 404", path, w.Code, w.Header())
			}
		}
		if w := get(r, path, "Authorization", acme); w.Code != 200 || w.Body.String() != body {
			t.Errorf("%s: %d %q, want %q", path, w.Code, w.Body, body)
		}
		wantProblem(t, get(r, path, "Authorization", acme), 429)
	}
	wantProblem(t, get(r, "/group/a"), 401)
}

func TestOptions(t *testing.T) {
	r := chi.NewRouter()
	r.Use(middleware.ClientIPFromXFF("192.0.2.1/32")) // httptest's peer
	r.Use(sentinelchi.Middleware(open(t, io.Discard),
		sentinelchi.WithTrustedPeer(clientIP),
		sentinelchi.WithSkip(func(r *http.Request) bool { return r.URL.Query().Has("skip") }),
		sentinelchi.WithDenial(func(w http.ResponseWriter, _ *http.Request, d sentinelhttp.Denial) {
			w.WriteHeader(d.Status)
			_, _ = io.WriteString(w, d.Detail)
		}),
	))
	r.With(sentinelchi.Guard("anon.one")).Get("/", ok)
	for _, step := range []struct {
		path, forwarded string
		status          int
		body            string
	}{
		{"/", "198.51.100.1", 200, "ok"},
		{"/", "198.51.100.1", 429, "rate limit exceeded"},
		{"/?skip", "198.51.100.1", 200, "ok"},
		{"/", "198.51.100.2", 200, "ok"},
		{"/", "203.0.113.9, 198.51.100.1", 429, "rate limit exceeded"}, // the client's own claim, and what the proxy saw
	} {
		if w := get(r, step.path, "X-Forwarded-For", step.forwarded); w.Code != step.status || w.Body.String() != step.body {
			t.Errorf("%s from %s: %d %q, want %d %q", step.path, step.forwarded, w.Code, w.Body, step.status, step.body)
		}
	}
}

// None of chi's ClientIPFrom... touches what the guard counts by default.
func TestDefaultPeerIsTheSockets(t *testing.T) {
	r := chi.NewRouter()
	r.Use(middleware.ClientIPFromHeader("X-Real-Ip"), sentinelchi.Middleware(open(t, io.Discard)))
	believed := 0
	r.With(sentinelchi.Guard("anon.five")).Get("/", func(_ http.ResponseWriter, r *http.Request) {
		if clientIP(r) != "192.0.2.1" {
			believed++
		}
	})
	for i := range 50 {
		ip := fmt.Sprintf("198.51.100.%d", i)
		get(r, "/", "X-Forwarded-For", ip, "X-Real-Ip", ip, "True-Client-Ip", ip, "Cf-Connecting-Ip", ip, "Forwarded", "for="+ip)
	}
	if believed != 5 { // and thereby, that chi's client address is no default
		t.Errorf("%d of 50 allowed, want 5", believed)
	}
}

//lint:ignore SA1019 it is deprecated, and warned of
var realIP = middleware.RealIP //nolint:staticcheck // as above, for golangci-lint

func TestWarnsOnceOfRealIP(t *testing.T) {
	for _, tc := range []struct {
		name     string
		wire     func(mw func(http.Handler) http.Handler) http.Handler
		warnings int
	}{
		{"before the Middleware", func(mw func(http.Handler) http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(realIP, middleware.RequestID, mw)
			r.With(sentinelchi.Guard("anon.five")).Get("/", ok)
			return r
		}, 1},
		{"before a nested Middleware", func(mw func(http.Handler) http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(realIP)
			r.Route("/", func(r chi.Router) {
				r.Use(mw)
				r.With(sentinelchi.Guard("anon.five")).Get("/", ok)
			})
			return r
		}, 1},
		{"after it", func(mw func(http.Handler) http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(mw, realIP)
			r.With(sentinelchi.Guard("anon.five")).Get("/", ok)
			return r
		}, 0},
		{"nowhere", func(mw func(http.Handler) http.Handler) http.Handler {
			r := chi.NewRouter()
			r.Use(middleware.RequestID, middleware.ClientIPFromRemoteAddr, mw)
			r.With(sentinelchi.Guard("anon.five")).Get("/", ok)
			return r
		}, 0},
		{"without a router", func(mw func(http.Handler) http.Handler) http.Handler {
			return mw(sentinelchi.Guard("anon.five")(http.HandlerFunc(ok)))
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, want := range map[string]int{"default": tc.warnings, "trusted peer": 0} {
				var log bytes.Buffer
				var opts []sentinelchi.Option
				if name != "default" {
					opts = append(opts, sentinelchi.WithTrustedPeer(clientIP))
				}
				h := tc.wire(sentinelchi.Middleware(open(t, &log), opts...))
				for range 3 {
					if w := get(h, "/"); w.Code != http.StatusOK {
						t.Errorf("status %d", w.Code)
					}
				}
				if got := strings.Count(log.String(), "middleware.RealIP runs before"); got != want {
					t.Errorf("%s: %d warnings, want %d: %s", name, got, want, &log)
				}
			}
		})
	}
}

// What the warning says is so: with RealIP, a client takes a bucket a request.
func TestRealIPIsWhatTheClientWrites(t *testing.T) {
	r := chi.NewRouter()
	r.Use(realIP, sentinelchi.Middleware(open(t, io.Discard)))
	r.With(sentinelchi.Guard("anon.one")).Get("/", ok)
	for i := range 3 {
		if w := get(r, "/", "True-Client-Ip", fmt.Sprintf("198.51.100.%d", i)); w.Code != http.StatusOK {
			t.Errorf("status %d", w.Code)
		}
	}
}

func TestPanicsGoToRecoverer(t *testing.T) {
	r := chi.NewRouter()
	r.Use(quietly, middleware.Recoverer)
	r.Use(sentinelchi.Middleware(open(t, io.Discard)))
	r.With(sentinelchi.Guard("anon.one")).Get("/", func(http.ResponseWriter, *http.Request) { panic("broken") })
	if w := get(r, "/"); w.Code != http.StatusInternalServerError {
		t.Errorf("status %d", w.Code)
	}
	wantProblem(t, get(r, "/"), 429)
}

// quietly keeps Recoverer from printing the panic.
func quietly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, middleware.WithLogEntry(r, quiet{}))
	})
}

type quiet struct{}

func (quiet) Write(int, int, http.Header, time.Duration, any) {}
func (quiet) Panic(any, []byte)                               {}

func TestGuardWithoutMiddleware(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	r := chi.NewRouter()
	r.With(sentinelchi.Guard("anon.one")).Get("/", ok)
	for range 3 {
		wantProblem(t, get(r, "/"), 503)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "r.Use(sentinelchi.Middleware(limiter))") {
		t.Errorf("%d lines: %s", n, &log)
	}
}

func TestStoreAway(t *testing.T) {
	r := chi.NewRouter()
	r.Use(sentinelchi.Middleware(closed(t)))
	r.With(sentinelchi.Guard("anon.one")).Get("/", ok)
	wantProblem(t, get(r, "/"), 503)
}

func TestWiringMistakesPanic(t *testing.T) {
	for name, wire := range map[string]func(){
		"nil limiter":  func() { sentinelchi.Middleware(nil) },
		"nil peer":     func() { sentinelchi.WithTrustedPeer(nil) },
		"nil denial":   func() { sentinelchi.WithDenial(nil) },
		"nil skip":     func() { sentinelchi.WithSkip(nil) },
		"empty id":     func() { sentinelchi.Guard("") },
		"a path as id": func() { sentinelchi.Guard("/export") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "sentinel") {
					t.Errorf("panic %q", got)
				}
			}()
			wire()
		})
	}
}
