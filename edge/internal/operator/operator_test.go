package operator

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "127.1.2.3:0": true, "[::1]:80": true, "localhost:80": true, "[::ffff:127.0.0.1]:80": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "10.0.0.1:80": false, "localhost": false, "example.com:80": false, "": false,
	} {
		if got := Loopback(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}

// A page whose own name leads here must not be answered.
func TestOnlyKnownNamesAreAnswered(t *testing.T) {
	shown := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { Answer(w, http.StatusOK, "<secret>") })
	h := Guard(shown, Hosts("control.internal:9902", "Other.example"), "-admin-host NAME")
	for host, want := range map[string]int{
		"127.0.0.1:9902": 200, "127.0.0.1": 200, "[::1]:9902": 200, "[::1]": 200, "10.0.0.1:80": 200,
		"localhost:9902": 200, "LOCALHOST": 200, "localhost.": 200, "": 200,
		"control.internal:9902": 200, "control.internal": 200, "other.example:1": 200,
		"evil.example:9902": 421, "evil.example": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example:9902": 421,
		"xcontrol.internal": 421, ":9902": 200, "0x7f000001": 421, "2130706433": 421, "[::1": 200,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || strings.Contains(w.Body.String(), "secret") != (want == 200) {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
		if want == 421 && !strings.Contains(w.Body.String(), "use localhost or an address, or allow the name with -admin-host NAME") {
			t.Errorf("%q: it does not say what to do: %s", host, w.Body)
		}
		if w.Header().Get("Cache-Control") != "no-store" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%q: %v", host, w.Header())
		}
	}
}

// Of a listener on all addresses nobody's name is known.
func TestAListenerOnAllAddressesHasNoName(t *testing.T) {
	for _, listen := range []string{":9902", "0.0.0.0:9902", "[::]:9902"} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Host = "evil.example"
		w := httptest.NewRecorder()
		Guard(http.NotFoundHandler(), Hosts(listen), "").ServeHTTP(w, r)
		if w.Code != http.StatusMisdirectedRequest {
			t.Errorf("%s: %d", listen, w.Code)
		}
	}
}

func TestPage(t *testing.T) {
	p := NewPage(`{{template "head" "A page"}}<p>{{.}} {{loud "x"}}</p>`, map[string]any{"loud": strings.ToUpper})
	w := httptest.NewRecorder()
	p.Answer(w, "<script>")
	got := w.Body.String()
	for _, want := range []string{"<title>A page</title>", "<style>", "<p>&lt;script&gt; X</p>"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Error(w.Header())
	}
	w = httptest.NewRecorder()
	NewPage(`{{ago .}}`, nil).Answer(w, "never")
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "cannot be written") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
