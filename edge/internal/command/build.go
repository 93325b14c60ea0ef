package command

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Build is which build a program is.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// BuildOf is the one of this process.
func BuildOf() Build {
	b := Build{Version: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version, b.Go = info.Main.Version, info.GoVersion
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// Version is the command that every program has.
func Version() Command {
	return Command{"version", "", "say which build this is", "", func(c *Call, args []string) int {
		if _, code, ok := c.Parse(args, 0); !ok {
			return code
		}
		b := BuildOf()
		if c.JSON {
			return c.Print(b)
		}
		_, err := fmt.Fprintln(c.Out, strings.TrimSpace(c.program+" "+b.Version+" "+b.Revision), b.Go)
		return c.Wrote(err)
	}}
}
