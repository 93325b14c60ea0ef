package edgetest

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// The configuration that the project began with, but for the ports.
func TestTheSampleServes(t *testing.T) {
	sample, err := os.ReadFile("../../configs/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	users := startBackend(t, "users", "")
	text := strings.NewReplacer("port: 8080", "listen: 127.0.0.1:0", "http://localhost:9001", users.url()).Replace(string(sample))
	e := startEdge(t, text)

	var limited int
	for range 150 { // more than its 100 a second in a moment
		resp := get(t, e.url("/users"))
		switch resp.StatusCode {
		case http.StatusOK:
			if string(resp.body) != "users\n" {
				t.Fatalf("got %q", resp.body)
			}
			if resp.Header.Get("RateLimit") == "" {
				t.Fatal("a limited route says nothing of its limit")
			}
		case http.StatusTooManyRequests:
			limited++
			if resp.Header.Get("Retry-After") == "" {
				t.Fatal("a 429 has no Retry-After")
			}
		default:
			t.Fatal(resp.Status)
		}
	}
	if got := len(users.journal()); got != 150-limited {
		t.Errorf("the backend received %d of the %d that were admitted", got, 150-limited)
	}
	if resp := get(t, e.url("/nobody")); resp.StatusCode != http.StatusNotFound || !strings.Contains(string(resp.body), "no_route") {
		t.Errorf("an unknown path: %s %s", resp.Status, resp.body)
	}
	if resp := get(t, e.url("/debug/pprof/")); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the traffic port answers profiles: %s", resp.Status)
	}
}

func TestAFaultyFileDoesNotStart(t *testing.T) {
	file := t.TempDir() + "/edge.yaml"
	if err := os.WriteFile(file, []byte("routes:\n  - {path: /a, backend: nobody}\nbackends:\n  - {name: a, url: http://127.0.0.1:1, weigth: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "sentinel", "run", "-config", file)
	if code := p.wait(); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	for _, want := range []string{file + ":2:", "backend", file + ":4:", "weigth"} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("%q is not in what it says:\n%s", want, p.output())
		}
	}
}
