package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sentinelgo/sentinel/edge/internal/command"
	"github.com/sentinelgo/sentinel/edge/internal/control"
	"github.com/sentinelgo/sentinel/edge/internal/control/mtls"
	"github.com/sentinelgo/sentinel/edge/internal/operator"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// serving is what serve takes.
type serving struct {
	db          string
	nodes       string
	tls         mtls.Files
	plain       bool
	adminRemote bool
	adminHosts  []string
	store       store.Options
}

func (c *cli) serve(call *command.Call, args []string) int {
	var o serving
	fs := call.Flags
	fs.StringVar(&o.db, "db", "control.db", "keep versions in `FILE`")
	fs.StringVar(&o.nodes, "listen", "127.0.0.1:9903", "serve nodes on `ADDRESS`")
	fs.StringVar(&o.tls.CA, "tls-ca", "", "nodes have certificates of the authority in `FILE`")
	fs.StringVar(&o.tls.Cert, "tls-cert", "", "show them the certificate in `FILE`")
	fs.StringVar(&o.tls.Key, "tls-key", "", "whose key is in `FILE`")
	fs.BoolVar(&o.plain, "plain", false, "let -listen be another address than loopback without certificates")
	fs.BoolVar(&o.adminRemote, "admin-allow-remote", false, "let -admin be another address than loopback")
	fs.Func("admin-host", "-admin may be asked for by `NAME`, too, and not only as localhost or by an address; may be repeated", func(name string) error {
		if name == "" || strings.ContainsAny(name, ":/ ") {
			return errors.New("must be a host's name, without a port; addresses may always be used")
		}
		o.adminHosts = append(o.adminHosts, name)
		return nil
	})
	fs.Int64Var(&o.store.Keep, "keep", 10_000, "keep the last `N` versions; 0: all")
	fs.BoolVar(&o.store.NewEpoch, "new-epoch", false, "have nodes take the versions of a database from an earlier day, although they have seen later ones")
	if _, code, ok := call.Parse(args, 0); !ok {
		return code
	}
	token, err := c.token()
	if err := errors.Join(err, o.check(c.admin), strong(token)); err != nil {
		return call.Misuse(err)
	}
	command.Settle(call.Err)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewJSONHandler(call.Err, nil))
	s, err := store.Open(ctx, o.db, o.store)
	if err != nil {
		return unusable(call, o.db, err)
	}
	defer func() { _ = s.Close() }() // what was written is on the disk
	server, err := control.New(ctx, control.Options{Store: s, Logger: log, Token: token, Build: command.BuildOf().Version, Hosts: operator.Hosts(c.admin, o.adminHosts...)})
	if err != nil {
		return unusable(call, o.db, err)
	}
	if err := o.run(ctx, server, c.admin, log); err != nil {
		log.Error("the control plane ends", "error", err.Error())
		return command.Failed
	}
	log.Info("stopped")
	return command.OK
}

// run listens, and serves until ctx ends.
func (o *serving) run(ctx context.Context, server *control.Server, admin string, log *slog.Logger) error {
	var l net.ListenConfig
	nodes, err := l.Listen(ctx, "tcp", o.nodes)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	operator, err := l.Listen(ctx, "tcp", admin)
	if err != nil {
		nodes.Close()
		return fmt.Errorf("-admin: %w", err)
	}
	log.Info("listening", "nodes", nodes.Addr().String(), "admin", operator.Addr().String(), "tls", !o.tls.None())
	return server.Serve(ctx, nodes, o.tls.Server(), operator)
}

// check says what is wrong with the flags.
func (o *serving) check(admin string) error {
	var errs []error
	switch {
	case !o.tls.None():
		if err := o.tls.Check(); err != nil {
			errs = append(errs, fmt.Errorf("-tls-ca, -tls-cert and -tls-key: %w", err))
		}
	case !operator.Loopback(o.nodes) && !o.plain:
		errs = append(errs, fmt.Errorf("-listen %s is no loopback address, and without certificates anybody may be a node: give -tls-ca, -tls-cert and -tls-key, or say -plain", o.nodes))
	}
	if !operator.Loopback(admin) && !o.adminRemote {
		errs = append(errs, fmt.Errorf("-admin %s is no loopback address: whoever reaches it reads everything; say -admin-allow-remote to have it so", admin))
	}
	if o.store.Keep < 0 {
		errs = append(errs, errors.New("-keep must not be negative"))
	}
	return errors.Join(errs...)
}

// token is what writes need.
func (c *cli) token() (string, error) {
	if c.tokenFile == "" {
		return os.Getenv(tokenVariable), nil
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("-token-file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// strong says why a token is none to protect anything with.
func strong(token string) error {
	if len(token) < 16 {
		return fmt.Errorf("writes need a token of at least 16 characters, in -token-file or $%s; openssl rand -hex 16 makes one", tokenVariable)
	}
	return nil
}

// unusable says what to do about a database that is of no use.
func unusable(call *command.Call, path string, err error) int {
	hint := ""
	switch {
	case errors.Is(err, store.ErrCorrupt):
		hint = fmt.Sprintf("Move %s and what begins with its name away, and put a backup in its place: see sentinel-control help backup.\nNodes go on by what they have.", path)
	case errors.Is(err, store.ErrForeign):
		hint = "Is -db the right file?"
	}
	if call.JSON {
		call.Print(map[string]any{"db": path, "ok": false, "error": err.Error(), "hint": hint})
		return exitStore
	}
	fmt.Fprintf(call.Err, "sentinel-control: %v\n", err)
	if hint != "" {
		fmt.Fprintln(call.Err, hint)
	}
	return exitStore
}
