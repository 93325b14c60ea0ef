package sentinel

import "errors"

// Fault is one thing that is wrong with a configuration, or worth a warning,
// for a tool that shows where it is. It holds nothing secret.
type Fault struct {
	// Path is the field, as in policies["auth.login"].limit; "" is the whole
	// file.
	Path string
	// Line and Column are where that is written, or would have to be, counted
	// from 1, the column in characters. 0 where there is no file to point into: in
	// a Config built in code, and of a warning.
	Line, Column int
	// Text says what is wrong and what mends it.
	Text string
}

// String is the path and the text, as in the error of [LoadConfig].
func (f Fault) String() string { return fault{path: f.Path, text: f.Text}.Error() }

// Faults returns what the error of [LoadConfig], [ParseConfig] or
// [Config.Validate] is made of, in the order of the file. It is nil for an error
// that is about no field, such as that of a file that cannot be read.
func Faults(err error) []Fault {
	var syntax jsonError
	var one fault
	switch many, ok := err.(interface{ Unwrap() []error }); {
	case ok:
		var all []Fault
		for _, err := range many.Unwrap() {
			all = append(all, Faults(err)...)
		}
		return all
	case errors.As(err, &syntax):
		return []Fault{{Line: syntax.line, Column: syntax.column, Text: syntax.text}}
	case errors.As(err, &one):
		return []Fault{{Path: one.path, Line: one.line, Column: one.column, Text: one.text}}
	default:
		return nil
	}
}

// locate notes where in the file each fault is.
func locate(data []byte, faults []fault) {
	for i := range faults {
		faults[i].line, faults[i].column = lineAndColumn(data, faults[i].at)
	}
}
