// Quickstart is one server, guarded by Sentinel in the framework of your
// choice, and a tour that shows what it decides and why.
//
//	go run ./examples/quickstart                        # serve on 127.0.0.1:8080
//	go run ./examples/quickstart -tour                  # watch it decide, on no Redis
//	go run ./examples/quickstart -tour -redis-server    # ... and lose its Redis and find it again
//
// Every configured endpoint is guarded under /guarded/{endpoint_id}; GET /token
// mints a token to try them with, which no real service would do.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// embedded holds the configuration that is used without -config. It needs no
// Redis.
//
//go:embed sentinel.json
var embedded embed.FS

const embeddedName = "sentinel.json"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// flags are the command line, checked.
type flags struct {
	framework   framework
	config      string // "" is the embedded one
	addr        string
	tour        bool
	redisServer bool
}

// run is the program. It returns the exit status: 0, or 1 if it could not do
// what it was asked for, or 2 for a wrong command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if f.tour {
		err = tour(ctx, f, stdout, stderr)
	} else {
		err = serve(ctx, f, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// parseFlags reads the command line; what is wrong with it is on stderr.
func parseFlags(args []string, stderr io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	set.SetOutput(stderr)
	name := set.String("framework", "nethttp", "the framework to serve with: "+frameworkNames())
	set.StringVar(&f.config, "config", "", "the configuration `file`; without it, the sentinel.json beside this program's source")
	set.StringVar(&f.addr, "addr", "127.0.0.1:8080", "the `address` to listen on; port 0 takes a free one")
	set.BoolVar(&f.tour, "tour", false, "fire requests at a server of its own, tell what happened, and end")
	set.BoolVar(&f.redisServer, "redis-server", false, "with -tour: use a redis-server of its own from the PATH, kill it and restart it")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	addrGiven := false
	set.Visit(func(given *flag.Flag) { addrGiven = addrGiven || given.Name == "addr" })
	if f.tour && !addrGiven {
		f.addr = "127.0.0.1:0" // a tour disturbs nobody
	}
	var known bool
	f.framework, known = findFramework(*name)
	var problem error
	switch {
	case set.NArg() > 0:
		problem = fmt.Errorf("unexpected argument %q", set.Arg(0))
	case !known:
		problem = fmt.Errorf("-framework %q is unknown; the known ones are: %s", *name, frameworkNames())
	case f.redisServer && !f.tour:
		problem = errors.New("-redis-server goes with -tour")
	}
	if problem != nil {
		fmt.Fprintln(stderr, problem)
		set.Usage()
	}
	return f, problem
}

// settings are the configuration and what the demonstration of it needs.
type settings struct {
	config *sentinel.Config
	minter *minter
}

// load reads a configuration file, or the embedded one. Its error names every
// fault.
func load(file string) (settings, error) {
	if file == "" {
		data, err := embedded.ReadFile(embeddedName)
		if err != nil {
			return settings{}, err
		}
		cfg, err := sentinel.ParseConfig(data)
		if err != nil {
			return settings{}, err
		}
		m, err := newMinter(data, "")
		return settings{cfg, m}, err
	}
	cfg, err := sentinel.LoadConfig(file)
	if err != nil {
		return settings{}, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return settings{}, err
	}
	m, err := newMinter(data, file)
	return settings{cfg, m}, err
}

// service is a limiter and the handler that it guards.
type service struct {
	limiter *sentinel.Limiter
	handler http.Handler
}

// newService opens the limiter and wires the routes.
func newService(ctx context.Context, fw framework, s settings, log *slog.Logger) (*service, error) {
	registry := prometheus.NewRegistry()
	limiter, err := sentinel.Open(ctx, s.config, sentinel.WithRegisterer(registry), sentinel.WithLogger(log))
	if err != nil {
		return nil, err
	}
	// A guard for an id that nobody configured would answer 404 for ever; find
	// that out now. Here the ids come from the configuration itself; your own
	// service names the ones that it guards.
	ids := slices.Sorted(maps.Keys(s.config.Policies))
	if err := limiter.Require(ids...); err != nil {
		return nil, errors.Join(err, limiter.Close())
	}
	return &service{
		limiter: limiter,
		handler: fw.build(app{limiter: limiter, ids: ids, registry: registry, minter: s.minter}),
	}, nil
}

// newServer bounds what a slow or a boastful client can hold.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    32 << 10, // a token has at most 8 KiB
	}
}

// serve listens until ctx ends, then lets the requests in flight finish.
func serve(ctx context.Context, f flags, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	s, err := load(f.config)
	if err != nil {
		return err
	}
	svc, err := newService(ctx, f.framework, s, log)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", f.addr)
	if err != nil {
		return errors.Join(err, svc.limiter.Close())
	}
	greet(stdout, ln.Addr(), f.framework.name, s.config)
	if !loopback(ln.Addr()) {
		log.Warn("/token mints tokens for whoever asks; listen on 127.0.0.1, or keep strangers away from this port")
	}

	srv := newServer(svc.handler)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return errors.Join(err, svc.limiter.Close())
	case <-ctx.Done():
	}
	log.Info("shutting down")
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	// The limiter goes last: a request in flight may still ask it.
	return errors.Join(srv.Shutdown(grace), svc.limiter.Close())
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// greet tells what there is to try.
func greet(w io.Writer, addr net.Addr, framework string, cfg *sentinel.Config) {
	base := "http://" + addr.String()
	fmt.Fprintf(w, "listening on %s (%s)\n\n", base, framework)
	for _, id := range slices.Sorted(maps.Keys(cfg.Policies)) {
		p := cfg.Policies[id]
		who := "bearer token"
		if p.Identity == sentinel.Anonymous {
			who = "anonymous"
		}
		fmt.Fprintf(w, "  %-40s %s, %s, %s\n", "/guarded/"+id, p.Algorithm, p.FailMode, who)
	}
	fmt.Fprintf(w, `  /metrics  /healthz  /readyz

Try it:
  TOKEN=$(curl -s '%[1]s/token?tenant=acme&ttl=3600' | sed 's/.*"token":"\([^"]*\)".*/\1/')
  curl -i -H "Authorization: Bearer $TOKEN" %[1]s/guarded/%[2]s
`, base, firstTenantEndpoint(cfg))
}

// firstTenantEndpoint is an endpoint to try a token at.
func firstTenantEndpoint(cfg *sentinel.Config) string {
	for _, id := range slices.Sorted(maps.Keys(cfg.Policies)) {
		if cfg.Policies[id].Identity != sentinel.Anonymous {
			return id
		}
	}
	return notConfigured
}
