package main

import (
	"context"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/node"
)

// serve runs the data plane until a signal ends it.
func (c *cli) serve(call *command.Call, args []string) int {
	var o node.Options
	call.Flags.StringVar(&o.Pprof, "pprof", "", "serve profiles on `ADDRESS`, as 127.0.0.1:6060")
	call.Flags.BoolVar(&o.PprofRemote, "pprof-allow-remote", false, "let -pprof be another address than loopback")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	o.Config, o.Version, o.Stdout, o.Stderr = c.file, command.BuildOf().Version, call.Out, call.Err
	return node.Run(context.Background(), o)
}
