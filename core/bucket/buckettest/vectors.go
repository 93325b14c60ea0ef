package buckettest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Vector is a known answer.
type Vector struct {
	Case
	Allowed bool
	After   string // the state after the decision
	Wait    *int64 // on a denial, microseconds; nil: never
}

// Vectors reads all known answers in dir.
func Vectors(t testing.TB, dir string) []Vector {
	t.Helper()
	var all []Vector
	for _, name := range []string{"token_bucket.json", "token_bucket_big.json", "sliding_window.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var rows []row
		if err := json.Unmarshal(data, &rows); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, r := range rows {
			all = append(all, r.vector())
		}
	}
	if len(all) < 1000 {
		t.Fatalf("%d known answers in %s, expected 1100", len(all), dir)
	}
	return all
}

// row is a row of either kind of file.
type row struct {
	Now     int64  `json:"now_micro"`
	Allowed bool   `json:"allowed"`
	Wait    *int64 `json:"retry_after_micro"`

	Capacity    int64 `json:"capacity_micro"`
	Rate        int64 `json:"refill_rate_micro_per_sec"`
	Tokens      int64 `json:"tokens_micro"`
	Last        int64 `json:"last_refill_micro"`
	TokensAfter int64 `json:"tokens_after_micro"`
	LastAfter   int64 `json:"last_refill_after_micro"`

	Limit         int64 `json:"limit"`
	Window        int64 `json:"window_size_micro"`
	Current       int64 `json:"current"`
	Previous      int64 `json:"previous"`
	Start         int64 `json:"window_start_micro"`
	CurrentAfter  int64 `json:"current_after"`
	PreviousAfter int64 `json:"previous_after"`
	StartAfter    int64 `json:"window_start_after_micro"`
}

func (r row) vector() Vector {
	v := Vector{Allowed: r.Allowed, Wait: r.Wait}
	v.Case = Case{Stored: true, Now: r.Now, Charge: true}
	if r.Limit > 0 {
		v.Sliding, v.P1, v.P2 = true, r.Limit, r.Window
		v.Text = join(r.Current, r.Previous, r.Start)
		v.After = join(r.CurrentAfter, r.PreviousAfter, r.StartAfter)
		return v
	}
	v.P1, v.P2 = r.Capacity, r.Rate
	v.Text, v.After = join(r.Tokens, r.Last), join(r.TokensAfter, r.LastAfter)
	return v
}
