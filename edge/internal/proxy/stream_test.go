package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

func TestEventsComeAtOnce(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		next := make(chan bool)
		e := newEdge(t, setup{
			route: Route{Timeout: 200 * time.Millisecond}, options: Options{WriteIdle: 100 * time.Millisecond},
			backends: []string{serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				http.NewResponseController(w).Flush()
				for range next {
					io.WriteString(w, "data: 1\n\n")
					http.NewResponseController(w).Flush()
				}
			})},
		})
		resp, err := e.client(version).Do(e.request("GET", "/", nil)) // the header comes before any event
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		e.wantBreaker("closed")
		for range 3 { // longer than any deadline
			time.Sleep(150 * time.Millisecond)
			next <- true
			b := make([]byte, 9)
			if _, err := io.ReadFull(resp.Body, b); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(150 * time.Millisecond)
		close(next)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Error(err)
		}
		if r := e.wantRecord(200, OK); r.BytesOut != 27 {
			t.Errorf("%d bytes", r.BytesOut)
		}
	})
}

func TestWhatComesOfAKnownLengthIsNotKeptBack(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		next := make(chan bool)
		e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
			<-next
			p.say("world")
		})}})
		resp, err := e.client(version).Do(e.request("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := make([]byte, 10)
		if _, err := io.ReadFull(resp.Body, b[:5]); err != nil {
			t.Fatal(err)
		}
		close(next)
		if _, err := io.ReadFull(resp.Body, b[5:]); err != nil || string(b) != "helloworld" {
			t.Errorf("%q %v", b, err)
		}
	})
}

func TestABodyThatStandsStillIsCutAndOneThatGoesOnIsNot(t *testing.T) {
	stop := make(chan bool)
	e := newEdge(t, setup{route: Route{Timeout: 200 * time.Millisecond}, backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
		for range 8 {
			p.say("x")
			time.Sleep(50 * time.Millisecond)
		}
		<-stop
	})}})
	defer close(stop)
	a := e.get(1, "/")
	if a.body != "xxxxxxxx" || a.torn == nil {
		t.Errorf("%q %v", a.body, a.torn)
	}
	e.wantRecord(200, UpstreamTimeout)
	e.wantBreaker("open")
}

func TestInterimResponsesPass(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{route: Route{Limit: deny{}}, backends: []string{raw(t, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\nX-Hop: 1\r\nConnection: X-Hop\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </b>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		})}})
		var hints []textproto.MIMEHeader
		r := e.request("GET", "/", nil)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, h)
			return nil
		}}))
		a := e.do(e.client(version), r)
		if len(hints) != 2 || hints[0].Get("Link") != "</style.css>" || hints[1].Get("Link") != "</b>" || len(hints[0]) != 1 {
			t.Errorf("hints %v", hints)
		}
		if a.StatusCode != 200 || a.body != "ok" || a.Header.Get("Link") != "" || a.Header.Get("X-Limited") == "" {
			t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
		}
	})
}

func TestAnOldClientGetsNoInterimResponse(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	})}})
	c := e.dial()
	c.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n")
	if a := c.response("GET"); a.StatusCode != 200 || a.body != "ok" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
}

func TestResponsesWithoutABody(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
			for {
				head := p.head()
				switch {
				case head == "":
					return
				case strings.HasPrefix(head, "HEAD /length"):
					p.say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
				case strings.HasPrefix(head, "HEAD"):
					p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				case strings.Contains(head, " /204"):
					p.say("HTTP/1.1 204 No Content\r\n\r\n")
				case strings.Contains(head, " /304"):
					p.say("HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n")
				default:
					p.say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}
		})}})
		c := e.client(version)
		for _, want := range []struct {
			method, path string
			status       int
			length       string
		}{{"HEAD", "/length", 200, "1000"}, {"HEAD", "/chunked", 200, ""}, {"GET", "/204", 204, ""}, {"GET", "/304", 304, ""}, {"GET", "/empty", 200, "0"}} {
			a := e.do(c, e.request(want.method, want.path, nil))
			if a.StatusCode != want.status || a.body != "" || a.Header.Get("Content-Length") != want.length || a.Header.Get("Content-Type") != "" {
				t.Errorf("%s %s: %d %q %v", want.method, want.path, a.StatusCode, a.body, a.Header)
			}
		}
		for i := range 5 {
			if r := e.record(i + 1); r.Reason != OK || r.BytesOut != 0 {
				t.Errorf("recorded %+v", r)
			}
		}
	})
}

func TestAClientThatReadsNothingIsLeft(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{
			options: Options{WriteIdle: 200 * time.Millisecond},
			backends: []string{serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000000000")
				io.CopyN(w, zeros{}, 1000000000)
			})},
		})
		resp, err := e.client(version).Do(e.request("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		e.wantRecord(200, ClientClosed)
		e.idle()
		e.wantBreaker("closed")
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the body looks complete")
		}
		resp.Body.Close()
	})
}

func TestLargeBodiesArriveWhole(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 0 {
				w.Header().Set("Content-Length", itoa(int(r.ContentLength)))
			}
			http.NewResponseController(w).EnableFullDuplex()
			io.Copy(w, r.Body)
		})}})
		body := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
		for _, r := range []*http.Request{e.request("PUT", "/", strings.NewReader(body)), e.request("PUT", "/", io.MultiReader(strings.NewReader(body)))} {
			if a := e.do(e.client(version), r); a.body != body || a.torn != nil {
				t.Errorf("%d bytes, %v", len(a.body), a.torn)
			}
		}
		for i := range 2 {
			if r := e.record(i + 1); r.Reason != OK || r.BytesIn != int64(len(body)) || r.BytesOut != int64(len(body)) {
				t.Errorf("recorded %+v", r)
			}
		}
	})
}

func TestAtTheEndOfGraceABodyIsCutAndRecordedAsDraining(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})}})
		resp, err := e.client(version).Do(e.request("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		e.handler.CloseTunnels()
		e.server.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the body looks complete")
		}
		e.wantRecord(200, Draining)
		e.wantBreaker("closed")
	})
}

func TestAClientMayTakeItsTime(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		inTime(t, func(unit time.Duration) string {
			e := newEdge(t, setup{route: Route{Timeout: unit}, backends: []string{serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", itoa(32<<20))
				io.CopyN(w, zeros{}, 32<<20)
			})}})
			resp, err := e.client(version).Do(e.request("GET", "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			time.Sleep(2 * unit)
			n, err := io.Copy(io.Discard, resp.Body)
			if r := e.record(1); n != 32<<20 || err != nil || r.Status != 200 || r.Reason != OK {
				return fmt.Sprintf("%d bytes, %v, recorded %d %s", n, err, r.Status, r.Reason)
			}
			return ""
		})
	})
}
