package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program, built once for all tests, and run as a stranger would.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "quickstart-test-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "quickstart")
	args := []string{"build", "-o", binary}
	if underRace() {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		panic("go build: " + err.Error() + "\n" + string(out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// underRace reports whether these tests run with the race detector; then the
// program does, too.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// once runs the program to its end.
func once(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir = t.TempDir() // the embedded configuration is found from anywhere
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// server is the program, serving.
type server struct {
	base     string
	greeting string // its first line
	cmd      *exec.Cmd
	log      *lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...), log: &lockedBuffer{}}
	s.cmd.Dir = t.TempDir()
	s.cmd.Stderr = s.log
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the server said nothing: %v\n%s", err, s.log)
	}
	m := regexp.MustCompile(`^listening on (http://127\.0\.0\.1:\d+) \(\w+\)\n$`).FindStringSubmatch(first)
	if m == nil {
		t.Fatalf("first line %q", first)
	}
	s.base, s.greeting = m[1], first
	go func() { _, _ = io.Copy(s.log, lines) }()
	return s
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) json(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), into); err != nil {
		t.Fatalf("not JSON: %q", a.body)
	}
}

func (s *server) do(t *testing.T, method, path, token string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func (s *server) token(t *testing.T, query string) string {
	t.Helper()
	a := s.do(t, http.MethodGet, "/token?"+query, "")
	var body struct{ Token, Note string }
	a.json(t, &body)
	if a.status != 200 || body.Token == "" || !strings.Contains(body.Note, "demo only") {
		t.Fatalf("/token?%s: %d %q", query, a.status, body.Note)
	}
	return body.Token
}

// Every framework serves the same: the statuses, bodies and headers do not
// depend on it, except the framework's own 404.
func TestServesItsEmbeddedConfiguration(t *testing.T) {
	for _, fw := range frameworks() {
		t.Run(fw.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, "-framework", fw.name)
			if !strings.Contains(s.greeting, "("+fw.name+")") {
				t.Errorf("greets with %q", s.greeting)
			}
			servesItsEmbeddedConfiguration(t, s)
		})
	}
}

func servesItsEmbeddedConfiguration(t *testing.T, s *server) {
	acme := s.token(t, "tenant=acme&ttl=60")

	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		a := s.do(t, method, "/guarded/pdftalk.ingest", acme)
		var body map[string]any
		a.json(t, &body)
		identity, _ := body["identity"].(map[string]any)
		hash, _ := identity["hash"].(string)
		if a.status != 200 || body["endpoint_id"] != "pdftalk.ingest" || body["allowed"] != true || body["reason"] != "allowed" ||
			identity["mode"] != "tenant_jwt" || len(hash) != 64 || len(body) != 5 {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
		if _, ok := body["remaining"].(float64); !ok {
			t.Errorf("%s: remaining %v, want a number", method, body["remaining"])
		}
	}
	if a := s.do(t, http.MethodGet, "/guarded/auth.login", ""); a.status != 200 || a.header.Get("Set-Cookie") == "" ||
		!strings.Contains(a.body, `"mode":"anonymous"`) || strings.Contains(a.header.Get("Set-Cookie"), "Secure") {
		t.Errorf("anonymous: %d, %d cookies, %s", a.status, len(a.header.Values("Set-Cookie")), a.body)
	}

	for _, tt := range []struct {
		method, path, token string
		status              int
		body                string // a part of it
	}{
		{http.MethodGet, "/guarded/pdftalk.ingest", "", 401, "authentication required"},
		{http.MethodGet, "/guarded/pdftalk.ingest", acme + "x", 401, "authentication required"},
		{http.MethodGet, "/guarded/not.configured", acme, 404, "unknown endpoint"},
		{http.MethodGet, "/guarded/not.configured", "", 401, "authentication required"},
		{http.MethodGet, "/guarded/nowhere", acme, 404, ""}, // the framework's own words
		{http.MethodGet, "/healthz", "", 200, `"ok"`},
		{http.MethodHead, "/healthz", "", 200, ""},
		{http.MethodGet, "/readyz", "", 200, `"ready":true`},
		{http.MethodPost, "/readyz", "", 405, ""},
		{http.MethodGet, "/metrics", "", 200, `sentinel_decisions_total{decision_reason="allowed",endpoint_id="pdftalk.ingest"} 3`},
		{http.MethodGet, "/token", "", 400, "tenant: required"},
		{http.MethodGet, "/token?tenant=%20%09", "", 400, "tenant: required"},
		{http.MethodGet, "/token?tenant=" + strings.Repeat("a", 1025), "", 400, "tenant: must be at most 1024 bytes"},
		{http.MethodGet, "/token?tenant=acme&ttl=0", "", 400, "ttl: must be 1 to 86400"},
		{http.MethodGet, "/token?tenant=acme&ttl=-1", "", 400, "ttl: must be 1 to 86400"},
		{http.MethodGet, "/token?tenant=acme&ttl=86401", "", 400, "ttl: must be 1 to 86400"},
		{http.MethodGet, "/token?tenant=acme&ttl=1e3", "", 400, "ttl: must be 1 to 86400"},
		{http.MethodGet, "/token?tenant=acme&ttl=99999999999999999999", "", 400, "ttl: must be 1 to 86400"},
	} {
		a := s.do(t, tt.method, tt.path, tt.token)
		if a.status != tt.status || !strings.Contains(a.body, tt.body) {
			t.Errorf("%s %.60s: %d %q, want %d and %q", tt.method, tt.path, a.status, a.body, tt.status, tt.body)
		}
	}
	for _, query := range []string{"tenant=acme", "tenant=acme&ttl=1", "tenant=acme&ttl=86400"} {
		if a := s.do(t, http.MethodGet, "/guarded/resumint.tailor", s.token(t, query)); a.status != 200 {
			t.Errorf("token of %s: %d", query, a.status)
		}
	}
	if a := s.do(t, http.MethodGet, "/guarded/pdftalk.ingest", strings.Repeat("a", 100_000)); a.status != 431 {
		t.Errorf("100 kB of header: %d, want 431", a.status)
	}

	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if log := s.log.String(); strings.Contains(log, "dev-only") || strings.Contains(log, acme) {
		t.Error("a secret was printed")
	}
}

// The key of a file's own kind, wherever it comes from, signs what the limiter
// accepts.
func TestTokensAreSignedAsConfigured(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "key", "from-a-file-0123456789abcdef-0123456789\n")
	t.Setenv("QUICKSTART_TEST_KEY", "from-the-environment-0123456789abcdef")
	for name, app := range map[string]string{
		"literal": `"jwt_secret": "literal-0123456789abcdef-0123456789abcdef"`,
		"env":     `"jwt_secret": "${QUICKSTART_TEST_KEY}", "jwt_algorithm_allowlist": ["HS512", "HS256"]`,
		"file":    `"jwt_secret_file": "key", "jwt_algorithm_allowlist": ["HS384"]`,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "-config", write(t, dir, name+".json", `{"app": {"redis_url": "memory://", `+app+`},
				"policies": {"a": {"endpoint_id": "a", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1,
				                   "limit": 1, "fallback_per_second": 1}}}`))
			token := s.token(t, "tenant=acme")
			for _, want := range []int{200, 429} {
				if a := s.do(t, http.MethodGet, "/guarded/a", token); a.status != want {
					t.Errorf("%d, want %d", a.status, want)
				}
			}
		})
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Without Redis the server starts, says so, and takes its failure rows.
func TestServesWithoutItsRedis(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	rs := redisServer{port: port}
	s := start(t, "-config", write(t, t.TempDir(), "c.json", `{"app": {"redis_url": "redis://:pass-of-this-test@`+rs.addr()+`/0",
		"jwt_secret": "literal-0123456789abcdef-0123456789abcdef"},
		"policies": {
			"open":   {"endpoint_id": "open", "algorithm": "sliding_window", "fail_mode": "fail_open", "policy_version": 1, "limit": 5, "fallback_per_second": 1},
			"closed": {"endpoint_id": "closed", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1, "limit": 5, "fallback_per_second": 1}}}`))
	token := s.token(t, "tenant=acme")
	a := s.do(t, http.MethodGet, "/guarded/open", token)
	if a.status != 200 || !strings.Contains(a.body, `"remaining":null`) || !strings.Contains(a.body, `"reason":"redis_connection_error"`) {
		t.Errorf("fail open: %d %s", a.status, a.body)
	}
	if a := s.do(t, http.MethodGet, "/guarded/closed", token); a.status != 503 {
		t.Errorf("fail closed: %d", a.status)
	}
	a = s.do(t, http.MethodGet, "/readyz", "")
	if a.status != 503 || !strings.Contains(a.body, `"ready":false`) || !strings.Contains(a.body, `"reason":"`) {
		t.Errorf("/readyz: %d %s", a.status, a.body)
	}
	if a := s.do(t, http.MethodGet, "/healthz", ""); a.status != 200 {
		t.Errorf("/healthz: %d", a.status)
	}
	if strings.Contains(s.log.String()+a.body, "pass-of-this-test") {
		t.Error("the password was printed")
	}
}

func TestBadCommandLines(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"-framework", "rails"}, 2, `-framework "rails" is unknown; the known ones are: nethttp, gin, echo, chi`},
		{[]string{"-redis-server"}, 2, "-redis-server goes with -tour"},
		{[]string{"serve"}, 2, `unexpected argument "serve"`},
		{[]string{"-nonsense"}, 2, "flag provided but not defined"},
		{[]string{"-h"}, 0, "-framework"},
		{[]string{"-config", "/nowhere/at/all.json"}, 1, "/nowhere/at/all.json"},
		{[]string{"-addr", "127.0.0.1:99999"}, 1, "99999"},
		{[]string{"-tour", "-addr", "nonsense"}, 1, "nonsense"},
	} {
		code, stdout, stderr := once(t, nil, tt.args...)
		if code != tt.code || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%v: exit %d, want %d\n%s", tt.args, code, tt.code, stderr)
		}
		if strings.Contains(stdout, "listening") {
			t.Errorf("%v: it listened", tt.args)
		}
	}
}

// All faults of a file are told at once, and none of its secrets.
func TestBrokenConfiguration(t *testing.T) {
	path := write(t, t.TempDir(), "broken.json", `{
		"app": {"redis_url": "memory://", "jwt_secret": "short-one", "surprise": 1},
		"policies": {
			"a": {"endpoint_id": "b", "algorithm": "token_bucket", "fail_mode": "fail_open", "policy_version": 1,
			      "capacity": 0.5, "refill_per_second": 1, "fallback_per_second": 1},
			"auth.login": {"endpoint_id": "auth.login", "algorithm": "token_bucket", "fail_mode": "sometimes", "policy_version": 1,
			      "capacity": 1, "refill_per_second": 1, "fallback_per_second": 1, "window_size_micro": 60000000}
		}}`)
	for _, args := range [][]string{{"-config", path}, {"-tour", "-config", path}} {
		code, stdout, stderr := once(t, nil, args...)
		if code != 1 {
			t.Errorf("%v: exit %d, want 1", args, code)
		}
		for _, fault := range []string{
			"app.jwt_secret: ", "app.surprise: ", `policies["a"].endpoint_id: `, `policies["a"].capacity: `,
			`policies["auth.login"].fail_mode: `, `policies["auth.login"].window_size_micro: `,
		} {
			if !strings.Contains(stderr, fault) {
				t.Errorf("%v: no word of %s\n%s", args, fault, stderr)
			}
		}
		if strings.Contains(stdout+stderr, "short-one") {
			t.Error("a secret was printed")
		}
	}
}

func TestTour(t *testing.T) {
	for _, fw := range frameworks() {
		t.Run(fw.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := once(t, nil, "-framework", fw.name, "-tour")
			if code != 0 {
				t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
			}
			for _, part := range []string{
				fw.name + " serves on", "401", "404", "429, rate_limited, Retry-After 2", "it is kept", "a cookie",
				"all 14 outcomes are the promised ones",
			} {
				if !strings.Contains(stdout, part) {
					t.Errorf("the tour shows no %q:\n%s", part, stdout)
				}
			}
		})
	}
}

// A tour whose promises are not kept fails: here Redis is away.
func TestTourTellsBrokenPromises(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	rs := redisServer{port: port}
	code, stdout, stderr := once(t, nil, "-tour", "-config", write(t, t.TempDir(), "c.json", `{"app": {"redis_url": "redis://`+rs.addr()+`/0",
		"jwt_secret": "literal-0123456789abcdef-0123456789abcdef"},
		"policies": {"a": {"endpoint_id": "a", "algorithm": "sliding_window", "fail_mode": "fail_closed", "policy_version": 1, "limit": 5, "fallback_per_second": 1}}}`))
	if code != 1 || !strings.Contains(stdout, " NO\n") || !strings.Contains(stderr, "outcomes are not the promised ones") {
		t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestTourNeedsARedisServer(t *testing.T) {
	code, _, stderr := once(t, []string{"PATH=/nowhere"}, "-tour", "-redis-server")
	if code != 1 || !strings.Contains(stderr, "no redis-server on the PATH") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}

// The whole tour, through the loss of a Redis and back. On a machine that has
// its Redis in containers alone, there is no server that the program could
// start; it has to say so.
func TestTourWithARedisServer(t *testing.T) {
	begin := time.Now()
	code, stdout, stderr := once(t, nil, "-tour", "-redis-server")
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Log("no redis-server on the PATH: the outage is not toured")
		if code != 1 || !strings.Contains(stderr, "no redis-server on the PATH") {
			t.Errorf("exit %d\n%s", code, stderr)
		}
		return
	}
	if code != 0 {
		t.Fatalf("exit %d after %s\n%s\n%s", code, time.Since(begin), stdout, stderr)
	}
	for _, part := range []string{"200, redis_", "503, fail_closed", "503, circuit_open", "429, emergency_local_limit", "recovered", "all 22 outcomes are the promised ones"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("the tour shows no %q:\n%s", part, stdout)
		}
	}
}
