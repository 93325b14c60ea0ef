package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// report is the whole run, as it is printed and as it is written to the
// document.
type report struct {
	about    []string
	sections []*section
}

// section answers one question.
type section struct {
	title  string
	about  string
	tables []*table
	bars   []bar
	took   time.Duration
}

// table is one table. The first column is text, the others are numbers.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// bar is a figure that the project has set itself.
type bar struct {
	what  string
	got   stat
	unit  string // "x" for a ratio
	bound float64
	least bool // got must be at least bound, else at most
	gate  bool // the others are printed, too
}

func atLeast(what string, got stat, bound float64) bar {
	return bar{what: what, got: got, unit: "x", bound: bound, least: true}
}

func atMost(what string, got stat, bound float64) bar {
	return bar{what: what, got: got, unit: "x", bound: bound}
}

// noAllocations tolerates what the runtime allocates by itself now and then.
func noAllocations(what string, got stat) bar {
	return bar{what: what + ", allocations", got: got, bound: 0.01}
}

func (b bar) asGate() bar {
	b.gate = true
	return b
}

func (b bar) passed() bool {
	if b.least {
		return b.got.median >= b.bound
	}
	return b.got.median <= b.bound
}

func (b bar) verdict() string {
	switch {
	case b.passed():
		return "PASS"
	case b.least:
		return fmt.Sprintf("SHORT by %.2g %%", 100*(1-b.got.median/b.bound))
	case b.got.median > 2*b.bound:
		return fmt.Sprintf("SHORT by a factor of %.1f", b.got.median/b.bound)
	default:
		return fmt.Sprintf("SHORT by %.2g %%", 100*(b.got.median/b.bound-1))
	}
}

func (b bar) row() []string {
	sign, kind := "at most", "bar"
	if b.least {
		sign = "at least"
	}
	if b.gate {
		kind = "gate"
	}
	return []string{b.what, kind, sign + " " + number(b.bound) + b.unit, b.got.text(), b.verdict()}
}

var barColumns = []string{"bar", "kind", "wanted", "measured", "verdict"}

func (s *section) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n", s.title, s.about)
	for _, t := range s.tables {
		if t.title != "" {
			fmt.Fprintf(&b, "\n### %s\n", t.title)
		}
		b.WriteString("\n" + t.markdown())
	}
	if len(s.bars) > 0 {
		t := table{columns: barColumns}
		for _, bar := range s.bars {
			t.add(bar.row()...)
		}
		b.WriteString("\n" + t.markdown())
	}
	fmt.Fprintf(&b, "\nThis took %.0f s.\n", s.took.Seconds())
	return b.String()
}

// markdown pads the columns, so that a terminal shows a table, too.
func (t *table) markdown() string {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		for i, c := range cells {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i > 0 {
				c, gap = gap+c, ""
			}
			b.WriteString("| " + c + gap + " ")
		}
		b.WriteString("|\n")
	}
	line(t.columns)
	for i, w := range widths {
		if i == 0 {
			b.WriteString("| " + strings.Repeat("-", max(w, 3)) + " ")
		} else {
			b.WriteString("| " + strings.Repeat("-", max(w-1, 2)) + ": ")
		}
	}
	b.WriteString("|\n")
	for _, r := range t.rows {
		line(r)
	}
	return b.String()
}

func (r *report) head() string {
	return "# The edge: benchmarks\n\n" + strings.Join(r.about, "\n") + "\n"
}

// verdict is all bars in one table, the gates first.
func (r *report) verdict() string {
	t := table{columns: barColumns}
	missed := 0
	for _, gates := range []bool{true, false} {
		for _, s := range r.sections {
			for _, b := range s.bars {
				if b.gate != gates {
					continue
				}
				t.add(b.row()...)
				if gates && !b.passed() {
					missed++
				}
			}
		}
	}
	if len(t.rows) == 0 {
		return ""
	}
	return fmt.Sprintf("\n## All bars\n\nGates that are missed: %d.\n\n%s", missed, t.markdown())
}

// markdown is the document: the verdict stands before what it rests on.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString(r.head() + r.verdict())
	for _, s := range r.sections {
		b.WriteString(s.markdown())
	}
	b.WriteString("\n" + notes)
	return b.String()
}
