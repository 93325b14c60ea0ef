package measure

import (
	"fmt"
	"math"
	"slices"
)

// Stat is the median of a few rounds, with the least and the greatest.
type Stat struct{ Median, Least, Most float64 }

// StatOf is the zero Stat where there are no values.
func StatOf(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return Stat{Median: (s[(n-1)/2] + s[n/2]) / 2, Least: s[0], Most: s[n-1]}
}

// RatioOf divides round by round, so that what slows a whole round down counts
// on neither side.
func RatioOf(a, b []float64) Stat {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = a[i] / b[i]
	}
	return StatOf(values)
}

// Each is a value of every round.
func Each[T any](rounds []T, f func(T) float64) []float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = f(r)
	}
	return values
}

// Interleave calls run for each of n contestants in every round, in an order
// that rotates, and returns the results by contestant.
func Interleave[T any](rounds, n int, run func(i int) (T, error)) ([][]T, error) {
	results := make([][]T, n)
	for r := range rounds {
		for k := range n {
			i := (k + r) % n
			v, err := run(i)
			if err != nil {
				return nil, err
			}
			results[i] = append(results[i], v)
		}
	}
	return results, nil
}

// String is the median with digits that fit its size, and the spread.
func (s Stat) String() string {
	return fmt.Sprintf("%s (%s..%s)", Number(s.Median), Number(s.Least), Number(s.Most))
}

// Factor is s as text where it is a ratio.
func (s Stat) Factor() string {
	return fmt.Sprintf("%.2fx (%.2f..%.2f)", s.Median, s.Least, s.Most)
}

// Number is v with digits that fit its size.
func Number(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
