package sentinelchi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/sentinelgo/sentinel/adapters/sentinelchi"
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
func behindProxies(r chi.Router, limiter *sentinel.Limiter, proxies []string) {
	r.Use(middleware.ClientIPFromXFF(proxies...))
	r.Use(sentinelchi.Middleware(limiter, sentinelchi.WithTrustedPeer(func(r *http.Request) string {
		return middleware.GetClientIP(r.Context())
	})))
}

func TestBehindProxies(t *testing.T) {
	for _, tc := range behind {
		t.Run(tc.name, func(t *testing.T) {
			r := chi.NewRouter()
			behindProxies(r, open(t, io.Discard), tc.proxies)
			r.With(sentinelchi.Guard("anon.five")).Get("/", func(w http.ResponseWriter, r *http.Request) {
				d, _ := sentinel.FromContext(r.Context())
				_, _ = io.WriteString(w, d.IdentityHash)
			})
			if counted(r, tc.peer, tc.forwarded) != hash(tc.want) {
				t.Errorf("the guard does not count %s", tc.want)
			}
		})
	}
}

// What docs/client-address.md says of chi's own settings, by what is left in
// r.RemoteAddr and GetClientIP for a client that claims 203.0.113.9.
func TestClientIP(t *testing.T) {
	const claim = "203.0.113.9"
	use := func(mws ...func(http.Handler) http.Handler) []func(http.Handler) http.Handler { return mws }
	for _, tc := range []struct {
		name            string
		use             []func(http.Handler) http.Handler
		peer, forwarded string
		want            string
	}{
		{"nothing", nil, "198.51.100.7:1", claim, "198.51.100.7:1 "},
		{"RealIP: everybody's claim", use(realIP), "198.51.100.7:1", claim, claim + " "},
		{"RealIP: the claim in spite of the proxy", use(realIP), "127.0.0.1:1", claim + ", 198.51.100.7", claim + " "},
		{"RealIP before ClientIPFromXFF: the claim is taken for the socket", use(realIP, middleware.ClientIPFromXFF("127.0.0.1/32")), "127.0.0.1:1", claim + ", 198.51.100.7", claim + " " + claim},
		{"a header from its proxies", use(middleware.ClientIPFromHeader("CF-Connecting-IP", "127.0.0.1/32")), "127.0.0.1:1", "", "127.0.0.1:1 " + claim},
		{"a header past its proxies: the socket", use(middleware.ClientIPFromHeader("CF-Connecting-IP", "127.0.0.1/32")), "198.51.100.7:1", "", "198.51.100.7:1 " + client},
		{"a header without networks: everybody's claim", use(middleware.ClientIPFromHeader("CF-Connecting-IP")), "198.51.100.7:1", "", "198.51.100.7:1 " + claim},
		{"as many hops as there are", use(middleware.ClientIPFromXFFTrustedProxies(1)), "127.0.0.1:1", claim + ", 198.51.100.7", "127.0.0.1:1 " + client},
		{"more hops than there are: the claim", use(middleware.ClientIPFromXFFTrustedProxies(2)), "127.0.0.1:1", claim + ", 198.51.100.7", "127.0.0.1:1 " + claim},
		{"an address with a port: none", use(middleware.ClientIPFromXFF("127.0.0.1/32")), "127.0.0.1:1", "198.51.100.7:4711", "127.0.0.1:1 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := chi.NewRouter()
			r.Use(tc.use...)
			r.Get("/", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.RemoteAddr+" "+middleware.GetClientIP(r.Context()))
			})
			if got := counted(r, tc.peer, tc.forwarded); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
