package conformance

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// newCookie returns the one cookie that an answer sets.
func (t *stage) newCookie(a answer) *http.Cookie {
	t.Helper()
	set := a.header.Values("Set-Cookie")
	if len(set) != 1 {
		t.Fatalf("%d cookies set, want 1", len(set))
	}
	cookie, err := http.ParseSetCookie(set[0])
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

var cookieForm = regexp.MustCompile(`^[0-9a-f]{32}\.[0-9]+\.[0-9a-f]{64}$`)

// Who is counted where nobody signs in, and what cookie they get.
var anonymous = []testCase{
	{name: "a new anonymous client gets one cookie with every attribute", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		a := s.get("/"+anonTwo, nil)
		t.wantOK(a)
		c := t.newCookie(a)
		if c.Name != cookieName || !cookieForm.MatchString(c.Value) {
			t.Errorf("cookie %q of %d bytes", c.Name, len(c.Value))
		}
		if c.Path != "/" || c.Domain != "" || c.MaxAge != 30*24*3600 || !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || len(c.Unparsed) > 0 {
			t.Errorf("cookie %q, want HttpOnly, Secure, SameSite=Lax, Path=/ and Max-Age=2592000", strings.Replace(a.header.Get("Set-Cookie"), c.Value, "...", 1))
		}
		if again := t.newCookie(s.get("/"+anonTwo, nil)); again.Value == c.Value {
			t.Error("two clients got the same cookie")
		}
	}},
	{name: "the cookie is what the configuration says", run: func(t *stage) {
		l := t.limiter(func(c *sentinel.Config) {
			c.App.AnonymousCookieName, c.App.AnonymousCookieTTL, c.App.InsecureAnonymousCookie = "who", 2*time.Hour, true
		})
		s := t.serve(l, App{Root: everything(ok)})
		a := s.get("/"+anonTwo, with("Cookie", goodCookie(clientID(1)))) // of another name
		c := t.newCookie(a)
		if c.Name != "who" || c.MaxAge != 7200 || c.Secure || !c.HttpOnly {
			t.Errorf("cookie %q, Max-Age %d, Secure %v, HttpOnly %v", c.Name, c.MaxAge, c.Secure, c.HttpOnly)
		}
	}},
	{name: "a client that shows its cookie keeps it and is counted by it", run: func(t *stage) {
		var seen decisions
		s := t.serve(t.limiter(nil), App{Root: guarded("/", seen.handler, anonMany)})
		c := t.newCookie(s.get("/", nil))
		for range 3 {
			a := s.get("/", with("Cookie", "theme=dark; "+c.Name+"="+c.Value+"; lang=en"))
			t.wantOK(a)
			t.wantNone(a, "Set-Cookie")
		}
		id, _, _ := strings.Cut(c.Value, ".")
		if got := seen.last(); got.IdentityHash != hashOf("anon:cookie:"+id) || got.IdentityMode != sentinel.Anonymous {
			t.Errorf("counted %q as %q, want the cookie", got.IdentityMode, got.IdentityHash)
		}
	}},
	{name: "of several cookies the first valid one counts", run: func(t *stage) {
		var seen decisions
		s := t.serve(t.limiter(nil), App{Root: guarded("/", seen.handler, anonMany)})
		bad := cookieName + "=" + cookieValue(jwtSecret, clientID(9), inOneHour())
		one, two := goodCookie(clientID(1)), goodCookie(clientID(2))
		for _, headers := range [][]string{
			{bad + "; " + one + "; " + two},
			{bad, one, two},
			{"a=b; " + bad, cookieName + "=; " + one + "; " + two},
			{one, bad},
		} {
			header := http.Header{"Cookie": headers}
			a := s.get("/", header)
			t.wantOK(a)
			t.wantNone(a, "Set-Cookie")
			if got := seen.last().IdentityHash; got != hashOf("anon:cookie:"+clientID(1)) {
				t.Errorf("%d Cookie headers: counted as %q, want the first valid cookie", len(headers), got)
			}
		}
	}},
	{name: "a cookie that is not ours counts as none and is replaced", run: func(t *stage) {
		var seen decisions
		s := t.serve(t.limiter(nil), App{Root: guarded("/", seen.handler, anonMany)})
		good := cookieValue(cookieSecret, clientID(1), inOneHour())
		for name, value := range map[string]string{
			"forged":       cookieValue(jwtSecret, clientID(1), inOneHour()),
			"expired":      cookieValue(cookieSecret, clientID(1), time.Now().Add(-time.Minute).Unix()),
			"cut":          good[:len(good)-1],
			"longer":       good + "0",
			"upper case":   strings.ToUpper(good),
			"another id":   clientID(2) + good[32:],
			"empty":        "",
			"dots":         "..",
			"very long":    strings.Repeat("a", 10_000),
			"short id":     cookieValue(cookieSecret, "1", inOneHour()),
			"huge expiry":  clientID(1) + ".99999999999999999999." + good[len(good)-64:],
			"minus expiry": cookieValue(cookieSecret, clientID(1), -1),
		} {
			a := s.get("/", with("Cookie", cookieName+"="+value))
			t.wantOK(a)
			t.newCookie(a)
			if got := seen.last().IdentityHash; got != hashOf("anon:ip:127.0.0.1") {
				t.Errorf("%s: counted as %q, want the peer", name, got)
			}
		}
	}},
	{name: "a denial never sets the cookie", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		t.wantStatuses(func() answer { return s.get("/"+anonTwo, nil) }, 200, 200)
		t.wantOver(s.get("/"+anonTwo, nil), quota{anonTwo, 2, 20_000, 0, 10_000})

		s = t.serve(t.without(failureKinds[0]), App{Root: everything(ok)})
		a := s.get("/"+anonNever, nil)
		t.wantProblem(a, http.StatusServiceUnavailable, unavailable)
		t.wantNone(a, ours...)
	}},
	{name: "a cookie of an earlier guard is taken back when a later one denies", run: func(t *stage) {
		for _, last := range []string{anonNever, tenantTwo, unknown} {
			app := App{Root: guarded("/", ok, anonMany, last), Before: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Add("Set-Cookie", "session=1")
			}}
			s := t.serve(t.limiter(nil), app)
			if last == anonNever {
				a := s.get("/", nil)
				t.wantOK(a)
				if got := a.header.Values("Set-Cookie"); len(got) != 2 {
					t.Errorf("allowed by two anonymous guards: %d cookies, want the application's and one of ours", len(got))
				}
			}
			a := s.get("/", nil)
			if a.status == http.StatusOK {
				t.Errorf("%s admitted", last)
			}
			t.wantHeader(a, "Set-Cookie", "session=1")
		}
	}},
	{name: "throwing the cookie away gains nothing", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		n := 0
		t.wantStatuses(func() answer { // a new valid cookie on each request
			n++
			return s.get("/"+anonTwo, with("Cookie", goodCookie(clientID(n))))
		}, 200, 200, 429, 429)
		t.wantStatuses(func() answer { return s.get("/"+anonTwo, nil) }, 429)
	}},
	{name: "an anonymous endpoint does not look at the token", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		n := 0
		t.wantStatuses(func() answer {
			n++
			return s.get("/"+anonTwo, as(fmt.Sprintf("tenant%d", n)))
		}, 200, 200, 429)
	}},
	{name: "no forwarding header changes who is counted", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		admitted := 0
		for i := range 50 {
			a := s.get("/"+anonTwo, forwarded(i))
			switch a.status {
			case http.StatusOK:
				admitted++
			case http.StatusTooManyRequests:
			default:
				t.Errorf("request %d: status %d", i, a.status)
			}
		}
		if admitted != 2 {
			t.Errorf("%d of 50 requests of one peer were admitted, want 2", admitted)
		}
	}},
	{name: "no forwarding header changes who is counted on new connections", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		n := 0
		t.wantStatuses(func() answer {
			n++
			s.client.CloseIdleConnections() // the next comes from another port
			return s.get("/"+anonTwo, forwarded(n))
		}, 200, 200, 429, 429, 429)
	}},
	{name: "over a unix socket all anonymous clients are one", run: func(t *stage) {
		var seen decisions
		s := t.serveOver("unix", t.limiter(nil), App{Root: guarded("/", seen.handler, anonTwo)})
		n := 0
		t.wantStatuses(func() answer {
			n++
			s.client.CloseIdleConnections()
			return s.get("/", forwarded(n))
		}, 200, 200, 429)
		if got := seen.last().IdentityHash; got != hashOf("anon:ip:unknown") {
			t.Errorf("counted as %q", got)
		}
	}},
	{name: "the trusted peer that the application hands over is who is counted", run: func(t *stage) {
		var seen decisions
		app := App{Root: guarded("/", seen.handler, anonNever), TrustedPeer: func(r *http.Request) string {
			return r.Header.Get("X-Proxy-Peer") // whose proxy overwrites it
		}}
		s := t.serve(t.limiter(nil), app)
		for i, step := range []struct {
			peer     string
			status   int
			identity string
		}{
			{"192.0.2.1", 200, "anon:ip:192.0.2.1"},
			{"192.0.2.1", 429, ""},
			{"192.0.2.1:4711", 429, ""},
			{"::ffff:192.0.2.1", 429, ""},
			{"192.0.2.2:80", 200, "anon:ip:192.0.2.2"},
			{"2001:db8::1", 200, "anon:ip:2001:db8::"},
			{"[2001:db8::2]:443", 429, ""}, // of the same /64
			{"2001:db8:0:1::1", 200, "anon:ip:2001:db8:0:1::"},
			{"", 200, "anon:ip:unknown"}, // all that are no address are one client
			{"unknown", 429, ""},
			{"127.0.0.1", 200, "anon:ip:127.0.0.1"},
		} {
			header := forwarded(i)
			header.Set("X-Proxy-Peer", step.peer)
			a := s.get("/", header)
			if a.status != step.status {
				t.Errorf("peer %q: %d, want %d", step.peer, a.status, step.status)
			}
			if got := seen.last().IdentityHash; step.status == http.StatusOK && got != hashOf(step.identity) {
				t.Errorf("peer %q: not counted as %q", step.peer, step.identity)
			}
		}
	}},
}

// forwarded are all the headers in which a client can claim another address,
// the n-th.
func forwarded(n int) http.Header {
	h := http.Header{}
	address := fmt.Sprintf("203.0.113.%d", n)
	for _, name := range []string{
		"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "CF-Connecting-IPv6", "CF-Pseudo-IPv4",
		"X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP", "X-Appengine-Remote-Addr", "Fly-Client-IP",
		"X-Azure-ClientIP", "X-Envoy-External-Address", "X-Original-Forwarded-For", "Client-IP", "Remote-Addr",
	} {
		h.Set(name, address)
	}
	h.Add("X-Forwarded-For", address+", 10.0.0.1")
	h.Set("Forwarded", "for="+address)
	h.Set("X-Forwarded-Host", address)
	return h
}
