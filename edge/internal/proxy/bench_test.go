package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/router"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
)

// stdlib is net/http's own proxy, tuned as ours is.
func stdlib(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
		Transport:  &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
		BufferPool: pooled{},
	}
}

// pooled is a httputil.BufferPool.
type pooled struct{}

func (pooled) Get() []byte  { return buffers.Get().(*[copySize]byte)[:] }
func (pooled) Put(b []byte) { buffers.Put((*[copySize]byte)(b)) }

// ours is a handler for one backend, with nothing else configured.
func ours(b *testing.B, to *url.URL) http.Handler {
	registry := upstream.NewRegistry(upstream.Options{})
	b.Cleanup(func() { registry.Close(b.Context()) })
	gen := registry.Generation([]config.Pool{{
		Name: "pool", Balance: config.RoundRobin, MaxIdle: 256, Backends: []config.Backend{{URL: to, Weight: 1}},
		Health: config.Health{Type: config.HealthOff}, Breaker: config.Breaker{Failures: 5, OpenFor: time.Second},
	}}, time.Minute)
	r, _ := router.New([]router.Pattern{{Path: "/*"}})
	h := New(Options{MaxBodyBytes: 10 << 20, BodyIdle: 10 * time.Second, WriteIdle: 30 * time.Second, TunnelIdle: time.Minute})
	h.Swap(&Snapshot{Version: 1, Router: r, Backends: gen, Routes: []Route{{
		Pattern: "/*", PoolName: "pool", Pool: gen.Pool("pool"), Timeout: 30 * time.Second, FailureStatus: []int{502, 503, 504},
	}}})
	return h
}

// BenchmarkGet is a plain GET of 64 bytes through a real front and a real
// backend: compare the two of one run.
func BenchmarkGet(b *testing.B) {
	body := make([]byte, 64)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = []string{"64"}
		w.Write(body)
	}))
	defer backend.Close()
	to, _ := url.Parse(backend.URL)
	for name, h := range map[string]http.Handler{"proxy=sentinel": ours(b, to), "proxy=reverseproxy": stdlib(to)} {
		b.Run(name, func(b *testing.B) {
			front := httptest.NewServer(h)
			defer front.Close()
			tr := &http.Transport{MaxIdleConnsPerHost: 256}
			defer tr.CloseIdleConnections()
			c := &http.Client{Transport: tr}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := c.Get(front.URL)
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		})
	}
}
