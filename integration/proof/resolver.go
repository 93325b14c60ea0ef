package main

import (
	"net"
	"net/url"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// resolver is the one DNS server that a service asks.
type resolver struct {
	mode atomic.Int32
}

// What a resolver answers to a question.
const (
	resolves int32 = iota // every name is 127.0.0.1
	nxdomain              // there is no such name
	silence               // nothing
)

func (r *resolver) answer(mode int32) { r.mode.Store(mode) }

// build makes a server with proxies that the service knows by name.
func (r *resolver) build(a *arena) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	a.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serve(conn)
	}()
	a.Cleanup(func() { _ = conn.Close(); <-done })
	a.env = []string{resolverEnv + "=" + conn.LocalAddr().String()}
	a.serve()
	a.pave()
	a.url = func(s seat) string {
		_, port, err := net.SplitHostPort(a.roads[s].Addr())
		a.must(err)
		return (&url.URL{Scheme: "redis", Host: "redis.proof.example:" + port}).String()
	}
}

// serve answers until conn is closed.
func (r *resolver) serve(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := r.reply(buf[:n]); reply != nil {
			_, _ = conn.WriteTo(reply, from) // whoever asked asks again
		}
	}
}

// reply is the answer to a query, nil for none.
func (r *resolver) reply(query []byte) []byte {
	var m dnsmessage.Message
	mode := r.mode.Load()
	if mode == silence || m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Response, m.Authoritative, m.RecursionAvailable = true, true, true
	m.Additionals = nil
	switch {
	case mode == nxdomain:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
		}}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}
