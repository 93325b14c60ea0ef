// Worker paces job queues without any HTTP: every tenant has a queue of its
// own, and runs its jobs as fast as its quota allows and no faster. Whoever is
// denied is told for how long, exactly, so nobody polls and nobody guesses.
//
//	go run ./examples/worker
//
// With a redis_url of redis://... in its configuration, any number of these
// workers on any number of machines share the quotas.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

const endpoint = "jobs.ocr"

// config is written in code here; a file is read by [sentinel.LoadConfig].
func config() *sentinel.Config {
	return &sentinel.Config{
		App: sentinel.App{
			RedisURL: sentinel.NewSecret("memory://"),
			// Nobody signs in here: the program itself knows whose job it is.
			Authentication: sentinel.ByApplication,
		},
		Policies: map[string]sentinel.Policy{
			// Two jobs at once, then two each second, for each tenant.
			endpoint: {
				EndpointID:   endpoint,
				Algorithm:    sentinel.TokenBucket,
				FailMode:     sentinel.FailClosed,
				Version:      1,
				Capacity:     2 * sentinel.Token,
				RefillRate:   2 * sentinel.Token,
				FallbackRate: sentinel.Token,
			},
		},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, map[string]int{"acme": 6, "globex": 4, "initech": 1}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works off every tenant's queue and returns when all are empty. queues
// holds the number of jobs of each tenant.
func run(ctx context.Context, out io.Writer, queues map[string]int) (err error) {
	// A denial is a line at WARN by default; here it is the daily bread.
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	limiter, err := sentinel.Open(ctx, config(), sentinel.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limiter.Close()) }()
	if err := limiter.Require(endpoint); err != nil {
		return err
	}

	w := &worker{limiter: limiter, out: out, start: time.Now()}
	var wg sync.WaitGroup
	failures := make(chan error, len(queues))
	for tenant, jobs := range queues {
		wg.Go(func() { failures <- w.work(ctx, tenant, jobs) })
	}
	wg.Wait()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	w.printf("all queues are empty")
	return err
}

type worker struct {
	limiter *sentinel.Limiter
	start   time.Time

	mu  sync.Mutex // guards out
	out io.Writer
}

// work runs one tenant's jobs in order.
func (w *worker) work(ctx context.Context, tenant string, jobs int) error {
	for job := 1; job <= jobs; job++ {
		if err := w.admit(ctx, tenant); err != nil {
			return fmt.Errorf("%s, job %d: %w", tenant, job, err)
		}
		w.printf("%-8s job %d of %d runs", tenant, job, jobs)
	}
	return nil
}

// unknownWait is the wait after a denial that names none, as while Redis is
// away.
const unknownWait = time.Second

// admit returns when the tenant may run a job.
func (w *worker) admit(ctx context.Context, tenant string) error {
	for {
		// The caller vouches for the tenant; there is no token here. A nil
		// error does not mean yes.
		d, err := w.limiter.Allow(ctx, tenant, endpoint)
		if err != nil {
			return err
		}
		if d.Allowed {
			return nil
		}
		wait := d.RetryAfter
		if wait == 0 {
			wait = unknownWait
		}
		w.printf("%-8s waits %s (%s)", tenant, wait.Round(time.Millisecond), d.Reason)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *worker) printf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.out, "%5.1fs  "+format+"\n", append([]any{time.Since(w.start).Seconds()}, args...)...)
}
