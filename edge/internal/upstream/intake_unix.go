//go:build unix

package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// intake is a connection that one goroutine reads and another sends requests on, of
// which the other can know that nothing has come that was not looked at. Who reads has
// looked at all he got when he wants more: so he is waited for, which is not long, for
// he waits for nothing but what comes on the connection.
type intake struct {
	*net.TCPConn
	raw  syscall.RawConn
	take func(fd uintptr) bool // is i.read
	peek func(fd uintptr)      // is i.look

	// What is under way; one reads at a time.
	into []byte
	n    int
	err  error

	mu     sync.Mutex
	change *sync.Cond // of waits and over
	waits  bool       // who reads has got all there was, and wants more
	over   bool       // nothing more is read
	empty  bool       // of look
}

// taken has a dialer's connections be intakes, if they are of TCP.
func taken(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		tcp, ok := c.(*net.TCPConn)
		if err != nil || !ok {
			return c, err
		}
		raw, err := tcp.SyscallConn()
		if err != nil {
			_ = tcp.Close()
			return nil, err
		}
		i := &intake{TCPConn: tcp, raw: raw}
		i.take, i.peek, i.change = i.read, i.look, sync.NewCond(&i.mu)
		return i, nil
	}
}

// Read is that of the connection.
func (i *intake) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	i.into = p
	err := i.raw.Read(i.take)
	i.into = nil
	switch {
	case err != nil:
	case i.err != nil:
		err = &net.OpError{Op: "read", Net: "tcp", Source: i.LocalAddr(), Addr: i.RemoteAddr(), Err: os.NewSyscallError("read", i.err)}
	case i.n == 0:
		err = io.EOF
	default:
		return i.n, nil
	}
	i.end()
	return 0, err
}

// read reads what is there, and reports whether there was anything.
func (i *intake) read(fd uintptr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		i.n, i.err = syscall.Read(int(fd), i.into)
		if !errors.Is(i.err, syscall.EINTR) {
			break
		}
	}
	i.waits = errors.Is(i.err, syscall.EAGAIN)
	if i.waits {
		i.change.Broadcast()
	}
	return !i.waits
}

// Close closes the connection.
func (i *intake) Close() error {
	i.end()
	return i.TCPConn.Close()
}

func (i *intake) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	i.change.Broadcast()
}

// silent reports whether all that has come by now was read and looked at, and nothing
// of it was an end. Somebody must be reading, or about to. Of nil nobody knows.
func (i *intake) silent() bool {
	if i == nil {
		return true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		i.empty = false
		if err := i.raw.Control(i.peek); err != nil || !i.empty || i.over {
			return false
		}
		if i.waits {
			return true
		}
		i.change.Wait()
	}
}

// look finds out whether nothing is there to be read, not even an end.
func (i *intake) look(fd uintptr) {
	var one [1]byte
	_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
	i.empty = errors.Is(err, syscall.EAGAIN)
}
