package sentineljwks_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/sentineljwks"
)

var quiet = sentineljwks.WithLogger(slog.New(slog.DiscardHandler))

func pair(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// jwk is a key as RFC 8037 writes it, with more members.
func jwk(id string, key ed25519.PrivateKey, more map[string]any) map[string]any {
	m := map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": id, "x": base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey))}
	maps.Copy(m, more)
	return m
}

func setOf(t testing.TB, keys ...map[string]any) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// issuer is a server without a network: what it answers can be changed, and it
// counts. It works in a synctest bubble.
type issuer struct {
	mu      sync.Mutex
	answer  func(*http.Request) (*http.Response, error)
	fetches int
}

func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	i.fetches++
	answer := i.answer
	i.mu.Unlock()
	return answer(r)
}

func (i *issuer) set(answer func(*http.Request) (*http.Response, error)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

func says(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func dead(*http.Request) (*http.Response, error) { return nil, errors.New("nobody answers") }

func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func ids(k *sentineljwks.Keys) []string {
	var ids []string
	for id := range k.PublicKeys() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func expect(t *testing.T, k *sentineljwks.Keys, i *issuer, fetches int, want ...string) {
	t.Helper()
	if got := ids(k); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	if n := i.count(); n != fetches {
		t.Errorf("%d fetches, want %d", n, fetches)
	}
}

func TestKeysAreKeptFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := pair(t), pair(t)
		i := &issuer{answer: says(200, setOf(t, jwk("1", one, nil)))}
		k, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", nil, sentineljwks.WithClient(&http.Client{Transport: i}), quiet) // a nil Option is ignored
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		expect(t, k, i, 1, "1")

		// A rotation is found by itself.
		i.set(says(200, setOf(t, jwk("1", one, nil), jwk("2", two, nil))))
		time.Sleep(15*time.Minute + time.Second)
		expect(t, k, i, 2, "1", "2")

		// An unknown key brings it forward, and a thousand bring it no further.
		i.set(says(200, setOf(t, jwk("2", two, nil))))
		time.Sleep(time.Minute)
		for range 1000 {
			k.Missing()
		}
		synctest.Wait()
		expect(t, k, i, 3, "2")
		for range 100 {
			k.Missing()
			time.Sleep(100 * time.Millisecond)
		}
		if n := i.count(); n > 4 {
			t.Errorf("%d fetches after 10 seconds of unknown keys", n)
		}
		time.Sleep(10 * time.Second)
		before := i.count()

		// A dead, hanging or lying server changes nothing, however long.
		for name, answer := range map[string]func(*http.Request) (*http.Response, error){
			"dead": dead, "hangs": hangs, "500": says(500, setOf(t, jwk("3", one, nil))), "302": says(302, ""), "no JSON": says(200, "<html>"),
			"no keys": says(200, `{"keys":[]}`), "too large": says(200, strings.Repeat(" ", 1<<20)+setOf(t, jwk("3", one, nil))),
		} {
			i.set(answer)
			time.Sleep(24 * time.Hour)
			if got := ids(k); !slices.Equal(got, []string{"2"}) {
				t.Errorf("%s: keys %q", name, got)
			}
			if k.Age() < 24*time.Hour {
				t.Errorf("%s: age %v", name, k.Age())
			}
		}
		if n := i.count() - before; n < 7*90 {
			t.Errorf("it gave up after %d fetches", n)
		}
		i.set(says(200, setOf(t, jwk("4", one, nil))))
		time.Sleep(16 * time.Minute)
		if got := ids(k); !slices.Equal(got, []string{"4"}) || k.Age() > 16*time.Minute {
			t.Errorf("after it is back: keys %q, age %v", got, k.Age())
		}
		last := i.count()
		for range 2 {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		}
		k.Missing()
		time.Sleep(time.Hour)
		if n := i.count(); n != last {
			t.Errorf("%d fetches after Close", n-last)
		}
	})
}

// What an operator needs for an alert: the age grows and the failures count while
// the server is dead.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics := func() map[string]float64 {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]float64{}
			for _, f := range families {
				m := f.GetMetric()[0]
				if len(m.GetLabel()) > 0 {
					t.Errorf("labels %v", m.GetLabel())
				}
				found[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return found
		}
		want := func(age, failures float64) {
			t.Helper()
			if got := metrics(); got["sentinel_jwks_age_seconds"] != age || got["sentinel_jwks_fetch_failures_total"] != failures || len(got) != 2 {
				t.Errorf("metrics %v, want %v and %v", got, age, failures)
			}
		}
		i := &issuer{answer: says(200, setOf(t, jwk("1", pair(t), nil)))}
		open := func() (*sentineljwks.Keys, error) {
			return sentineljwks.Open(t.Context(), "https://issuer.test/keys",
				sentineljwks.WithClient(&http.Client{Transport: i}), sentineljwks.WithRegisterer(registry), quiet)
		}
		k, err := open()
		if err != nil {
			t.Fatal(err)
		}
		want(0, 0)
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "WrapRegistererWith") {
			t.Errorf("a second one on the same registry: %v", err)
		}
		want(0, 0)
		i.set(dead)
		time.Sleep(time.Hour + time.Second) // it is asked after each quarter of an hour
		want(3601, 4)
		i.set(says(200, setOf(t, jwk("1", pair(t), nil))))
		time.Sleep(15 * time.Minute)
		want(1, 4)
		k.Close()
		if got := metrics(); len(got) != 0 {
			t.Errorf("after Close: %v", got)
		}
		again, err := open()
		if err != nil {
			t.Fatal(err)
		}
		k.Close() // once more takes nothing of the new one away
		want(0, 0)
		again.Close()
	})
}

// A line for each change of the keys, also of one behind an id that stays, which no
// honest issuer makes; and none where a set is as it was.
func TestChangesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := pair(t), pair(t)
		i := &issuer{answer: says(200, setOf(t, jwk("1", one, nil)))}
		var log bytes.Buffer
		k, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", sentineljwks.WithClient(&http.Client{Transport: i}),
			sentineljwks.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		for step, c := range []struct {
			answer func(*http.Request) (*http.Response, error)
			want   string
		}{
			{says(200, setOf(t, jwk("1", one, nil))), ""},
			{says(200, setOf(t, jwk("1", one, nil), jwk("2", two, nil))), `the keys have changed" ids="[1 2]" before=[1] replaced=[]`},
			{says(200, setOf(t, jwk("1", two, nil), jwk("2", two, nil))), `the keys have changed" ids="[1 2]" before="[1 2]" replaced=[1]`},
			{says(200, setOf(t, jwk("1", two, nil))), `the keys have changed" ids=[1] before="[1 2]" replaced=[]`},
			{dead, "the keys cannot be fetched"},
			{dead, ""},
			{says(200, setOf(t, jwk("1", two, nil))), "the keys are fetched again"},
		} {
			i.set(c.answer)
			time.Sleep(15*time.Minute + time.Second)
			synctest.Wait()
			if got := log.String(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 1 {
				t.Errorf("step %d: %q, want %q", step, got, c.want)
			}
			log.Reset()
		}
	})
}

// No answer, no start, and no wait beyond five seconds.
func TestOpenNeedsTheKeys(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) (*http.Response, error){"dead": dead, "hangs": hangs, "no keys": says(200, `{"keys":[]}`)} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			k, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", sentineljwks.WithClient(&http.Client{Transport: &issuer{answer: answer}}), quiet)
			if err == nil {
				k.Close()
				t.Errorf("%s: opens", name)
			}
			if waited := time.Since(start); waited > 5*time.Second {
				t.Errorf("%s: waits %v", name, waited)
			}
		})
	}
	if _, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", sentineljwks.WithRefresh(time.Second)); err == nil {
		t.Error("a refresh of one second opens")
	}
}

// What is in a set and is no public key for signatures is left out.
func TestWhichKeysOfASetCount(t *testing.T) {
	key := pair(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := ec.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	set := setOf(t,
		jwk("plain", key, nil), jwk("sig", key, map[string]any{"use": "sig", "alg": "EdDSA", "key_ops": []string{"verify"}}),
		jwk("private half", key, map[string]any{"d": b64(key.Seed())}),
		jwk("certificate", key, map[string]any{"x5u": "http://127.0.0.1:1/certificate", "x5c": []string{"AAAA"}}),
		map[string]any{"kty": "EC", "crv": "P-256", "kid": "ec", "x": b64(point[1:33]), "y": b64(point[33:])},
		// RFC 7517, A.1
		map[string]any{"kty": "RSA", "kid": "2011-04-29", "e": "AQAB", "alg": "RS256", "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"},
		jwk("encrypts", key, map[string]any{"use": "enc"}), jwk("by its algorithm", key, map[string]any{"alg": "RSA-OAEP"}), jwk("another signature", key, map[string]any{"alg": "PS256"}),
		map[string]any{"kty": "RSA", "kid": "short", "e": "AQAB", "n": b64(bytes.Repeat([]byte{0xff}, 128))}, map[string]any{"kty": "RSA", "kid": "long", "e": "AQAB", "n": b64(bytes.Repeat([]byte{0xff}, 1025))},
		jwk("wraps", key, map[string]any{"key_ops": []string{"wrapKey"}}),
		map[string]any{"kty": "oct", "kid": "secret", "k": b64([]byte("secret-of-a-jwks-0123456789abcdef"))},
		map[string]any{"kty": "OKP", "crv": "X25519", "kid": "x", "x": b64(make([]byte, 32))},
		map[string]any{"kty": "EC", "crv": "P-256", "kid": "off", "x": b64(make([]byte, 32)), "y": b64(point[33:])},
		map[string]any{"kty": "AKP", "kid": "new"}, map[string]any{"kid": "none"}, map[string]any{"kty": 7},
	)
	k, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", sentineljwks.WithClient(&http.Client{Transport: &issuer{answer: says(200, set)}}), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	want := []string{"2011-04-29", "certificate", "ec", "plain", "private half", "sig"}
	if got := ids(k); !slices.Equal(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	for id, found := range k.PublicKeys() {
		if _, private := found.(crypto.Signer); private {
			t.Errorf("%s is a private key", id)
		}
	}
}

// With a real server and a limiter: a new key is refused once, and known soon.
func Example() {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	set := fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"2026-11","x":%q}]}`, base64.RawURLEncoding.EncodeToString(key.Public().(ed25519.PublicKey)))
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, set) }))
	defer issuer.Close()

	cfg, err := sentinel.ParseConfig([]byte(`{
		"app": {"redis_url": "memory://", "jwt_algorithm_allowlist": ["EdDSA"], "jwt_jwks_url": "` + issuer.URL + `/keys"},
		"policies": {"jobs": {
			"endpoint_id": "jobs", "algorithm": "sliding_window", "limit": 1, "window": "1h",
			"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1
		}}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	keys, err := sentineljwks.Open(ctx, cfg.App.JWKSURL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer keys.Close()
	limiter, err := sentinel.Open(ctx, cfg, sentinel.WithKeys(keys), sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	for _, kid := range []string{"2026-11", "2026-12"} {
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(time.Minute).Unix()})
		token.Header["kid"] = kid
		text, _ := token.SignedString(key)
		d, err := limiter.Check(ctx, sentinel.Request{EndpointID: "jobs", Authorization: []string{"Bearer " + text}})
		fmt.Println(kid, d.Allowed, err)
	}
	// Output:
	// 2026-11 true <nil>
	// 2026-12 false sentinel: authentication required (key)
}

func FuzzSet(f *testing.F) {
	key := pair(f)
	f.Add(setOf(f, jwk("1", key, nil)))
	f.Add(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-521","x":"","y":""},null,7]}`)
	f.Fuzz(func(t *testing.T, body string) {
		k, err := sentineljwks.Open(t.Context(), "https://issuer.test/keys", sentineljwks.WithClient(&http.Client{Transport: &issuer{answer: says(200, body)}}), quiet)
		if err != nil {
			return
		}
		defer k.Close()
		for id, found := range k.PublicKeys() {
			if found == nil {
				t.Errorf("%q is nil", id)
			}
		}
	})
}
