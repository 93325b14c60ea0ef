package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// prove has a limit of the scarce quota show that it is one: on fresh keys it
// admits exactly five, one after the other and in a crowd, and then denies; and
// one key's denial is not another's.
func prove(ctx context.Context, name string, decide limit) error {
	for _, key := range names("proof", 3) {
		for i := range 2 * scarce.burst {
			got, err := decide(ctx, key)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if want := i < scarce.burst; got != want {
				return fmt.Errorf("%s: decision %d on one key: admitted %t, want %t: a quota of %d is not kept",
					name, i+1, got, want, scarce.burst)
			}
		}
	}
	for _, key := range names("crowd", 20) {
		admitted, err := crowd(ctx, decide, key)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if admitted != scarce.burst {
			return fmt.Errorf("%s: a crowd of 32 was admitted %d times on a quota of %d", name, admitted, scarce.burst)
		}
	}
	return nil
}

// crowd has 32 callers ask for one key at the same time and returns how many
// were admitted.
func crowd(ctx context.Context, decide limit, key string) (int64, error) {
	var wg sync.WaitGroup
	var admitted atomic.Int64
	errs := make([]error, 32)
	for i := range errs {
		wg.Go(func() {
			ok, err := decide(ctx, key)
			if ok {
				admitted.Add(1)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return admitted.Load(), errors.Join(errs...)
}

// openProven opens a peer for the measurement, after one with the scarce quota
// has proved itself. The server is empty afterwards.
func openProven(l *lab, p peer, q quota) (limit, func(), error) {
	decide, done, err := p.open(l, scarce)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", p.name, err)
	}
	err = prove(l.ctx, p.name, decide)
	done()
	if err != nil {
		return nil, nil, err
	}
	if err := l.redis.flush(l.ctx); err != nil {
		return nil, nil, err
	}
	return p.open(l, q)
}
