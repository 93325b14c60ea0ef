package sentinelgin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/sentinelgo/sentinel/adapters/sentinelgin"
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
func behindProxies(r *gin.Engine, limiter *sentinel.Limiter, proxies []string) {
	if err := r.SetTrustedProxies(proxies); err != nil {
		log.Fatal(err)
	}
	r.RemoteIPHeaders = []string{"X-Forwarded-For"}
	r.Use(sentinelgin.Middleware(limiter, sentinelgin.WithTrustedPeer((*gin.Context).ClientIP)))
}

func count(r *gin.Engine) http.Handler {
	r.GET("/", sentinelgin.Guard("anon.five"), func(c *gin.Context) {
		d, _ := sentinelgin.Decision(c)
		c.String(http.StatusOK, d.IdentityHash)
	})
	return r
}

func TestBehindProxies(t *testing.T) {
	for _, tc := range behind {
		t.Run(tc.name, func(t *testing.T) {
			r := gin.New()
			behindProxies(r, open(t, io.Discard), tc.proxies)
			if counted(count(r), tc.peer, tc.forwarded) != hash(tc.want) {
				t.Errorf("the guard does not count %s", tc.want)
			}
		})
	}
}

// What docs/client-address.md says of gin's own settings, by what c.ClientIP()
// returns behind a proxy at 127.0.0.1 for a client that claims 203.0.113.9.
func TestClientIP(t *testing.T) {
	const claim = "203.0.113.9"
	for _, tc := range []struct {
		name            string
		set             func(*gin.Engine) error
		peer, forwarded string
		want            string
	}{
		{"by default, everybody's claim", func(*gin.Engine) error { return nil }, "198.51.100.7:1", claim, claim},
		{"by default, the claim in spite of the proxy", func(*gin.Engine) error { return nil }, "127.0.0.1:1", claim + ", 198.51.100.7", claim},
		{"no proxies: the socket", func(r *gin.Engine) error { return r.SetTrustedProxies(nil) }, "198.51.100.7:1", claim, client},
		{"a proxy that sends no X-Forwarded-For: X-Real-IP, whoever wrote it", func(r *gin.Engine) error {
			return r.SetTrustedProxies([]string{"127.0.0.1"})
		}, "127.0.0.1:1", "", claim},
		{"a platform's header, from everybody", func(r *gin.Engine) error {
			r.TrustedPlatform = gin.PlatformCloudflare
			return r.SetTrustedProxies(nil)
		}, "198.51.100.7:1", "", claim},
		{"a list without the proxy: the proxy", func(r *gin.Engine) error {
			return r.SetTrustedProxies([]string{"10.0.0.0/8"})
		}, "127.0.0.1:1", claim + ", 198.51.100.7", "127.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := gin.New()
			if err := tc.set(r); err != nil {
				t.Fatal(err)
			}
			r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, c.ClientIP()) })
			if got := counted(r, tc.peer, tc.forwarded); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
