package main

import (
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// serveProxy is the process of a proxy of Go's own parts, with one backend and
// nothing else.
func serveProxy(kind, listen, backend string) error {
	to := &url.URL{Scheme: "http", Host: backend}
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	var handler http.Handler = &bareProxy{to: to, transport: transport}
	if kind == kindReverseProxy {
		handler = &httputil.ReverseProxy{
			Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
			Transport:  transport,
			BufferPool: bufferPool{},
			ErrorLog:   log.New(io.Discard, "", 0),
		}
	}
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	return server.ListenAndServe()
}

// bareProxy does what has to be done with http.Transport to have a request
// answered by someone else, and nothing more: no header is left out or added,
// nothing is bounded. It is the floor for a proxy on net/http.
type bareProxy struct {
	to        *url.URL
	transport *http.Transport
}

func (p *bareProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := http.Request{
		Method: r.Method, URL: &url.URL{Scheme: p.to.Scheme, Host: p.to.Host, Path: r.URL.Path, RawQuery: r.URL.RawQuery},
		Host: r.Host, Header: r.Header, Body: r.Body, ContentLength: r.ContentLength,
	}
	resp, err := p.transport.RoundTrip(out.WithContext(r.Context()))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	buffer := bufferPool{}.Get()
	defer bufferPool{}.Put(buffer)
	_, _ = io.CopyBuffer(w, resp.Body, buffer) // the client sees that it is short
}

// bufferPool is a httputil.BufferPool.
type bufferPool struct{}

const bufferSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (bufferPool) Get() []byte  { return buffers.Get().(*[bufferSize]byte)[:] } //nolint:forcetypeassert // nothing else is in the pool
func (bufferPool) Put(b []byte) { buffers.Put((*[bufferSize]byte)(b)) }
