package node

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// serve serves on all listeners. What it returns gets the error of the first one
// that ends by itself.
func (n *node) serve() <-chan error {
	ended := make(chan error, len(n.open))
	for _, o := range n.open {
		go func() {
			if err := o.server.Serve(o.listener); !errors.Is(err, http.ErrServerClosed) {
				ended <- err
			}
		}()
	}
	return ended
}

// stop ends everything in its order: it stops to be ready, then to accept, lets
// what is in flight end until the grace is over, and cuts off the rest. It
// returns 0 if there was nothing to cut off.
func (n *node) stop(signals <-chan os.Signal) int {
	s := n.began.Server
	n.draining.Store(true)
	n.log.Info("stopping", "drain_delay", s.DrainDelay.String(), "grace", s.Grace.String())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // a second signal
		for {
			select {
			case s := <-signals:
				if s != syscall.SIGHUP {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	wait(ctx, s.DrainDelay)
	code := n.drain(ctx, s.Grace)
	n.close(ctx)
	n.log.Info("stopped", "cut_off", code != ok)
	return code
}

// drain lets requests and tunnels end, and cuts off those that do not.
func (n *node) drain(ctx context.Context, grace time.Duration) int {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	n.handler.Drain()
	n.server.SetKeepAlivesEnabled(false) // what is answered from now on says Connection: close
	err := n.server.Shutdown(ctx)
	for err == nil && n.handler.Tunnels() > 0 && ctx.Err() == nil {
		wait(ctx, 10*time.Millisecond)
	}
	if err == nil && n.handler.Tunnels() == 0 {
		return ok
	}
	n.handler.CloseTunnels()
	_ = n.server.Close() // aborts what is open: no response is ended as if it were whole
	return failed
}

// close ends what serves no traffic, the admin listener last.
func (n *node) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if n.unfeed != nil { // before the backends: what comes now would need new ones
		n.unfeed()
		n.feeding.Wait()
	}
	if n.registry != nil {
		_ = n.registry.Close(ctx)
	}
	if n.policies != nil {
		_ = n.policies.Close()
	}
	if n.access != nil {
		_ = n.access.Close(ctx)
	}
	var all sync.WaitGroup
	for _, o := range n.open {
		all.Go(func() {
			_ = o.server.Close()
			_ = o.listener.Close() // it may never have been served
		})
	}
	all.Wait()
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
