// Package control is the control plane: it keeps the shared configuration, lets
// an operator edit it, and hands it to nodes.
//
// What nodes get is in memory. The store is read at the start and written by
// edits: whatever happens to it later, nodes keep what they have and new ones get
// it. An edit is checked by the code that a node reads its file with, then
// written, and only then handed out.
package control

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// Options of a Server. All but the last must be set.
type Options struct {
	Store  *store.Store
	Logger *slog.Logger
	Token  string   // of every write
	Build  string   // the program's version, for the page
	Hosts  []string // by which the operator may ask besides localhost and addresses; none are needed
}

// Server is a control plane. Make one with New.
type Server struct {
	options Options
	store   *store.Store
	log     *slog.Logger
	started time.Time
	metrics *metrics

	current atomic.Pointer[release] // nil: there is no version yet
	trouble atomic.Pointer[trouble] // of the store; nil: none

	mu      sync.Mutex
	nodes   map[string]*node // by instance
	closing chan struct{}
}

// release is a version as it is handed out. It never changes.
type release struct {
	epoch   string
	version store.Version
	sum     []byte // of the content
}

// New reads the newest version. The error is the store's.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Store == nil || o.Logger == nil || o.Token == "" {
		panic("control: Options need Store, Logger and Token")
	}
	s := &Server{options: o, store: o.Store, log: o.Logger, started: time.Now(), nodes: make(map[string]*node), closing: make(chan struct{})}
	s.metrics = newMetrics(s)
	newest, err := s.store.Latest(ctx)
	if err != nil {
		return nil, err
	}
	if newest.Number > 0 {
		s.publish(newest)
	}
	return s, nil
}

// publish hands a version out, unless a newer one is. It waits for no node.
func (s *Server) publish(v store.Version) {
	sum, err := hex.DecodeString(v.SHA256)
	if err != nil {
		panic("control: a hash of the store is no hash: " + err.Error()) // it has just been compared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.current.Load(); now != nil && now.version.Number >= v.Number {
		return
	}
	s.current.Store(&release{s.store.Epoch(), v, sum})
	for _, n := range s.nodes {
		n.wake()
	}
}

// watch keeps an eye on the store until ctx ends: what another process has
// written is handed out, and trouble is noticed, also when it is over.
func (s *Server) watch(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.look(ctx)
		}
	}
}

func (s *Server) look(ctx context.Context) {
	if s.trouble.Load() != nil {
		s.wrote(s.store.Probe(ctx))
	}
	number, err := s.store.Newest(ctx)
	if err != nil {
		s.failed(err)
		return
	}
	if number <= s.newest() {
		return
	}
	v, err := s.store.Latest(ctx)
	if err != nil {
		s.failed(err)
		return
	}
	s.publish(v)
}

// newest is the number of the version that is handed out, 0 if there is none.
func (s *Server) newest() int64 {
	if r := s.current.Load(); r != nil {
		return r.version.Number
	}
	return 0
}

// trouble is why the store is not to be relied on.
type trouble struct {
	text string
	// forGood is of a damaged file: that a page of it can be written mends no other.
	forGood bool
}

// failed notes an error of the store, if err is one. That another process has it locked
// passes.
func (s *Server) failed(err error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, store.ErrNotFound):
		return
	}
	s.metrics.failed(err)
	old := s.trouble.Load()
	if errors.Is(err, store.ErrBusy) || old != nil && old.forGood {
		return
	}
	now := &trouble{err.Error(), errors.Is(err, store.ErrCorrupt)}
	if s.trouble.Store(now); old == nil || old.text != now.text {
		s.log.Error("the store fails; nodes keep what they have", "error", now.text)
	}
}

// wrote notes what came of a write: one that has gone well ends the trouble. That
// something can be read does not, for the disk may be full.
func (s *Server) wrote(err error) {
	if err != nil {
		s.failed(err)
		return
	}
	if old := s.trouble.Load(); old != nil && !old.forGood && s.trouble.CompareAndSwap(old, nil) {
		s.log.Info("the store works again")
	}
}

// edit is one change of the configuration.
type edit struct {
	ifVersion       int64 // that must be the newest; anyVersion: it does not matter
	dryRun          bool
	author, comment string
	change          changer
}

const anyVersion = -1

// outcome is what came of an edit.
type outcome struct {
	Version int64  `json:"version"` // the newest one now
	SHA256  string `json:"sha256"`
	Changed bool   `json:"changed"` // false: the content was there already, and is no new version
	DryRun  bool   `json:"dry_run,omitempty"`
	Diff    string `json:"diff,omitempty"` // of a dry run
}

// edit makes a version, and has it handed out once it is on the disk.
func (s *Server) edit(ctx context.Context, e edit) (outcome, error) {
	if e.dryRun {
		return s.rehearse(ctx, e)
	}
	begun := time.Now()
	v, appended, err := s.store.Append(ctx, func(newest store.Version) (store.Draft, error) {
		content, err := e.content(newest)
		return store.Draft{Content: content, Author: e.author, Comment: e.comment}, err
	})
	s.metrics.edited(begun, appended, err)
	if _, refused := errors.AsType[*problem](err); refused {
		return outcome{}, err
	}
	if err != nil {
		s.failed(err)
		return outcome{}, err
	}
	if appended {
		s.wrote(nil)
		s.publish(v)
		s.log.Info("version", "version", v.Number, "sha256", v.SHA256, "author", v.Author, "comment", v.Comment)
	}
	return outcome{Version: v.Number, SHA256: v.SHA256, Changed: appended}, nil
}

// rehearse is edit up to the write.
func (s *Server) rehearse(ctx context.Context, e edit) (outcome, error) {
	newest, err := s.store.Latest(ctx)
	s.failed(err)
	if err != nil {
		return outcome{}, err
	}
	content, err := e.content(newest)
	if err != nil {
		return outcome{}, err
	}
	d := diff(newest.Content, content)
	return outcome{Version: newest.Number, SHA256: newest.SHA256, Changed: d != "", DryRun: true, Diff: d}, nil
}

// content is what the edit makes of the newest version, if that is a good one.
func (e edit) content(newest store.Version) ([]byte, error) {
	if e.ifVersion != anyVersion && e.ifVersion != newest.Number {
		return nil, stale(e.ifVersion, newest.Number)
	}
	content, err := e.change(newest.Content)
	if err != nil {
		return nil, err
	}
	if err := checkShared(content); err != nil {
		return nil, err
	}
	return content, nil
}

// checkShared is a problem that lists all faults of a content.
func checkShared(content []byte) error {
	_, err := config.CheckShared("config", content)
	var faults config.Faults
	switch {
	case err == nil:
		return nil
	case errors.As(err, &faults):
		return faulty(faults)
	default:
		return fmt.Errorf("control: %w", err)
	}
}

// replace is the change to a whole new text. Faults are at the lines of that text.
func replace(text []byte) changer {
	return func([]byte) ([]byte, error) {
		if err := checkShared(text); err != nil {
			return nil, err
		}
		d, err := parseDocument(text)
		if err != nil {
			return nil, err
		}
		return d.text()
	}
}

// change is one of a part of the document.
func change(do func(*document) error) changer {
	return func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, nothingYet()
		}
		d, err := parseDocument(old)
		if err != nil {
			return nil, err
		}
		if err := do(d); err != nil {
			return nil, err
		}
		return d.text()
	}
}
