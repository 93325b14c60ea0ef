package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// report is the whole run, as it is printed and as it is written to the
// document.
type report struct {
	about    []string
	sections []*section
}

// section is what one chapter has found.
type section struct {
	title    string
	about    string
	tables   []*table
	promises []promise
	notes    []string
	took     time.Duration
}

// promise is one thing that Sentinel says of itself, and what came of it. The
// zero promise is broken: one that was never tried was not held.
type promise struct {
	text     string
	tries    int
	held     bool
	measured string   // the figure, or what broke it
	broken   []string // where it was broken, in more words
	unjudged []string // where it may have been broken, by a machine that was late
	passed   []string // where it was broken, and not when the same was met again
}

// holds reports whether p was tried and held.
func (p promise) holds() bool { return p.held && p.tries > 0 }

// breaks reports whether p was broken, or not even tried. One of which nothing
// can be said, for the machine was late each time, is neither held nor broken.
func (p promise) breaks() bool { return !p.holds() && (p.tries > 0 || len(p.unjudged) == 0) }

func (p promise) verdict() string {
	switch {
	case !p.held && p.tries > 0:
		return "BROKEN"
	case p.tries == 0 && len(p.unjudged) > 0:
		return "NOT JUDGED: machine late"
	case p.tries == 0:
		return "NOT TRIED"
	case len(p.unjudged) > 0:
		return "held, but for " + fmt.Sprint(len(p.unjudged)) + " not judged: machine late"
	case len(p.passed) > 0:
		return "held, at " + fmt.Sprint(len(p.passed)) + " when met again"
	default:
		return "held"
	}
}

func (p promise) row() []string {
	return []string{p.text, fmt.Sprint(p.tries), p.verdict(), p.measured}
}

var promiseColumns = []string{"promise", "tries", "verdict", "measured"}

// table is a measure.Table that a chapter fills.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) measured() *measure.Table {
	return &measure.Table{Title: t.title, Columns: t.columns, Rows: t.rows}
}

// promise adds what came of one promise.
func (s *section) promise(p promise) { s.promises = append(s.promises, p) }

// markdown has the promises behind the tables.
func (s *section) markdown() string {
	m := measure.Section{Title: s.title, About: s.about, Notes: s.notes, Took: s.took}
	for _, t := range s.tables {
		m.Tables = append(m.Tables, t.measured())
	}
	if len(s.promises) > 0 {
		t := &measure.Table{Columns: promiseColumns}
		for _, p := range s.promises {
			t.Add(p.row()...)
		}
		m.Tables = append(m.Tables, t)
	}
	return m.Markdown()
}

func (r *report) head() string {
	return "# Proof\n\n" + strings.Join(r.about, "\n") + "\n"
}

func (r *report) broken() int {
	broken := 0
	for _, s := range r.sections {
		for _, p := range s.promises {
			if p.breaks() {
				broken++
			}
		}
	}
	return broken
}

// verdict is the number of promises in each section, and those that broke.
func (r *report) verdict() string {
	sum := measure.Table{Columns: []string{"section", "promises", "held", "tries"}}
	var broken, unjudged, passed strings.Builder
	for _, s := range r.sections {
		held, tries := 0, 0
		for _, p := range s.promises {
			tries += p.tries
			if p.holds() {
				held++
			}
			if p.breaks() {
				p.list(&broken, s.title, p.broken)
			}
			if len(p.unjudged) > 0 {
				p.list(&unjudged, s.title, p.unjudged)
			}
			if len(p.passed) > 0 {
				p.list(&passed, s.title, p.passed)
			}
		}
		sum.Add(s.title, fmt.Sprint(len(s.promises)), fmt.Sprint(held), fmt.Sprint(tries))
	}
	text := "\n## Verdict\n\n" + sum.Markdown()
	if broken.Len() == 0 && unjudged.Len() == 0 && passed.Len() == 0 {
		return text + "\nAll promises were held.\n"
	}
	if broken.Len() == 0 {
		text += "\nNo promise was broken.\n"
	} else {
		text += "\nBroken:\n" + broken.String() + "\n"
	}
	if unjudged.Len() > 0 {
		text += "\nNot judged, for the machine was late each time that it was tried:\n" + unjudged.String() + "\n"
	}
	if passed.Len() > 0 {
		text += "\nBroken, and not when the same was met again, so that the machine may have done it:\n" + passed.String() + "\n"
	}
	return text
}

// list writes a promise, and where something came of it.
func (p promise) list(b *strings.Builder, title string, where []string) {
	const most = 20
	fmt.Fprintf(b, "\n- %s: %s. %s", title, p.text, p.verdict())
	for _, at := range where[:min(most, len(where))] {
		b.WriteString("\n  - " + strings.ReplaceAll(at, "\n", " "))
	}
	if more := len(where) - most; more > 0 {
		fmt.Fprintf(b, "\n  - and %d more", more)
	}
}

// markdown is the document: the verdict stands before what it rests on.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString(r.head() + r.verdict())
	for _, s := range r.sections {
		b.WriteString(s.markdown())
	}
	return b.String()
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// millis is d as a cell.
func millis(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }
