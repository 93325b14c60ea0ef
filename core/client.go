package sentinel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// newClient makes the client of one server, which open dials. go-redis by default retries three
// times, dials five times, waits five seconds and ignores a context's
// deadline: each of these breaks the budget or charges twice.
func newClient(t redisTarget, addr string, open dialFunc) (*redis.Client, *handoff) {
	return newClientWith(&redis.Options{
		Network: t.network, Addr: addr, Username: t.username, Password: t.password, DB: t.db,
	}, open)
}

// newClientWith is newClient with options that say where the server is and who
// asks.
func newClientWith(o *redis.Options, open dialFunc) (*redis.Client, *handoff) {
	dialer := &handoff{open: open, network: o.Network, addr: o.Addr}
	o.Dialer = dialer.dial
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.ContextTimeoutEnabled = true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = stepLimit, stepLimit, stepLimit
	// Room for the lines, and for their successors while they close.
	o.PoolSize = 2 * maxLines
	// What follows only saves round trips of the set-up.
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o), dialer
}

// borrowCluster is the cluster that the application's client is for.
func borrowCluster(o *redis.ClusterOptions) *cluster {
	open := o.Dialer
	if open == nil {
		open = redis.NewDialer(&redis.Options{DialTimeout: stepLimit, TLSConfig: o.TLSConfig})
	}
	return &cluster{
		seeds: o.Addrs,
		slots: o.ClusterSlots,
		client: func(addr string) (*redis.Client, *handoff) {
			return newClientWith(&redis.Options{
				Network: "tcp", Addr: addr, ClientName: o.ClientName, OnConnect: o.OnConnect,
				Username: o.Username, Password: o.Password,
				CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
				StreamingCredentialsProvider: o.StreamingCredentialsProvider,
			}, open)
		},
	}
}

// checkUniversal refuses a client that the limiter cannot use, or not safely.
func checkUniversal(client redis.UniversalClient) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		if c == nil {
			return errors.New("sentinel: New needs a client, and this *redis.ClusterClient is nil")
		}
		return nil
	case *redis.Client:
		if c == nil {
			return errors.New("sentinel: New needs a client, and this *redis.Client is nil")
		}
		return checkClient(c.Options())
	case *redis.Ring:
		return errors.New("sentinel: New takes no *redis.Ring, which moves keys to other servers when one is away and so forgets their quotas; use Redis Cluster and a *redis.ClusterClient")
	default:
		return fmt.Errorf("sentinel: New needs a *redis.Client or a *redis.ClusterClient, not a %T", client)
	}
}

// linesOf is how many connections of a client of the application the limiter
// keeps: at most half of those that there may be.
func linesOf(o *redis.Options) int {
	all := o.PoolSize
	if o.MaxActiveConns > 0 {
		all = min(all, o.MaxActiveConns)
	}
	return min(maxLines, all/2)
}

// checkClient refuses a client whose options, as go-redis has normalised them,
// break the budget or may charge twice.
func checkClient(o *redis.Options) error {
	var faults []string
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	refuse(o.MaxRetries != 0, "MaxRetries is %d, so a command may run twice and charge twice; set it to -1", o.MaxRetries)
	refuse(o.DialerRetries > 1, "DialerRetries is %d, so one dial may take several dials' time; set it to 1", o.DialerRetries)
	refuse(!o.ContextTimeoutEnabled, "ContextTimeoutEnabled is false, so a call outlasts its budget; set it to true")
	refuse(o.PoolSize < 2, "PoolSize is %d, and the limiter would keep the one connection there is; set it to 2 or more", o.PoolSize)
	refuse(o.MaxActiveConns == 1, "MaxActiveConns is 1, and the limiter would keep the one connection there is; set it to 2 or more")
	refuse(o.ReadTimeout < 0, "ReadTimeout is -2, which never ends a read; set it to 1s, or leave it 0")
	refuse(o.WriteTimeout < 0, "WriteTimeout is -2, which never ends a write; set it to 1s, or leave it 0")
	if len(faults) == 0 {
		return nil
	}
	return errors.New("sentinel: this redis.Client cannot keep the budget:\n  " + strings.Join(faults, "\n  "))
}
