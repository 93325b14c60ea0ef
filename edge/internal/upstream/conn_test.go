package upstream

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
)

// watchedPair is a watched connection and its other end.
func watchedPair(t *testing.T) (c net.Conn, other *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err = watched(taken((&net.Dialer{}).DialContext))(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); accepted.Close() })
	c.(*conn).said.Asked(false)
	return c, accepted.(*net.TCPConn)
}

func TestAConnectionTellsOfItsEnd(t *testing.T) {
	for name, end := range map[string]func(*net.TCPConn){
		"closed": func(c *net.TCPConn) { c.Close() },
		"reset":  func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, other := watchedPair(t)
			told := 0
			stop := OnEnd(c, func() { told++ })
			io.WriteString(other, "H")
			if n, err := c.Read(make([]byte, 8)); n != 1 || err != nil || told != 0 {
				t.Fatalf("%d, %v, told %d times", n, err, told)
			}
			end(other)
			if _, err := c.Read(make([]byte, 8)); err == nil || told != 1 {
				t.Errorf("%v, told %d times", err, told)
			}
			stop()
			c.Read(make([]byte, 8))
			if told != 1 {
				t.Error("told after stop")
			}
			OnEnd(c, func() { told++ })
			if told != 2 {
				t.Error("an end that was before is not told")
			}
		})
	}
}

func TestAnEarlierRequestsStopLeavesTheNextOnesWatch(t *testing.T) {
	c, other := watchedPair(t)
	stop := OnEnd(c, func() { t.Error("the earlier one is told") })
	told := false
	OnEnd(c, func() { told = true })
	stop()
	other.Close()
	c.Read(make([]byte, 1))
	if !told {
		t.Error("the later one is not told")
	}
}

func TestAnothersConnectionNeverTells(t *testing.T) {
	_, other := watchedPair(t)
	OnEnd(other, func() { t.Error("it tells") })()
}

func TestAWatchedConnectionCopiesAndHalfCloses(t *testing.T) {
	c, other := watchedPair(t)
	text := strings.Repeat("0123456789", 10000)
	go func() {
		io.Copy(c, strings.NewReader(text)) // c.ReadFrom: a strings.Reader would write itself
		c.(io.ReaderFrom).ReadFrom(io.LimitReader(strings.NewReader(text), 10))
		c.(*conn).CloseWrite()
	}()
	got, err := io.ReadAll(other)
	if err != nil || string(got) != text+text[:10] {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestADialThatFailsIsNoConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := watched(taken((&net.Dialer{}).DialContext))(ctx, "tcp", "127.0.0.1:1"); c != nil || err == nil {
		t.Errorf("%v, %v", c, err)
	}
}
