package edgetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// silent is a backend's address where connections are accepted, and nothing follows.
func silent(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &backend{addr: l.Addr().String()}
}

const patientCheck = ", health: {path: /health, interval: 1h, timeout: 1h}"

func TestReadinessNamesTheBackendsThatItWaitsFor(t *testing.T) {
	a, b := startBackend(t, "a", ""), silent(t)
	e := launchEdge(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", a)+pool("b", patientCheck, b))
	Soon(t, "the other one is checked", func() bool {
		return strings.Contains(string(get(t, e.adminURL("/v1/backends")).body), `"healthy"`)
	})
	resp := get(t, e.adminURL("/readyz"))
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(resp.body), `"why":"waiting for b/`+b.addr+`"`) {
		t.Errorf("%s %s", resp.Status, resp.body)
	}
	e.write(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", a))
	e.signal(syscall.SIGHUP)
	Soon(t, "it is ready without that backend", func() bool { return get(t, e.adminURL("/readyz")).StatusCode == http.StatusOK })
}

// A load balancer takes an edge that is not ready out: a reload must not do that.
func TestAnEdgeThatWasReadyStaysReadyAtAReload(t *testing.T) {
	e, a := one(t, "")
	e.write(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", a)+pool("b", patientCheck, silent(t)))
	e.signal(syscall.SIGHUP)
	e.line(func(s string) bool { return strings.Contains(s, "configuration applied") })
	if resp := get(t, e.adminURL("/readyz")); resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s", resp.Status, resp.body)
	}
}

func TestAPortInUseIsNamedAndNoFaultOfTheFile(t *testing.T) {
	a := startBackend(t, "a", "")
	const yaml = "routes: [{path: /*rest, backend: a}]\nbackends:\n"
	e := startEdge(t, yaml+pool("a", "", a))
	server, admin := "server: {listen: \"127.0.0.1:0\"}\n", "admin: {listen: \"127.0.0.1:0\"}\n"
	for _, c := range []struct{ server, admin, pprof, want string }{
		{"server: {listen: \"" + a.addr + "\"}\n", admin, "127.0.0.1:0", "server.listen: "},
		{server, "admin: {listen: \"" + a.addr + "\"}\n", "127.0.0.1:0", "admin.listen: "},
		{server, admin, a.addr, "-pprof: "},
	} {
		e.write(t, c.server+c.admin+yaml+pool("a", "", a))
		p := start(t, "sentinel", "run", "-config", e.file, "-pprof", c.pprof)
		if code := p.wait(); code != 1 || !strings.Contains(p.output(), c.want) || !strings.Contains(p.output(), "address already in use") {
			t.Errorf("exit code %d, want 1 and %s:\n%s", code, c.want, p.output())
		}
	}
}

func TestRunningOutOfDescriptorsIsSaid(t *testing.T) {
	e := &edge{file: t.TempDir() + "/edge.yaml"}
	e.write(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", ", health: {type: off}", silent(t)))
	e.process = startProgram(t, "sentinel", "/bin/sh", "-c", `ulimit -n 32; exec "$0" run -config "$1"`, command(t, "sentinel"), e.file)
	e.listening(t)
	for range 40 {
		c, err := net.DialTimeout("tcp", e.addr, time.Second) //nolint:noctx // loopback
		if err != nil {
			break // the queue is full
		}
		defer c.Close()
	}
	line := e.line(func(s string) bool { return strings.Contains(s, "too many open files") })
	if !strings.Contains(line, `"level":"WARN"`) {
		t.Error(line)
	}
}

// The library's file is another than the edge's: a reload reads both, and only
// what has changed is a change.
func TestAReloadReadsTheLibrarysFile(t *testing.T) {
	a := startBackend(t, "a", "")
	policies := filepath.Join(t.TempDir(), "policies.json")
	write := func(capacity int) {
		text := fmt.Sprintf(`{"app": {"redis_url": "memory://", "jwt_secret": "tests-only-secret-0123456789abcdef", "anonymous_cookie_secret": "tests-only-cookie-secret-0123456789abcdef"},
"policies": {"p": {"endpoint_id": "p", "identity": "anonymous", "algorithm": "token_bucket", "fail_mode": "fail_closed",
	"fallback_per_second": 1, "policy_version": 1, "capacity": %d, "refill_per_second": 0.001}}}`, capacity)
		if err := os.WriteFile(policies, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(10)
	e := startEdge(t, "sentinel: "+policies+"\nroutes: [{path: /*rest, backend: a, rate_limit: {mode: distributed, policy: p}}]\nbackends:\n"+pool("a", "", a))
	quota := func() string { return get(t, e.url("/")).Header.Get("RateLimit-Policy") }
	if got := quota(); !strings.Contains(got, "q=10") {
		t.Fatalf("the quota is %s", got)
	}
	write(20)
	e.signal(syscall.SIGHUP)
	Soon(t, "the policy is another", func() bool { return strings.Contains(quota(), "q=20") })
	if got := e.metric("sentinel_edge_config_version"); got != 1 {
		t.Errorf("the version of a file that has not changed is %v", got)
	}
	write(0)
	e.signal(syscall.SIGHUP)
	if line := e.line(func(s string) bool { return strings.Contains(s, "configuration refused") }); !strings.Contains(line, policies) {
		t.Errorf("the file is not named: %s", line)
	}
	if got := quota(); !strings.Contains(got, "q=20") {
		t.Errorf("after a faulty file the quota is %s", got)
	}
}

// Whoever reads the log may go away, and the edge does not.
func TestALogThatNobodyReadsEndsNothing(t *testing.T) {
	a := startBackend(t, "a", "")
	e := &edge{file: t.TempDir() + "/edge.yaml"}
	e.write(t, "routes: [{path: /*rest, backend: a}]\nbackends:\n"+pool("a", "", a))
	pipe := t.TempDir() + "/pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	e.process = startProgram(t, "sentinel", "/bin/sh", "-c", `exec 3<>"$2" >"$2" 3<&-; exec "$0" run -config "$1"`, command(t, "sentinel"), e.file, pipe)
	e.listening(t)
	for range 3 {
		e.answers(t, "/ok")
	}
	Soon(t, "the lines that are lost are counted", func() bool { return e.metric("sentinel_edge_access_log_dropped_total") > 0 })
	e.answers(t, "/ok")
}

// What net/http says on its own account is a line of the log like any other.
func TestEveryLineOfTheLogIsJSON(t *testing.T) {
	e, _ := one(t, "")
	e.mayOpen(3) // which it has: no connection can be accepted
	conn := e.dial(t)
	line := e.line(func(s string) bool { return strings.Contains(s, "Accept error") })
	if !json.Valid([]byte(line)) {
		t.Error(line)
	}
	e.mayOpen(1000)
	if _, err := io.WriteString(conn, "GET /ok HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(limit))
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("when there is room: %q, %v", answer, err)
	}
}

// answers asks for a path, and looks at no log.
func (e *edge) answers(t *testing.T, path string) {
	t.Helper()
	if resp := get(t, e.url(path)); resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", path, resp.Status)
	}
}
