package measure

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Report is the whole run, as it is printed and as it is written to the
// document.
type Report struct {
	Title    string
	About    []string // lines: when, where and with what
	Sections []*Section
	Notes    string // what no run can measure, at the end of the document
}

// Section answers one question.
type Section struct {
	Title  string
	About  string
	Tables []*Table
	Notes  []string
	Bars   []Bar
	Took   time.Duration
}

// Table is one table. The first column is text, the others are figures.
type Table struct {
	Title   string
	Columns []string
	Rows    [][]string
}

// Add adds a row, of as many cells as there are columns.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Markdown is the section as a part of a document.
func (s *Section) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n", s.Title, s.About)
	for _, t := range s.Tables {
		if t.Title != "" {
			fmt.Fprintf(&b, "\n### %s\n", t.Title)
		}
		b.WriteString("\n" + t.Markdown())
	}
	if len(s.Bars) > 0 {
		t := Table{Columns: barColumns}
		for _, bar := range s.Bars {
			t.Add(bar.row()...)
		}
		b.WriteString("\n" + t.Markdown())
	}
	for _, n := range s.Notes {
		b.WriteString("\n" + n + "\n")
	}
	fmt.Fprintf(&b, "\nThis took %.0f s.\n", s.Took.Seconds())
	return b.String()
}

// Markdown pads the columns, so that a terminal shows a table, too.
func (t *Table) Markdown() string {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = max(3, utf8.RuneCountInString(c)) // so many dashes make a column
		for _, r := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell(r[i])))
		}
	}
	var b strings.Builder
	line := func(cells []string) {
		for i, c := range cells {
			c = cell(c)
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i > 0 {
				c, gap = gap+c, ""
			}
			b.WriteString("| " + c + gap + " ")
		}
		b.WriteString("|\n")
	}
	line(t.Columns)
	for i, w := range widths {
		if i == 0 {
			b.WriteString("| " + strings.Repeat("-", w) + " ")
		} else {
			b.WriteString("| " + strings.Repeat("-", w-1) + ": ")
		}
	}
	b.WriteString("|\n")
	for _, r := range t.Rows {
		line(r)
	}
	return b.String()
}

// cell keeps text from ending its cell or its row.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(text)
}

// Head is the begin of the document, with what is known before anything is
// measured.
func (r *Report) Head() string {
	return "# " + r.Title + "\n\n" + strings.Join(r.About, "\n") + "\n"
}

// Verdict is all bars in one table, the gates first; "" where there are none.
func (r *Report) Verdict() string {
	t := Table{Columns: barColumns}
	missed := 0
	for _, gates := range []bool{true, false} {
		for _, s := range r.Sections {
			for _, b := range s.Bars {
				if b.Gate != gates {
					continue
				}
				t.Add(b.row()...)
				if gates && !b.passed() {
					missed++
				}
			}
		}
	}
	if len(t.Rows) == 0 {
		return ""
	}
	return fmt.Sprintf("\n## All bars\n\nGates that are missed: %d.\n\n%s", missed, t.Markdown())
}

// Markdown is the document: the verdict stands before what it rests on.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString(r.Head() + r.Verdict())
	for _, s := range r.Sections {
		b.WriteString(s.Markdown())
	}
	b.WriteString("\n" + r.Notes)
	return b.String()
}
