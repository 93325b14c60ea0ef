package measure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Main runs a program until it ends or is told to. Its errors are printed behind
// its name, and end the process with 1.
func Main(name string, run func(ctx context.Context, args []string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Experiment is one bar, or another question, and how it is answered in a lab.
type Experiment[Lab any] struct {
	Name string
	Run  func(Lab) (*Section, error)
}

// Plan is how much is measured, as the command line says.
type Plan struct {
	Full   bool          // for real; else it is only looked whether everything runs and is right
	Rounds int           // of each table
	Cell   time.Duration // how long one contestant runs in one round
	File   string        // where to write the report, too; "": nowhere
}

// Parse reads the command line into p and the variables of flags, and returns those
// of all experiments that are to be run. full and short are what a cell lasts unless
// it is said.
func Parse[Lab any](p *Plan, flags *flag.FlagSet, args []string, all []Experiment[Lab], full, short time.Duration) ([]Experiment[Lab], error) {
	name := func(e Experiment[Lab]) string { return e.Name }
	flags.BoolVar(&p.Full, "full", false, "measure for real; without it, only look whether everything runs and is right")
	flags.IntVar(&p.Rounds, "rounds", 0, "rounds of each table (default 5, or 2 without -full)")
	flags.DurationVar(&p.Cell, "cell", 0, fmt.Sprintf("time for one contestant in one round (default %v, or %v without -full)", full, short))
	flags.StringVar(&p.File, "o", "", "also write the report to this Markdown file")
	only := flags.String("only", "", "comma-separated experiments to run, of: "+Names(all, name))
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	rounds, cell := 2, short
	if p.Full {
		rounds, cell = 5, full
	}
	if p.Rounds < 1 {
		p.Rounds = rounds
	}
	if p.Cell <= 0 {
		p.Cell = cell
	}
	if *only == "" {
		return all, nil
	}
	return Choose("experiment", *only, all, name)
}

// Choose returns those of all that are named in only, between commas, in that
// order. kind is what they are.
func Choose[T any](kind, only string, all []T, name func(T) string) ([]T, error) {
	var chosen []T
	for wanted := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(v T) bool { return name(v) == wanted })
		if i < 0 {
			return nil, fmt.Errorf("-only: no %s %q; there are %s", kind, wanted, Names(all, name))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// Names is what all of them are called, with commas between.
func Names[T any](all []T, name func(T) string) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = name(v)
	}
	return strings.Join(texts, ", ")
}

// RunAll runs one experiment after the other, prints what each has found as soon as
// it has, and writes the report to the file, if there is to be one. It stops at the
// first error, and where ctx ends.
func RunAll[Lab any](ctx context.Context, lab Lab, chosen []Experiment[Lab], rep *Report, out io.Writer, file string) error {
	fmt.Fprint(out, rep.Head())
	for _, e := range chosen {
		start := time.Now()
		s, err := e.Run(lab)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		s.Took = time.Since(start)
		rep.Sections = append(rep.Sections, s)
		fmt.Fprint(out, s.Markdown())
	}
	fmt.Fprint(out, rep.Verdict())
	if file == "" {
		return nil
	}
	return os.WriteFile(file, []byte(rep.Markdown()), 0o644) //nolint:gosec // a document for everybody to read
}
