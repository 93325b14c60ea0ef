package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"
)

// transport is how a backend is spoken to; the zero durations are no limit.
type transport struct {
	dial, tls, response, idle time.Duration

	maxIdle int // connections that are kept; 0: none
}

// dialer makes connections, as net.Dialer does.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// link is the connections to one backend: those for requests without a body, and those
// of http.Transport for the others, for TLS and for upgrades. Nobody else knows
// which it is.
type link struct {
	direct    *direct
	transport *http.Transport
}

// roundTrip is that of a backend. Package httptrace could make one of two traces, but does so by
// reflection, for each request.
func (l *link) roundTrip(r *http.Request, theirs *httptrace.ClientTrace) (*http.Response, error) {
	if theirs == nil {
		theirs = new(httptrace.ClientTrace)
	}
	if isDirect(r) {
		return l.direct.roundTrip(r, theirs)
	}
	var on atomic.Pointer[conn]
	trace := *theirs
	trace.GotConn = func(info httptrace.GotConnInfo) {
		if c, ok := info.Conn.(*conn); ok {
			on.Store(c)
			c.ask(r.Method == http.MethodHead, info.Reused)
		}
		if theirs.GotConn != nil {
			theirs.GotConn(info)
		}
	}
	trace.Got1xxResponse = func(status int, h textproto.MIMEHeader) error {
		on.Load().said.Restore(http.Header(h))
		if theirs.Got1xxResponse != nil {
			return theirs.Got1xxResponse(status, h)
		}
		return nil
	}
	resp, err := l.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &trace)))
	if err == nil {
		on.Load().said.Restore(resp.Header)
	}
	return resp, err
}

// CloseIdleConnections closes those that no request has.
func (l *link) CloseIdleConnections() {
	l.direct.CloseIdleConnections()
	l.transport.CloseIdleConnections()
}

// newLink is net/http's, told to leave requests and responses as they are:
// nothing is decompressed, and no proxy of the environment comes between. It
// speaks HTTP/1.1 only, whatever TLS would offer, so that a connection carries
// one request.
func newLink(r *Registry, address string, t transport) *link {
	kept := t.maxIdle
	if kept == 0 {
		kept = -1 // to net/http 0 is 2
	}
	dial := dialOnly(r.dialer(t.dial), address)
	plain := taken(dial)
	secure := secured(plain, r.tls(), address, t.tls)
	return &link{&direct{
		dial: dial, address: address, response: t.response, idle: t.idle, most: t.maxIdle,
	}, &http.Transport{
		DialContext:           watched(plain),
		DialTLSContext:        watched(secure),
		ResponseHeaderTimeout: t.response,
		ExpectContinueTimeout: time.Second, // that long a body waits for its 100
		IdleConnTimeout:       t.idle,
		MaxIdleConnsPerHost:   kept,
		DisableCompression:    true,
		Protocols:             http1(),
	}}
}

// dialOnly dials one address, whatever a request's URL says.
func dialOnly(dial dialer, address string) dialer {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
}

// dialer of traffic and of checks.
func (r *Registry) dialer(timeout time.Duration) dialer {
	if r.dial != nil {
		return r.dial
	}
	return (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext
}

// secured has TLS spoken on a dialer's connections. http.Transport could do it, but
// then nobody would see what is said within.
func secured(dial dialer, config *tls.Config, address string, timeout time.Duration) dialer {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	config.NextProtos = []string{"http/1.1"}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		t := tls.Client(c, config)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		return t, nil
	}
}

// tls returns a configuration of its own to each caller, who may change it.
func (r *Registry) tls() *tls.Config {
	if r.options.TLS == nil {
		return nil
	}
	return r.options.TLS.Clone()
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}
