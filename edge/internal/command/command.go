// Package command is what the edge's programs have in common: words after the
// program's name, each with flags of its own, help, and -json.
package command

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// The exit codes. A program may have more.
const (
	OK      = 0
	Failed  = 1
	Misused = 2 // a faulty file, or bad arguments
)

// Program is one binary.
type Program struct {
	Name     string
	Is       string // what it is, in a sentence
	Codes    string // what its exit codes mean, in a line
	Flags    string // which flags every command takes besides -json
	Commands []Command
	// Declare adds those flags; nil: none.
	Declare func(*flag.FlagSet)
}

// Command is one of the words after the program's name.
type Command struct {
	Name string
	Args string // what it takes besides flags
	Does string // in a line
	More string // for its help; may be ""
	Run  func(c *Call, args []string) int
}

// Call is one command that is run.
type Call struct {
	Out, Err io.Writer
	Flags    *flag.FlagSet
	JSON     bool // after Parse

	program string
}

// Run runs a command line, without the program's name, and returns the exit code.
func (p Program) Run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		p.overview(stderr)
		return Misused
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
			return p.Run([]string{args[1], "-h"}, stdout, stderr)
		}
		p.overview(stdout)
		return OK
	case "-version", "--version":
		name = "version"
	}
	for _, cmd := range p.Commands {
		if cmd.Name == name {
			return cmd.Run(p.call(cmd, stdout, stderr), args[1:])
		}
	}
	fmt.Fprintf(stderr, "%s: there is no command %q\n\n", p.Name, name)
	p.overview(stderr)
	return Misused
}

func (p Program) overview(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n\n", p.Name, p.Is)
	for _, cmd := range p.Commands {
		fmt.Fprintf(w, "  %s %-9s %s\n", p.Name, cmd.Name, cmd.Does)
	}
	fmt.Fprintf(w, "\n%s help COMMAND has the flags. Each command takes %s-json.\n\n%s", p.Name, p.Flags, p.Codes)
}

// call is a command with its flag set and the flags that all have.
func (p Program) call(cmd Command, stdout, stderr io.Writer) *Call {
	fs := flag.NewFlagSet(cmd.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // what is wrong is said by Parse
	c := &Call{Out: stdout, Err: stderr, Flags: fs, program: p.Name}
	if p.Declare != nil {
		p.Declare(fs)
	}
	fs.BoolVar(&c.JSON, "json", false, "print JSON")
	fs.Usage = func() {
		w := fs.Output()
		fmt.Fprintf(w, "%s %s [flags] %s\n  %s\n\nFlags:\n", p.Name, cmd.Name, cmd.Args, cmd.Does)
		fs.PrintDefaults()
		if cmd.More != "" {
			fmt.Fprint(w, "\n", cmd.More)
		}
		fmt.Fprint(w, "\n", p.Codes)
	}
	return c
}

// Parse reads flags before and behind up to most arguments. If it returns false
// the command ends with the code.
func (c *Call) Parse(args []string, most int) (rest []string, code int, ok bool) {
	for {
		err := c.Flags.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			c.Flags.SetOutput(c.Out)
			c.Flags.Usage()
			return nil, OK, false
		}
		if err != nil {
			return nil, c.Misuse(err), false
		}
		if c.Flags.NArg() == 0 {
			return rest, OK, true
		}
		if len(rest) == most {
			return nil, c.Misuse(fmt.Errorf("%q is one argument too many%s", c.Flags.Arg(0), c.fileFlag(most))), false
		}
		rest = append(rest, c.Flags.Arg(0))
		args = c.Flags.Args()[1:]
	}
}

// fileFlag reminds who wrote a file's name alone of its flag.
func (c *Call) fileFlag(most int) string {
	if most > 0 || c.Flags.Lookup("config") == nil {
		return ""
	}
	return "; a file is named by -config FILE"
}

// Misuse says what is wrong with the arguments.
func (c *Call) Misuse(err error) int {
	fmt.Fprintf(c.Err, "%s %s: %v; see %s help %s\n", c.program, c.Flags.Name(), err, c.program, c.Flags.Name())
	return Misused
}

// Print prints a value as JSON; it returns the exit code.
func (c *Call) Print(v any) int {
	e := json.NewEncoder(c.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return c.Wrote(e.Encode(v))
}

// Wrote is the exit code of a command whose output is written.
func (c *Call) Wrote(err error) int {
	if err != nil {
		fmt.Fprintf(c.Err, "%s: %v\n", c.program, err)
		return Failed
	}
	return OK
}
