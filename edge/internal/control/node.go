package control

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	pb "github.com/sentinelgo/sentinel/edge/proto"
)

// The bounds of what a node can make this process remember.
const (
	mostGone   = 1000 // nodes that have left
	mostErrors = 50   // of one refusal
	mostText   = 500  // bytes of an error, or of a name
)

// node is one process that follows. Its stream's goroutine writes it, with the
// server's mutex held.
type node struct {
	NodeStatus
	epoch         string // of what it has applied
	sum           []byte
	rejectedEpoch string
	mail          chan struct{} // there may be something newer; of one slot, so that nobody waits
	nonce         int64
	ahead         bool // it was said that it has more than there is
	gone          chan struct{}
}

// NodeStatus is a node as the operator sees it.
type NodeStatus struct {
	Name        string `json:"node"`
	Instance    string `json:"instance"` // of the process
	Peer        string `json:"peer"`
	Certificate string `json:"certificate,omitempty"`
	Build       string `json:"build,omitempty"`

	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"` // when it came, or went

	Applied   int64     `json:"applied"` // version; 0: none
	AppliedAt time.Time `json:"applied_at,omitzero"`
	Waiting   int64     `json:"waiting,omitempty"` // the version that it has not answered yet
	SentAt    time.Time `json:"sent_at,omitzero"`

	Rejected   int64     `json:"rejected,omitempty"` // the newest version that it refused; 0 once it has applied a later one
	RejectedAt time.Time `json:"rejected_at,omitzero"`
	Errors     []string  `json:"errors,omitempty"` // why
}

// nodeState is how a node is, in one word.
type nodeState string

const (
	nodeCurrent  nodeState = "current"  // it has the newest version, or there is none
	nodeBehind   nodeState = "behind"   // the newest was not answered yet
	nodeRefusing nodeState = "refusing" // the newest
	nodeAhead    nodeState = "ahead"    // it has a later version than there is, and keeps it
	nodeGone     nodeState = "gone"     // it is not connected
)

// state is how the node is where newest is the newest version.
func (n NodeStatus) state(newest int64) nodeState {
	switch {
	case !n.Connected:
		return nodeGone
	case n.Rejected == newest && newest > 0:
		return nodeRefusing
	case n.Applied == newest || newest == 0:
		return nodeCurrent
	case n.Applied > newest && n.Waiting == 0:
		return nodeAhead
	}
	return nodeBehind
}

// wake tells the stream that there may be something new.
func (n *node) wake() {
	select {
	case n.mail <- struct{}{}:
	default: // it will look anyway, and see the newest
	}
}

// join adds a node. Another stream of the same process gives way: it is older.
func (s *Server) join(hello *pb.Hello, peer, certificate string) *node {
	now := time.Now()
	n := &node{
		NodeStatus: NodeStatus{
			Name: cut(hello.GetNode()), Instance: cut(hello.GetInstance()), Peer: peer, Certificate: cut(certificate), Build: cut(hello.GetBuild()),
			Connected: true, Since: now, Applied: hello.GetVersion(),
		},
		epoch: cut(hello.GetEpoch()), sum: hello.GetSha256()[:min(len(hello.GetSha256()), 32)], mail: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := hello.GetRejected(); r != nil {
		n.refused(r, hello.GetRejectedEpoch(), now)
	}
	if old := s.nodes[n.Instance]; old != nil && old.Connected {
		close(old.gone)
	}
	for instance, old := range s.nodes {
		if old.Name == n.Name && !old.Connected {
			delete(s.nodes, instance) // the same node, before it was restarted
		}
	}
	s.nodes[n.Instance] = n
	s.metrics.streams.Inc()
	return n
}

// part keeps a node that has left, to be looked at.
func (s *Server) part(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[n.Instance] != n {
		return
	}
	n.Connected, n.Since, n.Waiting = false, time.Now(), 0
	var oldest *node
	gone := 0
	for _, o := range s.nodes {
		if o.Connected {
			continue
		}
		gone++
		if oldest == nil || o.Since.Before(oldest.Since) {
			oldest = o
		}
	}
	if gone > mostGone {
		delete(s.nodes, oldest.Instance)
	}
}

// next is what the node is to be sent now; nil: nothing. It is then waiting for its answer.
func (s *Server) next(n *node) *pb.Snapshot {
	r := s.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r == nil || n.Waiting != 0 {
		return nil
	}
	number := r.version.Number
	if n.Rejected == number && n.rejectedEpoch == r.epoch {
		return nil
	}
	if n.epoch == r.epoch {
		switch {
		case n.Applied == number && bytes.Equal(n.sum, r.sum):
			return nil
		case n.Applied > number:
			if !n.ahead {
				n.ahead = true
				s.log.Error("a node has a later version than the store; if the file is from an earlier day, start with -new-epoch", "node", n.Name, "has", n.Applied, "newest", number)
			}
			return nil
		}
	}
	n.nonce++
	n.Waiting, n.SentAt = number, time.Now()
	s.metrics.sent.Inc()
	return &pb.Snapshot{Epoch: r.epoch, Version: number, Nonce: strconv.FormatInt(n.nonce, 10), Sha256: r.sum, Config: r.version.Content}
}

// answered takes a node's answer, and reports whether it was one to what was sent last.
func (s *Server) answered(n *node, m *pb.FromNode, sent *pb.Snapshot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent == nil || n.Waiting == 0 {
		return false
	}
	now := time.Now()
	switch {
	case m.GetAck() != nil && m.GetAck().GetNonce() == sent.GetNonce():
		s.metrics.answers.WithLabelValues("ack").Inc()
		n.Applied, n.AppliedAt, n.epoch, n.sum = sent.GetVersion(), now, sent.GetEpoch(), sent.GetSha256()
		n.Rejected, n.RejectedAt, n.Errors = 0, time.Time{}, nil
	case m.GetNack() != nil && m.GetNack().GetNonce() == sent.GetNonce():
		refusal := m.GetNack()
		refusal.Version = sent.GetVersion()
		s.metrics.answers.WithLabelValues("nack").Inc()
		n.refused(refusal, sent.GetEpoch(), now)
		s.log.Error("a node refuses a version", "node", n.Name, "version", n.Rejected, "errors", n.Errors)
	default:
		return false
	}
	s.metrics.answered.Observe(now.Sub(n.SentAt).Seconds())
	n.Waiting = 0
	return true
}

func (n *node) refused(r *pb.Nack, epoch string, now time.Time) {
	n.Rejected, n.rejectedEpoch, n.RejectedAt, n.Errors = r.GetVersion(), cut(epoch), now, nil
	for _, text := range r.GetErrors() {
		if len(n.Errors) == mostErrors {
			n.Errors = append(n.Errors, "and "+strconv.Itoa(len(r.GetErrors())-mostErrors)+" more")
			break
		}
		n.Errors = append(n.Errors, cut(text))
	}
}

// cut bounds a text that a node has sent, and takes out what a terminal would obey.
func cut(text string) string {
	if len(text) > mostText {
		text = text[:mostText] + "..."
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return unicode.ReplacementChar
		}
		return c
	}, text)
}

// Nodes are all that are connected, and the last that were, by name.
func (s *Server) Nodes() []NodeStatus {
	s.mu.Lock()
	all := make([]NodeStatus, 0, len(s.nodes))
	for _, n := range s.nodes {
		all = append(all, n.NodeStatus)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b NodeStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
	})
	return all
}
