package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// checkBodyBytes is how much of the body of a check's response is read.
const checkBodyBytes = 64 << 10

// probe checks a backend once; nil is that it passed.
type probe func(context.Context) error

// checker checks one backend, one check after the other. Its results count for
// as long as it is the backend's checker.
type checker struct {
	backend *Backend
	config  config.Health
	probe   probe
	cancel  context.CancelFunc
}

// check makes h what is checked. A check that is under way comes to nothing, and
// the first of the new ones begins when it has ended. The caller holds
// the registry's lock and the backend's, or is the only one who has it.
func (b *Backend) check(h config.Health) {
	b.endChecker()
	switch {
	case b.registry.closed:
		b.settle()
		return
	case h.Type == config.HealthOff || h.Type == "":
		b.setHealth(health{standing: unchecked})
		b.lastError, b.lastFailure = "", ""
		b.settle()
		return
	case b.health.standing == unchecked:
		b.setHealth(health{})
		b.once = make(chan struct{})
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &checker{backend: b, config: h, probe: b.probe(h), cancel: cancel}
	before, ended := b.quiet, make(chan struct{})
	b.checker, b.quiet = c, ended
	b.registry.checkers.Go(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		c.run(ctx)
	})
}

// endChecker makes the checker's results count no longer, and ends it; the
// caller holds the lock.
func (b *Backend) endChecker() {
	if b.checker != nil {
		b.checker.cancel()
		b.checker = nil
		b.nextCheck.Store(0)
	}
}

// settle says that there has been a check, or will be none; the caller holds the lock.
func (b *Backend) settle() {
	select {
	case <-b.once:
	default:
		close(b.once)
	}
}

func (b *Backend) setHealth(h health) {
	b.health = h
	b.standing.Store(uint32(h.standing))
}

// checkedOnce is closed when there has been a check, or will be none.
func (b *Backend) checkedOnce() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.once
}

// run checks until ctx ends: at once, and then an interval after each
// beginning. A check that takes longer delays its own backend's next.
func (c *checker) run(ctx context.Context) {
	r := c.backend.registry
	for ctx.Err() == nil {
		due := r.now() + jitter(c.config.Interval, rand.Float64())
		err := c.once(ctx) // which says nothing if it was cut short, see observe
		if !c.backend.observe(c, err, due) || !sleep(ctx, due-r.now()) {
			return
		}
	}
}

// once is one check, with its timeout.
func (c *checker) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	err := c.probe(ctx)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return fmt.Errorf("no answer within %v", c.config.Timeout)
	}
	return err
}

// observe takes the result of c's check, unless c is no longer the backend's
// checker. due is when the next one begins.
func (b *Backend) observe(c *checker, err error, due time.Duration) bool {
	b.mu.Lock()
	if b.checker != c {
		b.mu.Unlock()
		return false
	}
	was := b.health.standing
	b.setHealth(b.health.after(err == nil, c.config.Fall, c.config.Rise))
	b.lastError = ""
	if err != nil {
		b.lastError = brief(err)
		b.lastFailure = b.lastError
	}
	is, failure := b.health.standing, b.lastFailure
	b.nextCheck.Store(int64(due))
	b.settle()
	b.mu.Unlock()
	if was != is {
		b.logChange(was, is, failure)
	}
	return true
}

// logChange tells of a transition. That a backend is well when it is first
// looked at is no news.
func (b *Backend) logChange(from, to standing, failure string) {
	level := slog.LevelInfo
	switch {
	case to == unhealthy:
		level = slog.LevelWarn
	case from == unknown:
		level = slog.LevelDebug
	}
	b.registry.options.Logger.LogAttrs(context.Background(), level, "backend is "+to.String(),
		slog.String("pool", b.identity.pool), slog.String("backend", b.name),
		slog.String("was", from.String()), slog.String("last_error", failure))
}

// untilCheck is how long after now the next check begins; 0: it is under way, or
// there is none.
func (b *Backend) untilCheck(now time.Duration) time.Duration {
	return max(time.Duration(b.nextCheck.Load())-now, 0)
}

// jitter is the interval plus or minus a tenth, by a random number from 0 to
// below 1, so that the checks of many edges do not meet.
func jitter(interval time.Duration, random float64) time.Duration {
	return interval + time.Duration((random-0.5)/5*float64(interval))
}

// sleep returns false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// probe is what a check of this type does.
func (b *Backend) probe(h config.Health) probe {
	dial := dialOnly(b.registry.dialer(h.Timeout), b.name)
	if h.Type == config.HealthTCP {
		return probeTCP(dial)
	}
	return probeHTTP(b.registry, b.url, h, dial)
}

// probeTCP asks for a connection and nothing more. The kernel grants it, even
// where the process behind it has stopped.
func probeTCP(dial dialer) probe {
	return func(ctx context.Context) error {
		conn, err := dial(ctx, "tcp", "")
		if err != nil {
			return err
		}
		_ = conn.Close() // there is nothing on it that could be lost
		return nil
	}
}

// probeHTTP asks for a path, each time on a new connection, and wants one of
// the statuses and the beginning of the body. It follows no redirect: where a
// redirect may pass, it passes as what it is.
func probeHTTP(r *Registry, to *url.URL, h config.Health, dial dialer) probe {
	transport := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        r.tls(),
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: checkBodyBytes,
		Protocols:              http1(),
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String()+h.Path, http.NoBody)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", "sentinel-health")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if s := response.StatusCode; s < h.Status[0] || s > h.Status[1] {
			return fmt.Errorf("status %d, wanted %d to %d", s, h.Status[0], h.Status[1])
		}
		if _, err := io.CopyN(io.Discard, response.Body, checkBodyBytes); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("body: %w", err)
		}
		return nil
	}
}
