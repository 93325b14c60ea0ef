package sentinel

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// memoryPolicy is what a Redis does when its memory is full. Quota state may
// not be evicted, for that would reset a limit, and memory without a bound
// would let a flood of identities take the host down.
type memoryPolicy struct {
	maxmemory int64  // bytes; 0 = no bound
	eviction  string // noeviction, allkeys-lru, ...
}

var errUnreadablePolicy = errors.New("maxmemory-policy can be read neither by CONFIG GET nor by INFO")

// readMemoryPolicy asks CONFIG GET and, where that is forbidden or renamed as
// on many managed servers, INFO. It returns errUnreadablePolicy where the
// server answers and tells neither way.
func readMemoryPolicy(ctx context.Context, conn *redis.Conn) (memoryPolicy, error) {
	config, err := conn.ConfigGet(ctx, "maxmemory*").Result()
	if err == nil {
		if p, ok := parseMemoryPolicy(config["maxmemory"], config["maxmemory-policy"]); ok {
			return p, nil
		}
	} else if !answered(err) {
		return memoryPolicy{}, err
	}

	info, err := conn.Info(ctx, "memory").Result()
	if err != nil && !answered(err) {
		return memoryPolicy{}, err
	}
	fields := map[string]string{}
	for line := range strings.SplitSeq(info, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	if p, ok := parseMemoryPolicy(fields["maxmemory"], fields["maxmemory_policy"]); ok {
		return p, nil
	}
	return memoryPolicy{}, errUnreadablePolicy
}

// answered reports whether err is Redis's own refusal of this very command. A
// server that is still loading, or does not know us, refuses everything: that
// is no answer.
func answered(err error) bool {
	switch errorCodeOf(err) {
	case "", "LOADING", "MASTERDOWN", "BUSY", "NOAUTH", "WRONGPASS":
		return false
	default:
		return true
	}
}

func parseMemoryPolicy(maxmemory, eviction string) (memoryPolicy, bool) {
	n, err := strconv.ParseInt(maxmemory, 10, 64)
	if err != nil || eviction == "" {
		return memoryPolicy{}, false
	}
	return memoryPolicy{maxmemory: n, eviction: eviction}, true
}

// fault returns what to change on the server, or "".
func (p memoryPolicy) fault() string {
	var faults []string
	if p.eviction != "noeviction" {
		faults = append(faults, "maxmemory-policy is "+p.eviction+", so Redis may evict quotas, which resets them; run: CONFIG SET maxmemory-policy noeviction")
	}
	if p.maxmemory <= 0 {
		faults = append(faults, "maxmemory is 0, so Redis may fill the host; run: CONFIG SET maxmemory 256mb")
	}
	if len(faults) == 0 {
		return ""
	}
	return strings.Join(faults, "; ") +
		" (to keep it over a restart, start the server with --maxmemory 256mb --maxmemory-policy noeviction)"
}
