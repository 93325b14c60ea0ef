package bucket_test

import (
	"fmt"
	"testing"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// Stored is Parse for numbers: both take the same states, and refuse the same.
func TestStoredIsParseForNumbers(t *testing.T) {
	t.Parallel()
	tokens, window := bucket.NewTokenBucket(5*bucket.Token, 1000), bucket.NewSlidingWindow(10, 60_000_000)
	edges := []int64{-1 << 63, -1, 0, 1, 999_999, 5_000_000, 1<<52 - 1, 1 << 52, 1<<52 + 1, 1<<53 - 1, 1 << 53, 1<<63 - 1}
	const now = 1_790_000_000_000_000
	for _, count := range edges {
		for _, time := range edges {
			got, ok := tokens.Stored(count, 0, time)
			want, wantOK := tokens.Parse(fmt.Sprintf("%d:%d", count, time))
			if got != want || ok != wantOK {
				t.Errorf("%d:%d: %+v, %t; want %+v, %t", count, time, got, ok, want, wantOK)
			}
			if _, ok := tokens.Stored(count, 1, time); ok {
				t.Errorf("%d:%d: a token bucket with a previous count", count, time)
			}
			for _, previous := range edges {
				got, ok := window.Stored(count, previous, time)
				want, wantOK := window.Parse(fmt.Sprintf("%d:%d:%d", count, previous, time))
				if got != want || ok != wantOK {
					t.Errorf("%d:%d:%d: %+v, %t; want %+v, %t", count, previous, time, got, ok, want, wantOK)
				}
			}
		}
	}
	bad, _ := tokens.Stored(-1, 0, 0)
	if _, a := tokens.Decide(bad, now, true); !a.Corrupt {
		t.Errorf("a state of impossible numbers decides %+v", a)
	}
}
