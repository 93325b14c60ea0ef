// Command proof runs the promises of Sentinel against real servers that fail,
// against crowds, broken clocks and attackers, and writes down what was tried,
// how often, and what was held. It exits 1 where a promise is broken.
//
//	go run ./integration/proof                  everything, as make proof does
//	go run ./integration/proof -short           a look whether all holds, for CI
//	go run ./integration/proof -only faults     one section
//
// It needs a redis-server on the PATH; the faults of the network need root.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

// chapter is one part of the proof. It returns an error only where it could not
// be carried out; a broken promise is a promise that was not held.
type chapter struct {
	name string
	run  func(context.Context, *lab) (*section, error)
}

var chapters = []chapter{
	{"faults", proveFaults},
}

// apart are chapters that are run only where they are named: they have a
// document of their own.
var apart = []string{"sizing"}

// long are chapters that the short form is without, unless they are named.
var long = []string{"topology"}

// lab is what every chapter works with.
type lab struct {
	short  bool
	budget time.Duration  // redis_budget_ms, where faults are met
	match  *regexp.Regexp // of the faults to meet; nil: all, of the short form the core
	log    io.Writer      // what goes on, for whoever waits
}

// pick is one of two sizes: that of the real proof, or that of the look whether
// all holds.
func pick[T any](l *lab, full, short T) T {
	if l.short {
		return short
	}
	return full
}

// logf tells whoever waits what goes on.
func (l *lab) logf(format string, args ...any) {
	fmt.Fprintf(l.log, "proof: "+format+"\n", args...)
}

func main() {
	if role := os.Getenv(workerEnv); role != "" {
		serveWorker(role)
		return
	}
	measure.Main("proof", run)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	l := &lab{log: os.Stderr}
	flags := flag.NewFlagSet("proof", flag.ContinueOnError)
	flags.BoolVar(&l.short, "short", false, "fewer tries of everything")
	only := flags.String("only", "", "comma-separated chapters to run, of: "+measure.Names(chapters, nameOf))
	match := flags.String("faults", "", "meet only the faults whose names match this regular expression")
	file := flags.String("o", "", "also write the report to this Markdown file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only, l.short)
	if err != nil {
		return err
	}
	if *match != "" {
		if l.match, err = regexp.Compile(*match); err != nil {
			return fmt.Errorf("-faults: %w", err)
		}
	}
	// The short form is for machines that do other things besides: there a check
	// has the time that scheduling may take.
	l.budget = pick(l, 20*time.Millisecond, 100*time.Millisecond)
	// Faults need a server that is a process of this machine: it is stopped, cut
	// off and given files.
	if err := os.Setenv("SENTINEL_TEST_REDIS", "process"); err != nil {
		return err
	}
	rep := &report{about: aboutRun(ctx, l)}
	fmt.Fprint(out, rep.head())
	rep.runAll(ctx, l, chosen, out)
	if err := ctx.Err(); err != nil {
		return err
	}
	fmt.Fprint(out, rep.verdict())
	if *file != "" {
		if err := os.WriteFile(*file, []byte(rep.markdown()), 0o644); err != nil {
			return err
		}
	}
	if broken := rep.broken(); broken > 0 {
		return fmt.Errorf("%s broken", plural(broken, "promise is", "promises are"))
	}
	return nil
}

// runAll runs one chapter after the other, until ctx ends. One that cannot be
// carried out has broken a promise, and does not keep the others from being run.
func (r *report) runAll(ctx context.Context, l *lab, chosen []chapter, out io.Writer) {
	for _, c := range chosen {
		start := time.Now()
		s, err := c.run(ctx, l)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.logf("%s: %v", c.name, err)
			s = &section{title: c.name, about: "This chapter came to no end."}
			s.promise(promise{text: "It can be carried out", tries: 1, measured: err.Error(), broken: []string{err.Error()}})
		}
		s.took = time.Since(start)
		r.sections = append(r.sections, s)
		fmt.Fprint(out, s.markdown())
	}
}

func nameOf(c chapter) string { return c.name }

func choose(only string, short bool) ([]chapter, error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(chapters), func(c chapter) bool {
			return slices.Contains(apart, c.name) || short && slices.Contains(long, c.name)
		}), nil
	}
	return measure.Choose("chapter", only, chapters, nameOf)
}
