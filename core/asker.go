package sentinel

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// asker is a connection on which a Redis Sentinel, or a node of a cluster, is
// asked where the masters are, one question at a time. No decision waits for it.
type asker struct {
	busy   sync.Mutex
	client *redis.Client
	dialer *handoff
	conn   *redis.Conn // nil: to be dialled
}

// ask has question ask on the connection, which is dialled if there is none.
// Where it fails the connection is dropped.
func (a *asker) ask(ctx context.Context, question func(*redis.Conn) error) error {
	a.busy.Lock()
	defer a.busy.Unlock()
	if a.conn == nil {
		if _, err := a.dialer.prepare(ctx); err != nil {
			return err
		}
		a.conn = a.client.EphemeralConn()
	}
	err := readable(func() error { return question(a.conn) })
	if err != nil {
		_ = a.conn.Close()
		a.conn = nil
		a.dialer.discard()
	}
	return err
}

// failing is err as one of whom was asked, told by what is safe to log; a
// refusal stays one.
func failing(whom string, err error) error {
	if _, refused := errors.AsType[*refusal](err); refused {
		return err
	}
	f := classify(err)
	return &dialError{kind: f.kind, detail: whom + ": " + f.detail}
}

func (a *asker) close() error {
	a.busy.Lock()
	defer a.busy.Unlock()
	if a.conn != nil {
		_ = a.conn.Close()
	}
	return a.client.Close()
}
