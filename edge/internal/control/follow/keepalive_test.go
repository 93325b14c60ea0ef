package follow

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sentinelgo/sentinel/edge/internal/control"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// road leads to a listener without a kernel in between, so that all waiting on it is in
// the time of a test.
type road struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()

	mu    sync.Mutex
	taken int
	ice   chan struct{} // not nil: what is at its end stands still until this is closed
}

func newRoad() *road {
	r := &road{conns: make(chan net.Conn), closed: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.closed) })
	return r
}

func (r *road) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

func (r *road) Close() error   { r.close(); return nil }
func (r *road) Addr() net.Addr { return &net.UnixAddr{Name: "road"} }

func (r *road) dial(ctx context.Context, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case r.conns <- r.far(there):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.taken++
		return here, nil
	case <-r.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stop is as SIGSTOP for whoever is at the end: it takes connections, as the kernel does
// for it, and neither reads, writes nor closes any. SIGCONT is what is returned.
func (r *road) stop() (cont func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ice := make(chan struct{})
	r.ice = ice
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(ice)
		r.ice = nil
	}
}

func (r *road) wait() {
	r.mu.Lock()
	ice := r.ice
	r.mu.Unlock()
	if ice != nil {
		<-ice
	}
}

func (r *road) times() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

// stoppable is the far end of a connection on a road. What is sent to it while it stands
// still is kept, as by a kernel.
type stoppable struct {
	net.Conn
	road *road
	sent chan []byte
	rest []byte
}

func (r *road) far(there net.Conn) net.Conn {
	c := &stoppable{Conn: there, road: r, sent: make(chan []byte, 1000)}
	go func() {
		defer close(c.sent)
		for {
			b := make([]byte, 4<<10)
			n, err := there.Read(b)
			if err != nil {
				return
			}
			c.sent <- b[:n]
		}
	}()
	return c
}

func (c *stoppable) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		var ok bool
		if c.rest, ok = <-c.sent; !ok {
			return 0, io.EOF
		}
		c.road.wait()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *stoppable) Write(p []byte) (int, error) {
	c.road.wait()
	return c.Conn.Write(p)
}

func (c *stoppable) Close() error {
	c.road.wait()
	return c.Conn.Close()
}

// pair is a control plane and a node that follows it, both as they are, and the road between
// them.
type pair struct {
	*road
	follower *Follower
	applied  *applier
	operator *http.Client
}

// inPair runs a test with them in a bubble, where the hours of a stream take no time.
func inPair(t *testing.T, test func(*testing.T, *pair)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "control.db"), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		server, err := control.New(t.Context(), control.Options{Store: s, Logger: slog.New(slog.DiscardHandler), Token: "0123456789abcdef", Build: "test"})
		if err != nil {
			t.Fatal(err)
		}
		nodes, operator := newRoad(), newRoad()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		all.Go(func() {
			if err := server.Serve(ctx, nodes, insecure.NewCredentials(), operator); err != nil {
				t.Error(err)
			}
		})
		p := &pair{road: nodes, applied: &applier{}, follower: New(Options{Address: "control", Node: "a", Logger: slog.New(slog.DiscardHandler)})}
		p.follower.dial = []grpc.DialOption{grpc.WithContextDialer(nodes.dial)}
		p.operator = &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return operator.dial(ctx, "") },
		}}
		all.Go(func() { p.follower.Run(ctx, p.applied.apply) })
		p.until(t, "it is connected", time.Minute, func() bool { return p.follower.Status().Connected })
		test(t, p)
	})
}

// until waits for a condition, and returns how long that took.
func (p *pair) until(t testing.TB, what string, most time.Duration, is func() bool) time.Duration {
	t.Helper()
	begun := time.Now()
	for !is() {
		if time.Since(begun) > most {
			t.Fatalf("after %s it is not so: %s; %+v", most, what, p.follower.Status())
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(begun)
}

// edit makes a version, and returns how long it took to be applied.
func (p *pair) edit(t testing.TB, path string, version int64) time.Duration {
	t.Helper()
	body := "routes: [{path: " + path + ", backend: web}]\nbackends: [{name: web, url: \"http://127.0.0.1:1\"}]\n"
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://localhost/v1/config", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer 0123456789abcdef")
	r.Header.Set("If-Match", "*")
	resp, err := p.operator.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Status, text)
	}
	return p.until(t, "the edit is applied", 5*time.Minute, func() bool {
		p.applied.mu.Lock()
		defer p.applied.mu.Unlock()
		n := len(p.applied.all)
		return n > 0 && p.applied.all[n-1] == version
	})
}

// A stream on which nothing is said for hours lives on, and delivers the next edit: each
// side is asked by the other whether it is there, and finds that not too often.
func TestAStreamThatIsSilentForHoursLivesOn(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		p.edit(t, "/first", 1)
		for hour := range 3 {
			time.Sleep(time.Hour)
			if took := p.edit(t, "/r"+string(rune('a'+hour)), int64(hour+2)); took > time.Second {
				t.Errorf("the edit took %s", took)
			}
		}
		if n := p.times(); n != 1 || !p.follower.Status().Connected {
			t.Errorf("%d connections, %+v", n, p.follower.Status())
		}
	})
}

// A control plane that is stopped, and whose kernel goes on, is noticed by a node within
// 40 seconds. When it goes on it is followed again, and by what it has then.
func TestAControlPlaneThatStandsStillIsNoticed(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		p.edit(t, "/first", 1)
		time.Sleep(time.Hour)
		cont := p.stop()
		took := p.until(t, "it is noticed", time.Minute, func() bool { return !p.follower.Status().Connected })
		t.Logf("noticed after %s", took.Round(100*time.Millisecond))
		if took > keepaliveTime+keepaliveTimeout+time.Second {
			t.Errorf("it was noticed after %s", took)
		}
		time.Sleep(10 * time.Minute)
		if p.follower.Status().Connected {
			t.Error("it is connected to what stands still")
		}
		cont()
		p.until(t, "it is connected again", 2*time.Minute, func() bool { return p.follower.Status().Connected })
		p.edit(t, "/second", 2)
	})
}

// As short a stop as a garbage collector's or a live migration's is no end.
func TestAShortStopIsNoEnd(t *testing.T) {
	inPair(t, func(t *testing.T, p *pair) {
		for range 20 {
			time.Sleep(time.Minute)
			cont := p.stop()
			time.Sleep(keepaliveTimeout - time.Second)
			cont()
		}
		p.edit(t, "/first", 1)
		if n := p.times(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}
