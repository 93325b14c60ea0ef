package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/control/follow"
	"github.com/sentinelgo/sentinel/edge/internal/node"
	"github.com/sentinelgo/sentinel/edge/internal/operator"
)

// serve runs the data plane until a signal ends it.
func (c *cli) serve(call *command.Call, args []string) int {
	var o node.Options
	var f follow.Options
	plain := false
	call.Flags.StringVar(&o.Pprof, "pprof", "", "serve profiles on `ADDRESS`, as 127.0.0.1:6060")
	call.Flags.BoolVar(&o.PprofRemote, "pprof-allow-remote", false, "let -pprof be another address than loopback")
	call.Flags.StringVar(&f.Address, "control", "", "have routes and backends from the control plane at `ADDRESS`, as 10.0.0.2:9903")
	call.Flags.StringVar(&f.Node, "node", hostname(), "be known there by `NAME`")
	call.Flags.StringVar(&f.Dir, "state", "", "keep the last good version in `DIRECTORY`, to start with when the control plane is away; off: keep none")
	call.Flags.DurationVar(&f.Spread, "reconnect", follow.DefaultSpread, "when the control plane is lost, try to come back after any part of this `TIME`, and then less often")
	call.Flags.StringVar(&f.TLS.CA, "control-ca", "", "the control plane's certificate is of the authority in `FILE`")
	call.Flags.StringVar(&f.TLS.Cert, "control-cert", "", "show it the certificate in `FILE`")
	call.Flags.StringVar(&f.TLS.Key, "control-key", "", "whose key is in `FILE`")
	call.Flags.BoolVar(&plain, "control-plain", false, "let -control be another address than loopback without certificates")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	o.File, o.Version, o.Stdout, o.Stderr = c.file, command.BuildOf().Version, call.Out, call.Err
	if f.Address != "" {
		if err := usable(f, plain); err != nil {
			return call.Misuse(err)
		}
		if f.Dir == keepNone {
			f.Dir = ""
		}
		f.Build, f.Logger = o.Version, slog.New(slog.NewJSONHandler(call.Err, nil))
		o.Feed = follow.New(f)
	}
	c.local = f.Address != ""
	loaded, code := c.load(call)
	if loaded == nil {
		return code
	}
	command.Settle(call.Err)
	slack := make([]byte, slackBytes)
	defer runtime.KeepAlive(slack)
	return node.Run(context.Background(), loaded, o)
}

// slackBytes are never touched, so they take no memory. But they count as what is in use:
// the heap may grow to twice its size before it is collected. What a data plane has
// in use is a few megabytes, and it would be collected dozens of times a second.
const slackBytes = 32 << 20

// keepNone is -state of who needs no start without the control plane.
const keepNone = "off"

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unnamed"
	}
	return name
}

// usable says what is wrong with the flags of a control plane.
func usable(f follow.Options, plain bool) error {
	if _, _, err := net.SplitHostPort(f.Address); err != nil {
		return fmt.Errorf("-control %s: must be host:port", f.Address)
	}
	if f.Node == "" || len(f.Node) > 100 || strings.ContainsFunc(f.Node, func(c rune) bool { return !unicode.IsPrint(c) || c == unicode.ReplacementChar }) {
		return fmt.Errorf("-node %.100q: must be a name of at most 100 bytes, by which people know this node", f.Node)
	}
	if f.Spread < time.Millisecond || f.Spread > follow.MostSpread {
		return fmt.Errorf("-reconnect %s: must be from 1ms to %s", f.Spread, follow.MostSpread)
	}
	if err := keeps(f.Dir); err != nil {
		return err
	}
	if !f.TLS.None() {
		if err := f.TLS.Check(); err != nil {
			return fmt.Errorf("-control-ca, -control-cert and -control-key: %w", err)
		}
		return nil
	}
	if !operator.Loopback(f.Address) && !plain {
		return fmt.Errorf("-control %s is no loopback address, and without certificates anybody in between decides where traffic goes: give -control-ca, -control-cert and -control-key, or say -control-plain", f.Address)
	}
	return nil
}

// keeps says what is wrong with -state. It has no default: two nodes of one machine would
// share it.
func keeps(dir string) error {
	switch dir {
	case "":
		return errors.New("-control needs -state DIRECTORY, where the last good version is kept: without it a start while the control plane is away serves nothing; -state off has it so")
	case keepNone:
		return nil
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("-state: %w; make the directory, for this node alone", err)
	case !info.IsDir():
		return fmt.Errorf("-state %s: is no directory", dir)
	}
	return nil
}
