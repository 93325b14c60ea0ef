package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a response that remembers its deadlines and writes, in their order.
type recorder struct {
	header http.Header
	done   []string
	read   chan time.Time // the deadlines of reads
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) Write(p []byte) (int, error) {
	r.done = append(r.done, fmt.Sprint("write ", len(p)))
	return len(p), nil
}

func (r *recorder) WriteHeader(status int) { r.done = append(r.done, fmt.Sprint("status ", status)) }

func (r *recorder) SetWriteDeadline(t time.Time) error {
	r.done = append(r.done, fmt.Sprint("deadline ", !t.IsZero()))
	return nil
}

func (r *recorder) SetReadDeadline(t time.Time) error {
	r.read <- t
	return nil
}

func TestEachPieceOfAResponseHasADeadline(t *testing.T) {
	for version, want := range map[int][]string{
		1: {"status 200", "deadline true", "write 32768", "deadline true", "write 7"},
		2: {"status 200", "deadline true", "write 32768", "deadline false", "deadline true", "write 7", "deadline false"},
	} {
		r := &recorder{header: http.Header{}}
		f := newFront(r, &http.Request{ProtoMajor: version}, time.Hour)
		if n, err := f.Write(make([]byte, copySize+7)); n != copySize+7 || err != nil || f.bytes != copySize+7 || f.status != 200 {
			t.Errorf("%d, %v", n, err)
		}
		if !slices.Equal(r.done, want) {
			t.Errorf("HTTP/%d: %q, want %q", version, r.done, want)
		}
	}
}

// script is a client's body that comes when the test says so.
type script chan func(p []byte) (int, error)

func (s script) Read(p []byte) (int, error) { return (<-s)(p) }
func (script) Close() error                 { return nil }

// scripted is a body of unknown length.
func scripted() (*body, script, *recorder) {
	s, rec := make(script, 10), &recorder{header: http.Header{}, read: make(chan time.Time, 10)}
	r := &http.Request{ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: s}
	f := newFront(rec, r, time.Hour)
	return bodyOf(r, &f, 100, time.Second), s, rec
}

// reading is a read that is under way.
func reading(b *body) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Read(make([]byte, 10))
		done <- err
	}()
	synctest.Wait()
	return done
}

func fails(err error) func([]byte) (int, error) {
	return func([]byte) (int, error) { return 0, err }
}

func TestWhoFailedIsKnown(t *testing.T) {
	timeout := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	for name, c := range map[string]struct {
		stop error // before the read returns
		err  error
		want *problem
	}{
		"malformed":                              {nil, errors.New("invalid byte in chunk length"), &badBody},
		"malformed, and net/http says gone":      {errClientGone, io.ErrUnexpectedEOF, &badBody},
		"idle":                                   {nil, timeout, &slowBody},
		"idle, and net/http says gone":           {errClientGone, timeout, &slowBody},
		"reset":                                  {nil, &net.OpError{Op: "read", Err: errors.New("reset")}, &clientGone},
		"we stopped it":                          {errUpstreamDied, timeout, nil},
		"we stopped it, and it was malformed":    {errDeadline, io.ErrUnexpectedEOF, &badBody},
		"the time of the whole request was over": {errDeadline, timeout, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, s, _ := scripted()
				done := reading(b)
				if c.stop != nil {
					b.stop(c.stop)
				}
				s <- fails(c.err)
				if err := <-done; err == nil {
					t.Error("the read succeeded")
				}
				fault, stopped, cut := b.blame()
				if fault != c.want || !errors.Is(stopped, c.stop) || cut != (c.stop != nil) {
					t.Errorf("fault %v, stopped %v, cut %t", fault, stopped, cut)
				}
				if _, err := b.Read(make([]byte, 1)); err == nil || b.complete() {
					t.Error("it goes on")
				}
			})
		})
	}
}

func TestAStopEndsAReadThatIsUnderWayAndOneThatIsNotAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, rec := scripted()
		done := reading(b)
		if d := time.Until(<-rec.read); d != time.Second {
			t.Errorf("the deadline is in %v", d)
		}
		b.stop(errUpstreamDied)
		if !(<-rec.read).Equal(past) {
			t.Error("no deadline that is over")
		}
		s <- fails(os.ErrDeadlineExceeded)
		<-done

		b, _, rec = scripted()
		b.stop(errUpstreamDied)
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, errUpstreamDied) || len(rec.read) != 0 {
			t.Errorf("%v, %d deadlines", err, len(rec.read))
		}
	})
}

func TestRestWaitsForTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := scripted()
		reading(b)
		rested := make(chan bool)
		go func() { b.rest(); close(rested) }()
		synctest.Wait()
		select {
		case <-rested:
			t.Error("somebody is still reading")
		default:
		}
		s <- fails(os.ErrDeadlineExceeded)
		<-rested
	})
}

func TestAHeldBodyWaitsUntilItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, rec := scripted()
		b.hold()
		done := reading(b)
		if len(rec.read) != 0 {
			t.Error("the client is asked for more")
		}
		b.rest()
		if err := <-done; !errors.Is(err, errOver) {
			t.Errorf("%v", err)
		}
	})
}

// endsAtOnce wants a read to have found the end, and frees one that waits.
func endsAtOnce(t *testing.T, b *body, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	default:
		t.Error("it waits")
		b.mu.Lock()
		defer b.mu.Unlock()
		b.held, b.expect = false, notExpected
		b.changed.Broadcast()
	}
}

// net/http reads once more, to see that there is no more than was announced: who comes
// when all has been read waits for nobody, though the backend has answered.
func TestAReadBehindTheEndDoesNotWait(t *testing.T) {
	for name, after := range map[string]func(*body){"held": (*body).hold, "an answer begins": func(b *body) { b.expect = answering }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, s, _ := scripted()
				s <- func(p []byte) (int, error) { return copy(p, "x"), io.EOF }
				<-reading(b)
				after(b)
				done := reading(b)
				endsAtOnce(t, b, done)
			})
		})
	}
}

// Nor does who waited when the rest was thrown away.
func TestAReadThatWaitsSeesTheEndThatDrainFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, rec := scripted()
		go func() {
			for range rec.read {
			}
		}()
		defer close(rec.read)
		b.hold()
		done := reading(b)
		s <- func([]byte) (int, error) { return 0, io.EOF }
		b.drain()
		synctest.Wait()
		endsAtOnce(t, b, done)
	})
}

func TestABodyMayBeAsLongAsItsLimit(t *testing.T) {
	for length, tooLong := range map[int]bool{99: false, 100: false, 101: true} {
		r := &http.Request{ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", length)))}
		f := newFront(&recorder{read: make(chan time.Time, 100)}, r, time.Hour)
		b := bodyOf(r, &f, 100, time.Hour)
		n, err := io.Copy(io.Discard, b)
		fault, _, _ := b.blame()
		if (fault == &tooLarge) != tooLong || (err == nil) == tooLong || !tooLong && n != int64(length) {
			t.Errorf("%d: %d, %v", length, n, err)
		}
	}
}

func TestASteadyPeerKeepsThePaceItCanKeep(t *testing.T) {
	const limit = 10 * time.Second
	for _, perSecond := range []int{60, 1000, 100_000, 10_000_000} {
		var c pace
		room, most := make([]byte, copySize), 0
		for range 1000 {
			n := len(c.of(room))
			took := time.Duration(n) * time.Second / time.Duration(perSecond)
			if took > limit {
				t.Fatalf("at %d bytes a second %d bytes take %v", perSecond, n, took)
			}
			c.took(took, limit)
			most = max(most, n)
		}
		if perSecond >= 100_000 && most != copySize {
			t.Errorf("at %d bytes a second never more than %d at once", perSecond, most)
		}
	}
}

func TestAnotherAttemptHasAnUntouchedBodyAsIfThereHadBeenNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := scripted()
		b.expect = expected
		b.answerBegins(0) // of the response that is skipped
		b.hold()
		b.stopIn(0, errUpstreamDied)
		if !b.untouched() || !b.again() || b.expect != expected || b.held || b.stopped != nil {
			t.Errorf("expect %d, held %t, stopped %v", b.expect, b.held, b.stopped)
		}
		b.answerBegins(0) // late
		b.wanted(0)
		b.stopIn(0, errUpstreamDied)
		if b.expect != expected || b.stopped != nil {
			t.Error("an attempt that is over has a say")
		}
		if n, err := b.read(0, make([]byte, 1)); n != 0 || !errors.Is(err, errOver) || !b.untouched() {
			t.Errorf("an attempt that is over reads %d bytes, %v", n, err)
		}
		s <- func(p []byte) (int, error) { return copy(p, "x"), io.EOF }
		if n, err := b.read(1, make([]byte, 1)); n != 1 || !errors.Is(err, io.EOF) {
			t.Errorf("%d, %v", n, err)
		}
		if b.untouched() || b.again() {
			t.Error("it is untouched still")
		}
	})
}

func TestAnAttemptThatWaitsForABodyGetsNothingOnceAnotherHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := scripted()
		b.expect = answering
		done := reading(b)
		b.mu.Lock()
		b.asked = false // as if it came too late to be seen
		b.mu.Unlock()
		if !b.again() {
			t.Fatal("it is not untouched")
		}
		if err := <-done; !errors.Is(err, errOver) {
			t.Error(err)
		}
	})
}
