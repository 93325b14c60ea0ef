package breaker_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
)

func Example() {
	b := breaker.New(breaker.Settings{
		Failures: 2,
		OpenFor:  30 * time.Second,
		OnChange: func(from, to breaker.State) { fmt.Println(from, "->", to) },
	})
	origin := time.Now()
	now := time.Since(origin)
	call := func(err error) {
		pass, ok := b.Acquire(now)
		if !ok {
			fmt.Println("turned away")
			return
		}
		outcome := breaker.Success
		if err != nil {
			outcome = breaker.Failure
		}
		b.Report(now, pass, outcome)
	}

	down := errors.New("connection refused")
	call(down)
	call(down)
	call(nil)
	now += 30 * time.Second // in real code time.Since(origin) again
	call(nil)
	// Output:
	// closed -> open
	// turned away
	// open -> half_open
	// half_open -> closed
}
