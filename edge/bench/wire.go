package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
)

// request is what is sent again and again, and what must come back.
type request struct {
	bytes  []byte // as it goes over the wire
	status int
	body   []byte // nil: any
	fresh  bool   // each has a connection of its own
	// tolerant: another status than the one that is wanted is counted, not an error.
	tolerant bool
}

func get(path string, body []byte) request {
	return request{bytes: []byte("GET " + path + " HTTP/1.1\r\nHost: bench\r\n\r\n"), status: 200, body: body}
}

func post(sent, body []byte) request {
	head := "POST " + pathPost + " HTTP/1.1\r\nHost: bench\r\nContent-Length: " + strconv.Itoa(len(sent)) + "\r\n\r\n"
	return request{bytes: append([]byte(head), sent...), status: 200, body: body}
}

// wire is one HTTP/1.1 connection that sends requests which are ready to be
// written, and reads no more of a response than has to be read. net/http's
// client would cost more than most of the proxies.
type wire struct {
	addr string
	conn net.Conn // nil: there is none at the moment
	in   *bufio.Reader
}

func newWire(addr string) *wire { return &wire{addr: addr, in: bufio.NewReaderSize(nil, 32<<10)} }

func (w *wire) dial(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return err
	}
	w.conn = conn
	w.in.Reset(conn)
	return nil
}

// hangUp resets the connection: closed in order, those of a few seconds would
// use up the ports there are.
func (w *wire) hangUp() {
	if w.conn == nil {
		return
	}
	if tcp, ok := w.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or there is nothing to reset
	}
	_ = w.conn.Close()
	w.conn = nil
}

// exchange sends a request and looks at the answer. It reports whether that is
// the one that is wanted; an answer that nobody may give is an error.
func (w *wire) exchange(ctx context.Context, r *request) (bool, error) {
	if w.conn == nil {
		if err := w.dial(ctx); err != nil {
			return false, err
		}
	}
	if _, err := w.conn.Write(r.bytes); err != nil {
		return false, err
	}
	h, err := readHead(w.in)
	if err != nil {
		return false, err
	}
	if h.length < 0 {
		return false, fmt.Errorf("a response of status %d without Content-Length", h.status)
	}
	same := sameBytes(w.in, r.body, h.length)
	ok := h.status == r.status && (same || r.body == nil)
	if r.fresh || h.close {
		w.hangUp()
	}
	if !ok && (!r.tolerant || h.status == r.status) {
		return false, fmt.Errorf("wrong answer: status %d with %d bytes, want %d with %d", h.status, h.length, r.status, len(r.body))
	}
	return ok, nil
}
