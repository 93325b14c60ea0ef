package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

var experiments = []measure.Experiment[*lab]{
	{Name: "redis", Run: measureRedis},
	{Name: "denials", Run: measureDenials},
	{Name: "memory", Run: measureMemory},
	{Name: "breaker", Run: measureBreaker},
	{Name: "guard", Run: measureGuard},
	{Name: "allocations", Run: measureAllocations},
	{Name: "failures", Run: measureFailures},
	{Name: "latency", Run: measureLatency},
	{Name: "ancestor", Run: measureAncestor},
	{Name: "cluster", Run: measureCluster},
}

// lab is what every experiment works with.
type lab struct {
	measure.Plan
	ctx     context.Context
	profile string // where to write one of ours; "": none
	binary  string // redis-server
	redis   *server
}

func main() { measure.Main("bench", run) }

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	l := &lab{ctx: ctx}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&l.profile, "cpuprofile", "", "write a CPU profile of Sentinel at 64 goroutines, of the experiment redis, to this file")
	flags.StringVar(&l.binary, "redis-server", "redis-server", "the server to start")
	chosen, err := measure.Parse(&l.Plan, flags, args, experiments, time.Second, 40*time.Millisecond)
	if err != nil {
		return err
	}
	l.redis, err = startRedis(ctx, l.binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.redis.stop()) }()
	return measure.RunAll(ctx, l, chosen, &measure.Report{Title: "Benchmarks", About: aboutRun(l), Notes: notes}, out, l.File)
}

// pick is one of two sizes: that of the real measurement, or that of the look
// whether it works.
func pick[T any](l *lab, full, short T) T {
	if l.Full {
		return full
	}
	return short
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
