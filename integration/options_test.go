package integration_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
	"github.com/sentinelgo/sentinel/adapters/sentinelecho5"
	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// An Option that is nil, as a condition may leave it, is ignored by every adapter.
func TestNilOptions(t *testing.T) {
	t.Parallel()
	l := open(t, config("memory://", tokens("jobs", sentinel.Token, 0)))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	engine := gin.New()
	engine.Use(sentinelgin.Middleware(l, nil))
	engine.GET("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	e4 := echo.New()
	e4.Use(sentinelecho.Middleware(l, nil))
	e4.GET("/", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	e5 := echo5.New()
	e5.Use(sentinelecho5.Middleware(l, nil))
	e5.GET("/", func(c *echo5.Context) error { return c.NoContent(http.StatusNoContent) })
	router := chi.NewRouter()
	router.Use(sentinelchi.Middleware(l, nil))
	router.Get("/", mux.ServeHTTP)

	for name, handler := range map[string]http.Handler{
		"nethttp": sentinelhttp.Middleware(l, nil)(mux), "gin": engine, "echo": e4, "echo5": e5, "chi": router,
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if w.Code != http.StatusNoContent {
			t.Errorf("%s: status %d", name, w.Code)
		}
	}
}
