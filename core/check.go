package sentinel

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// Check decides one request. A Redis failure is a Decision, never an error.
// The error is [ErrUnauthenticated] (answer 401), [ErrUnknownEndpoint] (404),
// or the caller's own context has ended: then nothing was decided, and the
// handler must not run. With an error the Decision is zero, a denial.
//
// Check returns within the budget, redis_budget_ms after it was called,
// whatever Redis does. It does so too where ctx ends meanwhile: a call that is
// under way is waited for, so that nobody who hangs up costs others a connection.
func (l *Limiter) Check(ctx context.Context, req Request) (d Decision, err error) {
	wall := time.Now()
	start := wall.Sub(l.epoch)
	s := l.setup.Load()
	e := s.endpoints[req.EndpointID]
	if e != nil && e.policy.Identity == Anonymous {
		err = l.checkAnonymous(ctx, &d, wall, s.anonymous, e, req)
		return d, err
	}
	// An unknown endpoint asks for a token first, like any tenant endpoint, so
	// that a stranger cannot tell which endpoints there are.
	tenant, plan, failure := l.tenantOf(ctx, s.tenants, &req, wall)
	if failure != "" {
		l.metrics.authFailure(string(failure))
		return Decision{}, fmt.Errorf("%w (%s)", ErrUnauthenticated, failure)
	}
	if e == nil {
		return Decision{}, ErrUnknownEndpoint
	}
	g := group{cost: req.Cost.counted()}
	g.add(l.subject(ctx, &s.plans, e, tenant, plan))
	err = l.decide(ctx, &d, e, &g, start, l.now())
	return d, err
}

// tenantOf returns whom the request's token proves, or the application.
func (l *Limiter) tenantOf(ctx context.Context, tenants *tokenVerifier, req *Request, wall time.Time) (tenant, plan string, failure authFailure) {
	if l.vouched == nil {
		return tenants.identify(req.Authorization, wall)
	}
	tenant, err := l.vouched(ctx)
	if err != nil || !nameable(tenant) {
		return "", "", authTenant
	}
	return tenant, "", ""
}

// Allow is Check without HTTP: the caller vouches for the tenant, which must
// not be blank nor longer than 1024 bytes. An anonymous endpoint is [ErrAnonymousEndpoint].
//
// A nil error does not mean yes: look at Decision.Allowed.
func (l *Limiter) Allow(ctx context.Context, tenant, endpointID string, cost ...Cost) (d Decision, err error) {
	start := l.now()
	s := l.setup.Load()
	e := s.endpoints[endpointID]
	if err := e.accepts(tenant, endpointID); err != nil {
		return Decision{}, err
	}
	g := group{cost: costOf(cost)}
	g.add(l.subject(ctx, &s.plans, e, tenant, ""))
	err = l.decide(ctx, &d, e, &g, start, start)
	return d, err
}

// Peek tells what Allow would decide at this moment and changes nothing: no
// token is taken, no metric or log is written, Remaining counts this request
// too. Where the store gives no answer it returns [ErrStoreUnavailable]; it
// never asks the emergency bucket.
func (l *Limiter) Peek(ctx context.Context, tenant, endpointID string) (d Decision, err error) {
	e, s, v, err := l.ask(ctx, modePeek, tenant, endpointID)
	if err != nil {
		return Decision{}, err
	}
	var g group
	g.add(s)
	e.identify(&d, s)
	g.fill(&d, &v)
	e.enforce(&d)
	return d, nil
}

// Reset gives the tenant a fresh bucket at one endpoint, whatever its plan is. Where
// the store gives no answer it returns [ErrStoreUnavailable], and the bucket may or may not be
// fresh.
func (l *Limiter) Reset(ctx context.Context, tenant, endpointID string) error {
	e, _, _, err := l.ask(ctx, modeReset, tenant, endpointID)
	if e != nil {
		// In this order: what is remembered from now on is looked at again.
		l.resets.Add(1)
		l.forget(e, tenant)
	}
	return err
}

// ask runs the script for Peek and Reset.
func (l *Limiter) ask(ctx context.Context, m mode, tenant, endpointID string) (*endpoint, *subject, verdict, error) {
	in := l.setup.Load()
	e := in.endpoints[endpointID]
	if err := e.accepts(tenant, endpointID); err != nil {
		return nil, nil, verdict{}, err
	}
	var g group
	var b *beside
	var s *subject
	if m == modeReset {
		s = l.subjects.under(e, e.fresh, "", tenant)
		g.add(s)
		b = g.beside() // the candidate's buckets are compared with fresh ones
	} else {
		s = l.subject(ctx, &in.plans, e, tenant, "")
		g.add(s)
	}
	v, failure, err := l.consult(ctx, l.now(), m, &g, b)
	if err == nil && failure != nil {
		err = fmt.Errorf("%w: %s", ErrStoreUnavailable, failure.detail)
	}
	return e, s, v, err
}

// accepts returns nil if a caller may vouch for the tenant here. e is nil for
// an endpoint that is not configured.
func (e *endpoint) accepts(tenant, endpointID string) error {
	switch {
	case blank(tenant):
		return fmt.Errorf("%w: the tenant is blank", ErrUnauthenticated)
	case len(tenant) > maxTenantBytes:
		return fmt.Errorf("%w: the tenant is longer than %d bytes", ErrUnauthenticated, maxTenantBytes)
	case e == nil:
		return fmt.Errorf("%w %q", ErrUnknownEndpoint, endpointID)
	case e.policy.Identity == Anonymous:
		return ErrAnonymousEndpoint
	}
	return nil
}

// blank is strings.TrimSpace(s) == "". Of nearly every name the first byte says
// that it is not.
func blank(s string) bool {
	if s != "" && s[0] > ' ' && s[0] < utf8.RuneSelf {
		return false
	}
	return strings.TrimSpace(s) == ""
}

// checkAnonymous counts the cookie, if it is valid, and the peer together. The
// peer alone bounds whoever throws the cookie away.
func (l *Limiter) checkAnonymous(ctx context.Context, d *Decision, wall time.Time, clients *anonymizer, e *endpoint, req Request) error {
	clientID := clients.client(req.Cookies, wall)
	var room [32]byte // of a peer's name, an IPv6 address of 64 bits being the longest by default
	peer := appendPeer(room[:0], req.Peer, clients.prefix)
	g := group{cost: req.Cost.counted()} // the cookie's first: its hash is the decision's
	if clientID != "" {
		g.add(l.subjects.of(e, cookieIdentityPrefix, clientID))
	}
	g.add(l.subjects.of(e, peerIdentityPrefix, string(peer)))
	err := l.decide(ctx, d, e, &g, wall.Sub(l.epoch), l.now())
	if err == nil && d.Allowed && clientID == "" {
		d.Cookie = clients.mint(wall)
	}
	return err
}

// decide takes the decision on a group and records it. The check has begun at
// start; now is when it became clear who asks. With an error d is as it was.
//
// What needs no store takes no time that a clock could tell, so its latency is
// that of finding out who asks, and the clock is not read again.
func (l *Limiter) decide(ctx context.Context, d *Decision, e *endpoint, g *group, start, now time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if known, i := l.known(g, now); known != nil {
		e.identify(d, g.of[0])
		g.fillKnown(d, known, i, now)
		l.record(ctx, e, d, start, now)
		return nil
	}
	resets := l.resets.Load()
	b := g.beside()
	v, failure, err := l.consult(ctx, start, modeDecide, g, b)
	if err != nil {
		return err
	}
	e.identify(d, g.of[0])
	switch {
	case failure == circuitOpen:
		l.failed(e, d, failure, g.price(), now)
	case failure != nil:
		now = l.now()
		l.failed(e, d, failure, g.price(), now)
	default:
		now = l.now()
		g.fill(d, &v)
		switch {
		case b != nil:
			l.compare(d, &v, b)
		case l.remembers && !v.allowed:
			l.remember(g, &v, start, now, resets)
		}
	}
	l.record(ctx, e, d, start, now)
	return nil
}

// known returns the group's known denial and the number of its bucket. It is
// not asked for again, also while Redis is away. Where there is a candidate nothing
// is remembered: it must see every request that the live limits see.
func (l *Limiter) known(g *group, now time.Duration) (*denial, int) {
	if !l.remembers || l.closed.Load() {
		return nil, 0
	}
	return g.denied(now)
}

// enforce lets through what the decision denies, if the policy is not enforced.
func (e *endpoint) enforce(d *Decision) {
	if e.unenforced {
		d.Unenforced, d.WouldDeny, d.Allowed = true, !d.Allowed, true
	}
}

// record has the decision, taken at now, enforced, counts it, shows it to those who
// observe, and logs it if it denies.
func (l *Limiter) record(ctx context.Context, e *endpoint, d *Decision, start, now time.Duration) {
	e.enforce(d)
	at, mine := &e.seen[d.Reason.number()], stripe()
	denies := !d.Allowed || d.WouldDeny
	held := denies && l.denials.holds(now, &at.lines)
	var flood *counter
	if held && now == start { // it is counted once, for the metrics and for the log
		flood = l.metrics.floodOf(at, d)
	}
	var unique uint64
	if flood != nil {
		unique = flood.add(mine)
	} else {
		unique = l.metrics.decided(at, d, mine, now-start)
	}
	if d.Reason != ReasonAllowed {
		d.id = decisionID{l.epochNano + int64(now), unique}
	}
	if l.observers != nil {
		l.observed(ctx, d, start, now)
	}
	if d.WouldDeny {
		l.metrics.letThrough(d)
	}
	switch {
	case !denies, flood != nil:
	case held:
		at.lines.hold(mine)
	default:
		now = l.now()
		l.denials.write(now, &at.lines, d, now-start, l.store.breakerState())
	}
}

// observed shows the decision, taken at now, to those who observe. They get the
// wall clock of this moment: the limiter's own knows no step of it since Open.
func (l *Limiter) observed(ctx context.Context, d *Decision, start, now time.Duration) {
	wall := time.Now()
	begun := wall.Add(start - wall.Sub(l.epoch))
	for _, observe := range l.observers {
		observe(ctx, *d, begun, now-start)
	}
}

// circuitOpen is the failure of a check that the breaker turns away. It is
// never changed.
var circuitOpen = &storeFailure{kind: kindCircuit, detail: "the circuit breaker is open"}

// consult asks the store. Its error is the caller's own context's and nothing
// else.
func (l *Limiter) consult(ctx context.Context, start time.Duration, m mode, g *group, b *beside) (verdict, *storeFailure, error) {
	return l.store.decide(ctx, question{
		mode: m, group: *g, beside: b, start: start, budget: l.budget, alone: m != modeDecide || l.oneByOne,
	})
}

// contextEnded is ctx.Err, and true to the clock: the timer of a deadline may
// fire later than the store's.
func contextEnded(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}

// failed fills d with the failure's row of the decision table, at now.
func (l *Limiter) failed(e *endpoint, d *Decision, f *storeFailure, price int64, now time.Duration) {
	reason := f.reason()
	if e.policy.FailMode != FailOpen {
		d.Reason = ReasonFailClosed
		if reason == ReasonCircuitOpen {
			d.Reason = ReasonCircuitOpen
		}
		return
	}
	var a bucket.Answer
	if !e.emergency.TakeCost(now.Microseconds(), price, &a) {
		d.Reason = ReasonEmergencyLocalLimit
		d.RetryAfter = micros(max(a.Wait, 0))
		return
	}
	d.Allowed, d.Reason = true, reason
}

// identify writes into d where and who it is about.
func (e *endpoint) identify(d *Decision, s *subject) {
	d.EndpointID, d.IdentityMode, d.IdentityHash = e.policy.EndpointID, e.policy.Identity, s.hash
}

// fill writes the store's verdict on the group into d.
func (g *group) fill(d *Decision, v *verdict) {
	d.FromStore = true
	d.Allowed, d.Reason = v.allowed, ReasonAllowed
	i := v.tightest()
	g.tell(d, i)
	tightest := &v.buckets()[i]
	d.Remaining = tightest.Remaining
	d.NextAfter = micros(max(tightest.Wait, 0))
	d.ResetAfter = seconds(max(tightest.Reset, 0))
	if !v.allowed {
		d.Reason = ReasonRateLimited
		d.RetryAfter = longestWait(v)
		d.NextAfter = d.RetryAfter
	}
}

// longestWait is the wait until every bucket that denied admits: 0 if one of
// them never does.
func longestWait(v *verdict) time.Duration {
	var longest int64
	for _, b := range v.buckets() {
		switch {
		case !b.Denied:
		case b.Wait == bucket.Never:
			return 0
		default:
			longest = max(longest, b.Wait)
		}
	}
	return micros(longest)
}
