package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// startTimeout bounds the start of one server, the making or pulling of its
// image not included.
const startTimeout = time.Minute

// shared is the one server of this package run. It is a global because the
// testing package offers no other place that outlives a test.
var shared struct {
	once sync.Once
	url  string
	inst instance // nil where SENTINEL_REDIS_URL is used, or nothing was started
	err  error
}

// Main is the whole of a TestMain: it runs the tests, stops the shared server
// if a test has used it, and exits.
func Main(m *testing.M) {
	code := m.Run()
	// A test that failed may have left the once half done; after m.Run no other
	// goroutine of a test touches it.
	if shared.inst != nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		if err := shared.inst.remove(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "redistest: stopping the shared server:", err)
		}
		cancel()
	}
	os.Exit(code)
}

// URL returns the redis:// address of the shared server, which it starts on its
// first call.
func URL(t testing.TB) string {
	t.Helper()
	shared.once.Do(startShared)
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.url
}

// Client returns a client of the shared server, closed when the test ends.
func Client(t testing.TB) *redis.Client {
	t.Helper()
	return clientFor(t, URL(t))
}

// startShared fills shared. An external server is asked once whether it is
// there, so that a wrong address is one clear line and not many timeouts.
func startShared() {
	url := os.Getenv("SENTINEL_REDIS_URL")
	if url != "" && os.Getenv("SENTINEL_TEST_REDIS") == "" {
		shared.url, shared.err = url, ping(url)
		return
	}
	p, err := findProvider()
	if err != nil {
		shared.err = err
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	shared.inst, shared.err = p.start(ctx, flagsFor(nil))
	if shared.err == nil {
		shared.url = "redis://" + shared.inst.addr()
	}
}

// ping asks the server at url once. Its errors never contain the url, which may
// hold a password.
func ping(url string) error {
	opt, err := redis.ParseURL(url)
	if err != nil {
		return errors.New("redistest: SENTINEL_REDIS_URL is not a valid Redis URL; correct it, or unset it to have a server started")
	}
	c := redis.NewClient(opt)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redistest: the server of SENTINEL_REDIS_URL does not answer: %w; start it, or unset the variable to have one started", err)
	}
	return nil
}

func clientFor(t testing.TB, url string) *redis.Client {
	t.Helper()
	opt, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal("redistest: not a valid Redis URL")
	}
	c := redis.NewClient(opt)
	t.Cleanup(func() { _ = c.Close() }) // a test may have closed it itself
	return c
}
