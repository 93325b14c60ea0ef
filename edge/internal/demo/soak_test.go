package main

import (
	"math"
	"testing"
	"time"
)

func TestGrowthIsThatOfTheLineOfLeastSquares(t *testing.T) {
	value := func(s sample) float64 { return s.memory }
	for name, c := range map[string]struct {
		values       []float64
		mean, growth float64
	}{
		"level":            {[]float64{5, 5, 5, 5}, 5, 0},
		"a line":           {[]float64{1, 2, 3, 4}, 2.5, 3},
		"a saw":            {[]float64{1, 3, 1, 3}, 2, 1.2},
		"one peak at last": {[]float64{1, 1, 1, 5}, 2, 3.6},
		"a single sample":  {[]float64{7}, 7, 0},
	} {
		var samples []sample
		for i, v := range c.values {
			samples = append(samples, sample{at: float64(i), memory: v})
		}
		mean, growth := fit(samples, value)
		if math.Abs(mean-c.mean) > 1e-9 || math.Abs(growth-c.growth) > 1e-9 {
			t.Errorf("%s: mean %v, growth %v, want %v and %v", name, mean, growth, c.mean, c.growth)
		}
	}
}

// Only what a fault explains is explained.
func TestAnswersThatNothingExplains(t *testing.T) {
	for _, c := range []struct {
		path   string
		status int
		reason string
		hit    bool
		want   bool
	}{
		{"/ok", 200, "ok", false, true},
		{"/ok", 502, "upstream_reset", false, false},
		{"/ok", 502, "upstream_reset", true, true},
		{"/ok", 500, "internal", true, false},
		{"/ok", 429, "rate_limited", false, false},
		{"/limited", 429, "rate_limited", false, true},
		{"/rst0", 502, "upstream_reset", false, true},
		{"/rst0", 502, "upstream_unreachable", false, false},
		{"/hang", 504, "upstream_timeout", false, true},
		{"/status/503", 503, "breaker_open", false, false},
		{"/echo", 0, "another body", true, false},
		{"/ok", 0, "cut off", false, false},
	} {
		k := &soak{answers: map[string]int{}, began: time.Now()}
		begun := shadow
		if c.hit {
			begun--
		}
		k.note(c.path, c.status, c.reason, begun)
		if got := len(k.strange) == 0; got != c.want {
			t.Errorf("%+v: explained: %t", c, got)
		}
	}
}

// A machine that stands still explains what is late, near to that time, and nothing else.
func TestAStandstillExplainsWhatIsLate(t *testing.T) {
	for _, c := range []struct {
		status  int
		reason  string
		begun   time.Duration
		excused bool
	}{
		{504, "upstream_timeout", 9 * time.Second, true},
		{503, "no_backend", 12*time.Second + shadow - 1, true},
		{503, "no_backend", 12*time.Second + shadow, false},
		{502, "upstream_reset", 11 * time.Second, false},
		{0, "another body", 11 * time.Second, false},
	} {
		k := &soak{answers: map[string]int{}, began: time.Now(), still: []span{{10 * time.Second, 12 * time.Second}}}
		k.note("/ok", c.status, c.reason, c.begun)
		if len(k.excused) == 1 != c.excused || len(k.strange) == 1 == c.excused {
			t.Errorf("%+v: excused %q, strange %q", c, k.excused, k.strange)
		}
	}
}
