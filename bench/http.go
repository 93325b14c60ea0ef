package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// service is an HTTP server on the loopback with a handler that answers "ok":
// / bare, and /ID behind the guard of each endpoint.
type service struct {
	addr   string
	server *http.Server
}

func startService(limiter *sentinel.Limiter, ids ...string) (*service, error) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", ok)
	var h http.Handler = mux
	if limiter != nil {
		for _, id := range ids {
			mux.Handle("GET /"+id, sentinelhttp.Guard(id)(ok))
		}
		h = sentinelhttp.Middleware(limiter)(mux)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// A connection waits for its first request until its contestant's turn
	// comes, which may be minutes.
	s := &service{addr: ln.Addr().String(), server: &http.Server{
		Handler: h, ReadHeaderTimeout: time.Hour, ErrorLog: log.New(discardLines{}, "", 0),
	}}
	go func() { _ = s.server.Serve(ln) }() // until stop
	return s, nil
}

func (s *service) stop() { _ = s.server.Close() }

type discardLines struct{}

func (discardLines) Write(p []byte) (int, error) { return len(p), nil }

// wire is one HTTP/1.1 connection that sends requests which are ready to be
// written, and reads no more of a response than has to be read. net/http's
// client would cost more than the server.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
}

func (s *service) dial(ctx context.Context) (*wire, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	return &wire{conn: conn, in: bufio.NewReader(conn)}, nil
}

// raw is a request as it goes over the wire. header is whole lines.
func raw(path, header string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: bench\r\n" + header + "\r\n")
}

// get sends a request and returns the status of the response.
func (w *wire) get(request []byte) (status int, err error) {
	if _, err := w.conn.Write(request); err != nil {
		return 0, err
	}
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return 0, fmt.Errorf("a status line of %d bytes", len(line))
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, err
	}
	length := -1
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 {
		return 0, errors.New("a response without Content-Length")
	}
	_, err = w.in.Discard(length)
	return status, err
}

// overHTTP is a taker on a pool of connections to the service. request makes
// the i-th request; a 429 is a denial, everything else but 200 an error.
func (s *service) overHTTP(ctx context.Context, connections int, request func(i int) []byte) (take taker, done func(), err error) {
	pool := make(chan *wire, connections)
	var all []*wire
	done = func() {
		for _, w := range all {
			_ = w.conn.Close()
		}
	}
	for range connections {
		w, err := s.dial(ctx)
		if err != nil {
			done()
			return nil, nil, err
		}
		all = append(all, w)
		pool <- w
	}
	return func(_ context.Context, i int) (bool, error) {
		w := <-pool
		status, err := w.get(request(i))
		pool <- w
		switch {
		case err != nil:
			return false, err
		case status == http.StatusOK:
			return true, nil
		case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
			return false, nil
		default:
			return false, fmt.Errorf("status %d", status)
		}
	}, done, nil
}

// tokenRequests are requests of as many tenants to the path.
func tokenRequests(path string, n int) [][]byte {
	requests := make([][]byte, n)
	for i, tenant := range names("tenant", n) {
		requests[i] = raw(path, "Authorization: "+bearer(tenant)+"\r\n")
	}
	return requests
}
