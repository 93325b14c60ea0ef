package redistest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// hang listens at addr with a queue that is full, so that the kernel drops every
// SYN. The port is free again after done.
func hang(addr string) (done func(), err error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	// Not for children: they would keep it open after done.
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	var held []net.Conn
	done = func() {
		for _, c := range held {
			_ = c.Close()
		}
		_ = syscall.Close(fd)
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	// The connections that were here before still linger.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	for range 16 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return done, nil
		}
		if err != nil {
			return nil, err
		}
		held = append(held, c)
	}
	return nil, fmt.Errorf("the kernel took %d connections on a queue of none", len(held))
}
