package sentinelhttp_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/adapters/sentinelhttp"
	sentinel "github.com/sentinelgo/sentinel/core"
)

// What requests look like behind each proxy of docs/client-address.md. The
// client is 198.51.100.7 and claims to be 203.0.113.9 in every header there is.
var behind = []struct {
	name      string
	proxies   []string
	peer      string
	forwarded string // X-Forwarded-For as it arrives
	want      string
}{
	{"nginx", []string{"127.0.0.1/32", "::1/128"}, "127.0.0.1:4711", "203.0.113.9, 198.51.100.7", client},
	{"nginx on IPv6", []string{"127.0.0.1/32", "::1/128"}, "[::1]:4711", "203.0.113.9, 2001:db8::7", "2001:db8::"},
	{"ALB", []string{"10.0.1.0/24", "10.0.2.0/24"}, "10.0.2.15:4711", "203.0.113.9, 198.51.100.7", client},
	{"Cloudflare", []string{"173.245.48.0/20", "2400:cb00::/32"}, "173.245.48.5:4711", "203.0.113.9,198.51.100.7", client},
	{"Cloudflare, then ALB", []string{"173.245.48.0/20", "10.0.1.0/24"}, "10.0.1.15:4711", "203.0.113.9,198.51.100.7, 173.245.48.5", client},
	{"past the proxy", []string{"10.0.1.0/24"}, "198.51.100.7:4711", "203.0.113.9", client},
	{"past Cloudflare", []string{"173.245.48.0/20", "10.0.1.0/24"}, "10.0.1.15:4711", "203.0.113.9, 198.51.100.7", client},
	{"a proxy too few in the list", []string{"10.0.1.0/24"}, "10.0.1.15:4711", "203.0.113.9, 198.51.100.7, 173.245.48.5", "173.245.48.5"},
}

const client = "198.51.100.7"

// counted is which address the guard counts: its hash is in the decision.
func counted(h http.Handler, peer, forwarded string) string {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = peer
	for _, name := range []string{"X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip"} {
		r.Header.Set(name, "203.0.113.9")
	}
	r.Header.Set("X-Forwarded-For", forwarded)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Body.String()
}

// hash is what stands for an address in keys, logs and decisions.
func hash(ip string) string {
	sum := sha256.Sum256([]byte("anon:ip:" + ip))
	return hex.EncodeToString(sum[:])
}

// behindProxies and clientIP are the code of docs/client-address.md.
func behindProxies(mux http.Handler, limiter *sentinel.Limiter, proxies []string) http.Handler {
	return sentinelhttp.Middleware(limiter, sentinelhttp.WithTrustedPeer(clientIP(proxies)))(mux)
}

// clientIP returns the nearest address that is none of the proxies'.
func clientIP(proxies []string) func(*http.Request) string {
	var networks []netip.Prefix
	for _, proxy := range proxies {
		networks = append(networks, netip.MustParsePrefix(proxy))
	}
	isProxy := func(ip netip.Addr) bool {
		return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(ip) })
	}
	return func(r *http.Request) string {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return "" // no IP network, so nothing is known about it
		}
		ip := peer.Addr().Unmap()
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for _, hop := range slices.Backward(hops) {
			if !isProxy(ip) {
				break
			}
			before, err := netip.ParseAddr(strings.TrimSpace(hop))
			if err != nil {
				break // what a proxy did not understand is not looked behind
			}
			ip = before.Unmap().WithZone("")
		}
		return ip.String()
	}
}

func TestBehindProxies(t *testing.T) {
	for _, tc := range behind {
		t.Run(tc.name, func(t *testing.T) {
			handler := sentinelhttp.Guard("anon.five")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				d, _ := sentinel.FromContext(r.Context())
				_, _ = io.WriteString(w, d.IdentityHash)
			}))
			if counted(behindProxies(handler, inMemory(t), tc.proxies), tc.peer, tc.forwarded) != hash(tc.want) {
				t.Errorf("the guard does not count %s", tc.want)
			}
		})
	}
}

func TestClientIP(t *testing.T) {
	ip := clientIP([]string{"127.0.0.1/32"})
	for _, tc := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"127.0.0.1:1", nil, "127.0.0.1"},
		{"127.0.0.1:1", []string{"198.51.100.7"}, client},
		{"127.0.0.1:1", []string{"203.0.113.9", "198.51.100.7"}, client}, // two header lines
		{"127.0.0.1:1", []string{"203.0.113.9, ::ffff:198.51.100.7, 127.0.0.1"}, client},
		{"127.0.0.1:1", []string{"127.0.0.1"}, "127.0.0.1"},
		{"127.0.0.1:1", []string{"203.0.113.9, unknown"}, "127.0.0.1"},
		{"127.0.0.1:1", []string{"198.51.100.7:4711"}, "127.0.0.1"},
		{"[::ffff:127.0.0.1]:1", []string{"198.51.100.7"}, client},
		{"198.51.100.7:1", []string{"203.0.113.9"}, client},
		{"@", []string{"203.0.113.9"}, ""}, // a unix socket
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = tc.peer, tc.forwarded
		if got := ip(r); got != tc.want {
			t.Errorf("%s, %q: %q, want %q", tc.peer, tc.forwarded, got, tc.want)
		}
	}
}
