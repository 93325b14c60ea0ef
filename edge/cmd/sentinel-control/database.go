package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

func (c *cli) backup(call *command.Call, args []string) int {
	db := call.Flags.String("db", "control.db", "the database is `FILE`")
	rest, code, ok := call.Parse(args, 1)
	switch {
	case !ok:
		return code
	case len(rest) == 0:
		return call.Misuse(errors.New("to which file?"))
	}
	s, err := store.Open(context.Background(), *db, store.Options{Existing: true})
	if err != nil {
		return unusable(call, *db, err)
	}
	defer func() { _ = s.Close() }() // what was written is on the disk
	if err := s.Backup(context.Background(), rest[0]); err != nil {
		return c.failed(call, "", err)
	}
	newest, err := s.Newest(context.Background())
	if err != nil {
		return unusable(call, *db, err)
	}
	if call.JSON {
		return call.Print(map[string]any{"file": rest[0], "version": newest})
	}
	_, err = fmt.Fprintf(call.Out, "%s has everything up to version %d\n", rest[0], newest)
	return call.Wrote(err)
}

func (c *cli) check(call *command.Call, args []string) int {
	db := call.Flags.String("db", "control.db", "the database is `FILE`")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	s, err := store.Open(context.Background(), *db, store.Options{Existing: true}) // which reads all of it
	if err != nil {
		return unusable(call, *db, err)
	}
	defer func() { _ = s.Close() }() // what was written is on the disk
	newest, err := s.Newest(context.Background())
	if err != nil {
		return unusable(call, *db, err)
	}
	if call.JSON {
		return call.Print(map[string]any{"db": *db, "ok": true, "version": newest, "epoch": s.Epoch()})
	}
	_, err = fmt.Fprintf(call.Out, "%s: whole, newest version: %d\n", *db, newest)
	return call.Wrote(err)
}
