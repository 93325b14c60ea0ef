package node

import (
	"context"
	"fmt"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// Feed is a control plane, as a node sees it: where routes and backends come from.
// How it is reached is its own matter, so that nothing on the way of a request
// knows gRPC.
type Feed interface {
	// LastGood is what was in force when the process before this one ended; nil: nothing.
	LastGood() *Shared
	// Drop tells that it is of no use.
	Drop()
	// Run has what comes applied, one after the other, until ctx ends. An error of
	// apply says all that is wrong, a line each, and that everything is as it was.
	Run(ctx context.Context, apply func(context.Context, *Shared) error)
	// Status may be called at any time.
	Status() FeedStatus
}

// Shared is the part of a configuration that nodes have in common.
type Shared struct {
	Name    string // for faults
	Version int64
	Content []byte
	Since   time.Time // when it first came into force here
}

// FeedStatus is how a feed is.
type FeedStatus struct {
	Connected bool
	Current   bool   // what is in force is the newest there is, as far as is known
	Text      string // for people
}

// begin applies what there is at the start: the file, or what a feed had last.
func (n *node) begin(ctx context.Context, cfg *config.Config) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if n.options.Feed == nil {
		return n.apply(ctx, cfg)
	}
	n.local = cfg
	last := n.options.Feed.LastGood()
	if last == nil {
		return nil
	}
	if err := n.applyShared(ctx, last, "disk"); err != nil {
		n.log.Error("the last good configuration on the disk is not used", "error", err.Error())
		n.options.Feed.Drop()
		return nil
	}
	n.log.Info("configuration applied", "version", last.Version, "source", "disk", "since", last.Since)
	return nil
}

// follow begins to take what the feed brings.
func (n *node) follow(ctx context.Context) {
	if n.options.Feed == nil {
		return
	}
	ctx, n.unfeed = context.WithCancel(ctx)
	n.feeding.Go(func() { n.options.Feed.Run(ctx, n.take) })
}

// take applies what has come, or says why not.
func (n *node) take(ctx context.Context, s *Shared) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.applyShared(ctx, s, "control"); err != nil {
		n.refuse(err)
		return err
	}
	n.log.Info("configuration applied", "version", s.Version, "source", "control")
	return nil
}

// rejoin takes a new file of the node; what is shared stays.
func (n *node) rejoin(ctx context.Context, local *config.Config) (changed bool, err error) {
	if n.shared == nil {
		changed = local.Hash() != n.local.Hash()
		n.local = local
		return changed, nil
	}
	cfg, err := local.Join(n.shared.Name, n.shared.Content)
	if err != nil {
		return false, err
	}
	old := n.current.Load()
	if changed = cfg.Hash() != old.hash; changed {
		err = n.enforce(ctx, cfg, n.shared.Version, old.source, n.shared.Since)
	} else {
		err = n.openPolicies(ctx, cfg)
	}
	if err == nil {
		n.local = local
	}
	return changed, err
}

func (n *node) applyShared(ctx context.Context, s *Shared, source string) error {
	cfg, err := n.local.Join(s.Name, s.Content)
	if err != nil {
		return err
	}
	if err := n.enforce(ctx, cfg, s.Version, source, s.Since); err != nil {
		return err
	}
	n.shared = s
	return nil
}

// applicable says why there is no configuration, or where one is from that was not
// confirmed.
func (n *node) applicable(a *applied) string {
	switch {
	case n.options.Feed == nil:
		return ""
	case a == nil:
		return n.options.Feed.Status().Text
	case a.source == "disk" && !n.options.Feed.Status().Current:
		return fmt.Sprintf("from the disk, in force since %s", a.at.UTC().Format(time.RFC3339))
	}
	return ""
}
