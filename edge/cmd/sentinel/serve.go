package main

import (
	"context"
	"flag"

	"github.com/sentinelgo/sentinel/edge/internal/node"
)

// serve runs the data plane until a signal ends it.
func (c *cli) serve(fs *flag.FlagSet, args []string) int {
	var o node.Options
	fs.StringVar(&o.Pprof, "pprof", "", "serve profiles on `ADDRESS`, as 127.0.0.1:6060")
	fs.BoolVar(&o.PprofRemote, "pprof-allow-remote", false, "let -pprof be another address than loopback")
	if _, code, ok := c.parse(fs, args, 0); !ok {
		return code
	}
	o.Config, o.Version, o.Stdout, o.Stderr = c.file, buildOf().Version, c.out, c.err
	return node.Run(context.Background(), o)
}
