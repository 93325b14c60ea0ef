package main

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/sentinelgo/sentinel/edge/internal/explain"
	"github.com/sentinelgo/sentinel/edge/internal/router"
)

func (c *cli) check(fs *flag.FlagSet, args []string) int {
	if _, code, ok := c.parse(fs, args, 0); !ok {
		return code
	}
	loaded, code := c.load()
	if loaded == nil {
		return code
	}
	if c.asJSON {
		return c.json(verdict{File: c.file, OK: true, Routes: len(loaded.Routes), Backends: len(loaded.Pools), Hash: loaded.Hash()})
	}
	_, err := fmt.Fprintf(c.out, "%s: fine, routes: %d, backends: %d\n", c.file, len(loaded.Routes), len(loaded.Pools))
	return c.wrote(err)
}

func (c *cli) config(fs *flag.FlagSet, args []string) int {
	if _, code, ok := c.parse(fs, args, 0); !ok {
		return code
	}
	loaded, code := c.load()
	if loaded == nil {
		return code
	}
	if c.asJSON {
		return c.wrote(loaded.WriteJSON(c.out))
	}
	return c.wrote(loaded.Write(c.out))
}

func (c *cli) routes(fs *flag.FlagSet, args []string) int {
	if _, code, ok := c.parse(fs, args, 0); !ok {
		return code
	}
	loaded, code := c.load()
	if loaded == nil {
		return code
	}
	r, _ := router.New(loaded.Patterns()) // its faults would have been the file's
	routes := explain.Routes(loaded, r)
	if c.asJSON {
		return c.json(routes)
	}
	return c.wrote(explain.WriteRoutes(c.out, routes))
}

func (c *cli) explain(fs *flag.FlagSet, args []string) int {
	q := explain.Question{Header: make(http.Header)}
	fs.Func("H", "the request has this `header`, as 'Name: value'; may be repeated", func(text string) error {
		name, value, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return errors.New("must be 'Name: value'")
		}
		q.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	})
	fs.Func("client", "the `address` at the other end of the connection", func(text string) (err error) {
		q.Peer, err = netip.ParseAddr(text)
		return err
	})
	rest, code, ok := c.parse(fs, args, 2)
	switch {
	case !ok:
		return code
	case len(rest) == 0:
		return c.misused(fs, errors.New("which URL?"))
	case len(rest) == 2:
		q.Method = rest[0]
	}
	q.URL = rest[len(rest)-1]
	loaded, code := c.load()
	if loaded == nil {
		return code
	}
	r, _ := router.New(loaded.Patterns()) // its faults would have been the file's
	answer := explain.Request(loaded, r, q, nil)
	if c.asJSON {
		return c.json(answer)
	}
	return c.wrote(answer.WriteText(c.out))
}

func (c *cli) version(fs *flag.FlagSet, args []string) int {
	if _, code, ok := c.parse(fs, args, 0); !ok {
		return code
	}
	b := buildOf()
	if c.asJSON {
		return c.json(b)
	}
	_, err := fmt.Fprintln(c.out, strings.TrimSpace("sentinel "+b.Version+" "+b.Revision), b.Go)
	return c.wrote(err)
}
