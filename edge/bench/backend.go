package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// The paths, the same before every proxy and at the backend.
const (
	pathGet     = "/get"     // 64 bytes
	pathBody    = "/body"    // 64 KiB
	pathPost    = "/post"    // takes 16 KiB, answers 64 bytes
	pathDead    = "/dead"    // one of three backends refuses connections
	pathWork    = "/work/"   // takes its time; below it: the name of a balancer; one of three is slow
	pathLimited = "/limited" // over a quota
)

// How long work takes, how many times as long at the slow backend, and how many a
// backend works on at once: the others wait, as they do for any server that is slow
// because it has no more to give.
const (
	workTime = time.Millisecond
	slowness = 20
	workers  = 4
)

// The bodies.
var (
	small  = pattern(64)
	large  = pattern(64 << 10)
	upload = pattern(16 << 10)
)

// pattern is n printable bytes, other ones at every place of a line.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('!' + i%89)
	}
	return b
}

// serveBackend is the backend's process: it serves on one address after another,
// of which the last is slow. It reads of HTTP/1.1 what has to be read and writes
// answers that are ready, so that it takes as little as possible of the machine.
func serveBackend(addresses []string) error {
	ended := make(chan error)
	for i, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		work := workTime
		if i == len(addresses)-1 {
			work *= slowness
		}
		b := &backend{work: work, desks: make(chan struct{}, workers)}
		go func() { ended <- b.acceptAll(l) }()
	}
	return <-ended
}

// backend is one of the addresses.
type backend struct {
	work  time.Duration
	desks chan struct{} // full: as many are worked on as may be
}

func (b *backend) acceptAll(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_ = b.answerAll(c) // whoever hangs up needs no answer
		}()
	}
}

// answerAll answers one request after another.
func (b *backend) answerAll(c net.Conn) error {
	in := bufio.NewReaderSize(c, 32<<10)
	ok, big, bad := response(200, small), response(200, large), response(400, small)
	for {
		h, err := readHead(in)
		if err != nil {
			return err
		}
		answer := ok
		if !sameBytes(in, upload[:min(h.length, len(upload))], h.length) {
			answer = bad
		}
		switch {
		case h.target == pathBody:
			answer = big
		case h.target == pathPost && h.length != len(upload):
			answer = bad
		case strings.HasPrefix(h.target, pathWork):
			b.desks <- struct{}{}
			time.Sleep(b.work)
			<-b.desks
		}
		if _, err := c.Write(answer); err != nil || h.close {
			return err
		}
	}
}

func response(status int, body []byte) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d Bench\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// head is what matters of the head of a message.
type head struct {
	target string // of a request
	status int    // of a response
	length int    // of the body; -1: it did not say
	close  bool
}

// readHead reads the head of a request or a response.
func readHead(in *bufio.Reader) (head, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return head{}, err
	}
	var h head
	first, rest, _ := bytes.Cut(line, []byte(" "))
	second, _, _ := bytes.Cut(rest, []byte(" "))
	if bytes.HasPrefix(first, []byte("HTTP/1.")) {
		h.length = -1
		if h.status, err = strconv.Atoi(string(second)); err != nil {
			return h, err
		}
	} else {
		h.target = string(second)
	}
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return h, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			return h, nil
		}
		if err := h.field(line); err != nil {
			return h, err
		}
	}
}

// field takes in a line of a head.
func (h *head) field(line []byte) (err error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimSpace(value)
	switch {
	case isName(name, "content-length"):
		h.length, err = strconv.Atoi(string(value))
	case isName(name, "transfer-encoding"):
		err = errors.New("a body in chunks, where the length is known")
	case isName(name, "connection"):
		h.close = bytes.EqualFold(value, []byte("close"))
	}
	return err
}

// isName compares without allocating; want is in lower case.
func isName(name []byte, want string) bool {
	return len(name) == len(want) && strings.EqualFold(string(name), want)
}

// sameBytes reads n bytes and reports whether they are those of want.
func sameBytes(in *bufio.Reader, want []byte, n int) bool {
	same := n == len(want)
	for n > 0 {
		part, err := in.Peek(min(n, 16<<10))
		if err != nil {
			return false
		}
		if same {
			same = bytes.Equal(part, want[:len(part)])
			want = want[len(part):]
		}
		if _, err := io.CopyN(io.Discard, in, int64(len(part))); err != nil {
			return false
		}
		n -= len(part)
	}
	return same
}
