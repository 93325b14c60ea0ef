//go:build unix

package upstream

import (
	"net"
	"syscall"
)

// silence tells whether the other end of a connection has neither closed it nor
// said anything.
type silence struct {
	raw  syscall.RawConn // nil: nobody knows
	look func(fd uintptr) bool
	held *bool
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
	held := new(bool)
	return silence{raw: raw, held: held, look: func(fd uintptr) bool {
		var one [1]byte
		n, err := syscall.Read(int(fd), one[:])
		*held = n < 0 && err == syscall.EAGAIN
		return true
	}}
}

// holds takes what was said, if so: the connection is of no use then.
func (s silence) holds() bool {
	if s.raw == nil {
		return true
	}
	err := s.raw.Read(s.look)
	return err == nil && *s.held
}
