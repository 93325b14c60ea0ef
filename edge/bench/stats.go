package main

import (
	"fmt"
	"math"
	"slices"
)

// stat is the median of a few rounds, with the least and the greatest.
type stat struct{ median, least, most float64 }

func statOf(values []float64) stat {
	if len(values) == 0 {
		return stat{}
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return stat{median: (s[(n-1)/2] + s[n/2]) / 2, least: s[0], most: s[n-1]}
}

// each is a value of every round.
func each[T any](rounds []T, f func(T) float64) []float64 {
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		values[i] = f(r)
	}
	return values
}

// ratioOf divides round by round, so that what slows a whole round down counts
// on neither side.
func ratioOf(a, b []float64) stat {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = a[i] / b[i]
	}
	return statOf(values)
}

// text is the median with digits that fit its size, and the spread.
func (s stat) text() string {
	return fmt.Sprintf("%s (%s..%s)", number(s.median), number(s.least), number(s.most))
}

func number(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func factor(s stat) string { return fmt.Sprintf("%.2fx (%.2f..%.2f)", s.median, s.least, s.most) }

// interleave calls run for each of n contestants in every round, in an order
// that rotates, and returns the results by contestant.
func interleave[T any](rounds, n int, run func(i int) (T, error)) ([][]T, error) {
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
