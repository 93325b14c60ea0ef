package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// backend is the handler.
type backend struct {
	name    string
	paths   *http.ServeMux
	journal journal

	mu    sync.Mutex
	mode  string // none, 503, hang or slow
	delay time.Duration
	seen  map[string]int // of /503x2, by key
}

func newBackend(name string) *backend {
	b := &backend{name: name, paths: http.NewServeMux(), mode: "none", seen: map[string]int{}}
	for path, handle := range map[string]http.HandlerFunc{
		"/":              b.ok,
		"/status/{code}": status,
		"/slow":          b.slow,
		"/slowbody":      slowBody,
		"/hang":          hang,
		"/rst0":          resetEarly,
		"/rsthead":       resetAfterHead,
		"/rstmid":        resetLate,
		"/trunc":         truncate,
		"/503x2":         b.unwellTwice,
		"/echo":          echo,
		"/bytes":         someBytes,
		"/sse":           events,
		"/ws":            sockets,
		"/halves":        halves,
		"/trailers":      trailers,
		"/103":           b.hints,
		"/bigheader":     bigHeader,
		"/early413":      early,
	} {
		b.paths.HandleFunc(path, handle)
	}
	return b
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/_fault":
		b.setFault(w, r)
		return
	case "/_journal":
		b.journal.ServeHTTP(w, r)
		return
	}
	entry := b.journal.begin(r)
	defer b.journal.end(entry, r)
	b.mu.Lock()
	mode, delay := b.mode, b.delay
	b.mu.Unlock()
	switch mode {
	case "503":
		http.Error(w, "the fault is 503", http.StatusServiceUnavailable)
		return
	case "hang":
		hang(w, r)
		return
	case "slow":
		pause(r.Context(), delay)
	}
	// Not ServeMux's own choice of a handler: it would answer odd paths with a redirect.
	b.handler(r).ServeHTTP(w, r)
}

func (b *backend) handler(r *http.Request) http.Handler {
	plain := r.Clone(r.Context())
	plain.Method = http.MethodGet
	if h, pattern := b.paths.Handler(plain); pattern != "" && pattern != "/" {
		if code, ok := strings.CutPrefix(r.URL.Path, "/status/"); ok {
			r.SetPathValue("code", code)
		}
		return h
	}
	return http.HandlerFunc(b.ok)
}

func (b *backend) setFault(w http.ResponseWriter, r *http.Request) {
	mode := r.FormValue("mode")
	switch mode {
	case "none", "503", "hang", "slow":
	default:
		http.Error(w, "mode is none, 503, hang or slow", http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	b.mode, b.delay = mode, duration(r, 100*time.Millisecond)
	b.mu.Unlock()
}

func (b *backend) ok(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Backend", b.name)
	fmt.Fprintln(w, b.name)
}

func status(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("code"))
	if err != nil || code < 200 || code > 599 {
		http.Error(w, "a status is 200 to 599", http.StatusBadRequest)
		return
	}
	w.Header().Set("X-From", "backend")
	w.WriteHeader(code)
	if code != http.StatusNoContent && code != http.StatusNotModified {
		fmt.Fprintf(w, "status %d of the backend\n", code)
	}
}

func (b *backend) slow(w http.ResponseWriter, r *http.Request) {
	pause(r.Context(), duration(r, 100*time.Millisecond))
	b.ok(w, r)
}

func slowBody(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	for i := range number(r, 10) {
		fmt.Fprintf(w, "chunk %d\n", i)
		if flush.Flush() != nil {
			return
		}
		pause(r.Context(), duration(r, 50*time.Millisecond))
	}
}

func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else nobody notices when the other side is gone
	<-r.Context().Done()
}

func resetEarly(w http.ResponseWriter, _ *http.Request) { reset(w, "") }

func resetAfterHead(w http.ResponseWriter, _ *http.Request) {
	reset(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
}

func resetLate(w http.ResponseWriter, _ *http.Request) {
	reset(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")
}

// reset says something, and resets the connection.
func reset(w http.ResponseWriter, say string) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: as near as it gets
	}
	_, _ = buffered.WriteString(say)
	_ = buffered.Flush()
	if say != "" {
		time.Sleep(20 * time.Millisecond) // a reset overtakes what is on its way
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func truncate(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	fmt.Fprint(w, "0123456789")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (b *backend) unwellTwice(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.seen[r.FormValue("key")]++
	n := b.seen[r.FormValue("key")]
	b.mu.Unlock()
	if n <= 2 {
		_, _ = io.Copy(io.Discard, r.Body) // the journal is to know it
		http.Error(w, "not yet", http.StatusServiceUnavailable)
		return
	}
	echo(w, r)
}

func echo(w http.ResponseWriter, r *http.Request) {
	for name := range r.Trailer {
		w.Header().Add("Trailer", name)
	}
	controller := http.NewResponseController(w)
	_ = controller.EnableFullDuplex() // HTTP/2 is so already
	w.Header().Set("Content-Type", "application/octet-stream")
	buffer := make([]byte, 16<<10)
	for {
		n, err := r.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return
			}
			_ = controller.Flush()
		}
		if err != nil {
			break
		}
	}
	maps.Copy(w.Header(), r.Trailer)
}

func someBytes(w http.ResponseWriter, r *http.Request) {
	n := number(r, 1000)
	w.Header().Set("Content-Length", strconv.Itoa(n))
	block := []byte(strings.Repeat("x", min(n, 32<<10)))
	for n > 0 {
		written, err := w.Write(block[:min(n, len(block))]) // #nosec G705 -- nothing but x
		if err != nil {
			return
		}
		n -= written
	}
}

func events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for i := range number(r, 3) {
		fmt.Fprintf(w, "data: %d\n\n", i)
		if flush.Flush() != nil {
			return
		}
		pause(r.Context(), duration(r, 50*time.Millisecond))
	}
}

func sockets(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return // it has answered
	}
	defer func() { _ = c.CloseNow() }() // nobody is left to tell
	c.SetReadLimit(-1)
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if c.Write(r.Context(), kind, message) != nil {
			return
		}
	}
}

// halves is a tunnel whose two halves end one after the other.
func halves(w http.ResponseWriter, r *http.Request) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 has no such tunnel
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello\n")
	if r.URL.Query().Has("first") {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	n, err := io.Copy(io.Discard, buffered)
	if err == nil && !r.URL.Query().Has("first") {
		fmt.Fprintf(conn, "%d bytes\n", n)
	}
}

func trailers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	fmt.Fprint(w, "with a trailer\n")
	w.Header().Set("X-Sum", "42")
}

func (b *backend) hints(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	b.ok(w, r)
}

func bigHeader(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Big", strings.Repeat("x", number(r, 5000)))
}

func early(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "close")
	http.Error(w, "too large, says the backend", http.StatusRequestEntityTooLarge)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func number(r *http.Request, otherwise int) int {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	if err != nil || n < 0 {
		return otherwise
	}
	return n
}

func duration(r *http.Request, otherwise time.Duration) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("d"))
	if err != nil || d < 0 {
		return otherwise
	}
	return d
}
