package sentinel

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// denialLinesPerSecond is how many denials of one endpoint and reason are
// written in any one second of one process.
const denialLinesPerSecond = 10

// denials are the reasons that a denial can have.
var denials = [...]Reason{ReasonRateLimited, ReasonCircuitOpen, ReasonFailClosed, ReasonEmergencyLocalLimit}

// denyLog writes denials, bounded: whoever floods the API must not fill the
// disk. It is safe for concurrent use.
type denyLog struct {
	log    *slog.Logger
	all    bool
	closed atomic.Bool
}

// denyCount is what one endpoint and reason has written. While its lines are
// used up, a flood only reads full and counts itself.
type denyCount struct {
	full  atomic.Int64            // until when no line may be written, on the limiter's clock
	held  atomic.Pointer[counter] // back, beside the flood; nil: none ever
	flood atomic.Pointer[counter] // held back, and took no time; nil: none, or over

	mu    sync.Mutex
	times [denialLinesPerSecond]time.Duration // of the last lines, in a ring, + 1 second
	next  int
	told  int64 // what held and flood had when it was last told, and others' before
	over  bool  // the limiter is closed: there is no flood any more
}

// holds reports whether a denial is not to be written at now. The caller counts it.
func (l *denyLog) holds(now time.Duration, c *denyCount) bool {
	return l.closed.Load() || !l.all && int64(now) < c.full.Load()
}

func (c *denyCount) hold(stripe uint64) {
	held := c.held.Load()
	if held == nil {
		c.held.CompareAndSwap(nil, new(counter))
		held = c.held.Load()
	}
	held.add(stripe)
}

// end takes the counter of floods away, for good, and returns it; nil: there was none.
func (c *denyCount) end() *counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	flood := c.flood.Swap(nil)
	c.told -= flood.read()
	return flood
}

// taken returns how many were held back since it was last asked.
func (c *denyCount) taken() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.held.Load().read() + c.flood.Load().read()
	n := all - c.told
	c.told = all
	return n
}

// write logs a denial that was not held back, at now, unless others have just
// used up the lines.
func (l *denyLog) write(now time.Duration, c *denyCount, d *Decision, latency time.Duration, breakerState string) {
	if !l.all && !c.admit(now) {
		c.hold(stripe())
		return
	}
	attrs := []slog.Attr{
		slog.String("identity_mode", string(d.IdentityMode)),
		slog.String("identity_hash", d.IdentityHash),
		slog.String("endpoint_id", d.EndpointID),
		slog.String("decision_reason", string(d.Reason)),
		slog.String("decision_id", d.ID()),
		slog.Int64("latency_micro", latency.Microseconds()),
		slog.String("breaker_state", breakerState),
	}
	if n := c.taken(); n > 0 {
		attrs = append(attrs, slog.Int64("suppressed", n))
	}
	text := "sentinel: denied"
	if d.WouldDeny {
		text = "sentinel: denied, not enforced"
		attrs = append(attrs, slog.Bool("enforced", false))
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, text, attrs...)
}

// admit reports whether a line may be written at now: the tenth before it is a
// second old.
func (c *denyCount) admit(now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := c.times[c.next]
	if now < free {
		c.full.Store(int64(free))
		return false
	}
	c.times[c.next] = now + time.Second
	c.next = (c.next + 1) % len(c.times)
	return true
}

// close writes what is still held back, so that lines and suppressed add up to
// all denials until then. A line that is being written meanwhile may come after it.
func (l *denyLog) close(all map[string]*[reasons]seen, endpoints map[string]*endpoint) {
	l.closed.Store(true)
	for id, seen := range all {
		for _, reason := range denials {
			suppressed := seen[reason.number()].lines.taken()
			if suppressed == 0 {
				continue
			}
			attrs := []slog.Attr{
				slog.String("endpoint_id", id),
				slog.String("decision_reason", string(reason)),
				slog.Int64("suppressed", suppressed),
			}
			if e := endpoints[id]; e != nil && e.unenforced {
				attrs = append(attrs, slog.Bool("enforced", false))
			}
			l.log.LogAttrs(context.Background(), slog.LevelWarn, "sentinel: denials held back until close", attrs...)
		}
	}
}
