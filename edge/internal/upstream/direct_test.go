package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
)

// scripted is a backend of which each connection is handled by serve.
func scripted(t *testing.T, serve func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		defer c.Close()
		serve(c, bufio.NewReader(c))
	})
}

// asked reads a request, and reports whether there was one.
func asked(in *bufio.Reader) bool {
	_, err := http.ReadRequest(in)
	return err == nil
}

// inTime begins what must not last until the time of a response is over.
func inTime(t *testing.T) (done func()) {
	begun := time.Now()
	return func() {
		t.Helper()
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
	}
}

const plainOK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestAKeptConnectionThatWasClosedIsNotUsed(t *testing.T) {
	closed := make(chan struct{}, 10)
	p := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
		asked(in)
		io.WriteString(c, plainOK)
		c.Close()
		closed <- struct{}{}
	})))
	for range 5 { // also what must not be sent twice
		l := acquire(t, p)
		r := request(t, l.Backend(), "/")
		r.Method = http.MethodDelete
		resp, err := l.Backend().RoundTrip(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		l.Done()
		<-closed
	}
}

// A backend that closes a kept connection when the next request is on its way.
func TestOnlyWhatIsSafeIsSentAgain(t *testing.T) {
	for method, want := range map[string]int64{http.MethodGet: 3, http.MethodHead: 3, http.MethodDelete: 2} {
		t.Run(method, func(t *testing.T) {
			var requests atomic.Int64
			p := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
				for n := 0; asked(in); n++ {
					requests.Add(1)
					if n == 1 {
						return
					}
					io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
				}
			})))
			b := p.members[0].backend
			var err error
			for range 2 {
				r := request(t, b, "/")
				r.Method = method
				var resp *http.Response
				if resp, err = b.RoundTrip(r, nil); err == nil {
					resp.Body.Close()
				}
			}
			if safe := method != http.MethodDelete; (err == nil) != safe || requests.Load() != want {
				t.Errorf("%v, the backend had %d requests, want %d", err, requests.Load(), want)
			}
		})
	}
}

func TestAConnectionIsKeptOnlyIfItsResponseHasEnded(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		read   bool
		made   int64
	}{
		"read to its end":                {plainOK, true, 1},
		"not read":                       {plainOK, false, 2},
		"no body":                        {"HTTP/1.1 304 Not Modified\r\n\r\n", false, 1},
		"in chunks":                      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true, 1},
		"the last one":                   {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true, 2},
		"of HTTP/1.0":                    {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", true, 2},
		"with more than it said":         {plainOK + "more", true, 2},
		"a switch that nobody asked for": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var made atomic.Int64
			p := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
				made.Add(1)
				for asked(in) {
					io.WriteString(c, test.answer)
				}
			})))
			b := p.members[0].backend
			for range 2 {
				resp, err := b.RoundTrip(request(t, b, "/"), nil)
				if err != nil {
					t.Fatal(err)
				}
				if test.read {
					io.Copy(io.Discard, resp.Body)
				}
				resp.Body.Close()
			}
			if made.Load() != test.made {
				t.Errorf("%d connections, want %d", made.Load(), test.made)
			}
		})
	}
}

// The deadline of a connection is not set for each request; each has the whole time all
// the same, and no more.
func TestEachResponseHasTheWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		var takes time.Duration // a response
		var made int
		d := &direct{most: 1, response: limit, dial: func(context.Context, string, string) (net.Conn, error) {
			made++
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				for in := bufio.NewReader(theirs); asked(in); {
					time.Sleep(takes)
					io.WriteString(theirs, plainOK[:len(plainOK)-1])
					time.Sleep(2 * limit) // for its body it has as long as it likes
					io.WriteString(theirs, "k")
				}
			}()
			return ours, nil
		}}
		defer d.CloseIdleConnections()
		r := plainRequest()
		for i, pause := range []time.Duration{0, 0, 3, 5, 6, 9, 10, 30, 60, 2} {
			time.Sleep(pause * time.Second)
			for _, takes = range []time.Duration{0, limit / 3, limit - 1} {
				resp, err := d.roundTrip(r, new(httptrace.ClientTrace))
				if err != nil {
					t.Fatalf("%d: after %v: %v", i, takes, err)
				}
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Fatalf("%d: the body: %v", i, err)
				}
			}
		}
		if made != 1 {
			t.Errorf("%d connections", made)
		}
		begun := time.Now()
		takes = limit + 1
		if _, err := d.roundTrip(r, new(httptrace.ClientTrace)); err == nil || !isTimeout(err) || time.Since(begun) != limit {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		time.Sleep(4 * limit) // the backend notices
	})
}

func TestTheEndOfARequestIsNotUndoneByADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() { asked(bufio.NewReader(theirs)) }()
		d := &direct{response: time.Second, dial: func(context.Context, string, string) (net.Conn, error) { return ours, nil }}
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why) // just when the deadline comes
		defer cancel()
		if _, err := d.roundTrip(plainRequest().WithContext(ctx), new(httptrace.ClientTrace)); !errors.Is(err, why) && !isTimeout(err) {
			t.Error(err)
		}
	})
}

// The first read of a body takes what is here, and waits for no more.
func TestWhatIsHereOfABodyIsRead(t *testing.T) {
	const length = 100_000
	body := strings.Repeat("0123456789", length/10)
	for _, first := range []int{1, 100, lineBuffer, 20_000, length - 1, length} {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			goOn := make(chan struct{})
			p := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
				for asked(in) {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(length)+"\r\n\r\n"+body[:first])
					<-goOn
					io.WriteString(c, body[first:])
				}
			})))
			b := p.members[0].backend
			for range 2 {
				resp, err := b.RoundTrip(request(t, b, "/"), nil)
				if err != nil {
					t.Fatal(err)
				}
				var got strings.Builder
				buffer := make([]byte, 32<<10)
				for got.Len() < first {
					n, err := resp.Body.Read(buffer)
					got.Write(buffer[:n])
					if err != nil && (err != io.EOF || first < length) {
						t.Fatalf("after %d bytes: %v", got.Len(), err)
					}
				}
				goOn <- struct{}{}
				if _, err := io.Copy(&got, resp.Body); err != nil || got.String() != body {
					t.Errorf("%d bytes, %v", got.Len(), err)
				}
				resp.Body.Close()
			}
		})
	}
}

func TestIdleConnectionsAreClosedInTime(t *testing.T) {
	s := newBackendServer(t, ok)
	c := poolOf(t, s.URL)
	c.IdleTimeout = 30 * time.Millisecond
	p := single(t, c)
	must(t, p)
	edgetest.Soon(t, "it is closed", func() bool { _, open := s.connections(); return open == 0 })
	must(t, p)
	edgetest.Soon(t, "the next one, too", func() bool { made, open := s.connections(); return made == 2 && open == 0 })
}

func TestACancelledRequestEndsAtOnce(t *testing.T) {
	cause := errors.New("the test has seen enough")
	for name, answer := range map[string]string{"before the head": "", "within the body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"} {
		t.Run(name, func(t *testing.T) {
			gone, begun := make(chan struct{}), make(chan struct{})
			b := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
				asked(in)
				io.WriteString(c, answer)
				close(begun)
				_, _ = in.ReadByte()
				close(gone)
			}))).members[0].backend
			soon := inTime(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-begun
				time.Sleep(20 * time.Millisecond) // until it is waited for; without it the test is only weaker
				cancel(cause)
			}()
			resp, err := b.RoundTrip(request(t, b, "/").WithContext(ctx), nil)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if !errors.Is(err, cause) {
				t.Errorf("%v, want the cause", err)
			}
			soon()
			<-gone // the connection is closed
		})
	}
}

func TestInterimResponsesAreToldAndBounded(t *testing.T) {
	const early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	b := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
		for asked(in) {
			io.WriteString(c, early+early+plainOK)
		}
	}))).members[0].backend
	told := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
		if status != 103 || h.Get("Link") != "</a>" {
			t.Errorf("%d %v", status, h)
		}
		told++
		return nil
	}}
	for range 2 {
		r := request(t, b, "/")
		resp, err := b.RoundTrip(r, trace)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if told != 4 {
		t.Errorf("told %d times", told)
	}
}

func TestAHeadWithoutAnEndIsNotReadForever(t *testing.T) {
	b := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
		asked(in)
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		line := "X-Filler: " + strings.Repeat("x", 1000) + "\r\n"
		for {
			if _, err := io.WriteString(c, line); err != nil {
				return
			}
		}
	}))).members[0].backend
	soon := inTime(t)
	resp, err := b.RoundTrip(request(t, b, "/"), nil)
	if err == nil {
		resp.Body.Close()
		t.Error("it was taken")
	}
	soon()
}

func TestABodyThatIsCutOffIsAnError(t *testing.T) {
	b := single(t, poolOf(t, scripted(t, func(c net.Conn, in *bufio.Reader) {
		asked(in)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
	}))).members[0].backend
	resp, err := b.RoundTrip(request(t, b, "/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); string(got) != "ok" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", got, err)
	}
}
