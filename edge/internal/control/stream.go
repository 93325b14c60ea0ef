package control

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// serverOptions let nodes ask every 30 seconds whether this side is there, and ask
// them the same. The default would take that for an attack, and hang up.
func serverOptions(c credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(c),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 20 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.MaxRecvMsgSize(256 << 10),
		grpc.MaxConcurrentStreams(8),
		grpc.ConnectionTimeout(10 * time.Second),
		// A node sends little: small buffers are what a thousand of them cost.
		grpc.ReadBufferSize(4 << 10), grpc.WriteBufferSize(16 << 10),
	}
}

// stream answers the nodes' calls.
type stream struct {
	pb.UnimplementedControlServer
	server *Server
}

// Follow serves one node until either side leaves.
func (f stream) Follow(with grpc.BidiStreamingServer[pb.FromNode, pb.ToNode]) error {
	s := f.server
	first, err := with.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello.GetNode() == "" || hello.GetInstance() == "" {
		return status.Error(codes.InvalidArgument, "the first message must be a hello with node and instance")
	}
	n := s.join(hello, peerOf(with.Context()), certificate(with.Context()))
	defer s.part(n)
	if err := with.Send(&pb.ToNode{Kind: &pb.ToNode_Welcome{Welcome: s.welcome()}}); err != nil {
		return err
	}
	return s.follow(with, n)
}

func (s *Server) welcome() *pb.Welcome {
	w := &pb.Welcome{Epoch: s.store.Epoch()}
	if r := s.current.Load(); r != nil {
		w.Version = r.version.Number
	}
	return w
}

// follow sends what is newest, waits for the answer, and goes on with what is
// newest then. However slow a node is, nobody else waits for it.
func (s *Server) follow(with grpc.BidiStreamingServer[pb.FromNode, pb.ToNode], n *node) error {
	answers, ended := receive(with)
	var sent *pb.Snapshot
	for {
		if next := s.next(n); next != nil {
			sent = next
			if err := with.Send(&pb.ToNode{Kind: &pb.ToNode_Snapshot{Snapshot: next}}); err != nil {
				return err
			}
		}
		select {
		case <-n.mail:
		case m := <-answers:
			if !s.answered(n, m, sent) {
				return status.Error(codes.InvalidArgument, "an answer to what was not asked")
			}
		case err := <-ended:
			if err == io.EOF { //nolint:errorlint // gRPC returns it as it is
				return nil
			}
			return err
		case <-n.gone:
			return status.Error(codes.Aborted, "the node has another stream")
		case <-s.closing:
			return status.Error(codes.Unavailable, "the control plane stops")
		}
	}
}

// receive reads answers until the stream ends.
func receive(with grpc.BidiStreamingServer[pb.FromNode, pb.ToNode]) (<-chan *pb.FromNode, <-chan error) {
	answers, ended := make(chan *pb.FromNode), make(chan error, 1)
	go func() {
		for {
			m, err := with.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case answers <- m:
			case <-with.Context().Done(): // whoever would read has left
				return
			}
		}
	}()
	return answers, ended
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// certificate is the name in the node's certificate, "" without one.
func certificate(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return ""
	}
	return info.State.PeerCertificates[0].Subject.String()
}
