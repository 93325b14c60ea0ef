package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// experiment is one bar, or another question, and how it is answered.
type experiment struct {
	name string
	run  func(*lab) (*section, error)
}

var experiments = []experiment{
	{"redis", measureRedis},
	{"denials", measureDenials},
	{"memory", measureMemory},
	{"breaker", measureBreaker},
	{"guard", measureGuard},
	{"allocations", measureAllocations},
	{"failures", measureFailures},
	{"latency", measureLatency},
	{"ancestor", measureAncestor},
	{"cluster", measureCluster},
}

// lab is what every experiment works with.
type lab struct {
	ctx     context.Context
	full    bool
	rounds  int           // of each table
	cell    time.Duration // how long one contestant runs in one round
	profile string        // where to write one of ours; "": none
	binary  string        // redis-server
	redis   *server
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	l := &lab{ctx: ctx}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.BoolVar(&l.full, "full", false, "measure for real; without it, only look whether everything runs and is right")
	flags.IntVar(&l.rounds, "rounds", 0, "rounds of each table (default 5, or 2 without -full)")
	flags.DurationVar(&l.cell, "cell", 0, "time for one contestant in one round (default 1s, or 40ms without -full)")
	only := flags.String("only", "", "comma-separated experiments to run, of: "+strings.Join(experimentNames(), ", "))
	file := flags.String("o", "", "also write the report to this Markdown file")
	flags.StringVar(&l.profile, "cpuprofile", "", "write a CPU profile of Sentinel at 64 goroutines, of the experiment redis, to this file")
	binary := flags.String("redis-server", "redis-server", "the server to start")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	l.defaults()
	l.binary = *binary

	l.redis, err = startRedis(ctx, *binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.redis.stop()) }()
	return l.runAll(chosen, out, *file)
}

func (l *lab) defaults() {
	rounds, cell := 2, 40*time.Millisecond
	if l.full {
		rounds, cell = 5, time.Second
	}
	if l.rounds < 1 {
		l.rounds = rounds
	}
	if l.cell <= 0 {
		l.cell = cell
	}
}

// pick is one of two sizes: that of the real measurement, or that of the look
// whether it works.
func pick[T any](l *lab, full, short T) T {
	if l.full {
		return full
	}
	return short
}

func (l *lab) runAll(chosen []experiment, out io.Writer, file string) error {
	rep := &report{about: aboutRun(l)}
	fmt.Fprint(out, rep.head())
	for _, e := range chosen {
		start := time.Now()
		s, err := e.run(l)
		if err == nil {
			err = l.ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		s.took = time.Since(start)
		rep.sections = append(rep.sections, s)
		fmt.Fprint(out, s.markdown())
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

// profiled runs f under the CPU profiler.
func profiled(file string, f func() error) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}
