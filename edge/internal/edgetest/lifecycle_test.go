package edgetest

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

func TestAReloadChangesRoutesAndKeepsWhatIsInFlight(t *testing.T) {
	e, b := one(t, "")
	resp, err := http.Get(e.url("/slowbody?n=20&d=20ms")) //nolint:noctx // it ends by itself
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()

	e.write(t, "routes: [{path: /new, backend: a}]\nbackends:\n"+pool("a", "", b))
	e.signal(syscall.SIGHUP)
	Soon(t, "the old route is gone", func() bool { return get(t, e.url("/ok")).StatusCode == http.StatusNotFound })
	if resp := get(t, e.url("/new")); resp.StatusCode != http.StatusOK {
		t.Errorf("the new route: %s", resp.Status)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || strings.Count(string(body), "chunk") != 20 {
		t.Errorf("what was in flight: %q, %v", body, err)
	}
	version := e.metric("sentinel_edge_config_version")

	e.signal(syscall.SIGHUP) // the same content
	e.line(func(s string) bool { return strings.Contains(s, "unchanged") })
	e.write(t, "routes: [{path: /new, backend: nobody}]\nbackends:\n"+pool("a", "", b))
	e.signal(syscall.SIGHUP)
	e.line(func(s string) bool { return strings.Contains(s, "configuration refused") })
	if resp := get(t, e.url("/new")); resp.StatusCode != http.StatusOK {
		t.Errorf("after a faulty file: %s", resp.Status)
	}
	if got := e.metric("sentinel_edge_config_version"); got != version {
		t.Errorf("the version is %v after no change, was %v", got, version)
	}
	if got := e.metric("sentinel_edge_config_rejected_total"); got != 1 {
		t.Errorf("%v configurations were counted as refused", got)
	}
}

// What only a restart changes stays as it was, and is shown as it is.
func TestAReloadLeavesWhatOnlyARestartChanges(t *testing.T) {
	e, b := one(t, "")
	rest := "routes: [{path: /*rest, backend: a}]\nbackends:\n" + pool("a", "", b)
	version := e.metric("sentinel_edge_config_version")
	e.write(t, "server: {listen: \"127.0.0.1:0\", grace: 7s, trusted_proxies: [127.0.0.1]}\n"+rest)
	e.signal(syscall.SIGHUP)
	e.line(func(s string) bool { return strings.Contains(s, "restart to change them") })
	e.line(func(s string) bool { return strings.Contains(s, "configuration unchanged") })
	if shown := string(get(t, e.adminURL("/v1/config")).body); !strings.Contains(shown, "grace: 30s") || strings.Contains(shown, "127.0.0.1/32") {
		t.Errorf("it shows\n%s", shown)
	}
	if got := e.metric("sentinel_edge_config_version"); got != version {
		t.Errorf("the version is %v, was %v", got, version)
	}
	e.signal(syscall.SIGTERM)
	if line := e.line(func(s string) bool { return strings.Contains(s, `"msg":"stopping"`) }); !strings.Contains(line, `"grace":"30s"`) {
		t.Error(line)
	}
	e.wait()
}

func TestAStopWaitsForWhatIsInFlight(t *testing.T) {
	e, _ := one(t, "")
	resp, err := http.Get(e.url("/slowbody?n=20&d=20ms")) //nolint:noctx // it ends by itself
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	e.signal(syscall.SIGTERM)
	body, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(body), "chunk") != 20 {
		t.Errorf("what was in flight: %q, %v", body, err)
	}
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestWhileItDrainsItIsNotReadyAndStillServes(t *testing.T) {
	b := startBackend(t, "a", "")
	e := startEdge(t, "server: {listen: \"127.0.0.1:0\", drain_delay: 1s}\nroutes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", b))
	e.signal(syscall.SIGTERM)
	Soon(t, "it is not ready", func() bool { return get(t, e.adminURL("/readyz")).StatusCode == http.StatusServiceUnavailable })
	if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusOK {
		t.Errorf("while it drains: %s", resp.Status)
	}
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTheGraceEndsStreamsAndTunnelsHard(t *testing.T) {
	b := startBackend(t, "a", "")
	e := startEdge(t, "server: {listen: \"127.0.0.1:0\", grace: 300ms}\nroutes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", b))
	resp, err := http.Get(e.url("/sse?n=10000&d=10ms")) //nolint:noctx // it ends with the edge
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, _, err := websocket.Dial(ctx, strings.Replace(e.url("/ws"), "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	e.signal(syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("a stream that was cut off ended cleanly")
	}
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the tunnel was not closed: %v", err)
	}
	if code := e.wait(); code != 1 {
		t.Errorf("exit code %d, want 1: something was cut off", code)
	}
}

func TestASecondSignalStopsAtOnce(t *testing.T) {
	e, _ := one(t, "")
	resp, err := http.Get(e.url("/sse?n=100000&d=10ms")) //nolint:noctx // it ends with the edge
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := time.Now()
	e.signal(syscall.SIGTERM)
	e.line(func(s string) bool { return strings.Contains(s, `"msg":"stopping"`) })
	e.signal(syscall.SIGTERM)
	if code := e.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begin); took > 15*time.Second { // the grace is 30 s
		t.Errorf("it took %v", took)
	}
}

func TestProfilesAreOnTheirOwnListenerAndOnlyAtHome(t *testing.T) {
	b := startBackend(t, "a", "")
	yaml := "routes: [{path: /*rest, backend: a}]\nbackends:\n" + pool("a", "", b)
	e := startEdge(t, yaml, "-pprof", "127.0.0.1:0")
	line := e.line(func(s string) bool { return strings.Contains(s, `"pprof":"`) })
	_, addr, _ := strings.Cut(line, `"pprof":"`)
	addr, _, _ = strings.Cut(addr, `"`)
	if resp := get(t, "http://"+addr+"/debug/pprof/goroutine?debug=1"); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if resp := get(t, e.adminURL("/debug/pprof/")); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the admin listener answers profiles: %s", resp.Status)
	}
	p := start(t, "sentinel", "run", "-config", e.file, "-pprof", "0.0.0.0:0")
	if code := p.wait(); code != 2 || !strings.Contains(p.output(), "pprof-allow-remote") {
		t.Errorf("exit code %d:\n%s", code, p.output())
	}
}

func TestTheAdminListenerTellsHowThingsAre(t *testing.T) {
	e, b := one(t, "")
	for path, want := range map[string]string{
		"/healthz":                    `"alive"`,
		"/readyz":                     `"ready":true`,
		"/status":                     b.addr,
		"/metrics":                    "sentinel_edge_requests_total",
		"/v1/config":                  "backends:",
		"/v1/routes":                  `"/*rest"`,
		"/v1/backends":                `"breaker":"closed"`,
		"/v1/explain?url=/some/where": `"/*rest"`,
	} {
		resp := get(t, e.adminURL(path))
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(resp.body), want) {
			t.Errorf("%s: %s, and no %s in %s", path, resp.Status, want, resp.body)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.adminURL(path), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "a-page.example" // whose name leads here
		if resp := do(t, r); resp.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s by another name: %s", path, resp.Status)
		}
	}
}
