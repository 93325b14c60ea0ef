package edgetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
)

// backend is a testbackend process.
type backend struct {
	*process
	name, addr string
}

// received is an entry of its journal.
type received struct {
	Method, Target, Host, Proto, Remote string
	Header, Trailer                     http.Header
	Length, Body                        int64
	SHA256                              string
	Ended                               bool
}

// startBackend starts one. addr is "" for any port.
func startBackend(t testing.TB, name, addr string) *backend {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	p := start(t, "testbackend", "-name", name, "-listen", addr)
	return &backend{p, name, p.line(func(s string) bool { return strings.HasPrefix(s, "127.0.0.1:") })}
}

func (b *backend) url() string { return "http://" + b.addr }

// restart starts another one in its place, after kill.
func (b *backend) restart() *backend {
	b.t.Helper()
	return startBackend(b.t, b.name, b.addr)
}

// fault is what all its paths do from now on: none, 503, hang or slow.
func (b *backend) fault(mode string) {
	b.t.Helper()
	resp := get(b.t, b.url()+"/_fault?mode="+url.QueryEscape(mode))
	if resp.StatusCode != http.StatusOK {
		b.t.Fatal(resp.Status)
	}
}

func (b *backend) stop() { b.signal(syscall.SIGSTOP) }
func (b *backend) cont() { b.signal(syscall.SIGCONT) }

// journal is what it has received, health checks left out.
func (b *backend) journal() []received {
	b.t.Helper()
	resp := get(b.t, b.url()+"/_journal")
	var all, traffic []received
	if err := json.Unmarshal(resp.body, &all); err != nil {
		b.t.Fatal(err)
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Target, "/health") {
			traffic = append(traffic, e)
		}
	}
	return traffic
}
