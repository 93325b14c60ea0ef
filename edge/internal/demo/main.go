// Command demo shows what the edge does about backends that are not well: it
// starts three of them and an edge as processes, sends traffic, breaks things,
// and prints what came of it. It exits 1 if that is not what is promised. With
// -soak it does all that at once, for a long time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
)

// scene is one thing that is shown.
type scene struct {
	title string
	play  func(*stage) (happened, promise string, held bool)
}

var scenes = []scene{
	{title: "three backends that are well", play: even},
	{title: "one answers 503 every other second", play: flapping},
	{title: "one is slow", play: slow},
	{title: "one is killed, and comes back", play: killed},
	{title: "the same, and requests may go to another", play: elsewhere},
	{title: "one client asks too often", play: flood},
	{title: "the file changes under load", play: reload},
	{title: "the edge is stopped under load", play: stopped},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	length := flag.Duration("soak", 0, "instead of the scenes, have an edge work for that `time` among faults, and look for what grows")
	flag.Parse()
	play := run
	if *length > 0 {
		play = func(ctx context.Context) (bool, error) { return runSoak(ctx, *length) }
	}
	held, err := play(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if !held {
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

func run(ctx context.Context) (bool, error) {
	s, err := setUp(ctx, configuration)
	if err != nil {
		return false, err
	}
	defer s.tearDown()
	if err := errors.Join(s.writeConfig(""), s.startEdge()); err != nil {
		return false, err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT IS WRONG\tWHAT CAME OF IT\tPROMISED\t")
	all := true
	for _, scene := range scenes {
		fmt.Fprintf(os.Stderr, "%s ...\n", scene.title)
		happened, promise, held := scene.play(s)
		if s.err != nil {
			return false, fmt.Errorf("%s: %w\n%s", scene.title, s.err, s.edge.said())
		}
		verdict := "held"
		if !held {
			verdict, all = "BROKEN", false
		}
		fmt.Fprintf(table, "%s\t%s\t%s: %s\t\n", scene.title, happened, promise, verdict)
	}
	if err := table.Flush(); err != nil {
		return false, err
	}
	if !all {
		fmt.Println("\n" + strings.TrimSpace("A promise is broken. What the edge said:\n"+s.edge.said()))
	}
	return all, nil
}
