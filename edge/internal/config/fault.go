package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a file. It holds nothing that came from
// the environment.
type Fault struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1; 0: the file as a whole
	Path string `json:"path"` // the field, as in routes[2].backend; "": the file as a whole
	Text string `json:"text"` // what is wrong, and what mends it
}

// Error is the fault on one line: file:line: path: text.
func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	if f.Path != "" {
		b.WriteString(": " + f.Path)
	}
	b.WriteString(": " + f.Text)
	return b.String()
}

// Faults is all that is wrong with a file, in the order of its lines. It is the
// error of [Load] and [Parse] for every file that could be read. Of more than
// 1000 the last one says how many there are.
type Faults []Fault

const mostFaults = 1000

// Error has a line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// sorted returns the faults in the order of lines, each once, and not too many.
// There are more that are not in f.
func (f Faults) sorted(more int) Faults {
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	f = slices.Compact(f)
	if len(f) <= mostFaults {
		return f
	}
	last := Fault{File: f[0].File, Line: f[mostFaults-1].Line, Text: fmt.Sprintf("and %d more faults", len(f)-mostFaults+1+more)}
	return append(f[:mostFaults-1], last)
}
