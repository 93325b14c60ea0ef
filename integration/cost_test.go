package integration_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// Costs at once over Redis, gathered with others: none is admitted beyond what
// there is, and each bucket is charged for exactly what was admitted.
func TestCostsOverRedis(t *testing.T) {
	t.Parallel()
	c, url := shared(t)
	cfg := config(url, also(tokens("jobs", 100*sentinel.Token, 0), hourly(1000)), window("search", 60, time.Hour))
	cfg.App.DisableKnownDenials = true
	l := open(t, cfg)
	for id, most := range map[string]int64{"jobs": 100, "search": 60} {
		tenant := fresh(t)
		var taken atomic.Int64
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				for range 10 {
					cost := sentinel.Cost(1 + i%4)
					d, err := l.Allow(context.Background(), tenant, id, cost)
					if err != nil || !d.FromStore {
						t.Errorf("%+v, %v", d, err)
					}
					if d.Allowed {
						taken.Add(int64(cost))
					}
				}
			})
		}
		wg.Wait()
		if taken.Load() != most { // cost 1 takes the last of it
			t.Errorf("%s: %d taken of %d", id, taken.Load(), most)
		}
		key := tenantKey(tenant, id)
		want := map[string]int64{key: most}
		if id == "jobs" {
			want = map[string]int64{key: 0, furtherKey(key, 2): most}
		}
		for key, n := range want {
			if got := tokensOf(stateOf(t, c, key)); got != n {
				t.Errorf("%s: %s holds %d, want %d", id, key, got, n)
			}
		}
	}
}

// The cost stands at the route; the wait is that for it.
func TestCostOfARoute(t *testing.T) {
	t.Parallel()
	_, url := shared(t)
	l := open(t, config(url, tokens("jobs", 10*sentinel.Token, sentinel.Token/10)))
	if err := l.RequireCost("jobs", 7); err != nil {
		t.Fatal(err)
	}
	h := sentinelhttp.Middleware(l)(sentinelhttp.Guard("jobs", sentinel.Cost(7))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	auth := token(t, []byte(jwtKey), jwt.MapClaims{"sub": fresh(t), "exp": time.Now().Add(time.Hour).Unix()})
	for _, want := range []struct {
		status           int
		remaining, retry string
	}{{200, `"jobs";r=3;t=10`, ""}, {429, `"jobs";r=3;t=40`, "40"}} {
		r := httptest.NewRequest(http.MethodGet, "/?cost=1", nil)
		r.Header.Set("Authorization", auth)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want.status || w.Header().Get("RateLimit") != want.remaining || w.Header().Get("Retry-After") != want.retry {
			t.Errorf("%d, %v; want %v", w.Code, w.Header(), want)
		}
	}
	for _, bad := range [][]sentinel.Cost{{0}, {-1}, {1 << 40}, {1, 2}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Guard takes the costs %v", bad)
				}
			}()
			sentinelhttp.Guard("jobs", bad...)
		}()
	}
}
