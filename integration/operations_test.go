package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// These tests hold docs/operations.md to a real Redis: its commands, the least
// user, its numbers.

// operations returns the page.
func operations(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// commands returns the words of every command of one program on the page, in a
// block or in running text, as a shell makes them.
func commands(t *testing.T, program string) [][]string {
	t.Helper()
	dir := t.TempDir()
	stub := "#!/bin/sh\nfor word; do printf '%s\\n' \"$word\"; done\n"
	if err := os.WriteFile(filepath.Join(dir, program), []byte(stub), 0o700); err != nil {
		t.Fatal(err)
	}
	var found [][]string
	for _, m := range regexp.MustCompile("(?m)(?:^ *|`)("+program+" [^`\n]+)").FindAllStringSubmatch(operations(t), -1) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", m[1])
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", m[1], err, out)
		}
		found = append(found, strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"))
	}
	if len(found) == 0 {
		t.Fatalf("the page has no %s", program)
	}
	return found
}

// anys is words as arguments of a command to Redis.
func anys(words []string) []any {
	args := make([]any, len(words))
	for i, w := range words {
		args[i] = w
	}
	return args
}

func TestOperationsStartOfTheServer(t *testing.T) {
	t.Parallel()
	for _, flags := range commands(t, "redis-server") {
		l := open(t, config(redistest.Start(t, flags...).URL(), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
		if d := allow(t, l, "acme", "a"); d.Reason != sentinel.ReasonAllowed {
			t.Errorf("%v: %+v", flags, d)
		}
	}
}

// Every redis-cli command of the page is one that Redis takes; those about
// acme's bucket find the one that the limiter wrote.
func TestOperationsCommands(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	l := open(t, config(srv.URL(), tokens("billing.export", 10*sentinel.Token, sentinel.Token)))
	seen := map[string]bool{}
	for _, words := range commands(t, "redis-cli") {
		allow(t, l, "acme", "billing.export")
		reply, err := c.Do(t.Context(), anys(words)...).Result()
		if err != nil {
			t.Errorf("%v: %v", words, err)
		}
		seen[words[0]] = true
		if slices.Contains(words, "min-replicas-to-write") { // this server has none
			if err := c.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
				t.Fatal(err)
			}
		}
		switch words[0] {
		case "GET":
			if state, _ := reply.(string); !regexp.MustCompile(`^\d+:\d+$`).MatchString(state) {
				t.Errorf("%v: %v", words, reply)
			}
		case "DEL":
			if n, _ := reply.(int64); n != 1 {
				t.Errorf("%v: %v", words, reply)
			}
		}
	}
	for _, name := range []string{"GET", "DEL", "ACL", "CONFIG", "INFO", "DBSIZE", "SLOWLOG", "PING"} {
		if !seen[name] {
			t.Errorf("the page has no %s any more", name)
		}
	}
}

// The page's user can do all that a limiter does, and without any one of its
// permissions a limiter does not work.
func TestLeastUser(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	all := commands(t, "redis-cli")
	i := slices.IndexFunc(all, func(w []string) bool { return w[0] == "ACL" && w[1] == "SETUSER" && slices.Contains(w, "reset") })
	if i < 0 {
		t.Fatal("the page has no ACL SETUSER")
	}
	words := all[i]
	name, password := words[2], words[slices.IndexFunc(words, func(w string) bool { return w[0] == '>' })][1:]
	try := func(words []string, database string) error {
		t.Helper()
		if err := c.Do(t.Context(), anys(words)...).Err(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
		cfg := config("redis://"+name+":"+password+"@"+srv.Addr()+"/"+database, tokens("a", 3*sentinel.Token, 0))
		cfg.App.UnreadableRedisPolicy = sentinel.UnreadableRefuse
		l, err := sentinel.Open(t.Context(), cfg, options(sentinel.WithStrictStart())...)
		if err != nil {
			return err
		}
		defer l.Close()
		return useAll(t, l, c)
	}

	if err := try(words, "0"); err != nil {
		t.Errorf("the page's user: %v", err)
	}
	dropped := 0
	for i, w := range words {
		if strings.HasPrefix(w, "+") || strings.HasPrefix(w, "~") {
			dropped++
			if try(slices.Delete(slices.Clone(words), i, i+1), "0") == nil {
				t.Errorf("a limiter works without %s, so it is not the least", w)
			}
		}
	}
	if dropped < 7 {
		t.Errorf("only %d permissions", dropped)
	}
	j := slices.Index(words, "+info")
	if err := try(slices.Replace(slices.Clone(words), j, j+1, "+config|get"), "0"); err != nil {
		t.Errorf("+config|get for +info: %v", err)
	}
	if try(words, "2") == nil {
		t.Error("another database needs no +select")
	}
	if err := try(append(slices.Clone(words), "+select"), "2"); err != nil {
		t.Errorf("+select: %v", err)
	}
}

// useAll does what a limiter can do, with an empty script cache, too.
func useAll(t *testing.T, l *sentinel.Limiter, admin *redis.Client) error {
	t.Helper()
	if err := l.Reset(t.Context(), "acme", "a"); err != nil {
		return err
	}
	for range 2 {
		d, err := l.Allow(t.Context(), "acme", "a")
		if err != nil || d.Reason != sentinel.ReasonAllowed {
			return fmt.Errorf("%s, %w", d.Reason, err)
		}
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	d, err := l.Peek(t.Context(), "acme", "a")
	if err == nil && d.Remaining != 1 {
		err = fmt.Errorf("%d remaining, want 1", d.Remaining)
	}
	return err
}

// The page's bytes per key are right within 15 %: where Redis stands in
// doubling its tables makes that difference. Of a server that is not the page's
// they are only a bound. It keeps the machine busy, so it is not parallel to
// tests that measure time.
func TestMemoryPerKey(t *testing.T) {
	const warm, keys, goroutines = 2000, 20_000, 16
	for algorithm, policy := range map[string]sentinel.Policy{
		"token bucket":   tokens("billing.export", 100*sentinel.Token, sentinel.Token/100),
		"sliding window": window("billing.export", 100, time.Hour),
		"token bucket that never refills (no expiry)": tokens("billing.export", 100*sentinel.Token, 0),
	} {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(algorithm) + ` \| 100,000 \| 100,000 \| (\d+) \|`).FindStringSubmatch(operations(t))
		if row == nil {
			t.Fatalf("the page has no row for %s", algorithm)
		}
		stated, _ := strconv.ParseFloat(row[1], 64)

		srv := redistest.Start(t)
		l := open(t, config(srv.URL(), policy))
		fill := func(from, to int) {
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					for i := from + g; i < to; i += goroutines {
						eventually(t, time.Minute, "admitted", func() bool { return allow(t, l, "tenant-"+strconv.Itoa(i), policy.EndpointID).Allowed })
					}
				})
			}
			wg.Wait()
		}
		fill(0, warm) // connections and their buffers are there from now on
		before := usedMemory(t, srv)
		fill(warm, warm+keys)
		perKey := float64(usedMemory(t, srv)-before) / keys
		// Redis may not have dropped the expired key of the start check yet.
		if n := srv.Client(t).DBSize(t.Context()).Val(); n < warm+keys || n > warm+keys+1 {
			t.Errorf("%s: %d keys, want %d", algorithm, n, warm+keys)
		}
		theirs := strings.Contains(srv.Client(t).Info(t.Context(), "server").Val(), "redis_version:7.0.")
		if theirs && perKey < 0.85*stated || perKey > 1.15*stated {
			t.Errorf("%s: %.0f bytes per key; the page says %.0f", algorithm, perKey, stated)
		}
	}
}

func usedMemory(t *testing.T, srv *redistest.Server) int64 {
	t.Helper()
	info := srv.Client(t).Info(t.Context(), "memory").Val()
	m := regexp.MustCompile(`(?m)^used_memory:(\d+)`).FindStringSubmatch(info)
	if m == nil {
		t.Fatal("INFO memory has no used_memory")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A full Redis denies as before, and admits nobody, old or new.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	c := srv.Client(t)
	l := open(t, config(srv.URL(),
		tokens("closed", 2*sentinel.Token, 0),
		failOpen(tokens("open", 2*sentinel.Token, 0), sentinel.Token/1000)))
	allow(t, l, "spent", "closed")
	allow(t, l, "spent", "closed")
	allow(t, l, "known", "closed")
	if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tenant, endpoint string
		want             sentinel.Reason
	}{
		{"spent", "closed", sentinel.ReasonRateLimited},
		{"known", "closed", sentinel.ReasonFailClosed},
		{"fresh", "closed", sentinel.ReasonFailClosed},
		{"fresh", "open", sentinel.ReasonRedisConnectionError},
		{"fresh", "open", sentinel.ReasonEmergencyLocalLimit},
		{"spent", "closed", sentinel.ReasonRateLimited},
	} {
		if d := allow(t, l, tt.tenant, tt.endpoint); d.Reason != tt.want {
			t.Errorf("%s at %s: %s, want %s", tt.tenant, tt.endpoint, d.Reason, tt.want)
		}
	}
}

// Four connections at rest, at most 8 under load, and half of a given pool.
// Not parallel, as TestMemoryPerKey.
func TestConnections(t *testing.T) {
	srv := redistest.Start(t)
	admin := srv.Client(t)
	policy := tokens("a", 1_000_000*sentinel.Token, 0)
	count := func() int {
		list, err := admin.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(list, "\n") - 1 // the admin's own
	}
	load := func(l *sentinel.Limiter) (most int) {
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range 200 {
			wg.Go(func() {
				for range 20 {
					if _, err := l.Allow(t.Context(), "acme", "a"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() { wg.Wait(); close(done) }()
		for {
			most = max(most, count())
			select {
			case <-done:
				return most
			default:
			}
		}
	}

	cfg := config(srv.URL(), policy)
	l := open(t, cfg)
	// The connector opens them behind Open.
	eventually(t, soon, "4 connections at rest", func() bool { return count() == 4 })
	if n := load(l); n > 8 {
		t.Errorf("%d connections under load, want at most 8", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "no connections after Close", func() bool { return count() == 0 })

	o, err := redis.ParseURL(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.PoolSize, o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = 10, -1, 1, true
	client := redis.NewClient(o)
	defer client.Close()
	l, err = sentinel.New(t.Context(), client, cfg, options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := load(l); n > 5 {
		t.Errorf("%d connections of a pool of 10, want at most 5", n)
	}
}
