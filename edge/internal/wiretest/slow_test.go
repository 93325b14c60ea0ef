package wiretest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const get = "GET /a/x HTTP/1.1\r\nHost: edge\r\n\r\n"

// dial is a connection to the edge that a test speaks on byte by byte.
func (e *edge) dial(t testing.TB) (*net.TCPConn, *bufio.Reader) {
	t.Helper()
	nc, err := net.Dial("tcp", e.addr) //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return nc.(*net.TCPConn), bufio.NewReader(nc)
}

// wantAnswer reads one, with this status and reason.
func wantAnswer(t testing.TB, r *bufio.Reader, want string) {
	t.Helper()
	a, err := readAnswer(r, "GET")
	if err != nil || a.String() != want {
		t.Fatalf("%v, %v, want %s", a, err, want)
	}
}

// ended reports whether nothing more comes: the connection is closed, or reset.
func ended(r *bufio.Reader) error {
	_, err := io.Copy(io.Discard, r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the connection stays open")
	}
	return nil
}

// Two hundred who send a header byte by byte take all connections that there are,
// and are gone when the time of a header is over, so that others are served.
func TestSlowHeadersFreeTheirConnections(t *testing.T) {
	const all = 200
	s := newStage(t, fmt.Sprintf(", read_header_timeout: 1s, max_connections: %d", all))
	stop := make(chan struct{})
	var slow sync.WaitGroup
	defer slow.Wait()
	defer close(stop)
	var readers []*bufio.Reader
	for range all {
		c, r := s.dial(t)
		readers = append(readers, r)
		slow.Go(func() {
			for i := 0; ; i++ {
				if _, err := c.Write([]byte{("GET /a/x HTTP/1.1\r\nX: " + strings.Repeat("a", 1000))[min(i, 1000)]}); err != nil {
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	c, r := s.dial(t)
	_, _ = io.WriteString(c, get)
	wantAnswer(t, r, "200")
	for _, r := range readers {
		if err := ended(r); err != nil {
			t.Fatal(err)
		}
	}
	if whole, torn, wrong := s.backend.drain(); len(whole) != 1 || len(torn)+len(wrong) > 0 {
		t.Errorf("the backend got %d requests, parts of %d, and %v", len(whole), len(torn), wrong)
	}
	s.access.take()
}

// Whoever comes when there are as many connections as there may be waits for one.
func TestNoMoreConnectionsThanThereMayBe(t *testing.T) {
	s := newStage(t, ", max_connections: 3")
	var first *net.TCPConn
	for range 3 {
		c, r := s.dial(t)
		_, _ = io.WriteString(c, get)
		wantAnswer(t, r, "200")
		first = c
	}
	c, r := s.dial(t)
	_, _ = io.WriteString(c, get)
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := r.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a fourth is answered: %v", err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	first.Close()
	wantAnswer(t, r, "200")
	s.backend.drain()
}

// What has begun, and does not go on, ends.
func TestWhatDoesNotGoOnEnds(t *testing.T) {
	s := newStage(t, ", read_header_timeout: 300ms, keep_alive_timeout: 300ms, body_idle_timeout: 300ms")
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// A POST to / by the static table, whose body is to follow.
	const headers = "\x00\x00\x07\x01\x04\x00\x00\x00\x01\x83\x84\x86\x41\x02ab"
	for name, raw := range map[string]string{
		"nothing":                  "",
		"a letter":                 "G",
		"half a head":              get[:30],
		"a head with no end":       get[:len(get)-2],
		"a request":                get,
		"a request and a half":     get + get[:30],
		"half a preface":           preface[:10],
		"a preface":                preface,
		"half a frame of HTTP/2":   preface + settings + "\x00\x00",
		"half a header of HTTP/2":  preface + settings + headers[:11],
		"a stream without a body":  preface + settings + headers,
		"a body that is not there": "POST /a/x HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\n\r\n",
		"half a body":              "POST /a/x HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\n\r\nhe",
		"half a chunk":             "POST /a/x HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
		"half a chunk's size":      "POST /a/x HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n5",
		"half a trailer":           "POST /a/x HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y",
		"a body to be kept":        "PUT /a/x HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\n\r\nhe",
		"a body that is not asked": "POST /a/x HTTP/1.1\r\nHost: edge\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := s.dial(t)
			_, _ = io.WriteString(c, raw)
			if err := ended(r); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		for _, r := range s.records(t, 0) {
			// Of a trailer net/http says that it is wrong, not that it is late.
			if r.Status != 200 && r.Status != 408 && r.Reason != "bad_body" {
				t.Errorf("logged %+v", r)
			}
		}
		if _, _, wrong := s.backend.drain(); len(wrong) > 0 {
			t.Errorf("the backend got %s", wrong)
		}
	})
}

// A body may take much longer than the time between two of its bytes, and a
// client that stops is told so.
func TestASlowBodySurvivesAndAStalledOneDoesNot(t *testing.T) {
	s := newStage(t, ", body_idle_timeout: 2s")
	const head = "POST /a/x HTTP/1.1\r\nHost: edge\r\n"
	for name, c := range map[string]struct{ head, body, rest string }{
		"of known length": {head + "Content-Length: 25\r\n\r\n", strings.Repeat("x", 25), ""},
		"in one chunk":    {head + "Transfer-Encoding: chunked\r\n\r\n19\r\n", strings.Repeat("x", 25), "\r\n0\r\n\r\n"},
		"to be kept":      {"PUT" + head[4:] + "Content-Length: 25\r\n\r\n", strings.Repeat("x", 25), ""},
	} {
		t.Run("slow "+name, func(t *testing.T) {
			t.Parallel()
			conn, r := s.dial(t)
			_, _ = io.WriteString(conn, c.head)
			for i := range c.body {
				time.Sleep(100 * time.Millisecond)
				_, _ = io.WriteString(conn, c.body[i:i+1])
			}
			_, _ = io.WriteString(conn, c.rest)
			wantAnswer(t, r, "200")
		})
		t.Run("stalled "+name, func(t *testing.T) {
			t.Parallel()
			conn, r := s.dial(t)
			_, _ = io.WriteString(conn, c.head+c.body[:10])
			wantAnswer(t, r, "408:bad_body")
			if err := ended(r); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if whole, _, wrong := s.backend.drain(); len(whole) != 3 || len(wrong) > 0 {
			t.Errorf("the backend got %d whole, and %v", len(whole), wrong)
		}
	})
}

// A backend may take its time when it has the body, more than the client may take
// with it.
func TestALateAnswerIsNoFaultOfTheBody(t *testing.T) {
	s := newStage(t, ", body_idle_timeout: 500ms")
	for _, request := range []string{
		"POST " + late + " HTTP/1.1\r\nHost: edge\r\nContent-Length: 2\r\n\r\nhi",
		"POST " + late + " HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
		"PUT " + late + " HTTP/1.1\r\nHost: edge\r\nContent-Length: 2\r\n\r\nhi",
	} {
		if answers, _ := s.exchange(t, []byte(request+get), most); answersText(answers) != "200 200" {
			t.Errorf("%.20s: %v", request, answers)
		}
	}
}

// A response may take long, too, as long as the client goes on reading it.
func TestASlowReaderSurvivesAndOneThatStopsDoesNot(t *testing.T) {
	s := newStage(t, ", write_idle_timeout: 3s")
	ask := func() (*net.TCPConn, *bufio.Reader) {
		c, r := s.dial(t)
		_ = c.SetReadBuffer(64 << 10)
		_, _ = io.WriteString(c, "GET "+large+" HTTP/1.1\r\nHost: edge\r\nX-Request-Id: "+fmt.Sprint(time.Now().UnixNano())+"\r\nConnection: close\r\n\r\n")
		return c, r
	}
	_, slow := ask()
	begin, n := time.Now(), int64(0)
	for {
		m, err := io.CopyN(io.Discard, slow, 128<<10)
		n += m
		if err != nil {
			break
		}
		time.Sleep(80 * time.Millisecond)
	}
	if took := time.Since(begin); n < 8<<20 || took < 4*time.Second {
		t.Errorf("%d bytes came in %v", n, took)
	}
	stalled, _ := ask()
	for _, want := range []record{{Status: 200, Reason: "ok"}, {Status: 200, Reason: "client_closed"}} {
		got := s.records(t, 1)
		if len(got) != 1 || got[0].Status != want.Status || got[0].Reason != want.Reason {
			t.Errorf("logged %+v, want %+v", got, want)
		}
	}
	stalled.Close()
	s.backend.drain()
}
