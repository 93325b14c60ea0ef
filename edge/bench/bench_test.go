package main

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHeadsAreReadAsFarAsTheyMatter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]head{
		"GET /get HTTP/1.1\r\nHost: x\r\n\r\n":                                       {target: "/get"},
		"POST /post HTTP/1.1\r\ncontent-length:  7 \r\nConnection: close\r\n\r\n":    {target: "/post", length: 7, close: true},
		"HTTP/1.1 200 OK\r\nContent-Length: 64\r\nConnection: keep-alive\r\n\r\n...": {status: 200, length: 64},
		"HTTP/1.0 502 Bad Gateway\r\n\r\n":                                           {status: 502, length: -1},
	} {
		if got, err := readHead(bufio.NewReader(strings.NewReader(text))); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / HTTP/1.1\r\n"} {
		if got, err := readHead(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// A benchmark of a proxy that changes what it passes on is none.
func TestEveryByteOfAnAnswerCounts(t *testing.T) {
	t.Parallel()
	changed := slices.Clone(large)
	changed[40_000]++
	for name, c := range map[string]struct {
		answer []byte
		ok     bool
	}{
		"right":     {response(200, large), true},
		"changed":   {response(200, changed), false},
		"too short": {response(200, large[:len(large)-1]), false},
		"too long":  {response(200, append(slices.Clone(large), 'x')), false},
		"refused":   {response(503, large), false},
	} {
		addr := answering(t, c.answer)
		r := get(pathBody, large)
		w := newWire(addr)
		if ok, err := w.exchange(t.Context(), &r); ok != c.ok || (err == nil) != c.ok {
			t.Errorf("%s: %t, %v", name, ok, err)
		}
		w.hangUp()
	}
}

// answering listens where each connection gets the answer.
func answering(t *testing.T, answer []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = readHead(bufio.NewReader(c))
			_, _ = c.Write(answer)
			t.Cleanup(func() { c.Close() })
		}
	}()
	return l.Addr().String()
}

func TestTheBackendLooksAtWhatItGets(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go (&backend{work: time.Microsecond, desks: make(chan struct{}, 1)}).acceptAll(l)
	changed := slices.Clone(upload)
	changed[9000]++
	w := newWire(l.Addr().String())
	defer w.hangUp()
	for _, c := range []struct {
		request request
		ok      bool
	}{
		{get(pathGet, small), true},
		{get(pathBody, large), true},
		{get(pathWork+"rr", small), true},
		{post(upload, small), true},
		{post(upload[1:], small), false},
		{post(changed, small), false},
		{get(pathPost, small), false},
	} {
		c.request.tolerant = true
		if ok, err := w.exchange(t.Context(), &c.request); ok != c.ok || err != nil {
			t.Errorf("%.40q: %t, %v", c.request.bytes, ok, err)
		}
	}
}
