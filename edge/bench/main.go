package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

var experiments = []measure.Experiment[*lab]{
	{Name: "proxies", Run: measureProxies},
	{Name: "latency", Run: measureLatency},
	{Name: "slow", Run: measureSlow},
	{Name: "dead", Run: measureDead},
	{Name: "limited", Run: measureLimited},
	{Name: "swaps", Run: measureSwaps},
	{Name: "parts", Run: measureParts},
}

// lab is what every experiment works with.
type lab struct {
	measure.Plan // the cell is that of the first table; others have a part of it
	ctx          context.Context
	dir          string // of the configurations, for as long as the run lasts

	sentinel    string // the program; "": it is built
	pprof       string // where sentinel serves its profiles; "": nowhere
	stage       stage  // of sentinel
	contestants []*contestant
	absent      []string
}

func main() { measure.Main("edge/bench", be) }

// be is one of the processes, as the first word says.
func be(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) > 1 && args[0] == kindBackend:
		return serveBackend(args[1:])
	case len(args) == 3 && (args[0] == kindReverseProxy || args[0] == kindBare):
		return serveProxy(args[0], args[1], args[2])
	}
	return run(ctx, args, out)
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	l := &lab{ctx: ctx}
	flags := flag.NewFlagSet("edge/bench", flag.ContinueOnError)
	flags.StringVar(&l.sentinel, "sentinel", "", "the program to measure, instead of one that is built now")
	flags.StringVar(&l.pprof, "pprof", "", "where sentinel serves its profiles meanwhile")
	chosen, err := measure.Parse(&l.Plan, flags, args, experiments, 1800*time.Millisecond, 100*time.Millisecond)
	if err != nil {
		return err
	}
	if l.dir, err = os.MkdirTemp("", "edge-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(l.dir)) }()
	defer l.stopAll()
	if err := l.startAll(); err != nil {
		return err
	}
	return measure.RunAll(ctx, l, chosen, &measure.Report{Title: "The edge: benchmarks", About: aboutRun(l), Notes: notes}, out, l.File)
}
