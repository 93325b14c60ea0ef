package sentinelhttp

import (
	"math"
	"net/http"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

func TestRateLimitHeaders(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	tests := []struct {
		name      string
		d         sentinel.Decision
		policy    string
		rateLimit string
	}{
		{
			"window of a minute, denied",
			sentinel.Decision{EndpointID: "id", Limit: 100, Window: time.Minute, Remaining: 0, NextAfter: 30 * time.Second},
			`"id";q=100;w=60`, `"id";r=0;t=30`,
		},
		{
			"full bucket: nothing will grow",
			sentinel.Decision{EndpointID: "id", Limit: 10, Window: 1000 * time.Second, Remaining: 10},
			`"id";q=10;w=1000`, `"id";r=10`,
		},
		{
			"rate 0: no window, never grows",
			sentinel.Decision{EndpointID: "id", Limit: 10, Remaining: 0},
			`"id";q=10`, `"id";r=0`,
		},
		{
			"fractions are rounded up",
			sentinel.Decision{EndpointID: "id", Limit: 1, Window: time.Millisecond, Remaining: 0, NextAfter: time.Second + 1},
			`"id";q=1;w=1`, `"id";r=0;t=2`,
		},
		{
			"whole seconds are not",
			sentinel.Decision{EndpointID: "id", Limit: 1, Window: 2 * time.Second, Remaining: 0, NextAfter: 2 * time.Second},
			`"id";q=1;w=2`, `"id";r=0;t=2`,
		},
		{
			"more than 292 years is no number",
			sentinel.Decision{EndpointID: "id", Limit: 1, Window: math.MaxInt64, Remaining: 0, NextAfter: math.MaxInt64},
			`"id";q=1`, `"id";r=0`,
		},
		{
			"a century is one",
			sentinel.Decision{EndpointID: "id", Limit: 1, Window: century, Remaining: 0, NextAfter: century - 1},
			`"id";q=1;w=3153600000`, `"id";r=0;t=3153600000`,
		},
		{
			"at most 15 digits",
			sentinel.Decision{EndpointID: "id", Limit: math.MaxInt64, Window: time.Second, Remaining: maxInteger + 1, NextAfter: time.Second},
			`"id";q=999999999999999;w=1`, `"id";r=999999999999999;t=1`,
		},
		{
			"every character that an id may have",
			sentinel.Decision{EndpointID: "a-z_0.9", Limit: 1, Window: time.Second, Remaining: 1},
			`"a-z_0.9";q=1;w=1`, `"a-z_0.9";r=1`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy, rateLimit := rateLimit(&tt.d)
			if policy != tt.policy {
				t.Errorf("RateLimit-Policy: %s, want %s", policy, tt.policy)
			}
			if rateLimit != tt.rateLimit {
				t.Errorf("RateLimit: %s, want %s", rateLimit, tt.rateLimit)
			}
		})
	}
}

func TestSeconds(t *testing.T) {
	tests := []struct {
		wait time.Duration
		want int64 // 0: no number
	}{
		{math.MinInt64, 0},
		{-1, 0},
		{0, 0},
		{1, 1},
		{time.Second - 1, 1},
		{time.Second, 1},
		{time.Second + 1, 2},
		{time.Hour, 3600},
		{math.MaxInt64 - 1, 9223372037},
		{math.MaxInt64, 0},
	}
	for _, tt := range tests {
		got, ok := seconds(tt.wait)
		if got != tt.want || ok != (tt.want != 0) {
			t.Errorf("seconds(%d) = %d, %v, want %d", tt.wait, got, ok, tt.want)
		}
	}
}

// Every limit is a policy of its own; what remains is told of the tightest.
func TestRateLimitHeadersOfSeveralLimits(t *testing.T) {
	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_secret": "a-secret-for-tests-of-at-least-32-bytes"},
		"policies": {"id": {
			"endpoint_id": "id", "algorithm": "token_bucket", "capacity": 10, "refill_per_second": 10,
			"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1,
			"also": [{"algorithm": "sliding_window", "limit": 3, "window": "1d"}, {"algorithm": "token_bucket", "capacity": 9, "refill_per_second": 0}]
		}}}`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := sentinel.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := l.Allow(t.Context(), "acme", "id")
	policy, rateLimit := rateLimit(&d)
	if want := `"id";q=10;w=1, "id:2";q=3;w=86400, "id:3";q=9`; err != nil || policy != want {
		t.Errorf("RateLimit-Policy: %s, want %s (%v)", policy, want, err)
	}
	if want := `"id:2";r=2;t=86401`; rateLimit != want {
		t.Errorf("RateLimit: %s, want %s", rateLimit, want)
	}
}

// Whatever a decision holds, a denial has one of four statuses, and only
// Allowed admits.
func TestDenyKnowsFourStatuses(t *testing.T) {
	tests := []struct {
		reason sentinel.Reason
		status int
	}{
		{"", 503}, // the zero Decision
		{sentinel.ReasonAllowed, 503},
		{sentinel.ReasonRateLimited, 429},
		{sentinel.ReasonEmergencyLocalLimit, 429},
		{sentinel.ReasonFailClosed, 503},
		{sentinel.ReasonCircuitOpen, 503},
		{sentinel.ReasonRedisTimeout, 503},
		{sentinel.ReasonRedisConnectionError, 503},
		{sentinel.ReasonRedisNoScriptRetry, 503},
		{"unheard_of", 503},
	}
	for _, tt := range tests {
		for _, wait := range []time.Duration{0, 1500 * time.Millisecond} {
			h := http.Header{}
			o := &outcome{}
			o.Decision = sentinel.Decision{Reason: tt.reason, RetryAfter: wait}
			d := deny(h, o, true)
			if d.Status != tt.status {
				t.Errorf("%q: status %d, want %d", tt.reason, d.Status, tt.status)
			}
			want := ""
			if wait > 0 {
				want = "2"
			}
			if got := h.Get("Retry-After"); got != want {
				t.Errorf("%q: Retry-After %q, want %q", tt.reason, got, want)
			}
		}
	}
}
