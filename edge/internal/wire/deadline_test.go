package wire

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// ends is one direction of a connection.
type ends struct {
	set func(time.Time) error
	use func() error // lasts until the other end does its part, or the deadline
	let func()       // has the other end do it
}

// bothEnds calls f for reads and for writes of a connection.
func bothEnds(t *testing.T, f func(t *testing.T, e ends)) {
	for name, of := range map[string]func(c *conn, other net.Conn) ends{
		"read": func(c *conn, other net.Conn) ends {
			return ends{c.SetReadDeadline, func() error { _, err := c.Read(make([]byte, 1)); return err }, func() { other.Write([]byte{'x'}) }}
		},
		"write": func(c *conn, other net.Conn) ends {
			return ends{c.SetWriteDeadline, func() error { _, err := c.Write([]byte("xy")); return err }, func() { io.ReadFull(other, make([]byte, 2)) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				c := newConn(ours, &Limits{}, make(chan struct{}, 1))
				c.scanner.phase = opaque
				defer ours.Close()
				f(t, of(c, theirs))
			})
		})
	}
}

// Whatever was asked for before, what counts is the last deadline.
func TestTheLastDeadlineCounts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }
	bothEnds(t, func(t *testing.T, e ends) {
		for range 2000 {
			for range rnd.IntN(4) {
				switch rnd.IntN(3) {
				case 0:
					_ = e.set(time.Time{})
				case 1:
					_ = e.set(time.Unix(1, 0))
				default:
					_ = e.set(time.Now().Add(upTo(10 * time.Second)))
				}
				time.Sleep(upTo(5 * time.Second))
			}
			begun, most, comes := time.Now(), upTo(10*time.Second), upTo(20*time.Second)
			_ = e.set(begun.Add(most))
			done := make(chan struct{})
			if comes < most {
				go func() { time.Sleep(comes); e.let(); close(done) }()
			} else {
				close(done)
			}
			err := e.use()
			<-done
			switch took := time.Since(begun); {
			case comes < most && (err != nil || took != comes):
				t.Fatalf("what came after %v of %v: %v after %v", comes, most, err, took)
			case comes >= most && (!errors.Is(err, os.ErrDeadlineExceeded) || took != most):
				t.Fatalf("after %v, with %v: %v", took, most, err)
			}
		}
	})
}

func TestADeadlineIsForWhatIsUnderWayToo(t *testing.T) {
	bothEnds(t, func(t *testing.T, e ends) {
		for range 3 {
			begun := time.Now()
			_ = e.set(begun.Add(time.Hour))
			go func() {
				time.Sleep(2 * time.Second)
				_ = e.set(time.Now().Add(time.Second))
			}()
			if err := e.use(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != 3*time.Second {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		}
		_ = e.set(time.Time{})
		go func() { time.Sleep(time.Hour); e.let() }()
		if err := e.use(); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
	})
}

// A write that a deadline of others has ended goes on where it was.
func TestAWriteGoesOnAfterAnEarlyDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		c := newConn(ours, &Limits{}, make(chan struct{}, 1))
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		go io.ReadFull(theirs, make([]byte, 1))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
		got := make([]byte, 6)
		go func() {
			io.ReadFull(theirs, got[:2])
			time.Sleep(10 * time.Second)
			io.ReadFull(theirs, got[2:])
		}()
		n, err := c.Write([]byte("abcdef"))
		synctest.Wait()
		if n != 6 || err != nil || string(got) != "abcdef" {
			t.Errorf("%d, %v: %q", n, err, got)
		}
	})
}
