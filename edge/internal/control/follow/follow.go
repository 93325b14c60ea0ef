// Package follow is a node's side of the control plane: it keeps a stream to it,
// has what comes applied, and keeps the last good one on the disk.
//
// Nothing that happens here is an error of the node: it goes on by what it has.
package follow

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sentinelgo/sentinel/edge/internal/control/mtls"
	"github.com/sentinelgo/sentinel/edge/internal/node"
	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// Options of a Follower.
type Options struct {
	Address string     // host:port of the control plane
	TLS     mtls.Files // none: no TLS
	Node    string     // a name for people
	Build   string
	Dir     string // where the last good version is kept; "": nowhere
	// Spread is the time over which nodes that have lost the control plane at once try to
	// come back: each waits any part of it. 0 is [DefaultSpread], and the most is [MostSpread].
	Spread time.Duration
	Logger *slog.Logger
}

// Follower follows one control plane.
type Follower struct {
	options  Options
	instance string
	file     file
	log      *slog.Logger
	patience time.Duration     // with a control plane that takes a hello and says nothing
	dial     []grpc.DialOption // nil: over TCP; tests have a road of their own

	mu     sync.Mutex
	status node.FeedStatus

	// What is in force, and what was refused since. Only Run's goroutine, and
	// LastGood before it, use these.
	have     *pb.Snapshot
	applied  time.Time // when have came into force first
	rejected *pb.Nack
	refused  string // the epoch of rejected
}

// New returns a follower that does nothing yet.
func New(o Options) *Follower {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	if o.Spread == 0 {
		o.Spread = DefaultSpread
	}
	return &Follower{options: o, instance: hex.EncodeToString(b[:]), file: file{o.Dir}, log: o.Logger, patience: 20 * time.Second, have: &pb.Snapshot{}}
}

// Status is how the stream is.
func (f *Follower) Status() node.FeedStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) set(s node.FeedStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = s
}

// LastGood is what was in force when the node ended; nil if there is nothing that can be
// used, which is logged.
func (f *Follower) LastGood() *node.Shared {
	last, err := f.file.read()
	switch {
	case err != nil:
		f.log.Error("the last good configuration on the disk is not used", "file", f.file.path(), "error", err.Error())
		return nil
	case last == nil:
		return nil
	}
	f.have, f.applied = last.GetSnapshot(), time.UnixMilli(last.GetAppliedMs())
	return f.shared(f.have)
}

// Drop is for a last good version that the node cannot use: it is as if there were none.
func (f *Follower) Drop() { f.have, f.applied = &pb.Snapshot{}, time.Time{} }

func (f *Follower) shared(s *pb.Snapshot) *node.Shared {
	return &node.Shared{Name: fmt.Sprintf("version %d", s.GetVersion()), Version: s.GetVersion(), Content: s.GetConfig(), Since: f.applied}
}

// Run follows until ctx ends. apply is called by one goroutine, for one version
// after the other; what it refuses it must leave no trace of.
func (f *Follower) Run(ctx context.Context, apply func(context.Context, *node.Shared) error) {
	b := newBackoff(f.options.Spread)
	for ctx.Err() == nil {
		healthy, err := f.once(ctx, apply)
		if ctx.Err() != nil {
			return
		}
		wait := b.next(healthy)
		f.set(node.FeedStatus{Text: fmt.Sprintf("not connected to %s: %v", f.options.Address, err)})
		f.log.Warn("no control plane; the configuration in force stays", "address", f.options.Address, "error", err.Error(), "again_in", wait.String())
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// once is one stream, to its end. It returns for how long it was a healthy one.
func (f *Follower) once(ctx context.Context, apply func(context.Context, *node.Shared) error) (time.Duration, error) {
	creds, err := f.options.TLS.Client()
	if err != nil {
		return 0, err
	}
	conn, err := grpc.NewClient("passthrough:///"+f.options.Address, append(f.dial, grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}))...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // it is closed once
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(f.patience, cancel)
	defer late.Stop()
	stream, err := pb.NewControlClient(conn).Follow(ctx)
	if err == nil {
		err = f.greet(stream)
	}
	switch {
	case !late.Stop():
		return 0, fmt.Errorf("follow: it says nothing for %s", f.patience)
	case err != nil:
		return 0, err
	}
	begun := time.Now()
	for {
		m, err := stream.Recv()
		if err != nil {
			return time.Since(begun), err
		}
		if s := m.GetSnapshot(); s != nil {
			answer := f.take(ctx, s, apply)
			if stream.Send(answer) != nil {
				_, err = stream.Recv() // this one says why
				return time.Since(begun), err
			}
			if answer.GetAck() != nil {
				f.keep()
			}
		}
	}
}

// The other side is asked every 30 seconds whether it is there, and has 10 to say so.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
)

type stream = grpc.BidiStreamingClient[pb.FromNode, pb.ToNode]

// greet says what this node has, and learns what there is.
func (f *Follower) greet(s stream) error {
	hello := &pb.Hello{
		Node: f.options.Node, Instance: f.instance, Build: f.options.Build,
		Epoch: f.have.GetEpoch(), Version: f.have.GetVersion(), Sha256: f.have.GetSha256(), Rejected: f.rejected, RejectedEpoch: f.refused,
	}
	if err := s.Send(&pb.FromNode{Kind: &pb.FromNode_Hello{Hello: hello}}); err != nil {
		_, err = s.Recv() // this one says why
		return err
	}
	m, err := s.Recv()
	if err != nil {
		return err
	}
	w := m.GetWelcome()
	if w == nil {
		return errors.New("follow: the first message is no welcome")
	}
	f.set(node.FeedStatus{Connected: true, Text: "connected to " + f.options.Address, Current: w.GetEpoch() == f.have.GetEpoch() && w.GetVersion() == f.have.GetVersion()})
	f.log.Info("control plane", "address", f.options.Address, "epoch", w.GetEpoch(), "newest", w.GetVersion(), "have", f.have.GetVersion())
	return nil
}

// take has a snapshot applied, or finds why not, and returns the answer.
func (f *Follower) take(ctx context.Context, s *pb.Snapshot, apply func(context.Context, *node.Shared) error) *pb.FromNode {
	err := f.acceptable(s)
	now := time.Now()
	if err == nil {
		shared := f.shared(s)
		shared.Since = now
		err = apply(ctx, shared)
	}
	if err != nil {
		nack := &pb.Nack{Nonce: s.GetNonce(), Version: s.GetVersion(), Errors: told(err)}
		f.rejected, f.refused = nack, s.GetEpoch()
		f.log.Error("version refused, the last good one stays", "version", s.GetVersion(), "error", err.Error())
		return &pb.FromNode{Kind: &pb.FromNode_Nack{Nack: nack}}
	}
	if old := f.have.GetEpoch(); old != "" && old != s.GetEpoch() {
		f.log.Warn("versions begin anew: the control plane has another store", "epoch", s.GetEpoch(), "before", old)
	}
	f.have, f.applied, f.rejected, f.refused = s, now, nil, ""
	status := f.Status()
	status.Current = true
	f.set(status)
	return &pb.FromNode{Kind: &pb.FromNode_Ack{Ack: &pb.Ack{Nonce: s.GetNonce(), Version: s.GetVersion()}}}
}

// What a control plane is told of a refusal. It takes no message that is much longer, and one
// that it does not take would end this stream and, as a part of the next hello, all others.
const (
	mostLines = 50
	mostLine  = 500 // bytes
)

// told are the lines of an error, the first of them if they are many.
func told(err error) []string {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) > mostLines {
		more := fmt.Sprintf("and %d more", len(lines)-mostLines+1)
		lines = append(lines[:mostLines-1], more)
	}
	for i, line := range lines {
		if len(line) > mostLine {
			line = line[:mostLine] + "..."
		}
		lines[i] = strings.ToValidUTF8(line, "\ufffd") // a message holds nothing else
	}
	return lines
}

// acceptable says why a snapshot is not even to be looked into.
func (f *Follower) acceptable(s *pb.Snapshot) error {
	sum := sha256.Sum256(s.GetConfig())
	switch {
	case !bytes.Equal(sum[:], s.GetSha256()):
		return errors.New("the content does not have the hash that came with it")
	case s.GetEpoch() == "" || s.GetVersion() <= 0:
		return errors.New("the snapshot has no epoch or no version")
	case s.GetEpoch() == f.have.GetEpoch() && s.GetVersion() < f.have.GetVersion():
		return fmt.Errorf("version %d is in force, and nothing goes back within an epoch", f.have.GetVersion())
	}
	return nil
}

// keep writes what is in force to the disk. That it cannot is no reason not to use it.
func (f *Follower) keep() {
	s := &pb.Snapshot{Epoch: f.have.GetEpoch(), Version: f.have.GetVersion(), Sha256: f.have.GetSha256(), Config: f.have.GetConfig()}
	if err := f.file.write(&pb.LastGood{Snapshot: s, AppliedMs: f.applied.UnixMilli()}); err != nil {
		f.log.Error("the configuration in force is not kept for the next start", "error", err.Error())
	}
}
