package control

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// Serve serves nodes and the operator until ctx ends, or a listener does. It
// closes both.
func (s *Server) Serve(ctx context.Context, nodes net.Listener, c credentials.TransportCredentials, operator net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := grpc.NewServer(serverOptions(c)...)
	pb.RegisterControlServer(streams, stream{server: s})
	admin := &http.Server{Handler: s.admin(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute}
	var all sync.WaitGroup
	ended := make(chan error, 2) // of the listeners
	all.Go(func() { ended <- streams.Serve(nodes) })
	all.Go(func() { ended <- admin.Serve(operator) })
	all.Go(func() { s.watch(ctx, 2*time.Second) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	cancel()
	close(s.closing)
	// Edits that are under way may end; a node's stream ends at once.
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer done()
	_ = admin.Shutdown(grace) // what is left after that is cut off
	_ = admin.Close()
	streams.Stop()
	all.Wait()
	return err
}
