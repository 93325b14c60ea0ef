package measure

import (
	"slices"
	"testing"
)

func TestStat(t *testing.T) {
	t.Parallel()
	if got, want := StatOf([]float64{5, 1, 3}), (Stat{3, 1, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := StatOf([]float64{4, 1, 3, 2}), (Stat{2.5, 1, 4}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	// A slow round is slow for both.
	if got, want := RatioOf([]float64{10, 2, 20}, []float64{5, 1, 10}), (Stat{2, 2, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestInterleaveRotates(t *testing.T) {
	t.Parallel()
	var order []int
	results, err := Interleave(3, 3, func(i int) (int, error) {
		order = append(order, i)
		return len(order), nil
	})
	if want := []int{0, 1, 2, 1, 2, 0, 2, 0, 1}; err != nil || !slices.Equal(order, want) {
		t.Errorf("%v, %v, want %v", order, err, want)
	}
	if want := []int{1, 6, 8}; !slices.Equal(results[0], want) {
		t.Errorf("%v, want %v", results[0], want)
	}
}
