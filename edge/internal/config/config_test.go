package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the expected faults anew")

// environment is what the test data may name.
func environment(name string) (string, bool) {
	value, ok := map[string]string{
		"WORD": "word", "NUMBER": "8088", "DECIMAL": "0.25", "NET": "10.0.0.0/8", "TRUE": "true", "KEY": "header:X-Key",
		"PORT": "8080", "PATH": "/p/:id", "METHOD": "PUT", "DURATION": "250ms", "EITHER": "either", "OFF": "off", "STATUS": "503",
		"GOOD_URL": "http://s3cret.internal:81", "SECRET_URL": "http://user:hunter2@s3cret.internal",
	}[name]
	return value, ok
}

func mustParse(t testing.TB, name string, data []byte) *Config {
	t.Helper()
	c, err := Parse(name, data, environment)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %d files", pattern, err, len(files))
	}
	return files
}

func TestEveryFaultIsReportedAtItsLine(t *testing.T) {
	for _, file := range glob(t, "testdata/faults/*.yaml") {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c, err := Parse(filepath.Base(file), mustRead(t, file), environment)
			if c != nil || err == nil {
				t.Fatal("it loads")
			}
			var faults Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("the error is %T", err)
			}
			got, want := err.Error()+"\n", strings.TrimSuffix(file, ".yaml")+".txt"
			if *update {
				if err := os.WriteFile(want, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(mustRead(t, want)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, secret := range []string{"hunter2", "s3cret"} {
				if strings.Contains(got, secret) {
					t.Errorf("it tells %s", secret)
				}
			}
		})
	}
}

func TestTheFirstFileAnybodyWritesLoads(t *testing.T) {
	c, err := Load("../../configs/sample.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Listen != ":8080" || c.RateLimit.Capacity != 100*token || c.RateLimit.RefillRate != 100*token || c.RateLimit.Key != "client" || c.MaxClients() != 100_000 {
		t.Errorf("server %+v, limit %+v", c.Server, c.RateLimit)
	}
	if r := c.Routes[0]; r.Path != "/users" || r.Backend != "users" || r.RateLimit != c.RateLimit || r.Timeout != 30*time.Second || r.Line != 10 {
		t.Errorf("route %+v", r)
	}
	var printed bytes.Buffer
	if err := c.Write(&printed); err != nil || !strings.Contains(printed.String(), "max_clients: 100000") {
		t.Errorf("%v, printed\n%s", err, printed.String())
	}
	p := c.Pools[0]
	if p.Backends[0].URL.String() != "http://localhost:9001" || p.Backends[0].Weight != 1 || p.Balance != RoundRobin || p.Health.Type != HealthTCP {
		t.Errorf("pool %+v", p)
	}
}

func TestTheCommentedFileShowsTheDefaults(t *testing.T) {
	c, err := Load("../../configs/edge.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := defaults(); !reflect.DeepEqual(c.Server, want.Server) && len(c.Server.TrustedProxies) > 0 || !reflect.DeepEqual(c.Admin, want.Admin) {
		t.Errorf("%+v and %+v", c.Server, c.Admin)
	}
	got, want := c.Pools[0], defaultPool(c.Pools[0].Line)
	want.Name, want.Backends, want.Health.Type, want.Health.Path = got.Name, got.Backends, HealthHTTP, "/healthz"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("pool\n%+v, the defaults are\n%+v", got, want)
	}
	// Each key that there is stands in it.
	keys := map[string]bool{}
	data := string(mustRead(t, "../../configs/edge.yaml"))
	collectKeys(c.fields(), keys)
	collectKeys(c.routeFields(&c.Routes[0]), keys)
	collectKeys(c.poolFields(&c.Pools[0]), keys)
	for key := range keys {
		if !strings.Contains(data, key) {
			t.Errorf("the file does not have %s", key)
		}
	}
}

// collectKeys gathers the keys that the fields show.
func collectKeys(fields []field, keys map[string]bool) {
	var b bytes.Buffer
	for _, f := range fields {
		keys[f.key] = true
	}
	if err := encode(&b, render(fields)); err != nil {
		panic(err)
	}
	for line := range strings.Lines(b.String()) {
		if key, _, ok := strings.Cut(strings.TrimLeft(line, " -"), ":"); ok && !strings.ContainsAny(key, `"/`) {
			keys[key] = true
		}
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	c := mustParse(t, "all", mustRead(t, "testdata/good/all_fields.yaml"))
	want := Server{
		Listen: "127.0.0.1:0", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.7/32")},
		AccessLog: "off", MaxHeaderBytes: 4096, MaxHeaderFields: 50, MaxURLBytes: 1024, MaxBodyBytes: 1_000_000, MaxConnections: 7,
		ReadHeaderTimeout: time.Second, BodyIdleTimeout: 1500 * time.Millisecond, WriteIdleTimeout: 2 * time.Hour, KeepAliveTimeout: 90 * time.Second,
		TunnelIdleTimeout: 90 * time.Minute, RequestTimeout: 7 * time.Second, DrainDelay: 5 * time.Second,
	}
	if !reflect.DeepEqual(c.Server, want) {
		t.Errorf("server\n%+v, want\n%+v", c.Server, want)
	}
	if !reflect.DeepEqual(c.Admin, Admin{Listen: "0.0.0.0:9999", AllowRemote: true, Hosts: []string{"edge.internal", "edge"}}) || c.Sentinel != "/etc/policies.json" {
		t.Errorf("admin %+v, sentinel %s", c.Admin, c.Sentinel)
	}
	if l := *c.RateLimit; l != (RateLimit{ID: "default", Mode: Local, Capacity: 12_500_000, RefillRate: 1, Key: "header:X-Api-Key", Line: l.Line}) {
		t.Errorf("limit %+v", l)
	}
	if c.MaxClients() != 5 {
		t.Errorf("%d clients", c.MaxClients())
	}
	routes := []Route{
		{Path: "/a", Methods: []string{"GET", "BREW"}, Backend: "one", EitherSlash: true, Timeout: 3 * time.Second, RateLimit: c.RateLimit, Line: 23},
		{Path: "/a/:id", Backend: "two", Timeout: 7 * time.Second, RateLimit: &RateLimit{ID: "/a/:id", Mode: Distributed, Policy: "auth.login", Line: 26}, Line: 24},
		{Path: "/a/*rest", Backend: "two", Timeout: 7 * time.Second, Line: 27},
		{Path: "/b", Methods: []string{"POST", "GET"}, Backend: "two", Timeout: 7 * time.Second, RateLimit: &RateLimit{ID: "GET,POST /b", Mode: Local, Capacity: token, RefillRate: token / 10, Key: "client", Line: 33}, Line: 30},
	}
	if !reflect.DeepEqual(c.Routes, routes) {
		t.Errorf("routes\n%+v, want\n%+v", c.Routes, routes)
	}
	p := c.Pools[0]
	if p.Backends[0].URL.String() != "https://example.com" || p.Backends[0].Weight != 3 || p.Backends[1].URL.Host != "[::1]:9001" || p.Backends[1].Weight != 0 {
		t.Errorf("backends %+v", p.Backends)
	}
	p.Backends = nil
	if want := (Pool{
		Name: "one", Balance: LeastConnections, Health: Health{HealthHTTP, "/h?x=1", 10 * time.Second, 10 * time.Second, 1, 9, [2]int{204, 204}},
		Breaker: Breaker{Failures: -1, OpenFor: time.Second, FailureStatus: []int{500, 504}}, Retry: Retry{2, NextBackend, time.Millisecond, 2 * time.Second, 3 * time.Second, RetryBudget{0, 9}}, MaxInFlight: 9, RewriteHost: true,
		DialTimeout: time.Second, TLSTimeout: time.Second, ResponseTimeout: time.Second, IdleTimeout: time.Second, MaxIdle: 1, Line: 35,
	}); !reflect.DeepEqual(p, want) {
		t.Errorf("pool\n%+v, want\n%+v", p, want)
	}
	if p := c.Pools[1]; p.Balance != PowerOfTwo || p.Health.Type != HealthOff || p.Retry.Attempts != 1 || len(p.Backends) != 2 || p.Backends[1].URL.Host != "10.0.0.2:80" {
		t.Errorf("pool %+v", p)
	}
}

func TestValuesComeFromTheEnvironment(t *testing.T) {
	c := mustParse(t, "env", mustRead(t, "testdata/good/from_environment.yaml"))
	if r := c.Routes[0]; c.Server.Listen != ":8088" || !c.Admin.AllowRemote || c.RateLimit.RefillRate != token/4 || r.Path != "/p/:id" || r.Methods[0] != "PUT" || r.Timeout != 250*time.Millisecond || !r.EitherSlash {
		t.Errorf("%+v", c)
	}
	if p := c.Pools[0]; p.Backends[0].URL.Host != "s3cret.internal:81" || p.Breaker.Failures != -1 || p.Breaker.FailureStatus[0] != 503 || p.Health.Status[0] != 503 {
		t.Errorf("%+v", p)
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "s3cret") || strings.Count(b.String(), "${GOOD_URL}") != 2 || !strings.Contains(b.String(), "port: ${NUMBER}") {
		t.Errorf("it is shown as\n%s", b.String())
	}
	other := func(name string) (string, bool) {
		if name == "GOOD_URL" {
			return "http://elsewhere", true
		}
		return environment(name)
	}
	changed, err := Parse("env", mustRead(t, "testdata/good/from_environment.yaml"), other)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Hash() == c.Hash() {
		t.Error("another environment has the same hash")
	}
}

// survives checks that what Write prints loads again, and is the same.
func survives(t testing.TB, c *Config) {
	t.Helper()
	var b, again, asJSON bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	loaded, err := Parse("printed", b.Bytes(), environment)
	if err != nil {
		t.Fatalf("%v\nin what is printed:\n%s", err, b.String())
	}
	if err := loaded.Write(&again); err != nil || again.String() != b.String() {
		t.Fatalf("%v\nprinted\n%s\nand again\n%s", err, b.String(), again.String())
	}
	if loaded.Hash() != c.Hash() {
		t.Fatal("the hash is another")
	}
	if got, want := withoutPlaces(loaded), withoutPlaces(c); !reflect.DeepEqual(got, want) {
		t.Fatalf("loaded\n%+v\nfrom\n%+v", got, want)
	}
	if err := c.WriteJSON(&asJSON); err != nil || !json.Valid(asJSON.Bytes()) {
		t.Fatalf("%v, as JSON\n%s", err, asJSON.String())
	}
}

// withoutPlaces is a copy without lines, and without the difference between an
// empty list and none.
func withoutPlaces(c *Config) Config {
	out := *c
	limit := func(l *RateLimit) *RateLimit {
		if l == nil {
			return nil
		}
		copied := *l
		copied.Line = 0
		return &copied
	}
	out.Server.TrustedProxies = append([]netip.Prefix{}, c.Server.TrustedProxies...)
	out.RateLimit = limit(c.RateLimit)
	out.Routes, out.Pools = nil, nil
	for _, r := range c.Routes {
		r.Line, r.RateLimit = 0, limit(r.RateLimit)
		r.Methods = append([]string{}, r.Methods...)
		out.Routes = append(out.Routes, r)
	}
	for _, p := range c.Pools {
		p.Line = 0
		p.Upgrades = append([]string{}, p.Upgrades...)
		p.Breaker.FailureStatus = append([]int{}, p.Breaker.FailureStatus...)
		p.Backends = append([]Backend{}, p.Backends...)
		for i := range p.Backends {
			p.Backends[i].Line = 0
		}
		out.Pools = append(out.Pools, p)
	}
	return out
}

func TestWhatIsPrintedLoadsAgain(t *testing.T) {
	for _, file := range append(glob(t, "testdata/good/*.yaml"), glob(t, "../../configs/*.yaml")...) {
		t.Run(filepath.Base(file), func(t *testing.T) { survives(t, mustParse(t, file, mustRead(t, file))) })
	}
}

func TestALimitThatIsOffStaysOff(t *testing.T) {
	c := mustParse(t, "off", mustRead(t, "testdata/good/limit_off.yaml"))
	if c.RateLimit != nil || c.Routes[0].RateLimit != nil || c.Routes[1].RateLimit == nil || c.MaxClients() != 3 {
		t.Errorf("%+v, routes %+v", c.RateLimit, c.Routes)
	}
}

func TestALimitInWords(t *testing.T) {
	for want, l := range map[string]*RateLimit{
		"none":              nil,
		"policy auth.login": {Mode: Distributed, Policy: "auth.login"},
		"1.5 tokens, 0.000001 a second, by client": {Mode: Local, Capacity: 1_500_000, RefillRate: 1, Key: "client"},
	} {
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTheHashIsOfWhatTheFileDoes(t *testing.T) {
	const file = `
server: {port: 8080}
routes: [{path: /, backend: a}]
backends: [{name: a, url: "http://h:1"}]
`
	c := mustParse(t, "a", []byte(file))
	for _, same := range []string{
		"# a comment\n" + file,
		strings.Replace(file, `url: "http://h:1"`, `servers: [{weight: 1, url: HTTP://H:1}]`, 1),
		strings.Replace(file, "port: 8080", `listen: ":8080", grace: 30000ms`, 1),
		file + "rate_limit: {enabled: false}\n",
		strings.Replace(file, "8080", `"${PORT}"`, 1),
	} {
		if mustParse(t, "b", []byte(same)).Hash() != c.Hash() {
			t.Errorf("another hash:\n%s", same)
		}
	}
	for _, other := range []string{
		strings.Replace(file, "8080", "8081", 1),
		strings.Replace(file, "h:1", "h:2", 1),
		strings.Replace(file, "/, b", "/x, b", 1),
		file + "rate_limit: {capacity: 1, refill_rate: 1}\n",
	} {
		if mustParse(t, "b", []byte(other)).Hash() == c.Hash() {
			t.Errorf("the same hash:\n%s", other)
		}
	}
}

func TestLoadFindsTheLibrarysFileNextToItsOwn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "edge.yaml")
	data := "sentinel: sub/p.json\nroutes: [{path: /, backend: a}]\nbackends: [{name: a, url: 'http://h:1'}]\n"
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "sub", "p.json"); c.Sentinel != want {
		t.Errorf("it is %s, want %s", c.Sentinel, want)
	}
}

func TestLoadRefusesWhatItCannotRead(t *testing.T) {
	var faults Faults
	if _, err := Load(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) || errors.As(err, &faults) {
		t.Errorf("a file that is not there: %v", err)
	}
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, bytes.Repeat([]byte("# big\n"), 200_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(big, nil); !errors.As(err, &faults) || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("a big file: %v", err)
	}
}

// Files of half a MiB that would be slow, were anything done for each pair of lines.
func TestLargeFilesAreReadInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("half a MiB is read several times, which takes seconds")
	}
	fill := func(head, line, tail string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < maxBytes/2; i++ {
			b.WriteString(strings.ReplaceAll(line, "#", strconv.Itoa(i)))
		}
		return b.String() + tail
	}
	const pools = "\nbackends: [{name: a, url: 'http://h:1'}]\n"
	for name, file := range map[string]string{
		"good routes":     fill("routes:\n", "  - {path: /r#/:id, backend: a}\n", pools),
		"bad routes":      fill("routes:\n", "  - {path: /r/:p#, backend: b}\n", pools),
		"methods":         fill("routes: [{path: /, backend: a, methods: [", "M#,", "G]}]"+pools),
		"pools":           fill("routes: [{path: /, backend: p1}]\nbackends:\n", " - {name: p#, url: 'http://h#'}\n", ""),
		"servers":         fill("routes: [{path: /, backend: a}]\nbackends: [{name: a, urls: [", "'http://h#',", "]}]"),
		"unknown keys":    fill("", "k#: 1\n", ""),
		"one key":         fill("", "k: 1\n", ""),
		"deep lists":      fill("", "[", ""),
		"deep mappings":   fill("", "{a: ", ""),
		"deep indention":  fill("", "- ", ""),
		"aliases":         fill("a: &a [x]\n", "b#: *a\n", ""),
		"anchors":         fill("", "b#: &a# x\n", ""),
		"long text":       fill("routes: '", "x", "'"),
		"documents":       fill("", "---\n", ""),
		"captures":        fill("routes: [{backend: a, path: ", "/:p#", "}]"+pools),
		"quoted keys":     fill("", "\"\\n#\": 1\n", ""),
		"colliding names": fill("routes: [{path: /, backend: a}]\nbackends:\n", " - {name: a, url: 'http://h'}\n", ""),
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := Parse("large", []byte(file), environment)
			if took := time.Since(start); took > 10*time.Second || len(fmt.Sprint(err)) > 1<<20 {
				t.Errorf("it took %v", took)
			} else {
				t.Logf("%v, error of %d bytes", took, len(fmt.Sprint(err)))
			}
		})
	}
}

func TestNumbersAreExact(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1_000_000, "0.1": 100_000, "0.000001": 1, "100.5": 100_500_000, "007": 7_000_000,
		"9007199254.740993": 9_007_199_254_740_993, "9223372036854.775807": 9223372036854775807,
	} {
		got, err := microTokens(text)
		if err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
		if again, err := microTokens(Decimal(got)); err != nil || again != got {
			t.Errorf("%s is shown as %s", text, Decimal(got))
		}
	}
	for _, text := range []string{"", ".", ".5", "1.", "-1", "+1", "1e3", "0x1", "1_0", "0.0000001", "9223372036854.775808", "Inf", "NaN", "１"} {
		if n, err := microTokens(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
	for _, text := range []string{"", "-", "01", "-01", "1.0", "1_0", "+1"} {
		if n, err := whole(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}

func TestDurationsAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", time.Minute: "1m", 90 * time.Minute: "1h30m", 2 * time.Hour: "2h", 250 * time.Millisecond: "250ms", 10 * time.Second: "10s", 10*time.Hour + 10*time.Second: "10h0m10s", 20 * time.Minute: "20m"} {
		if got := duration(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
		if again, err := time.ParseDuration(duration(d)); err != nil || again != d {
			t.Errorf("%v is read as %v, %v", d, again, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/faults/*.yaml", "../../configs/*.yaml"} {
		for _, file := range glob(f, pattern) {
			f.Add(mustRead(f, file))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data, environment)
		if err == nil {
			survives(t, c)
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "f:") {
				t.Fatalf("a fault is not on one line: %q", line)
			}
		}
	})
}
