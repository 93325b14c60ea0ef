package explain

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteText writes the answer for people.
func (a Answer) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", a.Method, printable(a.Path))
	if a.Status != 0 {
		fmt.Fprintf(&b, "is answered %d %s: %s.\n", a.Status, a.Reason, a.Why)
	}
	if a.Allow != "" {
		fmt.Fprintf(&b, "Allow: %s\n", a.Allow)
	}
	a.writeRoute(&b)
	a.writePool(&b)
	if len(a.Closest) > 0 {
		b.WriteString("\nclosest:\n")
	}
	for _, n := range a.Closest {
		fmt.Fprintf(&b, "  %s %s (line %d): %s\n", methods(n.Methods), n.Path, n.Line, printable(n.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (a Answer) writeRoute(b *strings.Builder) {
	if a.Route == nil {
		return
	}
	r := a.Route
	fmt.Fprintf(b, "goes to %s %s (line %d, place %d): %s.\n", methods(r.Methods), r.Path, r.Line, r.Place, a.Why)
	for _, c := range a.Captures {
		fmt.Fprintf(b, "  %s = %s\n", c.Name, strconv.Quote(c.Value))
	}
	fmt.Fprintf(b, "  timeout %s, trailing slash %s, retries: %s\n", r.Timeout, r.TrailingSlash, r.Retry)
	if a.Limit == nil {
		b.WriteString("\nrate limit: none\n")
		return
	}
	fmt.Fprintf(b, "\nrate limit %s: %s, %s\n  counted for %s: %s\n", a.Limit.ID, a.Limit.Mode, a.Limit.Quota, printable(a.Limit.Key), a.Limit.Why)
}

func (a Answer) writePool(b *strings.Builder) {
	if a.Pool == nil {
		return
	}
	fmt.Fprintf(b, "\nbackend: %s, %s", a.Pool.Name, a.Pool.Balance)
	if a.Pool.Most > 0 {
		fmt.Fprintf(b, ", at most %d in flight on each", a.Pool.Most)
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, c := range a.Pool.Candidates {
		mark := " "
		if !c.Eligible {
			mark = "x"
		}
		fmt.Fprintf(t, "  %s %s\tweight %d\t%s\n", mark, c.URL, c.Weight, c.Why)
	}
	_ = t.Flush() // into memory
}

// WriteRoutes writes routes as a table.
func WriteRoutes(w io.Writer, routes []Route) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "PLACE\tMETHODS\tPATH\tBACKEND\tRATE LIMIT\tTIMEOUT\tSLASH\tRETRIES\tLINE\n")
	for _, r := range routes {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Place, methods(r.Methods), r.Path, r.Backend, r.Limit, r.Timeout, r.TrailingSlash, r.Retry, r.Line)
	}
	return t.Flush()
}

func methods(list []string) string {
	if len(list) == 0 {
		return "*"
	}
	return strings.Join(list, ",")
}

// printable keeps what a request has off the terminal's controls.
func printable(text string) string {
	quoted := strconv.Quote(text)
	if inner := quoted[1 : len(quoted)-1]; inner != text {
		return quoted
	}
	return text
}
