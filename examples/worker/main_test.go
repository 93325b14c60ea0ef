package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Each tenant runs two jobs at once and then one every half second, whatever
// the others do; every wait is followed by a run, so none is too short.
func TestQueuesArePacedByTheirQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var out bytes.Buffer
		if err := run(t.Context(), &out, map[string]int{"acme": 6, "globex": 3, "initech": 1}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("took %s, want the longest queue's 2s", took)
		}
		want := map[string][]string{
			"acme":    {"0.0s", "0.0s", "0.5s", "1.0s", "1.5s", "2.0s"},
			"globex":  {"0.0s", "0.0s", "0.5s"},
			"initech": {"0.0s"},
		}
		for tenant, instants := range want {
			runs := regexp.MustCompile(`(?m)^ *(\S+)  `+tenant+` +job \d+ of \d+ runs$`).FindAllStringSubmatch(out.String(), -1)
			var got []string
			for _, r := range runs {
				got = append(got, r[1])
			}
			if !slices.Equal(got, instants) {
				t.Errorf("%s ran at %v, want %v", tenant, got, instants)
			}
		}
		if got := strings.Count(out.String(), "waits 500ms (rate_limited)"); got != 5 {
			t.Errorf("%d waits of 500ms, want 5:\n%s", got, out.String())
		}
	})
}

func TestInterruptedWorkerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		var out bytes.Buffer
		err := run(ctx, &out, map[string]int{"acme": 100})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		if got := strings.Count(out.String(), "runs"); got != 3 {
			t.Errorf("%d jobs ran, want the 3 of 0.7 s", got)
		}
	})
}
