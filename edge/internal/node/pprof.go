package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	"github.com/sentinelgo/sentinel/edge/internal/operator"
)

// listenPprof opens the listener for profiles. They show memory and can slow
// the process down, so that another address than loopback wants a word.
func listenPprof(ctx context.Context, address string, remote bool) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, wrong{fmt.Errorf("-pprof %s: not host:port: %w", address, err)}
	}
	if !operator.Loopback(address) && !remote {
		return nil, wrong{fmt.Errorf("-pprof %s is no loopback address: whoever reaches it reads memory; use 127.0.0.1, or say -pprof-allow-remote", address)}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-pprof: %w", err)
	}
	return l, nil
}

// pprofHandler is on a mux of its own: net/http/pprof puts itself on the default
// one, which nothing here serves.
func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
