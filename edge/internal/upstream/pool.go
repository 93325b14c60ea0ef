package upstream

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// Refusal is why there is no backend for a request.
type Refusal uint8

// The refusals. If there are several reasons, it is the last of these.
const (
	NoBackend   Refusal = iota + 1 // none is well
	BreakerOpen                    // who is well is kept from by its breaker
	Overloaded                     // who is left has its most requests in flight
)

// soon is told for an instant that is not known and may be near: a check or a
// breaker's probe is under way. Retry-After counts in seconds.
const soon = time.Second

// Pool chooses among its backends. It is safe for concurrent use.
type Pool struct {
	registry    *Registry
	name        string
	balance     config.Balance
	guarded     bool
	maxInFlight int64 // of a backend; 0: no bound
	members     []member
	rooms       sync.Pool // of *[]candidate, with room for all members

	mu   sync.Mutex
	turn []int64 // of round robin, by member, see smooth
}

// member is a backend as this pool has it.
type member struct {
	backend *Backend
	weight  int64 // 0: gets nothing
}

func newPool(r *Registry, c *config.Pool) *Pool {
	switch c.Balance {
	case config.RoundRobin, config.LeastConnections, config.PowerOfTwo, "":
	default:
		panic("upstream: unknown balance " + string(c.Balance))
	}
	if h := c.Health; h.Type != config.HealthOff && h.Type != "" && (h.Interval <= 0 || h.Timeout <= 0) {
		panic("upstream: the health checks of " + c.Name + " need an interval and a timeout")
	}
	p := &Pool{
		registry:    r,
		name:        c.Name,
		balance:     c.Balance,
		guarded:     c.Breaker.Failures >= 1,
		maxInFlight: int64(c.MaxInFlight),
	}
	p.rooms.New = func() any {
		room := make([]candidate, 0, len(p.members))
		return &room
	}
	return p
}

// add makes b a member, and reports whether it was none. What is there twice has
// both weights.
func (p *Pool) add(b *Backend, weight int) bool {
	if weight < 0 {
		panic("upstream: negative weight of " + b.name)
	}
	i := slices.IndexFunc(p.members, func(m member) bool { return m.backend == b })
	if i >= 0 {
		p.members[i].weight += int64(weight)
		return false
	}
	p.members = append(p.members, member{b, int64(weight)})
	p.turn = append(p.turn, 0)
	return true
}

// shuffle begins round robin anywhere in its cycle: edges that start together
// do not send their first requests to the same backend, nor does one whose
// configuration changes all the time.
func (p *Pool) shuffle() {
	var all []candidate
	for i, m := range p.members {
		if m.weight > 0 {
			all = append(all, candidate{member: i, weight: m.weight})
		}
	}
	if len(all) > 0 {
		for range rand.IntN(len(all)) {
			smooth(p.turn, all)
		}
	}
}

// Name is the pool's name.
func (p *Pool) Name() string { return p.name }

// onStack is how many candidates have room on the stack.
const onStack = 32

// Acquire chooses a backend, counts a request in flight on it and passes its
// breaker. except is whom the request has tried already. If there is
// none, lease is nil, and retryAfter is when the soonest may be back, 0 if
// nobody knows: a breaker's period is over, or a check may pass.
//
// Whoever is chosen may be taken by another caller at the same moment, as the
// one probe of a breaker or the last place of a bound; then it chooses again.
func (p *Pool) Acquire(except ...*Backend) (lease *Lease, refusal Refusal, retryAfter time.Duration) {
	if len(p.members) <= onStack {
		var room [onStack]candidate
		return p.acquire(room[:0], except)
	}
	room := p.rooms.Get().(*[]candidate)
	defer p.rooms.Put(room)
	return p.acquire((*room)[:0], except)
}

// acquire is Acquire with room for the candidates.
func (p *Pool) acquire(room []candidate, except []*Backend) (*Lease, Refusal, time.Duration) {
	var why Refusal
	now := p.registry.now()
	for range len(p.members) {
		among, out := p.survey(room, now, except)
		if len(among) == 0 {
			return nil, out.refusal, out.retryAfter()
		}
		var lease *Lease
		if lease, why = p.try(among, now); lease != nil {
			return lease, 0, 0
		}
	}
	if why == BreakerOpen { // another one is the probe
		return nil, why, soon
	}
	return nil, max(why, NoBackend), 0 // others had the last places, or there is no member
}

// Ready reports whether Acquire would find a backend, and takes none. By the time
// of an Acquire another caller may have been faster.
func (p *Pool) Ready(except ...*Backend) bool {
	now := p.registry.now()
	for i := range p.members {
		m := &p.members[i]
		if m.weight > 0 && !slices.Contains(except, m.backend) && p.obstacle(m.backend, m.backend.inFlight.Load(), now) == 0 {
			return true
		}
	}
	return false
}

// try takes the next of among, or says why another caller was faster.
func (p *Pool) try(among []candidate, now time.Duration) (*Lease, Refusal) {
	i := p.pick(among)
	lease, why := p.reserve(p.members[among[i].member].backend, now)
	if lease == nil {
		p.unpick(among, i)
	}
	return lease, why
}

// kept is why backends were kept from a request, all in all.
type kept struct {
	refusal Refusal
	soonest time.Duration // that somebody may be back; 0: unknown
}

// retryAfter is when it is worth to ask again; nobody knows when a request ends.
func (k kept) retryAfter() time.Duration {
	if k.refusal == Overloaded {
		return 0
	}
	return k.soonest
}

// sooner is the lesser of two durations of which 0 is unknown.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// survey appends the candidates to those of among, and says what keeps the others.
func (p *Pool) survey(among []candidate, now time.Duration, except []*Backend) ([]candidate, kept) {
	out := kept{refusal: NoBackend}
	for i := range p.members {
		m := &p.members[i]
		if m.weight == 0 || slices.Contains(except, m.backend) {
			continue
		}
		load := m.backend.inFlight.Load()
		if why := p.obstacle(m.backend, load, now); why != 0 {
			out.refusal = max(out.refusal, why)
			out.soonest = sooner(out.soonest, p.wait(m.backend, now))
			continue
		}
		among = append(among, candidate{member: i, load: load, weight: m.weight})
	}
	return among, out
}

// obstacle is what keeps a request from b; 0: nothing.
func (p *Pool) obstacle(b *Backend, load int64, now time.Duration) Refusal {
	switch {
	case !standing(b.standing.Load()).eligible():
		return NoBackend
	case p.guarded && !b.breaker.Ready(now):
		return BreakerOpen
	case p.maxInFlight > 0 && load >= p.maxInFlight:
		return Overloaded
	}
	return 0
}

// wait is when b may be back, for its health and for its breaker; 0 is unknown,
// as it is where only a place is wanted.
func (p *Pool) wait(b *Backend, now time.Duration) time.Duration {
	var wait time.Duration
	switch s := standing(b.standing.Load()); {
	case s == removed:
		return 0
	case !s.eligible():
		if wait = b.untilCheck(now); wait == 0 {
			wait = soon
		}
	}
	if !p.guarded {
		return wait
	}
	switch b.breaker.State() {
	case breaker.Open:
		return max(wait, b.breaker.Wait(now))
	case breaker.HalfOpen: // until its probe reports
		return max(wait, soon)
	default:
		return wait
	}
}

// pick returns the index of the next of among.
func (p *Pool) pick(among []candidate) int {
	switch p.balance {
	case config.LeastConnections:
		return least(among, rand.IntN)
	case config.PowerOfTwo:
		return lighterOfTwo(among, rand.IntN)
	default:
		p.mu.Lock()
		i := smooth(p.turn, among)
		p.mu.Unlock()
		return i
	}
}

// unpick takes back a pick that came to nothing. Else a backend for whose probe
// many requests raced would pay for all of them with its later turns.
func (p *Pool) unpick(among []candidate, i int) {
	switch p.balance {
	case config.LeastConnections, config.PowerOfTwo:
	default:
		p.mu.Lock()
		unsmooth(p.turn, among, i)
		p.mu.Unlock()
	}
}

// reserve counts a request in flight and passes the breaker.
func (p *Pool) reserve(b *Backend, now time.Duration) (*Lease, Refusal) {
	if !p.enter(b) {
		return nil, Overloaded
	}
	if !p.guarded {
		return &Lease{backend: b}, 0
	}
	pass, ok := b.breaker.Acquire(now)
	if !ok {
		b.ended()
		return nil, BreakerOpen
	}
	return &Lease{backend: b, pass: pass}, 0
}

// enter counts a request in flight unless the bound is reached.
func (p *Pool) enter(b *Backend) bool {
	if p.maxInFlight == 0 {
		b.inFlight.Add(1)
		return true
	}
	for {
		n := b.inFlight.Load()
		if n >= p.maxInFlight {
			return false
		}
		if b.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}
