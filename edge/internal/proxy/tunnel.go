package proxy

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

// tunnelSize is how many bytes a tunnel copies at once, in each direction. There
// may be thousands, and most are silent.
const tunnelSize = 4 << 10

// tunnel is a connection that was switched to another protocol: bytes in both
// directions, until both ends have closed their half, one fails, or both are
// silent for too long.
type tunnel struct {
	client, backend io.ReadWriteCloser
	early           io.Reader // what the client sent before it was a tunnel
	idle            time.Duration

	began   time.Time
	last    atomic.Int64 // when a byte passed, in nanoseconds since it began
	in, out atomic.Int64 // bytes from the client and to it
	watch   *time.Timer

	closing sync.Once
	reason  Reason // why it was closed; set within closing
}

// run copies until the tunnel has ended.
func (t *tunnel) run() Reason {
	t.began = time.Now()
	t.watch = time.AfterFunc(math.MaxInt64, t.check) // so that check finds it set
	t.watch.Reset(t.idle)
	defer t.watch.Stop()
	var both sync.WaitGroup
	both.Go(func() { t.copy(t.backend, io.MultiReader(t.early, t.client), &t.in, UpstreamReset, ClientClosed) })
	t.copy(t.client, t.backend, &t.out, ClientClosed, UpstreamReset)
	both.Wait()
	return t.close(OK)
}

// copy passes bytes from one end to the other, and then that there are no more.
func (t *tunnel) copy(to io.Writer, from io.Reader, count *atomic.Int64, badTo, badFrom Reason) {
	buffer := make([]byte, tunnelSize)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			written, werr := to.Write(buffer[:n])
			count.Add(int64(written))
			t.touch()
			if werr != nil {
				t.close(badTo)
				return
			}
		}
		switch {
		case err == io.EOF:
			if half, ok := to.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
				t.close(OK)
			}
			return
		case err != nil:
			t.close(badFrom)
			return
		}
	}
}

func (t *tunnel) touch() { t.last.Store(int64(time.Since(t.began))) }

// check closes the tunnel if it has been silent for too long.
func (t *tunnel) check() {
	silent := time.Since(t.began) - time.Duration(t.last.Load())
	if silent >= t.idle {
		t.close(UpstreamTimeout)
		return
	}
	t.watch.Reset(t.idle - silent)
}

// close closes both ends, and returns the first reason for which that was done.
func (t *tunnel) close(why Reason) Reason {
	t.closing.Do(func() {
		t.reason = why
		t.client.Close()
		t.backend.Close()
	})
	return t.reason
}

// tunnels is those that are open. http.Server neither waits for them nor closes
// them.
type tunnels struct {
	mu     sync.Mutex
	open   map[*tunnel]struct{}
	closed bool
}

// add reports whether the tunnel may begin.
func (s *tunnels) add(t *tunnel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = make(map[*tunnel]struct{})
	}
	s.open[t] = struct{}{}
	return true
}

func (s *tunnels) remove(t *tunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, t)
}

func (s *tunnels) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// close closes all and refuses further ones.
func (s *tunnels) close() {
	s.mu.Lock()
	s.closed = true
	open := make([]*tunnel, 0, len(s.open))
	for t := range s.open {
		open = append(open, t)
	}
	s.mu.Unlock()
	for _, t := range open {
		t.close(Draining)
	}
}

// switchProtocols relays a 101, and then whatever comes until the tunnel ends.
func (x *exchange) switchProtocols(a *attempt, resp *http.Response) {
	backend, writable := resp.Body.(io.ReadWriteCloser)
	if !writable || x.upgrade == "" || !switchesTo(resp.Header, x.upgrade) {
		resp.Body.Close()
		a.lease.Failed(errors.New(badSwitch.detail))
		a.lease.Report(badSwitch.outcome)
		x.answer(&badSwitch)
		return
	}
	a.lease.Report(breaker.Success)
	a.inTime()
	conn, buffered, err := x.front.control.Hijack()
	if err != nil {
		resp.Body.Close()
		x.answer(&cannotSwitch)
		return
	}
	x.hijacked, x.front.status, x.record.Upgrade = true, resp.StatusCode, strings.ToLower(x.upgrade)
	t := &tunnel{client: conn, backend: backend, early: early(buffered.Reader), idle: x.h.options.TunnelIdle}
	if !x.h.tunnels.add(t) {
		x.reason = t.close(Draining)
		return
	}
	defer x.h.tunnels.remove(t)
	if x.writeSwitch(conn, buffered.Writer, resp) != nil {
		x.reason = t.close(ClientClosed)
		return
	}
	x.reason = t.run()
	x.record.BytesIn, x.record.BytesOut = t.in.Load(), t.out.Load()
}

// switchesTo reports whether a 101 is the one that was asked for.
func switchesTo(h http.Header, protocol string) bool {
	return hasToken(h["Connection"], "upgrade") && len(h["Upgrade"]) == 1 && strings.EqualFold(h["Upgrade"][0], protocol)
}

// early is what net/http has read beyond the request.
func early(r *bufio.Reader) io.Reader {
	n := r.Buffered()
	if n == 0 {
		return http.NoBody
	}
	return io.LimitReader(r, int64(n))
}

// writeSwitch writes the 101, which net/http does for no connection that it has given away.
func (x *exchange) writeSwitch(conn net.Conn, w *bufio.Writer, resp *http.Response) error {
	h := x.front.Header()
	copyResponseHeader(h, resp)
	delete(h, "Content-Length")
	h["Connection"] = []string{"Upgrade"}
	h["Upgrade"] = resp.Header["Upgrade"]
	err := conn.SetWriteDeadline(time.Now().Add(x.h.options.WriteIdle))
	if err != nil {
		return err
	}
	_, _ = w.WriteString("HTTP/1.1 101 Switching Protocols\r\n") // Flush has the error
	_ = h.Write(w)
	_, _ = w.WriteString("\r\n")
	err = w.Flush()
	if err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}
