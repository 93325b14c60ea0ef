package upstream

import (
	"math/rand/v2"
	"testing"
)

// course runs results, P and F, and returns the standings as letters.
func course(h health, results string, fall, rise int) string {
	out := make([]byte, len(results))
	for i := range results {
		h = h.after(results[i] == 'P', fall, rise)
		out[i] = h.standing.String()[0]
	}
	return string(out)
}

func TestHealthCourses(t *testing.T) {
	for _, c := range []struct {
		from       standing
		fall, rise int
		results    string
		want       string
	}{
		{healthy, 3, 2, "FPFPFPFP", "hhhhhhhh"},
		{unhealthy, 3, 2, "PFPFPFPF", "uuuuuuuu"},
		{healthy, 3, 2, "FFPFFPFFF", "hhhhhhhhu"},
		{unhealthy, 3, 2, "PFPPFFF", "uuuhhhu"},
		{healthy, 1, 1, "FPFP", "uhuh"},
		{unknown, 3, 2, "P", "h"},
		{unknown, 3, 2, "FPFP", "uuuu"},
		{unknown, 3, 2, "PFPF", "hhhh"},
		{unknown, 3, 2, "FPP", "uuh"},
	} {
		if got := course(health{standing: c.from}, c.results, c.fall, c.rise); got != c.want {
			t.Errorf("from %v, fall %d, rise %d, %s: %s, want %s", c.from, c.fall, c.rise, c.results, got, c.want)
		}
	}
}

// The standing is the last result of which there were enough in a row.
func TestHealthAgainstTheModel(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		fall, rise := 1+r.IntN(4), 1+r.IntN(4)
		h, want := health{}, unknown
		row, last := 0, false
		for step := range 100 {
			pass := r.IntN(2) == 0
			if row++; pass != last {
				row, last = 1, pass
			}
			switch {
			case pass && (row >= rise || want == unknown):
				want = healthy
			case !pass && (row >= fall || want == unknown):
				want = unhealthy
			}
			if h = h.after(pass, fall, rise); h.standing != want {
				t.Fatalf("fall %d, rise %d, step %d: %v, the model %v", fall, rise, step, h.standing, want)
			}
		}
	}
}

func TestWhoIsEligible(t *testing.T) {
	for s, want := range map[standing]bool{unknown: true, healthy: true, unchecked: true, unhealthy: false, removed: false} {
		if s.eligible() != want {
			t.Errorf("%v: %t", s, !want)
		}
	}
}
