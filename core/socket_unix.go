//go:build unix

package sentinel

import (
	"crypto/tls"
	"net"
	"syscall"
)

// hungUp reports whether the other side has closed an idle connection, or has
// sent something that nobody asked for. It asks the kernel and not the network.
func hungUp(conn net.Conn) bool {
	encrypted, isTLS := conn.(*tls.Conn)
	if isTLS {
		conn = encrypted.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
		case err != nil, n == 0:
			gone = true
		default:
			gone = !isTLS // below TLS it may be a record of the protocol's own
		}
	})
	return err != nil || gone
}
