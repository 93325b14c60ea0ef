package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// said waits for a line of the log, and reads it.
func (s *safe) said(t *testing.T, msg string, into any) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		text := s.text.String()
		s.mu.Unlock()
		for line := range strings.Lines(text) {
			if !strings.Contains(line, `"msg":"`+msg+`"`) {
				continue
			}
			if err := json.Unmarshal([]byte(line), into); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("it never says %s", msg)
}

func TestAStopLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") }))
	file := filepath.Join(t.TempDir(), "edge.yaml")
	text := fmt.Sprintf(`
server: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
rate_limit: {capacity: 10, refill_rate: 10}
routes: [{path: /x, backend: a}]
backends: [{name: a, url: %q, health: {path: /, interval: 1s, timeout: 1s}}, {name: b, url: "http://127.0.0.1:1"}]
`, backend.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log safe
	code := make(chan int)
	go func() {
		code <- Run(ctx, cfg, Options{File: file, Pprof: "127.0.0.1:0", Stdout: io.Discard, Stderr: &log})
	}()
	var at struct{ Traffic, Admin, Pprof string }
	log.said(t, "listening", &at)
	client := http.Client{Transport: &http.Transport{}}
	for _, url := range []string{at.Traffic + "/x", at.Admin + "/metrics", at.Admin + "/status", at.Pprof + "/debug/pprof/cmdline"} {
		resp, err := client.Get("http://" + url)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", url, resp.Status)
		}
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
	client.CloseIdleConnections()
	backend.Close()
	goleak.VerifyNone(t, before)
}
