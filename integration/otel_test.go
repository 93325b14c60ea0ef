package integration_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
	"github.com/sentinelgo/sentinel/sentinelotel"
)

// lines keeps what is logged.
type lines struct{ syncBuffer }

// denials returns the decision ids of the lines.
func (l *lines) denials(t *testing.T) []string {
	t.Helper()
	var ids []string
	for line := range strings.Lines(l.String()) {
		var fields struct {
			Msg string `json:"msg"`
			ID  string `json:"decision_id"`
		}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if fields.Msg == "sentinel: denied" {
			ids = append(ids, fields.ID)
		}
	}
	return ids
}

// traced starts the span of a request, as otelhttp and otelgin do.
func traced(tracer trace.Tracer, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "request")
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

var tracedServers = map[string]func(*sentinel.Limiter, trace.Tracer) http.Handler{
	"nethttp": func(l *sentinel.Limiter, tracer trace.Tracer) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("GET /jobs", sentinelhttp.Guard("jobs")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		return traced(tracer, sentinelhttp.Middleware(l)(mux))
	},
	"gin": func(l *sentinel.Limiter, tracer trace.Tracer) http.Handler {
		engine := gin.New()
		engine.Use(func(c *gin.Context) {
			ctx, span := tracer.Start(c.Request.Context(), "request")
			defer span.End()
			c.Request = c.Request.WithContext(ctx)
			c.Next()
		}, sentinelgin.Middleware(l))
		engine.GET("/jobs", sentinelgin.Guard("jobs"), func(*gin.Context) {})
		return engine
	},
}

// A request that is denied is found by one id, in its response, in the log and
// on a span that hangs below the request's own.
func TestDecisionIDInResponseLogAndSpan(t *testing.T) {
	t.Parallel()
	for name, handler := range tracedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := tracetest.NewSpanRecorder()
			tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			var log lines
			l := open(t, config(redistest.URL(t), tokens("jobs", sentinel.Token, 0)),
				sentinel.WithLogger(slog.New(slog.NewJSONHandler(&log, nil))),
				sentinel.WithObserver(sentinelotel.New(sentinelotel.WithTracerProvider(tracers))))
			server := httptest.NewServer(handler(l, tracers.Tracer("test")))
			defer server.Close()
			bearer := token(t, []byte(jwtKey), jwt.MapClaims{"sub": fresh(t), "exp": time.Now().Add(time.Hour).Unix()})
			get := func(authorization string, status int) string {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/jobs", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", authorization)
				resp, err := server.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.StatusCode != status {
					t.Fatalf("status %d, want %d", resp.StatusCode, status)
				}
				return resp.Header.Get("Sentinel-Decision-Id")
			}
			get("", http.StatusUnauthorized)
			get(bearer, http.StatusOK)
			id := get(bearer, http.StatusTooManyRequests)
			server.Close() // waits for the last request's own span

			if logged := log.denials(t); id == "" || len(logged) != 1 || logged[0] != id {
				t.Errorf("the response has the id %q, the log %q", id, logged)
			}
			checks, requests := map[string]sdktrace.ReadOnlySpan{}, map[trace.SpanID]sdktrace.ReadOnlySpan{}
			for _, s := range spans.Ended() {
				if s.Name() != "sentinel.check" {
					requests[s.SpanContext().SpanID()] = s
					continue
				}
				var of string // none, if the store admitted it
				for _, a := range s.Attributes() {
					if a.Key == "sentinel.decision.id" {
						of = a.Value.AsString()
					}
				}
				checks[of] = s
			}
			if len(requests) != 3 || len(checks) != 2 || checks[id] == nil || checks[""] == nil {
				t.Fatalf("%d requests, checks with the ids %v, want %q", len(requests), checks, id)
			}
			for _, s := range checks {
				request := requests[s.Parent().SpanID()]
				if request == nil || s.SpanContext().TraceID() != request.SpanContext().TraceID() {
					t.Fatalf("a check hangs below %v", s.Parent())
				}
				if s.StartTime().Before(request.StartTime()) || s.EndTime().After(request.EndTime()) || !s.EndTime().After(s.StartTime()) {
					t.Errorf("a check from %v to %v, its request from %v to %v", s.StartTime(), s.EndTime(), request.StartTime(), request.EndTime())
				}
			}
		})
	}
}
