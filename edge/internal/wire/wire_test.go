package wire

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience ends a test that hangs.
const patience = 20 * time.Second

// answer is the handler of the tests.
func answer(w http.ResponseWriter, r *http.Request) {
	if refusal, ok := Refused(r); ok {
		w.WriteHeader(refusal.Status)
		_, _ = io.WriteString(w, refusal.Detail)
		return
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		_, _ = io.WriteString(w, r.Method+" bad body")
		return
	}
	_, _ = fmt.Fprintf(w, "%s %d", r.Method, n)
}

// start serves on loopback until the test ends, and returns the address.
func start(t *testing.T, l Limits, h http.HandlerFunc, with func(*http.Server)) string {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ConnState: ConnState, ConnContext: ConnContext, ReadHeaderTimeout: patience, DisableGeneralOptionsHandler: true}
	if with != nil {
		with(server)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(Listen(tcp, l))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return tcp.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// ask sends raw in pieces of so many bytes, and returns the answers.
func ask(t *testing.T, addr, raw string, pieces int) []string {
	t.Helper()
	c := dial(t, addr)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for piece := range slices.Chunk([]byte(raw), pieces) {
			if _, err := c.Write(piece); err != nil {
				return // refused, and closed
			}
		}
		_ = c.CloseWrite()
	}()
	defer func() { <-sent }()
	defer c.Close()
	return answers(t, c)
}

// answers reads responses as the handler writes them.
func answers(t *testing.T, c net.Conn) (got []string) {
	t.Helper()
	for r := bufio.NewReader(c); ; {
		method := http.MethodGet
		if strings.Contains(t.Name(), "head_request") && len(got) == 1 {
			method = http.MethodHead
		}
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			return got
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		text := string(body)
		if resp.StatusCode != http.StatusOK {
			text = strings.TrimSuffix(fmt.Sprint(resp.StatusCode, " ", text), " ")
			if !resp.Close {
				t.Errorf("%s does not say that the connection ends", text)
			}
		}
		got = append(got, text)
	}
}

// Each case gets its answers, however it arrives.
func TestWhatPassesAndWhatIsRefused(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, answer, nil)
	for _, pieces := range []int{1 << 20, 1, 7} {
		for _, c := range cases {
			t.Run(fmt.Sprintf("%s in %d", c.name, pieces), func(t *testing.T) {
				t.Parallel()
				raw := c.raw
				if pieces == 1 && len(raw) > 10_000 {
					t.Skip("a write for each of so many bytes takes seconds; in sevens it is tried")
				}
				if got := ask(t, addr, raw, pieces); !slices.Equal(got, c.want) {
					t.Errorf("%q\ngot  %q\nwant %q", raw, got, c.want)
				}
			})
		}
	}
}

// A client cannot make a request that looks refused, nor one that is looked at
// for a refusal of another.
func TestNoClientCanForgeARefusal(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, answer, nil)
	for _, value := range []string{"", "1", "-1", strings.Repeat("A", len(mark)) + "1", mark + "x", mark + "0", mark + "99"} {
		if got := ask(t, addr, withField(refusalHeader+": "+value), 1<<20); !slices.Equal(got, []string{"GET 0"}) {
			t.Errorf("%q: %q", value, got)
		}
	}
}

// What follows a refusal is neither parsed nor in the way of its answer.
func TestARefusalIsTheLastAnswer(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	addr := start(t, limits, func(w http.ResponseWriter, r *http.Request) {
		seen.Add(1)
		answer(w, r)
	}, nil)
	raw := get + withHost("a b") + strings.Repeat(get, 20_000)
	if got := ask(t, addr, raw, 1<<20); !slices.Equal(got, []string{"GET 0", "400 Host is invalid"}) || seen.Load() != 2 {
		t.Errorf("%q, and %d requests", got, seen.Load())
	}
}

// Neither does what follows a bad chunk, if the handler does not look at the body.
func TestABodyThatIsNotReadHidesNoRequest(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	addr := start(t, limits, func(w http.ResponseWriter, _ *http.Request) {
		seen.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}, nil)
	for _, body := range []string{"5\r\nhellox\r\n0\r\n\r\n", "0\r\nA\r\n\r\n", "x\r\n", "5\rx"} {
		seen.Store(0)
		if ask(t, addr, chunked(body)+get+get, 1<<20); seen.Load() != 1 {
			t.Errorf("%q: %d requests", body, seen.Load())
		}
	}
}

// A bad chunk is an error of the body, and does not look as if the client had gone.
func TestABadChunkLeavesTheRequestAlive(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%t %v", err != nil, r.Context().Err())
	}, nil)
	c := dial(t, addr)
	_, _ = io.WriteString(c, chunked("5\r\nhellox"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "true <nil>" {
		t.Errorf("%s", body)
	}
}

func withHTTP2(s *http.Server) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
}

func TestHTTP2Passes(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, answer, withHTTP2)
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	client := http.Client{Transport: &http.Transport{Protocols: &h2}}
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Post("http://"+addr, "text/plain", strings.NewReader(strings.Repeat("x", 100_000)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || string(body) != "POST 100000" {
			t.Errorf("%s %s", resp.Proto, body)
		}
	}
	if got := ask(t, addr, get+preface, 1); !slices.Equal(got, []string{"GET 0", "400 the HTTP version is not supported"}) {
		t.Errorf("%q", got)
	}
}

// tunnel switches protocols where it is asked for a tunnel, and echoes.
func tunnel(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "tunnel" {
		answer(w, r)
		return
	}
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\n\r\n")
	_, _ = io.Copy(c, buffered)
	_, _ = io.WriteString(c, "the end")
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
}

const rubbish = "\x00\n\rGET / HTTP/1.1 \r\n: \r\n\r\n"

// Whether its bytes come early or late, at once or one by one, a tunnel has all
// of them, as they are.
func TestATunnelGetsItsBytes(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, tunnel, nil)
	up := lines("GET / HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: tunnel")
	for _, pieces := range []int{1 << 20, 1} {
		for _, late := range []bool{false, true} {
			c := dial(t, addr)
			r := bufio.NewReader(c)
			send := func(s string) {
				for piece := range slices.Chunk([]byte(s), pieces) {
					_, _ = c.Write(piece)
				}
			}
			early := rubbish
			if late {
				early = ""
			}
			send(get + up + early)
			first, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, first.Body)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			if late {
				send(rubbish)
			}
			send("more" + rubbish)
			_ = c.CloseWrite()
			if got, err := io.ReadAll(r); string(got) != rubbish+"more"+rubbish+"the end" || err != nil {
				t.Errorf("in %d, late %t: %q, %v", pieces, late, got, err)
			}
		}
	}
}

// A request that wants to switch and may not is one like any other, and so are
// those that follow it.
func TestAnUpgradeThatIsNotTaken(t *testing.T) {
	t.Parallel()
	addr := start(t, limits, tunnel, nil)
	up := lines("POST / HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: another", "Content-Length: 2") + "hi"
	raw := get + up + up + get + withHost("a b") + get
	want := []string{"GET 0", "POST 2", "POST 2", "GET 0", "400 Host is invalid"}
	for _, pieces := range []int{1 << 20, 1, 50} {
		if got := ask(t, addr, raw, pieces); !slices.Equal(got, want) {
			t.Errorf("in %d: %q", pieces, got)
		}
	}
}

func TestATunnelThatDoesNotWaitEnds(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	addr := start(t, limits, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	}, nil)
	c := dial(t, addr)
	_, _ = io.WriteString(c, lines("GET / HTTP/1.1", "Host: a", "Upgrade: x")+strings.Repeat("x", 20_000))
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("it is read for ever")
	}
}

// A client that goes is noticed while its request is handled, whatever it has sent
// ahead.
func TestAClientThatGoesIsNoticed(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 1)
	addr := start(t, limits, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		gone <- struct{}{}
	}, nil)
	for _, ahead := range []string{"", "GET", "GET / HTTP/1.1\r\nHo"} {
		c := dial(t, addr)
		_, _ = io.WriteString(c, get+ahead)
		_ = c.Close()
		select {
		case <-gone:
		case <-time.After(patience):
			t.Errorf("after %q nobody notices", ahead)
		}
	}
}

// The next connection waits until one has closed, and closing twice counts once.
func TestTooManyConnectionsWait(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	two := limits
	two.Connections = 2
	l := Listen(tcp, two)
	accepted, failed := make(chan net.Conn), make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			accepted <- c
		}
	}()
	for range 4 {
		dial(t, tcp.Addr().String())
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Fatal("a third is accepted")
	case <-time.After(50 * time.Millisecond):
	}
	_ = first.Close()
	_ = first.Close()
	third := <-accepted
	select {
	case <-accepted:
		t.Fatal("a fourth is accepted")
	case <-time.After(50 * time.Millisecond):
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("Accept goes on")
	}
	_ = second.Close()
	_ = third.Close()
	if n := len(l.(*listener).slots); n != 0 {
		t.Errorf("%d slots are taken", n)
	}
}

// serveOne serves one connection in a bubble, and returns the client's end.
func serveOne(t *testing.T, h http.HandlerFunc) net.Conn {
	l := limits
	l.HeaderTimeout = 5 * time.Second
	client, below := net.Pipe()
	c := newConn(below, &l, make(chan struct{}, 1))
	c.slots <- struct{}{}
	server := http.Server{Handler: h, ConnState: ConnState, ConnContext: ConnContext, ReadHeaderTimeout: l.HeaderTimeout, IdleTimeout: time.Minute}
	go func() { _ = server.Serve(&single{conn: c, closed: make(chan struct{})}) }()
	t.Cleanup(func() {
		_ = server.Close()
		_ = c.Close()
	})
	return client
}

// next reads a response and returns its body.
func next(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A head that has begun has its own time, also where net/http has not seen a byte
// of it.
func TestAHeadThatIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := serveOne(t, answer)
		r := bufio.NewReader(client)
		for range 2 {
			_, _ = io.WriteString(client, get)
			next(t, r)
			time.Sleep(30 * time.Second) // idle
			_, _ = io.WriteString(client, "GET / HT")
			time.Sleep(4 * time.Second)
			_, _ = io.WriteString(client, "TP/1.1\r\nHost: a\r\n\r\n")
			next(t, r)
		}
		time.Sleep(30 * time.Second)
		slow := time.Now()
		_, _ = io.WriteString(client, "GE")
		if _, err := r.ReadByte(); err == nil {
			t.Error("an answer")
		}
		if took := time.Since(slow); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// The time begins when the head is asked for: while the request before it is
// handled, a piece of it may wait.
func TestAPieceOfAHeadIsInNobodysWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := serveOne(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second)
			_, _ = fmt.Fprint(w, r.Context().Err())
		})
		r := bufio.NewReader(client)
		go func() { _, _ = io.WriteString(client, get+"GET / HT") }()
		if got := next(t, r); got != "<nil>" {
			t.Errorf("%s", got)
		}
		time.Sleep(4 * time.Second)
		go func() { _, _ = io.WriteString(client, "TP/1.1\r\nHost: a\r\n\r\n") }()
		if got := next(t, r); got != "<nil>" {
			t.Errorf("%s", got)
		}
	})
}

// A client that sends a byte now and then goes on for as long as it likes, in one chunk
// too, of which net/http passes nothing on before it is whole.
func TestABodyThatIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := serveOne(t, func(w http.ResponseWriter, r *http.Request) {
			if !SetReadIdle(r, 5*time.Second) {
				t.Error("it has no connection")
			}
			answer(w, r)
		})
		r := bufio.NewReader(client)
		_, _ = io.WriteString(client, get)
		next(t, r)
		_, _ = io.WriteString(client, post("14\r\n", "Transfer-Encoding: chunked"))
		for range 20 {
			time.Sleep(4 * time.Second)
			_, _ = io.WriteString(client, "x")
		}
		_, _ = io.WriteString(client, "\r\n0\r\n\r\n")
		if got := next(t, r); got != "POST 20" {
			t.Error(got)
		}
		time.Sleep(30 * time.Second) // idle, which is another time
		_, _ = io.WriteString(client, post("14\r\nx", "Transfer-Encoding: chunked"))
		slow := time.Now()
		if got := next(t, r); got != "POST bad body" || time.Since(slow) != 5*time.Second {
			t.Errorf("%s after %v", got, time.Since(slow))
		}
	})
}

// single is a listener with one connection.
type single struct {
	conn   net.Conn
	closed chan struct{}
}

func (s *single) Accept() (net.Conn, error) {
	if c := s.conn; c != nil {
		s.conn = nil
		return c, nil
	}
	<-s.closed
	return nil, net.ErrClosed
}

func (s *single) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (*single) Addr() net.Addr { return &net.TCPAddr{} }

func TestWiringMistakesPanic(t *testing.T) {
	t.Parallel()
	defer func() {
		if v, ok := recover().(string); !ok || !strings.HasPrefix(v, "wire: ") {
			t.Errorf("%v", v)
		}
	}()
	Listen(nil, Limits{})
}

// counting counts reads.
type counting struct {
	net.Conn
	reads int
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads++
	return c.Conn.Read(p)
}

// net/http asks a new connection for as many bytes as tell whether it has HTTP/2.
func TestTheFirstHeadIsReadAtOnce(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	const raw = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	go func() { _, _ = io.WriteString(theirs, raw) }()
	below := &counting{Conn: ours}
	c := newConn(below, &Limits{HeaderBytes: 1 << 10, HeaderFields: 10, URLBytes: 1 << 10}, make(chan struct{}, 1))
	room := make([]byte, 4<<10)
	n, err := c.Read(room[:14])
	if err != nil || n != 14 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	m, err := c.Read(room[n:])
	if got := string(room[:n+m]); err != nil || got != raw || below.reads != 1 {
		t.Errorf("%q, %v, by %d reads", got, err, below.reads)
	}
}
