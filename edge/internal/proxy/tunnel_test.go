package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// echoSocket is a WebSocket backend.
func echoSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil || c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

func (e *edge) websocket() *websocket.Conn {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.t.Cleanup(cancel)
	c, _, err := websocket.Dial(ctx, e.url, &websocket.DialOptions{HTTPClient: e.client(1)})
	if err != nil {
		e.t.Fatal(err)
	}
	c.SetReadLimit(-1)
	e.t.Cleanup(func() { c.CloseNow() })
	return c
}

func TestAWebSocketEchoes(t *testing.T) {
	e := newEdge(t, setup{backends: []string{serve(t, echoSocket)}})
	c := e.websocket()
	for _, size := range []int{0, 1, 5000, 16 << 20} {
		message := bytes.Repeat([]byte("x"), size)
		if err := c.Write(t.Context(), websocket.MessageBinary, message); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("%d bytes became %d, %v", size, len(got), err)
		}
	}
	if n, s := e.handler.Tunnels(), e.gen.Status()[0]; n != 1 || s.InFlight != 1 {
		t.Errorf("%d tunnels, %d in flight", n, s.InFlight)
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	e.idle()
	r := e.wantRecord(101, OK)
	if r.Upgrade != "websocket" || r.BytesIn < 16<<20 || r.BytesOut < 16<<20 || r.Attempts != 1 {
		t.Errorf("recorded %+v", r)
	}
	e.wantBreaker("closed")
}

func TestAWebSocketWhoseClientVanishesIsFreed(t *testing.T) {
	e := newEdge(t, setup{backends: []string{serve(t, echoSocket)}})
	for range 5 {
		e.websocket().CloseNow()
	}
	e.record(5)
	e.idle()
}

const upgrading = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

func TestATunnelPassesHalfCloses(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say(switching + "early")
		b, _ := io.ReadAll(p.r) // until the client's half is closed
		p.say("got " + string(b))
	})}})
	c := e.dial()
	c.send(upgrading + "\r\nfirst ") // bytes before the 101
	a := c.response("GET")
	if a.StatusCode != 101 || a.Header.Get("Upgrade") != "websocket" || a.Header.Get("Via") == "" || a.Header.Get("X-Request-Id") == "" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	c.send("last")
	c.CloseWrite()
	if b, err := io.ReadAll(c.r); err != nil || string(b) != "earlygot first last" {
		t.Errorf("%q %v", b, err)
	}
	if r := e.wantRecord(101, OK); r.BytesIn != 10 || r.BytesOut != 19 {
		t.Errorf("recorded %+v", r)
	}
}

func TestASilentTunnelIsClosedAndOneThatSpeaksIsNot(t *testing.T) {
	e := newEdge(t, setup{options: Options{TunnelIdle: 300 * time.Millisecond}, backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say(switching)
		io.Copy(p, p.r)
	})}})
	c := e.dial()
	c.send(upgrading + "\r\n")
	c.response("GET")
	for range 6 {
		c.send("x")
		if _, err := c.r.ReadByte(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	began := time.Now()
	c.wantClosed()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("closed after %v", took)
	}
	e.wantRecord(101, UpstreamTimeout)
	e.idle()
}

func TestA101ThatWasNotAskedForIs502(t *testing.T) {
	for name, c := range map[string]struct{ request, response string }{
		"another protocol": {upgrading, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"},
		"no protocol":      {upgrading, "HTTP/1.1 101 Switching Protocols\r\n\r\n"},
		"not asked":        {"GET / HTTP/1.1\r\nHost: h\r\n", switching},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) { p.head(); p.say(c.response); p.drain() })}})
			conn := e.dial()
			conn.send(c.request + "\r\n")
			conn.response("GET").wantProblem(t, 502, BadUpgrade)
			e.wantRecord(502, BadUpgrade)
			e.idle()
			e.wantBreaker("open")
		})
	}
}

func TestOtherUpgradesArePlainRequests(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	for _, fields := range []string{
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n", "Connection: Upgrade\r\nUpgrade: foo\r\n", "Upgrade: websocket\r\n",
	} {
		c := e.dial()
		c.send("GET / HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n")
		a := c.response("GET")
		_, h := headOf(t, a.body)
		if a.StatusCode != 200 || h["Upgrade"] != nil || h["Connection"] != nil || h["Http2-Settings"] != nil {
			t.Errorf("%q: %d %v", fields, a.StatusCode, h)
		}
	}
}

func TestARefusedUpgradeIsAnOrdinaryResponse(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	c := e.dial()
	for range 2 {
		c.send(strings.Replace(upgrading, "Upgrade: websocket", "Upgrade: foo, WebSocket", 1) + "\r\n")
		a := c.response("GET")
		_, h := headOf(t, a.body)
		if a.StatusCode != 200 || h.Get("Upgrade") != "WebSocket" || h.Get("Connection") != "Upgrade" {
			t.Errorf("%d %v", a.StatusCode, h)
		}
	}
}

func TestClosingTunnelsEndsBothSides(t *testing.T) {
	ended := make(chan bool)
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
		p.head()
		p.say(switching)
		p.drain()
		close(ended)
	})}})
	c := e.dial()
	c.send(upgrading + "\r\n")
	c.response("GET")
	e.handler.CloseTunnels()
	<-ended
	if _, err := c.r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the client's end: %v", err)
	}
	e.wantRecord(101, Draining)
	e.idle()
}
