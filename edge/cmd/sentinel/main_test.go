package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sentinelgo/sentinel/edge/internal/command"
)

const sample, full = "../../configs/sample.yaml", "../../configs/edge.yaml"

// sentinel runs a command line.
func sentinel(args ...string) (code int, stdout, stderr string) {
	var out, err strings.Builder
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

// write puts a file into a directory of the test's own.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edge.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCommandsSayWhatTheyAreAskedFor(t *testing.T) {
	faulty := write(t, "routes: [{path: users, backend: b}]\nbackends: [{name: a}]\n")
	const shared = "routes: [{path: /a, backend: a, rate_limit: {mode: distributed, policy: nobodys}}]\nbackends: [{name: a, url: \"http://a\"}]\n"
	missing := write(t, "sentinel: missing.json\n"+shared)
	policies := write(t, `{"app": {"redis_url": "redis://127.0.0.1:1", "jwt_secret": "tests-only-secret-0123456789abcdef0123456789"}, "policies": {"other": {"endpoint_id": "other", "algorithm": "token_bucket", "fail_mode": "fail_open",
		"fallback_per_second": 1, "policy_version": 1, "capacity": 1, "refill_per_second": 1}}}`)
	unknown := write(t, "sentinel: "+policies+"\n"+shared)
	local := write(t, "server: {port: 8081}\n")
	for _, test := range []struct {
		args     string
		code     int
		out, err string // parts; "" is that there is nothing
	}{
		{"", command.Misused, "", "sentinel is a reverse proxy."},
		{"help", command.OK, "sentinel explain   say where a request would go", ""},
		{"-h", command.OK, "Exit codes: 0 fine; 1", ""},
		{"help explain", command.OK, "sentinel explain [flags] [METHOD] URL", ""},
		{"check -h", command.OK, "-config FILE", ""},
		{"explain --help", command.OK, "-H 'X-Api-Key: k1'", ""},
		{"nonsense", command.Misused, "", `there is no command "nonsense"`},
		{"check -nonsense", command.Misused, "", "flag provided but not defined: -nonsense; see sentinel help check"},
		{"check -config", command.Misused, "", "flag needs an argument"},
		{"check file.yaml", command.Misused, "", `"file.yaml" is one argument too many; a file is named by -config FILE; see sentinel help check`},

		{"run -h", command.OK, "-pprof-allow-remote", ""},
		{"run -nonsense", command.Misused, "", "see sentinel help run"},
		{"run -config " + faulty, command.Misused, "", "routes[0].path: users must begin with /\n"},
		{"run -json -config " + faulty, command.Misused, `"path": "routes[0].path"`, ""},
		{"run -json -config /nonsense.yaml", command.Misused, `"ok": false`, ""},
		{"run -json -control 127.0.0.1:1 -state off -config " + sample, command.Misused, `comes from the control plane`, ""},
		{"run -config /nonsense.yaml", command.Misused, "", "no such file"},
		{"run", command.Misused, "", "edge.yaml: no such file or directory; name yours with -config FILE"},
		{"check", command.Misused, "", "edge.yaml: no such file or directory; name yours with -config FILE"},

		{"check -config " + sample, command.OK, "fine, routes: 1, backends: 1", ""},
		{"check --json -config " + sample, command.OK, `"ok": true`, ""},
		{"check -config " + faulty, command.Misused, "", ":1: routes[0].path: users must begin with /\n"},
		{"check -config " + faulty, command.Misused, "", ":1: routes[0].backend: there is no backend with this name; the names are a\n"},
		{"check -config " + faulty, command.Misused, "", ":2: backends[0]: has no backend"},
		{"check --json -config " + faulty, command.Misused, `"path": "routes[0].path"`, ""},
		{"check -config " + missing, command.Misused, "", "missing.json: no such file"},
		{"check -config " + unknown, command.Misused, "", `route /a uses policy "nobodys", which is not there`},
		{"check -json -config " + unknown, command.Misused, `"ok": false`, ""},
		{"check -local -config " + local, command.OK, "fine, routes: 0", ""},
		{"check -local -config " + sample, command.Misused, "", "routes: comes from the control plane; remove it here"},
		{"check -config " + local, command.Misused, "", "routes: required"},
		{"run -control nonsense -state off -config " + local, command.Misused, "", "-control nonsense: must be host:port"},
		{"run -control 10.0.0.1:1 -state off -config " + local, command.Misused, "", "decides where traffic goes"},
		{"run -control 127.0.0.1:1 -config " + local, command.Misused, "", "-control needs -state DIRECTORY, where the last good version is kept"},
		{"run -control 127.0.0.1:1 -state /nonsense -config " + local, command.Misused, "", "-state: stat /nonsense: no such file or directory; make the directory"},
		{"run -control 127.0.0.1:1 -state " + local + " -config " + local, command.Misused, "", "is no directory"},
		{"run -control 127.0.0.1:1 -state off -reconnect 1h -config " + local, command.Misused, "", "-reconnect 1h0m0s: must be from 1ms to 30s"},
		{"run -control 127.0.0.1:1 -node= -state off -config " + local, command.Misused, "", "-node \"\": must be a name"},
		{"run -control 127.0.0.1:1 -node \xff -state off -config " + local, command.Misused, "", "must be a name"},
		{"run -control 127.0.0.1:1 -state off -control-ca /nonsense -config " + local, command.Misused, "", "all of authority, certificate and key are needed"},
		{"run -control 127.0.0.1:1 -state off -config " + sample, command.Misused, "", "remove it here"},
		{"check -config /nonsense.yaml", command.Misused, "", "no such file"},
		{"check -json -config /nonsense.yaml", command.Misused, `"ok": false`, ""},

		{"config -config " + sample, command.OK, "max_idle: 256", ""},
		{"config -json -config " + sample, command.OK, `"max_idle": 256`, ""},
		{"config -config " + faulty, command.Misused, "", "must begin with /"},

		{"routes -config " + full, command.OK, "GET,PATCH  /users/:id", ""},
		{"routes -json -config " + full, command.OK, `"place": 1`, ""},
		{"routes -config " + faulty, command.Misused, "", "must begin with /"},

		{"explain /users -config " + sample, command.OK, "goes to * /users", ""},
		{"explain -config " + full + " PATCH http://h/users/7?x -client 192.0.2.7", command.OK, "counted for 192.0.2.7:", ""},
		{"explain -json -config " + full + " /nowhere", command.OK, `"reason": "no_route"`, ""},
		{"explain -config " + sample, command.Misused, "", "which URL?"},
		{"explain a b c", command.Misused, "", `"c" is one argument too many`},
		{"explain / -H nonsense", command.Misused, "", "must be 'Name: value'"},
		{"explain / -client nonsense", command.Misused, "", "nonsense"},
		{"explain / -config " + faulty, command.Misused, "", "must begin with /"},

		{"version", command.OK, "sentinel ", ""},
		{"--version", command.OK, "sentinel ", ""},
		{"version -json", command.OK, `"version"`, ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, out, err := sentinel(strings.Fields(test.args)...)
			if code != test.code {
				t.Errorf("exit %d, want %d", code, test.code)
			}
			if !strings.Contains(out, test.out) || test.out == "" && out != "" {
				t.Errorf("on stdout %q, want %q", out, test.out)
			}
			if !strings.Contains(err, test.err) || test.err == "" && err != "" {
				t.Errorf("on stderr %q, want %q", err, test.err)
			}
			if strings.Contains(test.args, "json") && err == "" && !json.Valid([]byte(out)) {
				t.Errorf("no JSON: %s", out)
			}
		})
	}
}

func TestWhatConfigPrintsIsAFile(t *testing.T) {
	t.Setenv("USERS_URL", "http://s3cret:1")
	path := write(t, "routes: [{path: /, backend: a}]\nbackends: [{name: a, url: '${USERS_URL}'}]\n")
	_, printed, _ := sentinel("config", "-config", path)
	if strings.Contains(printed, "s3cret") || !strings.Contains(printed, "${USERS_URL}") {
		t.Errorf("it prints\n%s", printed)
	}
	var first, second verdict
	for into, path := range map[*verdict]string{&first: path, &second: write(t, printed)} {
		_, out, _ := sentinel("check", "-json", "-config", path)
		if err := json.Unmarshal([]byte(out), into); err != nil {
			t.Fatal(err)
		}
	}
	if !second.OK || first.Hash != second.Hash {
		t.Errorf("%+v and %+v", first, second)
	}
}

func TestHeadersOfARequestMayBeRepeated(t *testing.T) {
	path := write(t, "rate_limit: {capacity: 1, refill_rate: 1, key: 'header:X-Tenant'}\nroutes: [{path: /, backend: a}]\nbackends: [{name: a, url: 'http://h:1'}]\n")
	_, out, _ := sentinel("explain", "/", "-H", "X-Other: 1", "-H", "x-tenant: acme", "-config", path)
	if !strings.Contains(out, "counted for X-Tenant: acme") {
		t.Error(out)
	}
}
