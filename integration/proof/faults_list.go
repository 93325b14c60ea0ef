package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// effect is what a fault does to checks.
type effect int

const (
	fails  effect = iota // none can be decided by Redis
	works                // all are decided by Redis
	either               // some are
)

// fault is one way in which Redis, or the road to it, fails.
type fault struct {
	name  string
	flags []string     // of the server
	build func(*arena) // makes server and roads; nil: a server and a proxy for each seat
	begin func(*arena)
	end   func(*arena)

	effect effect
	// reason is the one that an endpoint carries that fails open; mixed are those
	// that may be mixed in, as where a connection has to be made anew.
	reason string
	mixed  []string
	// probe is how many calls reach the other side of a live road for each probe
	// of a breaker; 0: the probe finds no connection to send one on.
	probe int
	// rehearsed: the connector, too, asks by EVALSHA whether it is over, so that
	// what reaches the other side is not the breaker's probe alone.
	rehearsed bool
	// lossy: replies are lost, so that a check may be charged and fail. forgets:
	// the server loses its data.
	lossy, forgets bool
	brief          bool // ends before an open period does
	far            bool // a round trip takes half the budget
	endsLate       bool // ends just before a probe, not after one
	core           bool // met in the short form, too
	recovers       bool // of the core: its recovery is waited for, and not its probe
}

const (
	timeoutReason    = "redis_timeout"
	connectionReason = "redis_connection_error"
)

// anew is what checks find while a connection is made anew.
var anew = []string{timeoutReason, connectionReason}

func pass(a *arena) { a.each((*redistest.Proxy).Pass) }

func onRoads(f func(*redistest.Proxy)) func(*arena) {
	return func(a *arena) { a.each(f) }
}

// faults is all of them, for a service whose checks have that budget.
func faults(budget time.Duration) []*fault {
	return slices.Concat(roadFaults(), delays(budget/20), replyFaults(), serverFaults(), rightsFaults(), nameFaults(), cuts())
}

func roadFaults() []*fault {
	return []*fault{
		{
			name: "dead port", begin: onRoads((*redistest.Proxy).Refuse), end: pass,
			reason: connectionReason, mixed: anew, lossy: true, endsLate: true, core: true, recovers: true,
		},
		{
			name: "black hole: accepts, never answers", begin: onRoads((*redistest.Proxy).BlackHole), end: pass,
			reason: timeoutReason, lossy: true, core: true, recovers: true,
		},
		{
			name: "stopped process (SIGSTOP, then SIGCONT)", begin: func(a *arena) { a.server.Pause() }, end: func(a *arena) { a.server.Resume() },
			reason: timeoutReason, lossy: true, endsLate: true, core: true, recovers: true,
		},
		{
			name: "kill -9, restart with an empty script cache", begin: func(a *arena) { a.server.Kill() }, end: func(a *arena) { a.server.Restart() },
			reason: connectionReason, mixed: anew, lossy: true, forgets: true, core: true, recovers: true,
		},
		{
			name: "dial that hangs: SYN dropped", begin: onRoads((*redistest.Proxy).Hang), end: pass,
			reason: timeoutReason, mixed: anew, lossy: true, endsLate: true, core: true, recovers: true,
		},
	}
}

// delays are those of 10, 19, 21 and 100 units, of which the budget is 20.
func delays(unit time.Duration) []*fault {
	by := func(units time.Duration, e effect, probe int) *fault {
		d := units * unit
		return &fault{
			name: fmt.Sprintf("replies delayed by %v", d), begin: onRoads(func(p *redistest.Proxy) { p.Delay(d) }), end: pass,
			effect: e, reason: timeoutReason, lossy: true, probe: probe, far: true,
		}
	}
	return []*fault{
		by(10, works, 0),
		by(19, either, 0), // a timer of the budget may be late, too
		by(21, either, 0),
		by(100, fails, 1),
		{
			name: fmt.Sprintf("connects delayed by %v, replies by %v", 100*unit, 5*unit),
			begin: onRoads(func(p *redistest.Proxy) {
				p.SlowConnect(100 * unit)
				p.Delay(5 * unit)
			}),
			end: pass, effect: works, lossy: true,
		},
	}
}

// wrongShapes are replies to EVALSHA that are no verdict.
var wrongShapes = []string{
	"+OK\r\n", ":1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "$3\r\nabc\r\n",
	"*2\r\n:1\r\n:99\r\n", "*6\r\n:1\r\n:5\r\n:1\r\n:5\r\n:-1\r\n:0\r\n", "*6\r\n:7\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:0\r\n",
	"*6\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n+f\r\n", "*1\r\n*1\r\n:1\r\n", "!garbage\r\n", "*9223372036854775807\r\n:1\r\n",
	"-ERR user_script:1: x\r\n",
}

func replyFaults() []*fault {
	return []*fault{
		{
			name: "reply lost after execution", begin: onRoads(func(p *redistest.Proxy) { p.DropReplies("EVALSHA") }), end: pass,
			reason: connectionReason, mixed: anew, lossy: true, probe: 1,
		},
		{
			name: "connection reset in mid-reply", begin: onRoads(func(p *redistest.Proxy) { p.ResetReplies("EVALSHA") }), end: pass,
			reason: connectionReason, mixed: anew, lossy: true, probe: 1,
		},
		{
			name: "half a reply, then silence", begin: onRoads(func(p *redistest.Proxy) { p.HalfReplies("EVALSHA") }), end: pass,
			reason: timeoutReason, lossy: true, probe: 1,
		},
		{
			name: "replies of the wrong shape", begin: onRoads(func(p *redistest.Proxy) { p.Rewrite("EVALSHA", wrongShapes...) }), end: pass,
			reason: connectionReason, mixed: anew, probe: 1, core: true,
		},
		{
			name: "NOSCRIPT for ever", begin: onRoads(func(p *redistest.Proxy) { p.Rewrite("EVALSHA", "-NOSCRIPT No matching script.\r\n") }), end: pass,
			reason: "redis_noscript_retry", mixed: anew, probe: 2,
		},
	}
}
