// Command sentinel is the edge's data plane: a reverse proxy, and what one needs
// to know about its file before it runs.
//
//	sentinel run       serve traffic
//	sentinel check     all that is wrong with a file
//	sentinel config    the effective configuration, with every default
//	sentinel routes    the routes in the order of precedence
//	sentinel explain   where a request would go, and why
//	sentinel version   which build this is
//
// Each takes -config FILE and -json. Nothing that it prints holds what the file
// takes from the environment.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// The exit codes.
const (
	exitOK      = 0
	exitRuntime = 1
	exitConfig  = 2 // and bad arguments
)

const exitCodes = "Exit codes: 0 fine; 1 it failed while it ran; 2 a faulty file or bad arguments.\n"

// command is one of the words after sentinel.
type command struct {
	name string
	args string // what it takes besides -config and -json
	does string // in a line
	more string // for its help; may be ""
	run  func(c *cli, fs *flag.FlagSet, args []string) int
}

// commands are in the order in which one needs them.
func commands() []command {
	return []command{
		{
			"run", "", "serve traffic until SIGTERM",
			"SIGHUP reads the file again. The log and the access log are lines of JSON; a second SIGTERM ends it at once.\n", (*cli).serve,
		},
		{"check", "", "say all that is wrong with a file", "", (*cli).check},
		{
			"config", "", "print the effective configuration, with every default",
			"What comes from the environment is shown as ${NAME}. The output is a file that loads again.\n", (*cli).config,
		},
		{
			"routes", "", "list the routes in the order of precedence",
			"Of two routes that take the same path, the one that is chosen comes first.\n", (*cli).routes,
		},
		{
			"explain", "[METHOD] URL", "say where a request would go, and why",
			"The method is GET unless given. Example:\n\n  sentinel explain POST /users/7?x=1 -H 'X-Api-Key: k1' -client 192.0.2.7\n", (*cli).explain,
		},
		{"version", "", "say which build this is", "", (*cli).version},
	}
}

// cli is where a command writes, and what all commands take.
type cli struct {
	out, err io.Writer
	file     string
	asJSON   bool
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process.
func run(args []string, stdout, stderr io.Writer) int {
	c := &cli{out: stdout, err: stderr}
	if len(args) == 0 {
		overview(stderr)
		return exitConfig
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
			return run([]string{args[1], "-h"}, stdout, stderr)
		}
		overview(stdout)
		return exitOK
	case "-version", "--version":
		args[0] = "version"
	}
	for _, cmd := range commands() {
		if cmd.name == args[0] {
			return cmd.run(c, c.flags(cmd), args[1:])
		}
	}
	fmt.Fprintf(stderr, "sentinel: there is no command %q\n\n", args[0])
	overview(stderr)
	return exitConfig
}

func overview(w io.Writer) {
	fmt.Fprint(w, "sentinel is a reverse proxy.\n\n")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  sentinel %-9s %s\n", cmd.name, cmd.does)
	}
	fmt.Fprint(w, "\nsentinel help COMMAND has the flags. Each command takes -config FILE and -json.\n\n", exitCodes)
}

// flags is the command's flag set, with the flags that all have.
func (c *cli) flags(cmd command) *flag.FlagSet {
	fs := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // what is wrong is said by parse
	fs.StringVar(&c.file, "config", "edge.yaml", "read `FILE`")
	fs.BoolVar(&c.asJSON, "json", false, "print JSON")
	fs.Usage = func() {
		w := fs.Output()
		fmt.Fprintf(w, "sentinel %s [flags] %s\n  %s\n\nFlags:\n", cmd.name, cmd.args, cmd.does)
		fs.PrintDefaults()
		if cmd.more != "" {
			fmt.Fprint(w, "\n", cmd.more)
		}
		fmt.Fprint(w, "\n", exitCodes)
	}
	return fs
}

// parse reads flags before and behind up to most arguments. If it returns false
// the command ends with the code.
func (c *cli) parse(fs *flag.FlagSet, args []string, most int) (rest []string, code int, ok bool) {
	for {
		err := fs.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(c.out)
			fs.Usage()
			return nil, exitOK, false
		}
		if err != nil {
			return nil, c.misused(fs, err), false
		}
		if fs.NArg() == 0 {
			return rest, exitOK, true
		}
		if len(rest) == most {
			return nil, c.misused(fs, fmt.Errorf("%q is one argument too many", fs.Arg(0))), false
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

// misused says what is wrong with the arguments.
func (c *cli) misused(fs *flag.FlagSet, err error) int {
	fmt.Fprintf(c.err, "sentinel %s: %v; see sentinel help %s\n", fs.Name(), err, fs.Name())
	return exitConfig
}

// load reads the file. If it returns nil the command ends with the code.
func (c *cli) load() (*config.Config, int) {
	loaded, err := config.Load(c.file, nil)
	if err != nil {
		c.faulty(err)
		return nil, exitConfig
	}
	return loaded, exitOK
}

// faulty says what is wrong with the file.
func (c *cli) faulty(err error) {
	if !c.asJSON {
		fmt.Fprintln(c.err, err)
		return
	}
	var faults config.Faults
	if !errors.As(err, &faults) {
		faults = config.Faults{{File: c.file, Text: err.Error()}}
	}
	c.json(verdict{File: c.file, Faults: faults})
}

// verdict is what check says.
type verdict struct {
	File     string        `json:"file"`
	OK       bool          `json:"ok"`
	Routes   int           `json:"routes"`
	Backends int           `json:"backends"` // pools
	Hash     string        `json:"hash,omitempty"`
	Faults   config.Faults `json:"faults,omitempty"`
}

// json prints a value; it returns the exit code.
func (c *cli) json(v any) int {
	e := json.NewEncoder(c.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return c.wrote(e.Encode(v))
}

// wrote is the exit code of a command whose output is written.
func (c *cli) wrote(err error) int {
	if err != nil {
		fmt.Fprintf(c.err, "sentinel: %v\n", err)
		return exitRuntime
	}
	return exitOK
}
