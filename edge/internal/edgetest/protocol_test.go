package edgetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// talk is a connection whose bytes the test says and reads.
type talk struct {
	*net.TCPConn
	r *bufio.Reader
}

func (e *edge) talk(t *testing.T) *talk {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(limit))
	return &talk{c.(*net.TCPConn), bufio.NewReader(c)}
}

// upgrade asks for a tunnel, and reads as far as its first line.
func (c *talk) upgrade(t *testing.T, path string) {
	t.Helper()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nX-Request-Id: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", path, t.Name())
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	if line, err := c.r.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// tunnelled is that a tunnel has left nothing behind.
func (e *edge) tunnelled(before baseline, b *backend) {
	e.t.Helper()
	if open, ok := e.metric("sentinel_edge_tunnels"), e.attempts(b, "ok"); open != 0 || ok != 2 { // with the one of the start
		e.t.Errorf("%v tunnels are open, %v attempts were fine", open, ok)
	}
	if n := e.answered("GET", http.StatusSwitchingProtocols); n != 1 {
		e.t.Errorf("%v were counted as tunnels", n)
	}
	e.quiet(before, b)
}

func TestAClientMayEndItsHalfOfATunnel(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	c := e.talk(t)
	c.upgrade(t, "/halves")
	sent := bytes.Repeat([]byte("x"), 3<<20)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if rest, err := io.ReadAll(c.r); string(rest) != fmt.Sprintf("%d bytes\n", len(sent)) || err != nil {
		t.Errorf("after the client's end: %q, %v", rest, err)
	}
	if a := e.logged(t.Name()); a.Status != http.StatusSwitchingProtocols || a.Reason != "ok" || a.BytesIn != int64(len(sent)) {
		t.Errorf("logged %+v", a)
	}
	e.tunnelled(before, b)
}

func TestABackendMayEndItsHalfOfATunnel(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	c := e.talk(t)
	c.upgrade(t, "/halves?first")
	if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil {
		t.Fatalf("the backend's end: %q, %v", rest, err)
	}
	sent := bytes.Repeat([]byte("x"), 3<<20)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	if a := e.logged(t.Name()); a.Reason != "ok" || a.BytesIn != int64(len(sent)) {
		t.Errorf("logged %+v", a)
	}
	e.tunnelled(before, b)
}

func TestAWebSocketTakesFramesOf16MiB(t *testing.T) {
	e, b := one(t, "")
	before := e.baseline()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, _, err := websocket.Dial(ctx, strings.Replace(e.url("/ws"), "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	frame := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(frame)
	for range 2 {
		if err := c.Write(ctx, websocket.MessageBinary, frame); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, frame) {
			t.Fatalf("%d bytes came back, not those that were sent: %v", len(got), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("the end: %v", err)
	}
	e.quiet(before, b)
}

// firstEvent is how long the first of two events takes, of which the second comes
// much later.
func firstEvent(t *testing.T, url string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 0\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return time.Since(begin)
}

func TestAnEventComesAsPromptlyAsFromTheBackend(t *testing.T) {
	e, b := one(t, "")
	direct, through := limit, limit
	for range 5 {
		direct = min(direct, firstEvent(t, b.url()+"/sse?n=2&d=20s"))
		through = min(through, firstEvent(t, e.url("/sse?n=2&d=20s")))
	}
	if through > direct+time.Second {
		t.Errorf("the first event takes %v, and %v without the edge", through, direct)
	}
}

// h2c speaks HTTP/2 from its first byte.
func h2c(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: limit}
}

func TestOneConnectionOfHTTP2CarriesManyStreams(t *testing.T) {
	e, b := one(t, "")
	c := h2c(t)
	const streams = 50
	if resp, err := c.Get(e.url("/ok")); err != nil { //nolint:noctx // the client has a limit
		t.Fatal(err)
	} else {
		_ = resp.Body.Close() // the connection is there now
	}
	var connections sync.Map
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() { echoOver(t, c, e.url(fmt.Sprintf("/echo?stream=%d", i)), i, &connections) })
	}
	all.Wait()
	n := 0
	connections.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("there were %d connections", n)
	}
	echoes := 0
	for _, r := range b.journal() {
		if strings.HasPrefix(r.Target, "/echo") {
			echoes++
			if r.Proto != "HTTP/1.1" || r.Trailer.Get("X-Sum") == "" || r.SHA256 != r.Trailer.Get("X-Sum") {
				t.Errorf("the backend got %+v", r)
			}
		}
	}
	if echoes != streams {
		t.Errorf("the backend got %d requests", echoes)
	}
}

// echoOver sends a body with a trailer, and expects both back.
func echoOver(t *testing.T, c *http.Client, url string, i int, connections *sync.Map) {
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		connections.Store(info.Conn.LocalAddr().String(), true)
	}})
	body := bytes.Repeat([]byte{byte(i)}, 1000*i)
	sum := sha256.Sum256(body)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, io.MultiReader(bytes.NewReader(body))) // of unknown length
	if err != nil {
		t.Error(err)
		return
	}
	r.Trailer = http.Header{"X-Sum": {hex.EncodeToString(sum[:])}}
	resp, err := c.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 || !bytes.Equal(got, body) || resp.Trailer.Get("X-Sum") != r.Trailer.Get("X-Sum") {
		t.Errorf("stream %d: %s, %d bytes, trailer %v, %v", i, resp.Proto, len(got), resp.Trailer, err)
	}
}

func TestEarlyHintsPassInBothVersions(t *testing.T) {
	e, _ := one(t, "")
	for name, c := range map[string]*http.Client{"HTTP/1.1": client, "HTTP/2.0": h2c(t)} {
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, " ", h.Get("Link")))
			return nil
		}})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url("/103"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp := doWith(t, c, r)
		if resp.Proto != name || resp.StatusCode != http.StatusOK || resp.Header.Get("Link") != "" || string(resp.body) != "a\n" {
			t.Errorf("%s: %s %s, %v, %q", name, resp.Proto, resp.Status, resp.Header, resp.body)
		}
		if len(hints) != 1 || hints[0] != "103 </style.css>; rel=preload" {
			t.Errorf("%s: the hints are %q", name, hints)
		}
	}
}

func TestTrailersPassInBothDirections(t *testing.T) {
	e, b := one(t, "")
	for name, c := range map[string]*http.Client{"HTTP/1.1": client, "HTTP/2.0": h2c(t)} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url("/echo"), io.MultiReader(strings.NewReader("hello")))
		if err != nil {
			t.Fatal(err)
		}
		r.Trailer = http.Header{"X-Sum": {"42"}}
		resp := doWith(t, c, r)
		if resp.Proto != name || string(resp.body) != "hello" || resp.Trailer.Get("X-Sum") != "42" {
			t.Errorf("%s: %s %s, %q, %v", name, resp.Proto, resp.Status, resp.body, resp.Trailer)
		}
		journal := b.journal()
		if got := journal[len(journal)-1]; got.Trailer.Get("X-Sum") != "42" || got.Body != 5 {
			t.Errorf("%s: the backend got %+v", name, got)
		}
	}
}

// Whoever waits for a 100 before a body is told whether it is wanted: by the
// backend's final answer, or by the 100.
func TestABodyIsAskedForOrNot(t *testing.T) {
	e, b := one(t, "")
	c := e.talk(t)
	fmt.Fprint(c, "POST /early413 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close || !strings.Contains(string(body), "says the backend") || err != nil {
		t.Errorf("%s, close %t, %q, %v", resp.Status, resp.Close, body, err)
	}
	if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}

	c = e.talk(t)
	fmt.Fprint(c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	line, err := c.r.ReadString('\n')
	if line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = c.r.ReadString('\n')
	fmt.Fprint(c, "hello")
	resp, err = http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); string(body) != "hello" || resp.Close || err != nil {
		t.Errorf("%s, close %t, %q, %v", resp.Status, resp.Close, body, err)
	}
	journal := b.journal()
	for i, want := range []int64{0, 5} {
		if got := journal[len(journal)-2+i]; got.Header.Get("Expect") != "100-continue" || got.Body != want {
			t.Errorf("the backend got %+v", got)
		}
	}
}
