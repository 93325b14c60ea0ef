package sentinel

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fileWith is a configuration file with one policy of that capacity, in tokens.
func fileWith(capacity int) string {
	return fmt.Sprintf(`{
  "app": {"redis_url": "memory://", "jwt_secret": "%s", "jwt_algorithm_allowlist": ["HS256"]},
  "policies": {"jobs": {"endpoint_id": "jobs", "algorithm": "token_bucket", "fail_mode": "fail_closed",
    "fallback_per_second": 1, "policy_version": 1, "capacity": %d, "refill_per_second": 0}}
}`, strings.Repeat("k", 40), capacity)
}

// watched is a limiter on a file, whose time is the bubble's.
type watched struct {
	*testing.T
	l    *Limiter
	path string
	reg  *prometheus.Registry
	mu   sync.Mutex
	log  bytes.Buffer
}

// Write implements io.Writer, for the log.
func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *watched) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.log.String()
	w.log.Reset()
	return text
}

func watch(t *testing.T, path string) *watched {
	t.Helper()
	w := &watched{T: t, path: path, reg: prometheus.NewRegistry()}
	cfg, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if w.l, err = Open(t.Context(), cfg, WithLogger(slog.New(slog.NewTextHandler(w, nil))), WithRegisterer(w.reg)); err != nil {
		t.Fatal(err)
	}
	w.logged()
	return w
}

func (w *watched) write(text string) {
	w.Helper()
	if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// after is the capacity in tokens that is in force that much later, and what was
// logged until then.
func (w *watched) after(d time.Duration) (capacity Micro, logged string) {
	w.Helper()
	time.Sleep(d)
	synctest.Wait()
	return w.l.setup.Load().cfg.Policies["jobs"].Capacity / Token, w.logged()
}

func (w *watched) expect(d time.Duration, capacity Micro, lines int, saying string) {
	w.Helper()
	got, logged := w.after(d)
	if got != capacity || strings.Count(logged, "\n") != lines || !strings.Contains(logged, saying) {
		w.Errorf("capacity %d, want %d; logged %q, want %d lines that say %q", got, capacity, logged, lines, saying)
	}
}

func newFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sentinel.json")
	if err := os.WriteFile(path, []byte(fileWith(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWatch(t *testing.T) {
	path := newFile(t)
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		go w.l.Watch(t.Context(), path)
		w.expect(time.Hour, 1, 0, "")

		w.write(fileWith(2))
		w.expect(watchInterval, 1, 0, "") // seen once: it might not be whole
		w.expect(watchInterval, 2, 1, "changed")
		w.expect(time.Hour, 2, 0, "")

		// While somebody writes, nothing is taken.
		for i := range 20 {
			w.write(fileWith(100 + i))
			w.expect(watchInterval, 2, 0, "")
		}
		w.expect(watchInterval, 119, 1, "changed")

		// What is broken changes nothing, and is told once.
		w.write(strings.Replace(fileWith(3), "capacity", "capacitee", 1))
		w.expect(time.Hour, 119, 1, "capacitee")
		w.write(`{"app": `)
		w.expect(time.Hour, 119, 1, "refused")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		w.expect(time.Hour, 119, 1, "no such file")
		if n := testutil.ToFloat64(w.l.metrics.rejected.WithLabelValues()); n != 3 {
			t.Errorf("%v rejected, want 3", n)
		}
		w.write(fileWith(4))
		w.expect(2*watchInterval, 4, 1, "changed")
		// And what Update refuses.
		w.write(strings.Replace(fileWith(5), `"memory://"`, `"memory://?max_keys=7"`, 1))
		w.expect(time.Hour, 4, 1, "app.redis_url: cannot be changed")
		w.write(fileWith(4))
		w.expect(time.Hour, 4, 0, "")
		_ = w.l.Close()
		synctest.Wait() // or Watch is left over, and the bubble fails
	})
}

// A context that ends, too, ends it.
func TestWatchEndsWithItsContext(t *testing.T) {
	path := newFile(t)
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, path)
		defer w.l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.l.Watch(ctx, path); close(ended) }()
		synctest.Wait()
		cancel()
		<-ended
	})
}

// A new secret in a file of its own counts, and so does a link to another folder,
// as Kubernetes changes a volume.
func TestWatchSeesSecretFilesAndLinks(t *testing.T) {
	root := t.TempDir()
	text := strings.Replace(fileWith(1), `"jwt_secret": "`+strings.Repeat("k", 40)+`"`, `"jwt_secret_file": "key"`, 1)
	folder := func(name, secret string, capacity string) string {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"key": secret, "sentinel.json": strings.Replace(text, `"capacity": 1`, `"capacity": `+capacity, 1)} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	link := filepath.Join(root, "current")
	point := func(to string) {
		if err := os.Symlink(to, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	one, two := folder("one", strings.Repeat("a", 32), "1"), folder("two", strings.Repeat("b", 32), "2")
	point(one)
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, filepath.Join(link, "sentinel.json"))
		go w.l.Watch(t.Context(), w.path)
		point(two)
		w.expect(3*watchInterval, 2, 1, "changed")
		if err := os.WriteFile(filepath.Join(two, "key"), []byte(strings.Repeat("c", 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		w.expect(3*watchInterval, 2, 1, "changed")
		if got := w.l.setup.Load().cfg.App.JWTSecret.reveal(); len(got) != 1 || got[0] != strings.Repeat("c", 32) {
			t.Error("the old secret is in force")
		}
		_ = w.l.Close()
		synctest.Wait()
	})
}
