package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// deadPort is an address where nobody listens.
func deadPort() (addr string, done func(), err error) {
	port, err := freePort()
	return "127.0.0.1:" + port, func() {}, err
}

// silentHole is a server that accepts and never says a word.
func silentHole() (addr string, done func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var open []net.Conn
		for {
			c, err := ln.Accept()
			if err != nil {
				break
			}
			open = append(open, c)
		}
		for _, c := range open {
			_ = c.Close()
		}
	}()
	return ln.Addr().String(), func() { _ = ln.Close(); <-ended }, nil
}

// droppingHole is a server whose queue of new connections is full, so that the
// kernel drops every SYN, as a firewall does.
func droppingHole(ctx context.Context) (addr string, done func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	var held []net.Conn
	done = func() {
		for _, c := range held {
			_ = c.Close()
		}
		_ = syscall.Close(fd)
	}
	addr, err = listenWithoutQueue(fd)
	if err != nil {
		done()
		return "", nil, err
	}
	dialer := net.Dialer{Timeout: 200 * time.Millisecond}
	for range 16 {
		c, err := dialer.DialContext(ctx, "tcp", addr)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return addr, done, nil
		}
		if err != nil {
			done()
			return "", nil, err
		}
		held = append(held, c)
	}
	done()
	return "", nil, fmt.Errorf("the kernel took %d connections on a queue of none, so a SYN-dropping server cannot be had here", len(held))
}

func listenWithoutQueue(fd int) (addr string, err error) {
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", os.NewSyscallError("bind", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		return "", os.NewSyscallError("listen", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	at, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return "", fmt.Errorf("a socket of kind %T", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.Port), nil
}
