package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/explain"
	"github.com/sentinelgo/sentinel/edge/internal/node"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

func (c *cli) check(call *command.Call, args []string) int {
	call.Flags.BoolVar(&c.local, "local", false, "it is the file of a node with a control plane")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	loaded, code := c.load(call)
	if loaded == nil {
		return code
	}
	if err := node.CheckPolicies(loaded); err != nil {
		c.faulty(call, err)
		return command.Misused
	}
	if call.JSON {
		return call.Print(verdict{File: c.file, OK: true, Routes: len(loaded.Routes), Backends: len(loaded.Pools), Hash: loaded.Hash()})
	}
	_, err := fmt.Fprintf(call.Out, "%s: fine, routes: %d, backends: %d\n", c.file, len(loaded.Routes), len(loaded.Pools))
	return call.Wrote(err)
}

func (c *cli) config(call *command.Call, args []string) int {
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	loaded, code := c.load(call)
	if loaded == nil {
		return code
	}
	if call.JSON {
		return call.Wrote(loaded.WriteJSON(call.Out))
	}
	return call.Wrote(loaded.Write(call.Out))
}

func (c *cli) routes(call *command.Call, args []string) int {
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	loaded, code := c.load(call)
	if loaded == nil {
		return code
	}
	r, _ := router.New(loaded.Patterns()) // its faults would have been the file's
	routes := explain.Routes(loaded, r)
	if call.JSON {
		return call.Print(routes)
	}
	return call.Wrote(explain.WriteRoutes(call.Out, routes))
}

func (c *cli) explain(call *command.Call, args []string) int {
	q := explain.Question{Header: make(http.Header)}
	call.Flags.Func("H", "the request has this `header`, as 'Name: value'; may be repeated", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return errors.New("must be 'Name: value'")
		}
		q.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	call.Flags.Func("client", "the `address` at the other end of the connection", func(text string) (err error) {
		q.Peer, err = netip.ParseAddr(text)
		return err
	})
	rest, code, ok := call.Parse(args, 2)
	switch {
	case !ok:
		return code
	case len(rest) == 0:
		return call.Misuse(errors.New("which URL?"))
	case len(rest) == 2:
		q.Method = rest[0]
	}
	q.URL = rest[len(rest)-1]
	loaded, code := c.load(call)
	if loaded == nil {
		return code
	}
	r, _ := router.New(loaded.Patterns()) // its faults would have been the file's
	answer := explain.Request(loaded, r, q, nil)
	if call.JSON {
		return call.Print(answer)
	}
	return call.Wrote(answer.WriteText(call.Out))
}
