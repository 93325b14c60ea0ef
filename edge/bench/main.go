package main

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

// experiment is one question, and how it is answered.
type experiment struct {
	name string
	run  func(*lab) ([]*section, error)
}

var experiments = []experiment{
	{"proxies", measureProxies},
	{"latency", measureLatency},
	{"slow", measureSlow},
	{"dead", measureDead},
	{"limited", measureLimited},
	{"swaps", measureSwaps},
	{"parts", measureParts},
}

// lab is what every experiment works with.
type lab struct {
	ctx    context.Context
	full   bool
	rounds int           // of each table
	cell   time.Duration // how long one contestant runs in one round of the first table
	dir    string        // of the configurations, for as long as the run lasts

	sentinel    string // the program; "": it is built
	pprof       string // where sentinel serves its profiles; "": nowhere
	stage       stage  // of sentinel
	contestants []*contestant
	absent      []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := be(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "edge/bench:", err)
		os.Exit(1)
	}
}

// be is one of the processes, as the first word says.
func be(ctx context.Context, args []string) error {
	switch {
	case len(args) > 1 && args[0] == kindBackend:
		return serveBackend(args[1:])
	case len(args) == 3 && (args[0] == kindReverseProxy || args[0] == kindBare):
		return serveProxy(args[0], args[1], args[2])
	}
	return run(ctx, args, os.Stdout)
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	l := &lab{ctx: ctx}
	flags := flag.NewFlagSet("edge/bench", flag.ContinueOnError)
	flags.BoolVar(&l.full, "full", false, "measure for real; without it, only look whether everything runs and is right")
	flags.IntVar(&l.rounds, "rounds", 0, "rounds of each table (default 5, or 2 without -full)")
	flags.DurationVar(&l.cell, "cell", 0, "time for one contestant in one round (default 1.8s, or 100ms without -full)")
	only := flags.String("only", "", "comma-separated experiments to run, of: "+strings.Join(experimentNames(), ", "))
	file := flags.String("o", "", "also write the report to this Markdown file")
	flags.StringVar(&l.sentinel, "sentinel", "", "the program to measure, instead of one that is built now")
	flags.StringVar(&l.pprof, "pprof", "", "where sentinel serves its profiles meanwhile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	l.defaults()
	if l.dir, err = os.MkdirTemp("", "edge-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.dir)) }()
	defer l.stopAll()
	if err := l.startAll(); err != nil {
		return err
	}
	return l.runAll(chosen, out, *file)
}

func (l *lab) defaults() {
	rounds, cell := 2, 100*time.Millisecond
	if l.full {
		rounds, cell = 5, 1800*time.Millisecond
	}
	if l.rounds < 1 {
		l.rounds = rounds
	}
	if l.cell <= 0 {
		l.cell = cell
	}
}

func (l *lab) runAll(chosen []experiment, out io.Writer, file string) error {
	rep := &report{about: aboutRun(l)}
	fmt.Fprint(out, rep.head())
	for _, e := range chosen {
		start := time.Now()
		sections, err := e.run(l)
		if err == nil {
			err = l.ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		for _, s := range sections {
			s.took = time.Since(start) / time.Duration(len(sections))
			fmt.Fprint(out, s.markdown())
		}
		rep.sections = append(rep.sections, sections...)
	}
	fmt.Fprint(out, rep.verdict())
	if file == "" {
		return nil
	}
	return os.WriteFile(file, []byte(rep.markdown()), 0o644) //nolint:gosec // a document for everybody to read
}

func experimentNames() []string {
	names := make([]string, len(experiments))
	for i, e := range experiments {
		names[i] = e.name
	}
	return names
}

func choose(only string) ([]experiment, error) {
	if only == "" {
		return experiments, nil
	}
	var chosen []experiment
	for name := range strings.SplitSeq(only, ",") {
		i := slices.Index(experimentNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("-only: no experiment %q; there are %s", name, strings.Join(experimentNames(), ", "))
		}
		chosen = append(chosen, experiments[i])
	}
	return chosen, nil
}
