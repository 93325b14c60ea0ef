package sentinel

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Masters connects to every server that decides by cfg: the Redis of redis_url,
// the master that its Redis Sentinels name, or those of its cluster. It returns a
// client for each, nil for memory://, once the server has answered. They are for
// a tool that looks at the servers, such as sentinelctl doctor, and not for
// decisions: [Open] has connections of its own. The caller closes them.
//
// The error of a server that does not answer, or will not have us, says so as
// that of [Open] does, and holds nothing secret.
func Masters(ctx context.Context, cfg *Config) ([]*redis.Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	target, err := cfg.App.target()
	if err == nil {
		err = target.check()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, setupLimit)
	defer cancel()
	var addrs []string
	switch target.kind {
	case serverTarget:
		addrs = target.addrs
	case failoverTarget:
		m := newMasters(target)
		a, err := m.find(ctx)
		if err = errors.Join(err, m.close()); err != nil {
			return nil, errors.New("sentinel: redis_url: " + setupFailure(err).detail)
		}
		addrs = []string{a.master}
	case clusterTarget:
		if addrs, err = target.clusterMasters(ctx); err != nil {
			return nil, errors.New("sentinel: redis_url: " + setupFailure(err).detail)
		}
	}
	var clients []*redis.Client
	for _, addr := range addrs {
		client := target.client(addr)
		clients = append(clients, client)
		if err := client.Time(ctx).Err(); err != nil && !answered(err) {
			if fault := unfit(err, target.db, target.kind == clusterTarget); fault != "" {
				err = &refusal{fault}
			}
			for _, c := range clients {
				_ = c.Close()
			}
			return nil, errors.New("sentinel: redis_url: " + setupFailure(err).detail)
		}
	}
	return clients, nil
}

// clusterMasters asks the nodes of a cluster for its masters.
func (t redisTarget) clusterMasters(ctx context.Context) ([]string, error) {
	c := &cluster{seeds: t.addrs, askers: make(map[string]*asker), client: func(addr string) (*redis.Client, *handoff) {
		return newClient(t, addr, t.dial)
	}}
	ranges, err := c.findMap(ctx)
	for _, a := range c.askers {
		err = errors.Join(err, a.close())
	}
	var addrs []string
	for _, r := range ranges {
		if !slices.Contains(addrs, r.master) {
			addrs = append(addrs, r.master)
		}
	}
	return addrs, err
}

// client is one for looking, which dials by itself.
func (t redisTarget) client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Network: t.network, Addr: addr, Username: t.username, Password: t.password, DB: t.db,
		Dialer:     t.dial,
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: stepLimit, ReadTimeout: stepLimit, WriteTimeout: stepLimit,
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}
