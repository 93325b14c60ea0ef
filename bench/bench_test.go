package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

// A benchmark of a limiter that admits too much, or too little, is none.
func TestProveFindsTheWrong(t *testing.T) {
	t.Parallel()
	counted := func(quota int64) limit {
		var mu sync.Mutex
		used := map[string]int64{}
		return func(_ context.Context, key string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			used[key]++
			return used[key] <= quota, nil
		}
	}
	if err := prove(t.Context(), "right", counted(scarce.burst)); err != nil {
		t.Error(err)
	}
	one := counted(scarce.burst)
	for name, decide := range map[string]limit{
		"too much":   counted(scarce.burst + 1),
		"too little": counted(scarce.burst - 1),
		"one for all": func(ctx context.Context, _ string) (bool, error) {
			return one(ctx, "")
		},
		"fails": func(context.Context, string) (bool, error) { return false, errors.New("away") },
	} {
		if err := prove(t.Context(), name, decide); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
