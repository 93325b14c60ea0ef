// Package node is a running data plane: it turns a configuration into a snapshot,
// listens, reloads and stops.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/limit"
	"github.com/sentinelgo/sentinel/edge/internal/observe"
	"github.com/sentinelgo/sentinel/edge/internal/operator"
	"github.com/sentinelgo/sentinel/edge/internal/policy"
	"github.com/sentinelgo/sentinel/edge/internal/proxy"
	"github.com/sentinelgo/sentinel/edge/internal/upstream"
	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// Options are what is not in the file.
type Options struct {
	File        string    // what is read again at a reload
	Pprof       string    // the address for profiles; "": none
	PprofRemote bool      // it may be another one than loopback
	Version     string    // of the program, for the page
	Feed        Feed      // where routes and backends come from; nil: from the file
	Stdout      io.Writer // where the access log goes by default
	Stderr      io.Writer // where the log goes
}

// The exit codes of Run.
const (
	ok            = 0
	failed        = 1
	misconfigured = 2
)

// node is one data plane.
type node struct {
	options Options
	log     *slog.Logger
	started time.Time

	handler  *proxy.Handler
	registry *upstream.Registry
	limits   *limit.Store
	policies *policy.Limiter      // nil until a route asks for one
	library  *prometheus.Registry // the series of the policies
	metrics  *observe.Metrics
	access   *observe.AccessLog
	feeding  sync.WaitGroup // the feed's goroutine
	unfeed   context.CancelFunc

	server *http.Server // of traffic
	open   []open

	began    *config.Config // at the start
	changing sync.Mutex     // is held by whoever applies something; guards the next two
	local    *config.Config // the file, if there is a feed
	shared   *Shared        // what of it is in force
	current  atomic.Pointer[applied]
	rejected atomic.Int64
	lastFail atomic.Pointer[string]
	draining atomic.Bool
}

// open is a listener and what serves on it.
type open struct {
	server   *http.Server
	listener net.Listener
}

// Run serves by a configuration until a signal ends it: SIGHUP reads its file
// again; SIGTERM or SIGINT lets what is in flight end, and a second one does not.
// The end of ctx is like SIGTERM. It returns the exit code: 0, 1 where something
// was cut off or failed, 2 where the configuration is wrong.
func Run(ctx context.Context, cfg *config.Config, o Options) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	n := newNode(o)
	if err := n.build(ctx, cfg); err != nil {
		n.log.Error("the edge does not start", "error", err.Error())
		n.close(ctx)
		if errors.As(err, new(wrong)) {
			return misconfigured
		}
		return failed
	}
	ended := n.serve()
	n.follow(ctx)
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGHUP {
				n.reload(ctx)
				continue
			}
			return n.stop(signals)
		case <-ctx.Done():
			return n.stop(signals)
		case err := <-ended:
			n.log.Error("a listener has ended", "error", err.Error())
			n.stop(signals)
			return failed
		}
	}
}

func newNode(o Options) *node {
	return &node{options: o, started: time.Now(), log: slog.New(slog.NewJSONHandler(o.Stderr, nil))}
}

// wrong is a fault of the configuration that shows only when it is applied.
type wrong struct{ error }

func (w wrong) Unwrap() error { return w.error }

// build makes everything and begins to listen; nothing is served yet.
func (n *node) build(ctx context.Context, cfg *config.Config) error {
	n.began = cfg
	access, err := n.openAccessLog(cfg.Server.AccessLog)
	if err != nil {
		return wrong{err}
	}
	n.access = access
	n.library = prometheus.NewRegistry()
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if n.metrics, err = observe.NewMetrics(own, n.view, access); err != nil {
		return err
	}
	n.registry = upstream.NewRegistry(upstream.Options{Logger: n.log, Changed: n.metrics.BreakerChanged})
	n.limits = limit.NewStore(cfg.MaxClients())
	n.handler = proxy.New(n.proxyOptions(cfg))
	if err := n.begin(ctx, cfg); err != nil {
		return wrong{err}
	}
	return n.listen(ctx, cfg, prometheus.Gatherers{own, n.library})
}

func (n *node) proxyOptions(cfg *config.Config) proxy.Options {
	s := cfg.Server
	return proxy.Options{
		Logger: n.log, Observer: observers{n.metrics, n.access}, TrustedProxies: s.TrustedProxies, MaxBodyBytes: s.MaxBodyBytes,
		BodyIdle: s.BodyIdleTimeout, WriteIdle: s.WriteIdleTimeout, TunnelIdle: s.TunnelIdleTimeout,
	}
}

// observers see every request that has ended. There may be no access log.
type observers struct {
	metrics *observe.Metrics
	access  *observe.AccessLog
}

func (o observers) Ended(r *proxy.Record) {
	o.metrics.Ended(r)
	if o.access != nil {
		o.access.Ended(r)
	}
}

// openAccessLog returns nil where there is to be none.
func (n *node) openAccessLog(to string) (*observe.AccessLog, error) {
	switch to {
	case "off":
		return nil, nil
	case "stdout":
		return observe.NewAccessLog(n.options.Stdout), nil
	case "stderr":
		return observe.NewAccessLog(n.options.Stderr), nil
	}
	file, err := os.OpenFile(to, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640) // #nosec G302 G304 -- the operator's file, for whoever reads logs
	if err != nil {
		return nil, fmt.Errorf("server.access_log: %w", err)
	}
	return observe.NewAccessLog(file), nil
}

// listen opens all listeners, so that none serves if one cannot.
func (n *node) listen(ctx context.Context, cfg *config.Config, metrics prometheus.Gatherer) error {
	s := cfg.Server
	traffic, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	n.server = &http.Server{
		Handler: n.handler, Protocols: protocols, ReadHeaderTimeout: s.ReadHeaderTimeout, IdleTimeout: s.KeepAliveTimeout,
		MaxHeaderBytes: s.MaxHeaderBytes, ConnState: wire.ConnState, ConnContext: wire.ConnContext, DisableGeneralOptionsHandler: true,
		// It is told what no request shows, as that no connection can be accepted.
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelWarn),
	}
	n.open = append(n.open, open{n.server, wire.Listen(traffic, wire.Limits{
		HeaderBytes: s.MaxHeaderBytes, HeaderFields: s.MaxHeaderFields, URLBytes: s.MaxURLBytes, Connections: s.MaxConnections,
		HeaderTimeout: s.ReadHeaderTimeout,
	})})
	admin, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Admin.Listen)
	if err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	pages := observe.Admin{Hosts: operator.Hosts(cfg.Admin.Listen, cfg.Admin.Hosts...), Gatherer: metrics, Now: n.view, Ready: n.conditions, Routes: n.routes, Config: n.configText, Explain: n.explain}
	n.open = append(n.open, open{&http.Server{Handler: pages.Handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}, admin})
	said := []any{"file", n.options.File, "build", n.options.Version, "traffic", traffic.Addr().String(), "admin", admin.Addr().String()}
	if n.options.Pprof != "" {
		profiles, err := listenPprof(ctx, n.options.Pprof, n.options.PprofRemote)
		if err != nil {
			return err
		}
		n.open = append(n.open, open{&http.Server{Handler: operator.Guard(pprofHandler(), operator.Hosts(n.options.Pprof), ""), ReadHeaderTimeout: 5 * time.Second}, profiles})
		said = append(said, "pprof", profiles.Addr().String())
	}
	n.log.Info("listening", said...)
	return nil
}
