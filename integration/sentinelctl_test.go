package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// buildSentinelctl builds the command once, for all tests.
var buildSentinelctl = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sentinelctl")
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "sentinelctl")
	out, err := exec.Command("go", "build", "-o", binary, "../sentinelctl").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return binary, err
})

const sentinelctlSecret = "the-secret-of-this-test-0123456789abcdef"

// sentinelctlFile writes a policy file for a Redis.
func sentinelctlFile(t *testing.T, url string) string {
	t.Helper()
	text := fmt.Sprintf(`{
		"app": {"redis_url": %q, "jwt_secret": %q, "redis_budget_ms": 1000},
		"policies": {
			"billing.export": {"endpoint_id": "billing.export", "algorithm": "token_bucket", "capacity": 3, "refill_per_second": 0.001,
				"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1}
		}
	}`, url, sentinelctlSecret)
	file := filepath.Join(t.TempDir(), "sentinel.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// sentinelctl runs the command and returns what it printed and its exit code. No
// run may print the secret.
func sentinelctl(t *testing.T, args ...string) (string, int) {
	t.Helper()
	binary, err := buildSentinelctl()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{sentinelctlSecret, "the-password", "127.0.0.1"} {
		if strings.Contains(string(out), secret) {
			t.Errorf("%v prints a secret:\n%s", args, out)
		}
	}
	return string(out), code
}

// peek and reset meet the bucket that a limiter uses, and peek leaves it alone.
func TestSentinelctlBuckets(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--requirepass", "the-password")
	url := "redis://:the-password@" + srv.Addr() + "/0"
	policy := tokens("billing.export", 3_000_000, 1000)
	l := open(t, config(url, policy))
	file := sentinelctlFile(t, url)
	of := []string{file, "-endpoint", "billing.export", "-tenant", "acme"}
	for left := 2; left >= 0; left-- {
		allow(t, l, "acme", "billing.export")
		for range 2 {
			out, code := sentinelctl(t, append([]string{"peek"}, of...)...)
			if want := fmt.Sprintf("%d of 3 requests left", left); !strings.Contains(out, want) || (code == 0) != (left > 0) {
				t.Errorf("exit %d, want %q:\n%s", code, want, out)
			}
		}
	}
	var peeked struct {
		Key        string  `json:"redis_key"`
		RetryAfter float64 `json:"retry_after"`
	}
	out, code := sentinelctl(t, append([]string{"peek", "-json"}, of...)...)
	if err := json.Unmarshal([]byte(out), &peeked); err != nil || code != 1 || peeked.RetryAfter < 900 || peeked.RetryAfter > 1000 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if n, err := l.Peek(t.Context(), "acme", "billing.export"); err != nil || n.Remaining != 0 {
		t.Fatalf("%+v, %v", n, err)
	}
	if out, code := sentinelctl(t, append([]string{"reset"}, of...)...); code != 2 || !strings.Contains(out, "nothing was done") {
		t.Errorf("unasked, exit %d: %s", code, out)
	}
	if out, code := sentinelctl(t, append([]string{"peek"}, of...)...); code != 1 {
		t.Errorf("it was reset: exit %d, %s", code, out)
	}
	if out, code := sentinelctl(t, append([]string{"reset", "-yes"}, of...)...); code != 0 || !strings.Contains(out, "3 of 3 requests left") {
		t.Errorf("reset: exit %d, %s", code, out)
	}
	c := open(t, config(url, policy))
	if d := allow(t, c, "acme", "billing.export"); !d.Allowed || d.Remaining != 2 {
		t.Errorf("after the reset: %+v", d)
	}
	client := redis.NewClient(&redis.Options{Addr: srv.Addr(), Password: "the-password"})
	defer client.Close()
	if n, err := client.Exists(t.Context(), peeked.Key).Result(); n != 1 || err != nil {
		t.Errorf("there is no key %s: %v", peeked.Key, err)
	}
}

// A plan that only tokens name is told to peek; a reset is fresh under it.
func TestSentinelctlPlan(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	policy := tokens("jobs", 3*sentinel.Token, 0)
	policy.Plans = map[string]sentinel.Plan{"pro": {Numbers: sentinel.Numbers{Capacity: 9 * sentinel.Token}}}
	l := open(t, config(url, policy), sentinel.WithPlan(func(context.Context, string) string { return "pro" }))
	file := filepath.Join(t.TempDir(), "sentinel.json")
	text := fmt.Sprintf(`{"app": {"redis_url": %q, "jwt_secret": "a-secret-of-this-test-0123456789-abcd", "jwt_plan_claim": "plan"},
		"policies": {"jobs": {"endpoint_id": "jobs", "algorithm": "token_bucket", "capacity": 3, "refill_per_second": 0, "plans": {"pro": {"capacity": 9, "refill_per_second": 0}},
		"fail_mode": "fail_closed", "fallback_per_second": 1, "policy_version": 1}}}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	says := func(want, command string, args ...string) {
		t.Helper()
		out, code := sentinelctl(t, append([]string{command, file, "-endpoint", "jobs", "-tenant", "acme"}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s %s: exit %d, want %q: %s", command, args, code, want, out)
		}
	}
	allow(t, l, "acme", "jobs")
	says("8 of 9 requests left", "peek", "-plan", "pro")
	says("3 of 3 requests left", "peek")
	says("3 of 3 requests left", "reset", "-yes")
	says("9 of 9 requests left", "peek", "-plan", "pro")
}

// doctor's verdict of one thing, and its exit code.
func TestSentinelctlDoctor(t *testing.T) {
	t.Parallel()
	sound := redistest.Start(t, "--appendonly", "yes")
	admin := sound.Client(t)
	user := func(name string, rights ...string) string {
		words := append([]string{"ACL", "SETUSER", name, "reset", "on", ">the-password"}, rights...)
		if err := admin.Do(t.Context(), anys(words)...).Err(); err != nil {
			t.Fatal(err)
		}
		return "redis://" + name + ":the-password@" + sound.Addr() + "/0"
	}
	least := []string{"~sentinel:*", "+evalsha", "+script|load", "+get", "+set", "+time", "+info"}
	without := func(right string) []string {
		return slices.DeleteFunc(slices.Clone(least), func(r string) bool { return r == right })
	}
	trio := redistest.StartTrio(t)
	proxy := redistest.NewProxy(t, sound.Addr())
	proxy.Delay(30e6)
	for name, c := range map[string]struct {
		url  string
		code int
		want []string
	}{
		"sound":          {sound.URL(), 0, []string{`ok +version +(Redis|Valkey)`, `ok +eviction +noeviction`, `ok +persistence`, `ok +clock`, `ok +rights +sufficient`, `ok +script +loads`, `ok +start`, `ok +latency +p50`}},
		"no persistence": {redistest.Start(t).URL(), 1, []string{`warn +persistence +no append-only file`}},
		"evicts":         {redistest.Start(t, "--maxmemory-policy", "allkeys-lru").URL(), 3, []string{`FAIL +eviction +maxmemory-policy is allkeys-lru`, `FAIL +start .*CONFIG SET`}},
		"no bound":       {redistest.Start(t, "--maxmemory", "0").URL(), 3, []string{`FAIL +memory +maxmemory is 0`}},
		"away":           {"redis://127.0.0.1:1", 3, []string{`FAIL +redis +connection refused`}},
		"wrong password": {strings.Replace(user("i", least...), "the-password", "wrong", 1), 3, []string{`FAIL +redis +Redis refuses the user name or password`}},
		"least":          {user("least", least...), 0, []string{`ok +rights`}},
		"no evalsha":     {user("a", without("+evalsha")...), 3, []string{`FAIL +rights +the user lacks \+evalsha;`}},
		"no load":        {user("b", without("+script|load")...), 3, []string{`FAIL +rights +the user lacks \+script\|load;`}},
		"no get":         {user("c", without("+get")...), 3, []string{`FAIL +rights +the user lacks \+get;`}},
		"no set":         {user("d", without("+set")...), 3, []string{`FAIL +rights +the user lacks \+set;`}},
		"no time":        {user("e", without("+time")...), 3, []string{`FAIL +rights +the user lacks \+time;`}},
		"no keys":        {user("f", without("~sentinel:*")...), 3, []string{`FAIL +rights +the user lacks ~sentinel:\*;`}},
		"no info":        {user("g", without("+info")...), 1, []string{`warn +rights +sufficient to decide; with \+info`, `warn +memory`}},
		"config":         {user("h", append(without("+info"), "+config|get")...), 1, []string{`ok +rights`, `ok +eviction`}},
		"Sentinels":      {"redis-sentinel://" + strings.Join(trio.Addrs(), ",") + "/0?master=" + redistest.MasterName, 1, []string{`warn +role +master, with replicas: 2`, `ok +start`}},
		"a replica":      {trio.Nodes[1].URL(), 3, []string{`FAIL +role +it is a slave`}},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := sentinelctl(t, "doctor", sentinelctlFile(t, c.url), "-samples", "20")
			if code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !regexp.MustCompile(`(?m)^` + want).MatchString(out) {
					t.Errorf("no line %q", want)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
	far := sentinelctlFile(t, proxy.URL())
	text, err := os.ReadFile(far)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(far, []byte(strings.Replace(string(text), `"redis_budget_ms": 1000`, `"redis_budget_ms": 20`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := sentinelctl(t, "doctor", far, "-samples", "5", "-json")
	var d struct {
		Worst    string
		Symptoms []struct{ What, Verdict, Text string }
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil || d.Worst != "fail" || code != 3 {
		t.Errorf("too far: exit %d, %v: %s", code, err, out)
	}
	if last := d.Symptoms[len(d.Symptoms)-1]; last.What != "latency" || last.Verdict != "fail" || !strings.Contains(last.Text, "of a budget of 20ms") {
		t.Errorf("too far: %+v", last)
	}
}
