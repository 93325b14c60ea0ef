package measure

import (
	"strings"
	"testing"
)

func TestBars(t *testing.T) {
	t.Parallel()
	got := func(v float64) Stat { return Stat{v, v, v} }
	for _, c := range []struct {
		bar  Bar
		want string
	}{
		{AtLeast("", got(2.6), 2.6), "PASS"},
		{AtLeast("", got(1.3), 2.6), "SHORT by 50 %"},
		{AtLeast("", got(3), 2.6).AimingAt(3.3), "PASS, short of the aim of 3.30x"},
		{AtLeast("", got(3.4), 2.6).AimingAt(3.3), "PASS, and the aim of 3.30x"},
		{AtLeast("", got(2), 2.5).AimingAt(3.3), "SHORT by 20 %"},
		{AtMost("", got(0.6), 0.6), "PASS"},
		{AtMost("", got(0.9), 0.6), "SHORT by 50 %"},
		{AtMost("", got(20), 2), "SHORT by a factor of 10.0"},
		{NoAllocations("", got(0.001)), "PASS"},
		{NoAllocations("", got(1)), "SHORT by a factor of 100.0"},
	} {
		if v := c.bar.verdict(); v != c.want {
			t.Errorf("%+v: %q, want %q", c.bar, v, c.want)
		}
	}
}

func TestCellsStayInTheirRow(t *testing.T) {
	t.Parallel()
	tab := &Table{Columns: []string{"a", "b"}}
	tab.Add("x|y", "1\n2")
	if got, want := tab.Markdown(), "| a    |   b |\n| ---- | --: |\n| x\\|y | 1 2 |\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

func TestTheVerdictCountsGatesThatAreMissed(t *testing.T) {
	t.Parallel()
	missed, held := Stat{3, 3, 3}, Stat{1, 1, 1}
	r := &Report{Title: "T", About: []string{"a"}, Notes: "n\n", Sections: []*Section{{
		Title: "S", About: "s", Notes: []string{"note"},
		Bars: []Bar{AtMost("a bar", missed, 2), AtMost("held", held, 2).AsGate(), AtMost("missed", missed, 2).AsGate()},
	}}}
	if got := r.Verdict(); !strings.Contains(got, "Gates that are missed: 1.") || strings.Index(got, "a bar") < strings.Index(got, "missed  ") {
		t.Error(got)
	}
	text := r.Markdown()
	at := 0
	for _, part := range []string{"# T\n\na\n", "\n## All bars\n", "\n## S\n\ns\n", "\n| bar ", "\nnote\n", "\nThis took 0 s.\n", "\nn\n"} {
		i := strings.Index(text[at:], part)
		if i < 0 {
			t.Fatalf("no %q after the first %d bytes of\n%s", part, at, text)
		}
		at += i
	}
	if got := (&Report{}).Verdict(); got != "" {
		t.Errorf("of no bars: %q", got)
	}
}
