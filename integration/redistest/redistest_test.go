package redistest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSharedServerAnswersEveryTest(t *testing.T) {
	first, second := URL(t), URL(t)
	if first != second {
		t.Fatalf("two URLs in one run: %s and %s", first, second)
	}
	ctx := t.Context()
	key := "redistest:" + t.Name()
	if err := Client(t).Set(ctx, key, "here", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	got, err := Client(t).Get(ctx, key).Result()
	if err != nil || got != "here" {
		t.Fatalf("a second client reads %q, %v", got, err)
	}
}

func TestStartGivesAServerOfItsOwnWithItsFlags(t *testing.T) {
	ctx := t.Context()
	s := Start(t, "--maxmemory-policy", "allkeys-lru", "--rename-command", "CONFIG", "")
	c := s.Client(t)
	info, err := c.Info(ctx, "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"maxmemory:268435456", "maxmemory_policy:allkeys-lru"} {
		if !strings.Contains(info, want) {
			t.Errorf("INFO memory lacks %q", want)
		}
	}
	err = c.ConfigGet(ctx, "maxmemory").Err()
	if err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("the renamed CONFIG answers %v", err)
	}
	if other := Start(t); other.Addr() == s.Addr() {
		t.Error("two servers at one address")
	}
}

func TestStartWithAPasswordIsReady(t *testing.T) {
	s := Start(t, "--requirepass", "pw-for-a-test")
	err := s.Client(t).Ping(t.Context()).Err()
	if err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Fatalf("without the password: %v", err)
	}
}

func TestKillAndRestartAtTheSameAddressAndEmpty(t *testing.T) {
	ctx := t.Context()
	s := Start(t)
	c := s.Client(t)
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	s.Kill()
	wantEnd(t, conn)
	if probe, err := net.DialTimeout("tcp", s.Addr(), time.Second); err == nil {
		probe.Close()
		t.Fatal("a killed server still accepts")
	}
	s.Kill() // once more is no error

	addr := s.Addr()
	s.Restart()
	if s.Addr() != addr {
		t.Fatalf("the address was %s and is %s", addr, s.Addr())
	}
	if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("after the restart the old key gives %v, not nil", err)
	}
	s.Stop()
	s.Restart()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatalf("after Stop and Restart: %v", err)
	}
}

func TestPauseAnswersNothingUntilResume(t *testing.T) {
	s := Start(t)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.Pause()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(buf); err == nil {
		t.Fatalf("a paused server answers %q", buf[:n])
	}
	s.Resume()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "+PONG\r\n" {
		t.Fatalf("after Resume: %q, %v", buf[:n], err)
	}
}

func TestAPausedServerCanBeKilledAndRestarted(t *testing.T) {
	s := Start(t)
	s.Pause()
	s.Kill()
	s.Restart()
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// A test may end with its server paused or down; the cleanup must manage, and
// leave nobody at the address.
func TestEveryStateIsCleanedUp(t *testing.T) {
	for name, leave := range map[string]func(*Server){
		"running": func(*Server) {},
		"paused":  (*Server).Pause,
		"killed":  (*Server).Kill,
		"stopped": (*Server).Stop,
	} {
		var addr string
		t.Run(name, func(t *testing.T) {
			s := Start(t)
			addr = s.Addr()
			leave(s)
		})
		if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			conn.Close()
			t.Errorf("%s: somebody still listens at %s", name, addr)
		}
	}
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	p, err := findProvider()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	inst, err := p.start(ctx, []string{"--no-such-flag", "1"})
	if err == nil {
		_ = inst.remove(ctx)
		t.Fatal("a server with an unknown flag started")
	}
	if ctx.Err() != nil {
		t.Fatalf("it took the whole limit to notice: %v", err)
	}
}

func TestCommandStatsCountsCalls(t *testing.T) {
	ctx := t.Context()
	c := Start(t).Client(t)
	for range 3 {
		if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ConfigGet(ctx, "maxmemory").Err(); err != nil {
		t.Fatal(err)
	}
	stats := CommandStats(t, c)
	if stats["set"] != 3 || stats["config|get"] != 1 || stats["del"] != 0 {
		t.Fatalf("set, config|get, del: %d, %d, %d, want 3, 1, 0", stats["set"], stats["config|get"], stats["del"])
	}
}

func TestPingNeverPrintsThePassword(t *testing.T) {
	for _, url := range []string{
		"redis://:s3cret@127.0.0.1:bad/0",
		"redis://:s3%cret@127.0.0.1:1/0",
		"redis://:s3cret@127.0.0.1:1/0\n",
		"redis://:s3cret@127.0.0.1:1/0", // well-formed, nobody there
	} {
		err := ping(url)
		if err == nil {
			t.Fatalf("%q: no error", url)
		}
		if strings.Contains(err.Error(), "cret") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestLibrariesOfLdd(t *testing.T) {
	got := strings.Join(libraries(`	linux-vdso.so.1 (0x00007ffd)
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f1)
	/lib64/ld-linux-x86-64.so.2 (0x00007f2)
	libgone.so => not found
`), " ")
	if want := "/lib/x86_64-linux-gnu/libm.so.6 /lib64/ld-linux-x86-64.so.2"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestOnlyDeadProcessesAreAbandoned(t *testing.T) {
	const noSuchPid = 1 << 30 // above every kernel's limit
	for label, want := range map[string]bool{
		owner(noSuchPid):         true,
		owner(os.Getpid()):       false,
		"another-machine/999999": false,
		"nonsense":               false,
		"":                       false,
	} {
		if got := abandoned(label); got != want {
			t.Errorf("abandoned(%q) = %v, want %v", label, got, want)
		}
	}
}

// child runs this test binary anew, with one test and a changed environment.
func child(t *testing.T, test string, env ...string) (output string, passed bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestWithoutAnyRedisTestsFailWithOneLine(t *testing.T) {
	nothing := []string{"PATH=" + t.TempDir(), "TESTCONTAINERS_PROVIDER=none", "SENTINEL_REDIS_URL="}
	for kind, remedy := range map[string]string{
		"":          "install redis-server, or start Docker, or set SENTINEL_REDIS_URL",
		"container": "Docker is not usable",
		"process":   "apt-get install redis-server",
		"podman":    `SENTINEL_TEST_REDIS is "podman"; use container, process, or leave it unset`,
	} {
		out, passed := child(t, "TestSharedServerAnswersEveryTest", append(nothing, "SENTINEL_TEST_REDIS="+kind)...)
		if passed || strings.Contains(out, "SKIP") {
			t.Errorf("SENTINEL_TEST_REDIS=%q: passed without a Redis:\n%s", kind, out)
		}
		if strings.Count(out, remedy) != 1 {
			t.Errorf("SENTINEL_TEST_REDIS=%q: want one line with %q in:\n%s", kind, remedy, out)
		}
	}
}

func TestAnImageThatWasAskedForIsNotReplaced(t *testing.T) {
	if _, err := newContainers(); errors.Is(err, errNoDocker) {
		t.Log("without Docker there is no image to ask for, and a process is right")
		return
	}
	out, passed := child(t, "TestSharedServerAnswersEveryTest",
		"SENTINEL_TEST_REDIS=", "SENTINEL_REDIS_URL=", "SENTINEL_REDIS_IMAGE=127.0.0.1:1/no/such:image")
	if passed || !strings.Contains(out, "SENTINEL_REDIS_IMAGE must name an image that can be had") {
		t.Errorf("passed: %v, output:\n%s", passed, out)
	}
}

func TestAnExternalServerIsUsedAndBesideItPrivateOnes(t *testing.T) {
	s := Start(t)
	key := "redistest:TestSharedServerAnswersEveryTest"
	env := []string{"SENTINEL_REDIS_URL=" + s.URL(), "SENTINEL_TEST_REDIS="}
	if out, passed := child(t, "TestSharedServerAnswersEveryTest", env...); !passed {
		t.Fatal(out)
	}
	if n, err := s.Client(t).Exists(t.Context(), key).Result(); err != nil || n != 1 {
		t.Fatalf("the external server has %d of the test's key, %v", n, err)
	}
	if out, passed := child(t, "TestCommandStatsCountsCalls", env...); !passed {
		t.Fatal(out)
	}
	s.Kill()
	out, passed := child(t, "TestSharedServerAnswersEveryTest", env...)
	if passed || !strings.Contains(out, "the server of SENTINEL_REDIS_URL does not answer") {
		t.Fatalf("a dead external server: passed %v, output:\n%s", passed, out)
	}
}

// A test binary that panics or is killed runs no cleanup.
func TestAServerDoesNotOutliveItsTestBinary(t *testing.T) {
	out, _ := child(t, "none", abandonEnv+"=1")
	_, addr, ok := strings.Cut(strings.TrimSpace(out), "abandoned ")
	if !ok {
		t.Fatalf("the child says:\n%s", out)
	}
	p, err := findProvider()
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := p.(containers); ok { // there, the next run's first look removes it
		if err := c.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); answers(addr); {
		if time.Now().After(deadline) {
			t.Fatalf("the server at %s lives on", addr)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// wantEnd waits for the peer to end the connection.
func wantEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := conn.Read(make([]byte, 16))
	if n > 0 || err == nil {
		t.Fatalf("the connection still delivers %d bytes", n)
	}
	if os.IsTimeout(err) {
		t.Fatal("the connection is still open")
	}
}

// A server of StartProcess has what is added to its environment.
func TestStartProcess(t *testing.T) {
	t.Parallel()
	s := StartProcess(t, []string{"TZ=UTC+5"}, "--maxclients", "77")
	c := s.Client(t)
	got, err := c.ConfigGet(t.Context(), "maxclients").Result()
	if err != nil || got["maxclients"] != "77" {
		t.Errorf("maxclients %v, %v", got, err)
	}
	// The server writes its log in local time.
	hour := func() string { return time.Now().UTC().Add(-5 * time.Hour).Format("02 Jan 2006 15:") }
	log := s.inst.(*process).tail()
	if now := hour(); !strings.Contains(log, now) && !strings.Contains(log, hour()) {
		t.Errorf("want %q in the log:\n%s", now, log)
	}
}
