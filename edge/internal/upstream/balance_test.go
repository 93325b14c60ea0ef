package upstream

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// everyDraw calls f once for each course that chance can take.
func everyDraw(f func(draw)) {
	var drawn, bounds []int
	for {
		i := 0
		f(func(n int) int {
			if i == len(drawn) {
				drawn, bounds = append(drawn, 0), append(bounds, n)
			}
			i++
			return drawn[i-1]
		})
		k := len(drawn) - 1
		for k >= 0 && drawn[k]+1 == bounds[k] {
			k--
		}
		if k < 0 {
			return
		}
		drawn, bounds = drawn[:k+1], bounds[:k+1]
		drawn[k]++
	}
}

// withLoads are candidates of weight 1.
func withLoads(loads ...int64) []candidate {
	out := make([]candidate, len(loads))
	for i, l := range loads {
		out[i] = candidate{member: i, load: l, weight: 1}
	}
	return out
}

func withWeights(weights ...int64) []candidate {
	out := make([]candidate, len(weights))
	for i, w := range weights {
		out[i] = candidate{member: i, weight: w}
	}
	return out
}

func TestSmoothSpreadsTurns(t *testing.T) {
	among := withWeights(5, 1, 1)
	credit := make([]int64, 3)
	var got strings.Builder
	for range 14 {
		got.WriteByte("abc"[smooth(credit, among)])
	}
	if got.String() != "aabacaaaabacaa" {
		t.Errorf("turns %s", got.String())
	}
}

// In any window of a cycle's length everybody has its exact share.
func TestSmoothIsExactOverACycle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		weights := make([]int64, 1+r.IntN(8))
		total := int64(0)
		for i := range weights {
			weights[i] = 1 + r.Int64N(20)
			total += weights[i]
		}
		among, credit := withWeights(weights...), make([]int64, len(weights))
		for range r.IntN(100) {
			smooth(credit, among)
		}
		got := make([]int64, len(weights))
		for range total {
			got[smooth(credit, among)]++
		}
		if !slices.Equal(got, weights) {
			t.Fatalf("weights %v: %v in a cycle", weights, got)
		}
	}
}

// The turns of one that is down are shared; they are not the next one's.
func TestSmoothSharesTheTurnsOfWhoIsDown(t *testing.T) {
	for before := range 3 {
		credit := make([]int64, 3)
		for range before {
			smooth(credit, withLoads(0, 0, 0))
		}
		up := []candidate{{member: 0, weight: 1}, {member: 2, weight: 1}}
		got := [2]int{}
		for range 9000 {
			got[smooth(credit, up)]++
		}
		if got[0] < 4499 || got[0] > 4501 {
			t.Errorf("after %d turns of three: %v, want half each", before, got)
		}
	}
}

// Whoever comes and goes, nobody is owed or owes more than a few cycles.
func TestSmoothStaysInBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	all := withWeights(1, 2, 3, 7, 1, 5)
	credit := make([]int64, len(all))
	for step := range 200_000 {
		var among []candidate
		for _, c := range all {
			if r.IntN(3) > 0 {
				among = append(among, c)
			}
		}
		if len(among) == 0 {
			continue
		}
		smooth(credit, among)
		sum := int64(0)
		for _, c := range credit {
			sum += c
			if c > 60 || c < -60 {
				t.Fatalf("step %d: credits %v", step, credit)
			}
		}
		if sum != 0 {
			t.Fatalf("step %d: credits %v sum to %d", step, credit, sum)
		}
	}
}

func TestUnsmoothTakesBackATurn(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	among, credit := withWeights(3, 1, 4, 1), []int64{5, 0, -4, -1}
	for range 100 {
		was := slices.Clone(credit)
		some := slices.DeleteFunc(slices.Clone(among), func(candidate) bool { return r.IntN(3) == 0 })
		if len(some) == 0 {
			continue
		}
		unsmooth(credit, some, smooth(credit, some))
		if !slices.Equal(credit, was) {
			t.Fatalf("credits %v, want %v", credit, was)
		}
		smooth(credit, among)
	}
}

func TestLeastHasTheLeastForItsWeight(t *testing.T) {
	for _, c := range []struct {
		among []candidate
		want  int
	}{
		{withLoads(9, 1), 1},
		{withLoads(1, 9), 0},
		{withLoads(3, 2, 1, 2, 3), 2},
		{[]candidate{{load: 9, weight: 10}, {load: 1, weight: 1}}, 0},
		{[]candidate{{load: 1, weight: 1}, {load: 9, weight: 10}}, 1},
	} {
		everyDraw(func(d draw) {
			if got := least(c.among, d); got != c.want {
				t.Errorf("%v: %d", c.among, got)
			}
		})
	}
}

// Over all courses of chance each of those who are equal comes as often.
func TestLeastBreaksTiesUniformly(t *testing.T) {
	among := []candidate{{load: 2, weight: 1}, {load: 4, weight: 2}, {load: 7, weight: 1}, {load: 2, weight: 1}, {load: 2, weight: 1}, {load: 9, weight: 1}}
	got := make([]int, len(among))
	everyDraw(func(d draw) { got[least(among, d)]++ })
	if !slices.Equal(got, []int{1, 1, 0, 1, 1, 0}) {
		t.Errorf("%v", got)
	}
}

func TestOfTwoTheLighterOne(t *testing.T) {
	for _, loads := range [][]int64{{9, 1}, {1, 9}} {
		light := slices.Index(loads, 1)
		for range 10_000 {
			if lighterOfTwo(withLoads(loads...), rand.IntN) != light {
				t.Fatalf("loads %v: the heavier one", loads)
			}
		}
	}
	if got := lighterOfTwo(withLoads(5), nil); got != 0 {
		t.Errorf("of one: %d", got)
	}
}

// Any two are as likely: of 6, ordered by load, the lightest is in 5 of 15 pairs and
// wins each, the next in 4 more, and so on; the heaviest never wins.
func TestTwoOfManyAreDistinctAndUniform(t *testing.T) {
	loads := []int64{3, 0, 5, 1, 4, 2}
	wins := make([]int, len(loads))
	everyDraw(func(d draw) { wins[lighterOfTwo(withLoads(loads...), d)]++ })
	for i, load := range loads {
		if want := 2 * (5 - int(load)); wins[i] != want { // each pair comes in both orders
			t.Errorf("load %d: %d wins of 30, want %d", load, wins[i], want)
		}
	}
}

func TestTwoThatAreEqualAreAsLikely(t *testing.T) {
	for n := 2; n < 7; n++ {
		wins, all := make([]int, n), 0
		everyDraw(func(d draw) { wins[lighterOfTwo(withLoads(make([]int64, n)...), d)]++; all++ })
		for i := range wins {
			if wins[i]*n != all {
				t.Errorf("%d equal: %v of %d", n, wins, all)
			}
		}
	}
}
