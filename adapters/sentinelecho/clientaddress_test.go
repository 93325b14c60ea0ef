package sentinelecho_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/sentinelgo/sentinel/adapters/sentinelecho"
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

// behindProxies is the code of docs/client-address.md.
func behindProxies(e *echo.Echo, limiter *sentinel.Limiter, proxies []string) {
	trust := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, proxy := range proxies {
		_, network, err := net.ParseCIDR(proxy)
		if err != nil {
			log.Fatal(err)
		}
		trust = append(trust, echo.TrustIPRange(network))
	}
	e.IPExtractor = echo.ExtractIPFromXFFHeader(trust...)
	e.Use(sentinelecho.Middleware(limiter, sentinelecho.WithTrustedPeer(echo.Context.RealIP)))
}

func TestBehindProxies(t *testing.T) {
	for _, tc := range behind {
		t.Run(tc.name, func(t *testing.T) {
			e := server()
			behindProxies(e, open(t, io.Discard), tc.proxies)
			e.GET("/", func(c echo.Context) error {
				d, _ := sentinelecho.Decision(c)
				return c.String(http.StatusOK, d.IdentityHash)
			}, sentinelecho.Guard("anon.five"))
			if counted(e, tc.peer, tc.forwarded) != hash(tc.want) {
				t.Errorf("the guard does not count %s", tc.want)
			}
		})
	}
}

// What docs/client-address.md says of echo's own settings, by what c.RealIP()
// returns for a client that claims 203.0.113.9.
func TestRealIP(t *testing.T) {
	const claim = "203.0.113.9"
	for _, tc := range []struct {
		name            string
		extractor       echo.IPExtractor
		peer, forwarded string
		want            string
	}{
		{"without extractor: the socket", nil, "198.51.100.7:1", claim, client},
		{"without extractor, behind a proxy: the proxy", nil, "127.0.0.1:1", claim + ", 198.51.100.7", "127.0.0.1"},
		{"an extractor, past the proxy: the socket", echo.ExtractIPFromXFFHeader(), "198.51.100.7:1", claim, client},
		{"by default, the claim of every private client", echo.ExtractIPFromXFFHeader(), "10.9.9.9:1", claim, claim},
		{"by default, a private client's claim through a proxy", echo.ExtractIPFromXFFHeader(), "10.0.0.1:1", claim + ", 10.9.9.9", claim},
		{"X-Real-IP that the proxy passes through", echo.ExtractIPFromRealIPHeader(), "127.0.0.1:1", "", claim},
		{"an address with a port: the proxy", echo.ExtractIPFromXFFHeader(), "127.0.0.1:1", "198.51.100.7:4711", "127.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := server()
			e.IPExtractor = tc.extractor
			e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, c.RealIP()) })
			if got := counted(e, tc.peer, tc.forwarded); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
