package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// ran is what a command did.
type ran struct {
	code     int
	out, err string
}

func runWith(in string, terminal bool, args ...string) ran {
	var out, errOut bytes.Buffer
	c := &cli{in: strings.NewReader(in), out: &out, err: &errOut, terminal: terminal}
	code := c.run(args)
	return ran{code, out.String(), errOut.String()}
}

// What each command prints, and its exit code.
func TestGolden(t *testing.T) {
	for name, line := range map[string]string{
		"check":                "check testdata/sentinel.json -no-env -instances 40",
		"check_env":            "check testdata/sentinel.json",
		"check_risky":          "check testdata/risky.json -instances 3",
		"check_ignore":         "check -ignore inline-secret -ignore start testdata/risky.json -ignore ipv6-prefix",
		"check_against":        "check testdata/risky.json -ignore inline-secret -against testdata/sentinel.json",
		"check_carry_over":     "check -no-env testdata/version_2.json -against testdata/version_1.json",
		"check_broken":         "check testdata/broken.json",
		"check_broken_json":    "check -json testdata/broken.json",
		"check_json":           "check testdata/risky.json -json",
		"check_syntax":         "check testdata/syntax.json",
		"explain":              "explain testdata/sentinel.json -endpoint billing.export -tenant acme",
		"explain_window":       "explain testdata/sentinel.json -endpoint api.search -token-claims {\"sub\":\"acme\",\"exp\":1}",
		"explain_claim":        "explain testdata/risky.json -endpoint api.search -token-claims {\"sub\":\"nobody\",\"org\":\"acme\"}",
		"simulate_limits":      "simulate testdata/sentinel.json -endpoint api.search -rate 15/s -burst 50 -pattern steady -for 2m",
		"explain_anonymous":    "explain testdata/sentinel.json -endpoint auth.login -tenant acme",
		"explain_application":  "explain testdata/application.json -endpoint a -tenant acme",
		"explain_no_token":     "explain testdata/application.json -endpoint a -token-claims {\"sub\":\"acme\"}",
		"explain_once":         "explain testdata/sentinel.json -endpoint trial.once -json -tenant acme",
		"explain_unknown":      "explain testdata/sentinel.json -endpoint nope",
		"explain_broken":       "explain testdata/broken.json -endpoint billing.export",
		"simulate":             "simulate testdata/sentinel.json -endpoint billing.export -tenants 3 -rate 1/s -burst 12 -for 2m -chart",
		"simulate_steady":      "simulate testdata/sentinel.json -endpoint billing.export -rate 30/m -pattern steady -for 1h",
		"simulate_log":         "simulate testdata/sentinel.json -log testdata/access.txt -map POST\u00a0/export/{id}=trial.once -map /login=auth.login",
		"simulate_json_lines":  "simulate testdata/sentinel.json -log testdata/requests.jsonl -chart",
		"simulate_peers":       "simulate testdata/sentinel.json -log testdata/peers.jsonl",
		"simulate_log_as_json": "simulate testdata/sentinel.json -log testdata/requests.jsonl -json",
		"check_shadow":         "check testdata/shadow.json -no-env -instances 9",
		"explain_shadow":       "explain testdata/shadow.json -endpoint search.query -tenant acme",
		"simulate_live":        "simulate testdata/shadow.json -rate 10/m -pattern steady -for 10m",
		"simulate_candidate":   "simulate testdata/shadow.json -rate 10/m -pattern steady -for 10m -candidate",
		"help":                 "help",
		"help_peek":            "help peek",
		"no_command":           "chekc testdata/sentinel.json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SENTINELCTL_TEST_JWT_SECRET", "")
			if strings.Contains(line, "risky") {
				t.Setenv("SENTINELCTL_TEST_JWT_SECRET", jwtSecret)
			}
			args := strings.Fields(strings.ReplaceAll(line, "POST\u00a0", "POST#"))
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "#", " ")
			}
			r := runWith("", false, args...)
			got := fmt.Sprintf("%s--- stderr\n%s--- exit %d\n", r.out, r.err, r.code)
			file := filepath.Join("testdata", "golden", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("it prints\n%s\nand %s has\n%s", got, file, want)
			}
		})
	}
}

// Bad arguments end with 2, and say what to do.
func TestUsage(t *testing.T) {
	const file = "testdata/sentinel.json"
	t.Setenv("SENTINELCTL_TEST_JWT_SECRET", "")
	for want, args := range map[string][]string{
		"check takes one FILE, not 0":                                       {"check"},
		"check takes one FILE, not 2":                                       {"check", file, file},
		"no such file":                                                      {"check", "testdata/none.json"},
		"-instances must be at least 1":                                     {"check", file, "-instances", "0"},
		"flag provided but not defined: -nope":                              {"doctor", file, "-nope"},
		"-against: open testdata/none.json":                                 {"check", "-no-env", "testdata/risky.json", "-against", "testdata/none.json"},
		"give -log, or -rate":                                               {"simulate", file, "-endpoint", "api.search"},
		"-endpoint: testdata/sentinel.json has no \"\"":                     {"simulate", file, "-rate", "1/s"},
		"-rate must be a number":                                            {"simulate", file, "-endpoint", "api.search", "-rate", "12"},
		"at most 5,000,000 are simulated":                                   {"simulate", file, "-endpoint", "api.search", "-rate", "1000000/s"},
		"no endpoint of testdata/sentinel.json has one":                     {"simulate", file, "-endpoint", "api.search", "-rate", "1/s", "-candidate"},
		"-top must not be negative":                                         {"simulate", file, "-endpoint", "api.search", "-rate", "1/s", "-top", "-1"},
		"at most 5,000,000 tenants":                                         {"simulate", file, "-endpoint", "api.search", "-rate", "0.0000000000000000000001/d", "-tenants", "5000001"},
		"-pattern must be":                                                  {"simulate", file, "-endpoint", "api.search", "-rate", "1/s", "-pattern", "odd"},
		"not a pattern of net/http.ServeMux":                                {"simulate", file, "-log", "-", "-map", "export=api.search"},
		"-map must be PATTERN=ENDPOINT":                                     {"simulate", file, "-log", "-", "-map", "/export"},
		"the file has no endpoint \"nope\"":                                 {"simulate", file, "-log", "-", "-map", "/export=nope"},
		"no request to decide":                                              {"simulate", file, "-log", "-"},
		"that is a token, which is a credential":                            {"explain", file, "-endpoint", "api.search", "-token-claims", "aa.bb.cc"},
		"answered 401":                                                      {"explain", file, "-endpoint", "api.search", "-token-claims", `{"sub": " "}`},
		"not both":                                                          {"explain", file, "-endpoint", "api.search", "-tenant", "a", "-token-claims", "{}"},
		"environment variable SENTINELCTL_TEST_REDIS_URL is unset or empty": {"peek", file, "-endpoint", "api.search", "-tenant", "a"},
		"-samples must be":                                                  {"doctor", file, "-samples", "0"},
	} {
		if r := runWith("", false, args...); r.code != exitUsage || !strings.Contains(r.err, want) || r.out != "" {
			t.Errorf("%v: exit %d, %q, %q; want %q", args, r.code, r.out, r.err, want)
		}
	}
}

// memory:// is in another process, so there is nothing to look at.
func TestInMemory(t *testing.T) {
	variables(t, "memory://")
	for _, name := range []string{"peek", "reset"} {
		r := runWith("", false, name, "testdata/sentinel.json", "-endpoint", "billing.export", "-tenant", "acme")
		if r.code != exitUsage || !strings.Contains(r.err, "memory://") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := runWith("", false, "doctor", "testdata/sentinel.json"); r.code != exitFine || !strings.Contains(r.out, "each process limits alone") {
		t.Errorf("doctor: %+v", r)
	}
	if r := runWith("", false, "peek", "testdata/sentinel.json", "-endpoint", "auth.login", "-tenant", "acme"); r.code != exitUsage || !strings.Contains(r.err, "anonymous") {
		t.Errorf("anonymous: %+v", r)
	}
}

// The secrets of these tests.
const (
	jwtSecret    = "the-jwt-secret-of-this-test-0123456789"
	cookieSecret = "the-cookie-secret-of-this-test-012345"
	password     = "the-password-of-this-test"
)

func variables(t *testing.T, url string) {
	t.Setenv("SENTINELCTL_TEST_REDIS_URL", url)
	t.Setenv("SENTINELCTL_TEST_JWT_SECRET", jwtSecret)
	t.Setenv("SENTINELCTL_TEST_COOKIE_SECRET", cookieSecret)
}

// No command prints a secret, whether the file is good or not and whether Redis
// answers or not.
func TestNoSecretIsPrinted(t *testing.T) {
	variables(t, "redis://user:"+password+"@127.0.0.1:1/0")
	secrets := []string{jwtSecret, cookieSecret, password, "hunter2", "horse", "staple", "too-short"}
	said := 0
	for _, file := range []string{"sentinel", "risky", "broken", "syntax"} {
		file = "testdata/" + file + ".json"
		for _, asJSON := range []string{"-json", "-json=false"} {
			for _, args := range [][]string{
				{"check", file, "-instances", "9"},
				{"check", file, "-against", "testdata/risky.json"},
				{"check", "testdata/risky.json", "-against", file},
				{"explain", file, "-endpoint", "billing.export", "-tenant", "acme"},
				{"explain", file, "-endpoint", "billing.export", "-token-claims", `{"sub": "acme"}`},
				{"simulate", file, "-endpoint", "billing.export", "-rate", "1/s", "-chart"},
				{"peek", file, "-endpoint", "billing.export", "-tenant", "acme"},
				{"reset", file, "-endpoint", "billing.export", "-tenant", "acme", "-yes"},
				{"doctor", file},
			} {
				if file == "testdata/risky.json" && (args[0] == "peek" || args[0] == "reset" || args[0] == "doctor") {
					continue // its host is none of ours to ask for
				}
				r := runWith("", false, append(args, asJSON)...)
				said += len(r.out) + len(r.err)
				for _, secret := range secrets {
					if strings.Contains(r.out+r.err, secret) {
						t.Errorf("%v %s prints %q:\n%s%s", args, asJSON, secret, r.out, r.err)
					}
				}
			}
		}
	}
	if said < 10_000 {
		t.Errorf("only %d bytes were printed: the commands did not run", said)
	}
}

func TestRedisAway(t *testing.T) {
	variables(t, "redis://127.0.0.1:1/0")
	for _, args := range [][]string{
		{"peek", "testdata/sentinel.json", "-endpoint", "billing.export", "-tenant", "acme"},
		{"reset", "testdata/sentinel.json", "-endpoint", "billing.export", "-tenant", "acme", "-yes"},
		{"doctor", "testdata/sentinel.json"},
	} {
		if r := runWith("", false, args...); r.code != exitRedis || !strings.Contains(r.out+r.err, "connection refused") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// The same seed makes the same requests, another one others; and the chart is
// well-formed XML with what comes from the log in it as text.
func TestSVG(t *testing.T) {
	dir := t.TempDir()
	draw := func(name string, args ...string) string {
		file := filepath.Join(dir, name)
		r := runWith(`{"time": 1, "tenant": "<b>&\"", "endpoint": "trial.once"}`+"\n"+`{"time": 90000, "tenant": "<b>&\"", "endpoint": "trial.once"}`, false,
			append([]string{"simulate", "testdata/sentinel.json", "-svg", file}, args...)...)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err, r.err)
		}
		for d := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return string(text)
	}
	traffic := []string{"-endpoint", "billing.export", "-tenants", "30", "-rate", "2/s", "-for", "90s"}
	one, again := draw("one", traffic...), draw("again", traffic...)
	other := draw("other", append(traffic, "-seed", "2")...)
	if one != again || one == other {
		t.Errorf("one and again are equal: %v, one and other: %v", one == again, one == other)
	}
	for _, want := range []string{"requests a second", "share denied, by tenant", "time since the beginning", "admitted", "denied", "0 %", "100 %", "1m30s", "and 10 tenants with fewer denials"} {
		if !strings.Contains(one, want) {
			t.Errorf("the chart has no %q", want)
		}
	}
	if log := draw("log", "-log", "-"); !strings.Contains(log, "&lt;b&gt;&amp;") || !strings.Contains(log, "time of the log, UTC") {
		t.Errorf("the chart of the log:\n%.2000s", log)
	}
}

// The JSON of a simulation has the same numbers as its table.
func TestSimulatedJSON(t *testing.T) {
	r := runWith("", false, "simulate", "testdata/sentinel.json", "-endpoint", "billing.export", "-rate", "1/s", "-pattern", "steady", "-burst", "20", "-for", "100s", "-json")
	var got simulated
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatal(err)
	}
	// 10 of the burst, and then 0.5 a second of the 99 that follow.
	if got.Requests != 119 || got.Admitted != 10+49 || got.Denied != 119-59 || len(got.Tenants) != 1 || r.code != exitFound {
		t.Errorf("%+v", got)
	}
	count := 0
	for _, d := range got.Tenants[0].Denials {
		count += d.Count
	}
	if count != got.Denied || *got.Tenants[0].Longest != 2 {
		t.Errorf("denials %+v", got.Tenants[0])
	}
}
