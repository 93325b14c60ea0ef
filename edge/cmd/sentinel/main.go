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
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

const exitCodes = "Exit codes: 0 fine; 1 it failed while it ran; 2 a faulty file or bad arguments.\n"

// cli is what all commands take.
type cli struct {
	file  string
	local bool // the file has neither routes nor backends
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process.
func run(args []string, stdout, stderr io.Writer) int {
	c := &cli{}
	return command.Program{
		Name: "sentinel", Is: "is a reverse proxy.", Codes: exitCodes, Flags: "-config FILE and ", Commands: c.commands(),
		Declare: func(fs *flag.FlagSet) { fs.StringVar(&c.file, "config", defaultFile, "read `FILE`") },
	}.Run(args, stdout, stderr)
}

// commands are in the order in which one needs them.
func (c *cli) commands() []command.Command {
	return []command.Command{
		{
			Name: "run", Does: "serve traffic until SIGTERM", Run: c.serve,
			More: "SIGHUP reads the file again. With -control the file has what is this node's alone, and\nneither routes nor backends. The log and the access log are lines of JSON; a second SIGTERM ends it at once.\n",
		},
		{Name: "check", Does: "say all that is wrong with a file", Run: c.check},
		{
			Name: "config", Does: "print the effective configuration, with every default", Run: c.config,
			More: "What comes from the environment is shown as ${NAME}. The output is a file that loads again.\n",
		},
		{
			Name: "routes", Does: "list the routes in the order of precedence", Run: c.routes,
			More: "Of two routes that take the same path, the one that is chosen comes first.\n",
		},
		{
			Name: "explain", Args: "[METHOD] URL", Does: "say where a request would go, and why", Run: c.explain,
			More: "The method is GET unless given. Example:\n\n  sentinel explain POST /users/7?x=1 -H 'X-Api-Key: k1' -client 192.0.2.7\n",
		},
		command.Version(),
	}
}

// defaultFile is what is read without -config.
const defaultFile = "edge.yaml"

// load reads the file. If it returns nil the command ends with the code.
func (c *cli) load(call *command.Call) (*config.Config, int) {
	read := config.Load
	if c.local {
		read = config.LoadLocal
	}
	loaded, err := read(c.file, nil)
	if err != nil {
		c.faulty(call, err)
		return nil, command.Misused
	}
	return loaded, command.OK
}

// faulty says what is wrong with the file.
func (c *cli) faulty(call *command.Call, err error) {
	if errors.Is(err, fs.ErrNotExist) && c.file == defaultFile {
		err = fmt.Errorf("%w; name yours with -config FILE", err)
	}
	if !call.JSON {
		fmt.Fprintln(call.Err, err)
		return
	}
	var faults config.Faults
	if !errors.As(err, &faults) {
		faults = config.Faults{{File: c.file, Text: err.Error()}}
	}
	call.Print(verdict{File: c.file, Faults: faults})
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
