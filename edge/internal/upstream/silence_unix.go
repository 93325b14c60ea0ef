//go:build unix

package upstream

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// silence tells whether the other end of a connection has neither closed it nor
// said anything. One goroutine has it.
type silence struct {
	raw  syscall.RawConn // nil: nobody knows
	look func(fd uintptr) bool
	read *reading
}

// reading is a read that does not wait.
type reading struct {
	into []byte
	n    int
	err  error
	one  [1]byte
}

func (r *reading) look(fd uintptr) bool {
	r.n, r.err = syscall.Read(int(fd), r.into)
	return true
}

func silenceOf(c net.Conn) silence {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return silence{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return silence{}
	}
	r := new(reading)
	return silence{raw: raw, read: r, look: r.look}
}

// holds takes what was said, if so: the connection is of no use then.
func (s silence) holds() bool {
	if s.raw == nil {
		return true
	}
	return s.of(s.read.one[:]) && s.read.n < 0 && errors.Is(s.read.err, syscall.EAGAIN)
}

// more reads what is there, without waiting for it; 0 bytes and no error: nothing,
// or the end, or somebody else will say what is wrong.
func (s silence) more(p []byte) (int, error) {
	if s.raw == nil || len(p) == 0 || !s.of(p) {
		return 0, nil
	}
	switch n, err := s.read.n, s.read.err; {
	case n >= 0:
		return n, nil
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return 0, nil
	default:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
}

// of reads into p, and reports whether it could.
func (s silence) of(p []byte) bool {
	s.read.into = p
	err := s.raw.Read(s.look)
	s.read.into = nil
	return err == nil
}
