package sentinel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func readVectors(t testing.TB, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func testAnonymizer(secret string) *anonymizer {
	return newAnonymizer((&Config{App: App{AnonymousCookieSecret: NewSecrets(secret)}}).withDefaults().App)
}

func TestCookieVectors(t *testing.T) {
	var vectors struct {
		Secret string `json:"secret"`
		Now    int64  `json:"now_epoch"`
		Cases  []struct {
			Note     string  `json:"note"`
			Value    string  `json:"value"`
			ClientID *string `json:"client_id"`
		} `json:"cases"`
	}
	readVectors(t, "testdata/cookies.json", &vectors)
	if len(vectors.Cases) == 0 {
		t.Fatal("no cases")
	}
	a := testAnonymizer(vectors.Secret)
	now := time.Unix(vectors.Now, 0)
	for _, c := range vectors.Cases {
		want := ""
		if c.ClientID != nil {
			want = *c.ClientID
		}
		if got := a.client([]string{"sentinel_anon_id=" + c.Value}, now); got != want {
			t.Errorf("%s: %q, want %q", c.Note, got, want)
		}
	}
}

// How a browser, and a mischievous client, can write the Cookie header.
func TestCookieHeader(t *testing.T) {
	a := testAnonymizer(testCookieSecret)
	now := time.Unix(1_790_000_000, 0)
	one, two := a.mint(now), a.mint(now)
	id, other := one.Value[:clientIDChars], two.Value[:clientIDChars]
	name := "sentinel_anon_id"
	forged := one.Value[:len(one.Value)-1] + "0"
	if forged == one.Value {
		forged = one.Value[:len(one.Value)-1] + "1"
	}
	bad := name + "=" + forged + "; "
	for text, want := range map[string]string{
		"":                                     "",
		";;;=;":                                "",
		name:                                   "",
		name + "=":                             "",
		name + "=" + one.Value:                 id,
		"a=1; " + name + "=" + one.Value:       id,
		"a=1;" + name + "=" + one.Value:        id,
		name + "=" + one.Value + "; z=2":       id,
		name + `="` + one.Value + `"`:          id,
		name + `=""` + one.Value + `""`:        "",
		name + "=x" + one.Value + `"`:          "",
		name + `="` + one.Value:                "",
		name + " = " + one.Value:               id,
		"x" + name + "=" + one.Value:           "",
		"SENTINEL_ANON_ID=" + one.Value:        "",
		one.Value:                              "",
		name + "=" + one.Value + ".":           "",
		name + "=" + strings.Repeat(".", 9999): "",
		bad + name + "=" + two.Value:           other,
		name + "=" + one.Value + "; " + name + "=" + two.Value:     id,
		strings.Repeat(bad, maxCookies-1) + name + "=" + two.Value: other,
		strings.Repeat(bad, maxCookies) + name + "=" + two.Value:   "",
		// What needs no MAC does not count.
		strings.Repeat(name+"=x; ", 100) + name + "=" + two.Value: other,
	} {
		if got := a.client([]string{text}, now); got != want {
			t.Errorf("%.200q: %q, want %q", text, got, want)
		}
	}
	if got := a.client([]string{"a=1", name + "=" + two.Value}, now); got != other {
		t.Errorf("in the second header: %q", got)
	}
	if got := a.client(nil, now); got != "" {
		t.Errorf("no header: %q", got)
	}
}

func TestMint(t *testing.T) {
	a := testAnonymizer(testCookieSecret)
	now := time.Unix(1_790_000_000, 999_999_999)
	form := regexp.MustCompile(`^[0-9a-f]{32}\.1792592000\.[0-9a-f]{64}$`)
	seen := make(map[string]bool)
	for range 100 {
		cookie := a.mint(now)
		if !form.MatchString(cookie.Value) || cookie.Name != "sentinel_anon_id" || cookie.MaxAge != 30*24*time.Hour || !cookie.Secure {
			t.Fatalf("cookie %+v", cookie)
		}
		id := a.client([]string{cookie.Name + "=" + cookie.Value}, now)
		if id == "" || seen[id] {
			t.Fatalf("client %q of %q", id, cookie.Value)
		}
		seen[id] = true
		if got := a.client([]string{cookie.Name + "=" + cookie.Value}, now.Add(cookie.MaxAge)); got != "" {
			t.Errorf("still valid when the browser drops it: %q", got)
		}
		if got := testAnonymizer(testJWTSecret).client([]string{cookie.Name + "=" + cookie.Value}, now); got != "" {
			t.Errorf("valid under another secret: %q", got)
		}
	}
	insecure := newAnonymizer(App{AnonymousCookieName: "x", InsecureAnonymousCookie: true, AnonymousCookieSecret: NewSecrets(testCookieSecret)})
	if cookie := insecure.mint(now); cookie.Secure || cookie.Name != "x" {
		t.Errorf("cookie %+v", cookie)
	}
}

// The rotation of docs/operations.md, step by step: at each, whatever the other
// step's instances have minted is valid.
func TestCookieSecretRotation(t *testing.T) {
	const older, newer = testCookieSecret, "cookie-secret-of-next-year-0123456789ab"
	now := time.Unix(1_790_000_000, 0)
	var before *anonymizer
	for step, secrets := range [][]string{{older}, {older, newer}, {newer, older}, {newer}} {
		a := newAnonymizer((&Config{App: App{AnonymousCookieSecret: NewSecrets(secrets...)}}).withDefaults().App)
		cookie := a.mint(now)
		if before != nil && step < 3 {
			theirs := before.mint(now)
			if a.client([]string{theirs.Name + "=" + theirs.Value}, now) == "" || before.client([]string{cookie.Name + "=" + cookie.Value}, now) == "" {
				t.Errorf("step %d: a cookie of one instance is none to the other", step)
			}
		}
		first := testAnonymizer(secrets[0])
		if first.client([]string{cookie.Name + "=" + cookie.Value}, now) == "" {
			t.Errorf("step %d: the first secret did not sign", step)
		}
		before = a
	}
	late := testAnonymizer(older).mint(now)
	if before.client([]string{late.Name + "=" + late.Value}, now) != "" {
		t.Error("a secret that was removed still counts")
	}
}

func TestPeerIdentity(t *testing.T) {
	for _, c := range []struct {
		peer   string
		prefix int
		want   string
	}{
		{"203.0.113.7:4711", 64, "203.0.113.7"},
		{"203.0.113.7", 32, "203.0.113.7"},
		{"[::ffff:203.0.113.7]:4711", 64, "203.0.113.7"},
		{"::ffff:203.0.113.7", 128, "203.0.113.7"},
		{"::ffff:cb00:7107", 64, "203.0.113.7"},
		{"[::ffff:203.0.113.7%eth0]:1", 64, "203.0.113.7"},
		{"2001:db8:1:2::1", 64, "2001:db8:1:2::"},
		{"[2001:db8:1:2::64]:9", 64, "2001:db8:1:2::"},
		{"[2001:db8:1:2::64]", 64, "2001:db8:1:2::"},
		{"2001:db8:1:3::1", 64, "2001:db8:1:3::"},
		{"2001:db8:1:2ff::1", 56, "2001:db8:1:200::"},
		{"2001:db8:1:2::1", 32, "2001:db8::"},
		{"2001:0DB8:0000:0000:0001:0000:0000:0001", 128, "2001:db8::1:0:0:1"},
		{"1:2:3:4:5:6:7:8", 128, "1:2:3:4:5:6:7:8"},
		{"::1", 128, "::1"},
		{"[::1]:80", 64, "::"},
		{"fe80::1%eth0", 128, "fe80::1"},
		{"fe80::1%25:443", 128, "fe80::1"},
		{"", 64, "unknown"},
		{"@", 64, "unknown"},
		{"/run/app.sock", 64, "unknown"},
		{"localhost:80", 64, "unknown"},
		{"203.0.113.7:", 64, "unknown"},
		{"203.0.113.7:65536", 64, "unknown"},
		{"203.0.113.007", 64, "unknown"},
		{"203.0.113", 64, "unknown"},
		{"3405803783", 64, "unknown"},
		{"[203.0.113.7", 64, "unknown"},
		{"203.0.113.7, 198.51.100.1", 64, "unknown"},
		{"2001:db8::1/64", 64, "unknown"},
		{"2001:db8::1", 129, "unknown"},
	} {
		if got := (App{IPv6Prefix: c.prefix}).PeerIdentity(c.peer); got != "anon:ip:"+c.want {
			t.Errorf("%q, /%d: %q, want %q", c.peer, c.prefix, got, "anon:ip:"+c.want)
		}
	}
}

// One customer's /64 is one client, whatever address and port it uses.
func TestPeerPrefix(t *testing.T) {
	identities := make(map[string]bool)
	for i := 1; i <= 0x64; i++ {
		identities[peerIdentityOf(fmt.Sprintf("[2001:db8:1:2::%x]:%d", i, 1000+i), 64)] = true
	}
	if len(identities) != 1 {
		t.Errorf("100 addresses of one /64 are %d clients", len(identities))
	}
}

func FuzzCookie(f *testing.F) {
	a := testAnonymizer(testCookieSecret)
	now := time.Unix(1_790_000_000, 0)
	good := a.mint(now)
	for _, header := range []string{"", "sentinel_anon_id=", "sentinel_anon_id=a.1.b; b=2", `sentinel_anon_id="x"`, "a; b; =", good.Name + "=" + good.Value} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		id := a.client([]string{header}, now)
		if id == "" {
			return
		}
		// Whatever is taken is a cookie that net/http reads, of ours to the letter.
		cookies := (&http.Request{Header: http.Header{"Cookie": {header}}}).CookiesNamed(good.Name)
		for _, cookie := range cookies {
			if cookie.Value == id+"."+strings.Join(strings.Split(cookie.Value, ".")[1:], ".") && len(id) == clientIDChars {
				return
			}
		}
		t.Errorf("%q: client %q", header, id)
	})
}

func FuzzPeer(f *testing.F) {
	for _, peer := range []string{"203.0.113.7:1", "[::ffff:203.0.113.7]:1", "[fe80::1%eth0]:443", "::", "@", "[", "1.2.3.4%x", "::%"} {
		f.Add(peer, 64)
	}
	f.Fuzz(func(t *testing.T, peer string, prefix int) {
		got := peerIdentityOf(peer, prefix)
		text, ok := strings.CutPrefix(got, "anon:ip:")
		if !ok {
			t.Fatalf("%q: %q", peer, got)
		}
		if text == "unknown" {
			return
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.String() != text || addr.Is4In6() || addr.Zone() != "" {
			t.Errorf("%q: %q is no plain address (%v)", peer, text, err)
		}
		if again := peerIdentityOf(text, prefix); again != got {
			t.Errorf("%q: %q becomes %q", peer, got, again)
		}
	})
}

func peerIdentityOf(peer string, prefix int) string {
	return App{IPv6Prefix: prefix}.PeerIdentity(peer)
}
