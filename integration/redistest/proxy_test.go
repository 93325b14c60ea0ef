package redistest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wire is a bare connection, so that a test sees what really arrives.
type wire struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (w *wire) send(lines ...string) {
	w.t.Helper()
	if _, err := w.conn.Write([]byte(strings.Join(lines, "\r\n") + "\r\n")); err != nil {
		w.t.Fatal(err)
	}
}

// want reads one whole reply.
func (w *wire) want(reply string) {
	w.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if got, err := readValue(w.in); err != nil || string(got) != reply {
		w.t.Fatalf("got %q, %v, want %q", got, err, reply)
	}
}

// wantBytes reads exactly these bytes.
func (w *wire) wantBytes(want string) {
	w.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len(want))
	if n, err := io.ReadFull(w.in, got); err != nil || string(got) != want {
		w.t.Fatalf("got %q, %v, want %q", got[:n], err, want)
	}
}

func (w *wire) wantSilence() {
	w.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if b, err := w.in.ReadByte(); !os.IsTimeout(err) {
		w.t.Fatalf("got %q, %v, want silence", b, err)
	}
}

// wantEnd reads the end of the connection, as EOF or as a reset.
func (w *wire) wantEnd() error {
	w.t.Helper()
	_ = w.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	b, err := w.in.ReadByte()
	if err == nil || os.IsTimeout(err) {
		w.t.Fatalf("got %q, %v, want the end of the connection", b, err)
	}
	return err
}

func TestProxyPassesAndCounts(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	w.send("*3", "$3", "set", "$1", "k", "$5", "a\r\nb\x00")
	w.want("+OK\r\n")
	w.send("GET k")
	w.want("$5\r\na\r\nb\x00\r\n")
	dial(t, p.Addr()).send("PING")
	w.send("GET none", "PING") // two at once
	w.want("$-1\r\n")
	w.want("+PONG\r\n")
	c := p.Commands()
	if c["SET"] != 1 || c["GET"] != 2 || p.Accepted() != 2 {
		t.Fatalf("commands %v on %d connections, want 1 SET and 2 GET on 2", c, p.Accepted())
	}
}

func TestProxyCarriesARealClientAndItsMessages(t *testing.T) {
	ctx := t.Context()
	s := Start(t)
	c := clientFor(t, NewProxy(t, s.Addr()).URL())
	sub := c.Subscribe(ctx, "news")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Client(t).Publish(ctx, "news", "hello").Err(); err != nil {
		t.Fatal(err)
	}
	msg, err := sub.ReceiveMessage(ctx)
	if err != nil || msg.Payload != "hello" {
		t.Fatalf("got %v, %v", msg, err)
	}
	got, err := c.Eval(ctx, `return {1, "two", {3}}`, nil).Result()
	if err != nil || len(got.([]any)) != 3 {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestProxyBlackHole(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	before := dial(t, p.Addr())
	before.send("PING")
	before.want("+PONG\r\n")

	p.BlackHole()
	during := dial(t, p.Addr())
	for _, w := range []*wire{before, during} {
		w.send("SET lost 1")
		w.wantSilence()
	}
	p.Pass()
	_ = before.wantEnd()
	_ = during.wantEnd()
	after := dial(t, p.Addr())
	after.send("EXISTS lost")
	after.want(":0\r\n")
	if got := p.Commands()["SET"]; got != 2 || p.Accepted() != 3 {
		t.Fatalf("%d SETs on %d connections counted, want 2 on 3", got, p.Accepted())
	}
}

func TestProxyBlackHoleOutlivesItsServer(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	p.BlackHole()
	s.Kill()
	w.send("PING")
	w.wantSilence()
}

func TestProxyRefusesAndComesBackOnItsPort(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	for range 3 {
		p.Refuse()
		if conn, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				_ = conn.Close()
			}
			t.Fatalf("dialing gives %v, want refused", err)
		}
		p.Refuse() // once more changes nothing
		if err := w.wantEnd(); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the old connection ends by %v, want a reset", err)
		}
		p.Pass()
		w = dial(t, p.Addr())
		w.send("PING")
		w.want("+PONG\r\n")
	}
}

func TestProxyDropConnsOnce(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	p.DropConns()
	_ = w.wantEnd()
	w = dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
}

func TestProxySlowConnectDelaysOnlyTheFirstAnswer(t *testing.T) {
	const d = 500 * time.Millisecond
	p := NewProxy(t, Start(t).Addr())
	p.SlowConnect(d)
	start := time.Now()
	w := dial(t, p.Addr())
	w.send("PING", "PING")
	w.want("+PONG\r\n")
	if took := time.Since(start); took < d {
		t.Fatalf("the first answer took %v, want %v or more", took, d)
	}
	start = time.Now()
	w.want("+PONG\r\n")
	w.send("PING")
	w.want("+PONG\r\n")
	if took := time.Since(start); took >= d {
		t.Fatalf("later answers took %v, as long as the first", took)
	}
}

func TestProxyDelaysRepliesSideBySide(t *testing.T) {
	const d, n = 100 * time.Millisecond, 20
	p := NewProxy(t, Start(t).Addr())
	p.Delay(d)
	w := dial(t, p.Addr())
	start := time.Now()
	for range n {
		w.send("PING")
	}
	w.want("+PONG\r\n")
	if took := time.Since(start); took < d {
		t.Fatalf("the first answer took %v, want %v or more", took, d)
	}
	for range n - 1 {
		w.want("+PONG\r\n")
	}
	if took := time.Since(start); took >= n*d/2 {
		t.Fatalf("%d answers took %v: they wait for one another", n, took)
	}
}

func TestProxyDropReplyAfterTheCommandRan(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	w := dial(t, p.Addr())
	p.DropReply("incr")
	w.send("PING")
	w.want("+PONG\r\n")
	w.send("INCR n")
	_ = w.wantEnd()
	w = dial(t, p.Addr())
	w.send("INCR n")
	w.want(":2\r\n")
}

func TestProxyResetReply(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	p.ResetReply("ECHO")
	w.send("ECHO 0123456789")
	if rest, err := io.ReadAll(w.in); !errors.Is(err, syscall.ECONNRESET) || strings.Contains(string(rest), "9") {
		t.Fatalf("got %q, %v, want half of it at most, and a reset", rest, err)
	}
}

func TestProxyHalfReplyThenNothing(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	p.HalfReply("ECHO")
	w.send("ECHO 0123456789")
	w.wantBytes("$10\r\n012")
	w.send("PING")
	w.wantSilence()
	p.Pass()
	_ = w.wantEnd()
}

func TestProxyRewritesInOrder(t *testing.T) {
	const noscript = "-NOSCRIPT No matching script.\r\n"
	s := Start(t)
	p := NewProxy(t, s.Addr())
	w := dial(t, p.Addr())
	p.RewriteNext("get", "$4\r\nfake\r\n")
	w.send("SET k v", "GET k", "GET k")
	w.want("+OK\r\n")
	w.want("$4\r\nfake\r\n")
	w.want("$1\r\nv\r\n")

	p.Rewrite("evalsha", noscript)
	for range 3 {
		w.send("PING", "EVALSHA 0 0", "PING")
		w.want("+PONG\r\n")
		w.want(noscript)
		w.want("+PONG\r\n")
	}
	if ran := CommandStats(t, s.Client(t)); ran["evalsha"] != 0 || ran["get"] != 1 {
		t.Fatalf("the server ran %d EVALSHA and %d GET, want 0 and 1", ran["evalsha"], ran["get"])
	}
	if p.Commands()["EVALSHA"] != 3 {
		t.Fatalf("counted %v", p.Commands())
	}
	p.Pass()
	w.send("EVALSHA 0 0")
	w.want("-NOSCRIPT No matching script. Please use EVAL.\r\n")
}

func TestProxyPassesTheServersEndOn(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	s.Kill()
	_ = w.wantEnd()
	_ = dial(t, p.Addr()).wantEnd()
	s.Restart()
	w = dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
}

func TestProxyStall(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	start := time.Now()
	p.Stall(200 * time.Millisecond)
	w.send("PING")
	other := dial(t, p.Addr())
	other.send("PING")
	for _, each := range []*wire{w, other} {
		each.want("+PONG\r\n")
		if took := time.Since(start); took < 200*time.Millisecond {
			t.Errorf("answered after %v, want the end of the stall", took)
		}
	}
	start = time.Now()
	w.send("PING")
	w.want("+PONG\r\n")
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("after the stall: %v", took)
	}
}

func TestProxyFreezesOneConnection(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w, other := dial(t, p.Addr()), dial(t, p.Addr())
	frozen := p.FreezeNext("echo", 200*time.Millisecond)
	start := time.Now()
	w.send("ECHO held", "PING")
	if got := string(<-frozen); got != "ECHO held\r\n" {
		t.Errorf("froze %q", got)
	}
	other.send("ECHO passes")
	other.want("$6\r\npasses\r\n")
	if took := time.Since(start); took > 150*time.Millisecond {
		t.Errorf("another connection: %v", took)
	}
	w.want("$4\r\nheld\r\n")
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("answered after %v, while frozen", took)
	}
	w.want("+PONG\r\n")
}

// What is done to every reply goes on until Pass.
func TestProxyFaultsThatStay(t *testing.T) {
	s := Start(t)
	c := s.Client(t)
	for name, fault := range map[string]func(*Proxy, string){
		"drop": (*Proxy).DropReplies, "reset": (*Proxy).ResetReplies, "half": (*Proxy).HalfReplies,
	} {
		t.Run(name, func(t *testing.T) {
			p := NewProxy(t, s.Addr())
			fault(p, "incr")
			for range 3 {
				w := dial(t, p.Addr())
				w.send("INCR " + name)
				_ = w.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				if got, err := readValue(w.in); err == nil {
					t.Errorf("got %q", got)
				}
			}
			if n, err := c.Get(t.Context(), name).Int(); n != 3 || err != nil {
				t.Errorf("ran %d times, %v, want 3", n, err)
			}
			p.Pass()
			w := dial(t, p.Addr())
			w.send("INCR " + name)
			w.want(":4\r\n")
		})
	}
}

func TestProxyRewritesInTurn(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	p.Rewrite("ping", "+a\r\n", "+b\r\n")
	w := dial(t, p.Addr())
	for _, want := range []string{"+a\r\n", "+b\r\n", "+a\r\n"} {
		w.send("PING")
		w.want(want)
	}
}

func TestProxyHang(t *testing.T) {
	p := NewProxy(t, Start(t).Addr())
	w := dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
	p.Hang()
	_ = w.wantEnd()
	conn, err := net.DialTimeout("tcp", p.Addr(), 300*time.Millisecond)
	if !os.IsTimeout(err) {
		t.Errorf("dial: %v, %v, want silence", conn, err)
	}
	p.Pass()
	w = dial(t, p.Addr())
	w.send("PING")
	w.want("+PONG\r\n")
}
