// Command sentinelctl looks after the policy file of Sentinel and the buckets in
// its Redis.
//
//	sentinelctl check FILE       what is wrong or risky in it
//	sentinelctl explain FILE     which quota a tenant gets, in words, and why
//	sentinelctl simulate FILE    who would be denied when, by a log or a described traffic
//	sentinelctl peek FILE        one tenant's bucket
//	sentinelctl reset FILE       a fresh bucket for one tenant
//	sentinelctl doctor FILE      whether its Redis is fit, near enough and on time
//
// Each takes -json. docs/sentinelctl.md has examples, and what the exit codes
// mean. Nothing that it prints holds a secret of the file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The exit codes: the worst of what was found.
const (
	exitFine  = 0
	exitFound = 1 // a warning, or a denial
	exitUsage = 2 // bad arguments, or a file that cannot be read or is faulty
	exitRedis = 3 // Redis gives no answer, or decisions would not work on it
)

const exitCodes = `Exit codes: 0 fine; 1 a warning, or a denial; 2 bad arguments, or a file that
cannot be read or is faulty; 3 Redis gives no answer, or is not fit for use.
`

// command is one of the words after sentinelctl.
type command struct {
	name string
	args string // what it takes
	does string // in a line
	run  func(c *cli, fs *flag.FlagSet, args []string) int
}

// allCommands are in the order in which one needs them.
func allCommands() []command {
	return []command{
		{"check", "FILE [flags]", "what is wrong or risky in a policy file", (*cli).check},
		{"explain", "FILE -endpoint E [-tenant T | -token-claims JSON]", "which quota a tenant gets, in words, and why", (*cli).explain},
		{"simulate", "FILE [-log LOG | -rate N/s] [flags]", "who would be denied when, by a log or a described traffic", (*cli).simulate},
		{"peek", "FILE -endpoint E -tenant T", "a tenant's bucket in Redis, untouched", (*cli).peek},
		{"reset", "FILE -endpoint E -tenant T", "give a tenant a fresh bucket in Redis", (*cli).reset},
		{"doctor", "FILE [flags]", "whether the Redis of the file is fit, near enough and on time", (*cli).doctor},
	}
}

// cli is where a command reads and writes.
type cli struct {
	in       io.Reader
	out      io.Writer
	err      io.Writer
	terminal bool // in is one, so that somebody can be asked
	asJSON   bool
}

// silent keeps what go-redis would log by itself, addresses included, off the
// output.
type silent struct{}

// Printf implements what [redis.SetLogger] takes.
func (silent) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silent{})
	info, err := os.Stdin.Stat()
	c := &cli{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
	os.Exit(c.run(os.Args[1:]))
}

// run is main without the process.
func (c *cli) run(args []string) int {
	name, rest := "help", []string(nil)
	if len(args) > 0 {
		name, rest = args[0], args[1:]
	}
	switch name {
	case "help", "-h", "-help", "--help":
		if len(rest) > 0 && rest[0] != "help" {
			return c.run([]string{rest[0], "-h"})
		}
		c.overview(c.out)
		if len(args) == 0 {
			return exitUsage
		}
		return exitFine
	case "version", "-version", "--version":
		version := "unknown"
		if info, ok := debug.ReadBuildInfo(); ok {
			version = info.Main.Version
		}
		fmt.Fprintln(c.out, "sentinelctl", version)
		return exitFine
	}
	for _, cmd := range allCommands() {
		if cmd.name == name {
			fs := flag.NewFlagSet(name, flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			fs.BoolVar(&c.asJSON, "json", false, "print JSON")
			fs.Usage = func() {
				w := fs.Output()
				fmt.Fprintf(w, "sentinelctl %s %s\n  %s\n\nFlags:\n", cmd.name, cmd.args, cmd.does)
				fs.PrintDefaults()
				fmt.Fprint(w, "\n", exitCodes)
			}
			return cmd.run(c, fs, rest)
		}
	}
	fmt.Fprintf(c.err, "sentinelctl: there is no command %q\n\n", name)
	c.overview(c.err)
	return exitUsage
}

func (c *cli) overview(w io.Writer) {
	fmt.Fprint(w, "sentinelctl looks after the policy file of Sentinel and the buckets in its Redis.\n\n")
	for _, cmd := range allCommands() {
		fmt.Fprintf(w, "  sentinelctl %-9s FILE   %s\n", cmd.name, cmd.does)
	}
	fmt.Fprint(w, "\nsentinelctl help COMMAND has the flags. Each command takes -json.\n\n", exitCodes)
}

// parse reads flags before and behind the one argument, FILE. If it returns
// false the command ends with the code.
func (c *cli) parse(fs *flag.FlagSet, args []string) (file string, code int, ok bool) {
	var files []string
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(c.out)
			fs.Usage()
			return "", exitFine, false
		}
		if err != nil {
			return "", c.usage("%v; see sentinelctl help %s", err, fs.Name()), false
		}
		if args = fs.Args(); len(args) == 0 {
			break
		}
		files, args = append(files, args[0]), args[1:]
	}
	if len(files) != 1 {
		return "", c.usage("%s takes one FILE, not %d; see sentinelctl help %s", fs.Name(), len(files), fs.Name()), false
	}
	return files[0], exitFine, true
}

// usage says what is wrong with the arguments.
func (c *cli) usage(format string, args ...any) int {
	fmt.Fprintf(c.err, "sentinelctl: "+format+"\n", args...)
	return exitUsage
}

// json prints v as JSON.
func (c *cli) json(v any) {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // what is given is plain data
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ", ") }

// Set implements [flag.Value].
func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}
