package sentinelhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// ErrNoMiddleware is the Err of a [Denial] whose request passed no Middleware.
var ErrNoMiddleware = errors.New("sentinelhttp: Guard without Middleware")

// Attachment is what an adapter's Middleware knows of one request.
type Attachment struct {
	// Limiter decides. Without one, every gate refuses the request.
	Limiter *sentinel.Limiter
	// Peer is the client's address, "ip:port" or "ip": the socket's, or one
	// that the application vouches for. All that are no IP share one bucket.
	Peer string
	// Skip lets the request pass every gate without a decision.
	Skip bool
	// Options is the adapter's own, for its Guard to read back with [Options].
	Options any
}

type attachedKey struct{}

// attached is an Attachment on its way, with the outcomes of the gates that the
// request has passed. A request has one list of outcomes however many
// Middlewares are nested around the gate: the outermost attached's.
//
// It is itself the context that carries it, and holds the request that has this
// context, and room for the usual one outcome: what a guard allocates, it
// allocates on every request.
type attached struct {
	context.Context
	Attachment
	outer   *attached    // nil on the outermost
	request http.Request // of this context

	// mu is held over a decision, so that one request that fans out to several
	// goroutines is decided once per id, too. No other request waits for it.
	mu       sync.Mutex
	outcomes *outcome // the latest one; nil: first is free
	first    outcome
	cookie   string // the Set-Cookie value that a gate has added, "" for none
}

// outcome is what the limiter said to one id on this request. It is also the
// context of what goes on behind the gate, and holds the request that has it.
type outcome struct {
	sentinel.DecisionContext
	limiter *sentinel.Limiter
	id      string
	cost    sentinel.Cost
	err     error
	earlier *outcome
	headers headerValues
	request http.Request // behind the gate
}

// Attach returns a request that carries a to the gates behind it. It is for
// adapters; they call it from their Middleware.
func Attach(r *http.Request, a Attachment) *http.Request {
	at := &attached{Context: r.Context(), Attachment: a}
	at.outer, _ = attachedTo(r)
	at.request = *r.WithContext(at)
	return &at.request
}

// HandBack gives the request that a Middleware or a Guard was called with the
// upload that the handler has parsed on the one that it got: the server removes
// its files from the disk when it is done, and looks for them on its own
// request. It is for adapters; they call it when the handler has returned.
func HandBack(to, from *http.Request) {
	if to.MultipartForm == nil && from.MultipartForm != nil { // else nothing is written: others may read to
		to.MultipartForm = from.MultipartForm
	}
}

// Value implements context.Context.
func (root *attached) Value(key any) any {
	if key == (attachedKey{}) {
		return root
	}
	return root.Context.Value(key)
}

// Format prints nothing of the request, whatever the verb: a context may get
// into a log, and credentials may not.
func (root *attached) Format(f fmt.State, _ rune) { fmt.Fprint(f, root.Context, ".WithSentinel") }

// Format prints nothing of the request either.
func (o *outcome) Format(f fmt.State, _ rune) { fmt.Fprint(f, o.Context, ".WithDecision") }

// Options returns what the innermost Middleware around r attached as
// [Attachment.Options], nil where there is none. It is for adapters; where
// several are nested, the value may be another adapter's.
func Options(r *http.Request) any {
	if a, ok := attachedTo(r); ok {
		return a.Options
	}
	return nil
}

func attachedTo(r *http.Request) (*attached, bool) {
	a, ok := r.Context().Value(attachedKey{}).(*attached)
	return a, ok && a.Limiter != nil
}

// Gate is the guard of one endpoint without its framework: it asks the limiter
// and turns the outcome into a response. It is for adapters; make one with
// [NewGate] when the route is wired. It may be used concurrently.
type Gate struct {
	adapter string
	id      string
	cost    sentinel.Cost
	wiring  string
	warn    sync.Once // of a Middleware that is missing
	unknown sync.Once // of a policy that is missing
}

// NewGate returns the gate of an endpoint id. adapter is the name of the
// adapter's package, for messages; wiring is the line of code that puts its
// Middleware in place, shown to whoever forgot it. NewGate panics if the id
// does not match ^[a-z0-9._-]+$, or for a cost that is none, or more than one.
func NewGate(adapter, id, wiring string, cost ...sentinel.Cost) *Gate {
	if !validID(id) {
		panic(fmt.Sprintf("%s: Guard(%q): an endpoint id matches ^[a-z0-9._-]+$", adapter, id))
	}
	g := &Gate{adapter: adapter, id: id, wiring: wiring}
	if len(cost) > 1 {
		panic(fmt.Sprintf("%s: Guard(%q): several costs", adapter, id))
	}
	for _, g.cost = range cost {
		if err := g.cost.Valid(); err != nil || g.cost == 0 {
			panic(fmt.Sprintf("%s: Guard(%q): a cost of %d: it must be 1 to 4503599627", adapter, id, int64(g.cost)))
		}
	}
	return g
}

func validID(id string) bool {
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return id != ""
}

// Decide asks the limiter about r, once for each id on one request.
//
// A nil Denial says that the request may go on: go on with the request that
// came back, whose context carries the decision; w holds the RateLimit headers
// and a new anonymous cookie. Otherwise the handler must not run; w holds the
// denial's headers, and the caller sends its status and body, with
// [Denial.ServeHTTP] or in another form.
func (g *Gate) Decide(w http.ResponseWriter, r *http.Request) (*http.Request, *Denial) {
	a, ok := attachedTo(r)
	if !ok {
		g.warn.Do(func() {
			slog.Default().Error(g.adapter+": a Guard met no Middleware, so it answers 503 to every request; add the line",
				"endpoint_id", g.id, "line", g.wiring)
		})
		return r, deny(w.Header(), &outcome{err: ErrNoMiddleware}, false)
	}
	if a.Skip {
		return r, nil
	}

	root := a
	for root.outer != nil {
		root = root.outer
	}
	root.mu.Lock()
	defer root.mu.Unlock()
	o := root.outcome(a, r, g)
	if errors.Is(o.err, sentinel.ErrUnknownEndpoint) {
		g.unknown.Do(func() {
			a.Limiter.Logger().Error(g.adapter+": a Guard has no policy, so it answers 404; add one, and call Limiter.Require at start",
				"endpoint_id", g.id)
		})
	}
	if o.err != nil || !o.Decision.Allowed {
		root.withdrawCookie(w.Header())
		return r, deny(w.Header(), o, a.Limiter.RateLimitHeaders())
	}
	root.sendCookie(w.Header(), o.Decision.Cookie)
	// Of a quota that is not enforced no client is told: one that heeds the headers
	// would slow down for it, and what was to be measured would not come.
	if a.Limiter.RateLimitHeaders() && !o.Decision.Unenforced {
		o.headers.setRateLimit(w.Header(), &o.Decision)
	}
	o.Context = r.Context()
	o.request = *r.WithContext(o)
	return &o.request, nil
}

// outcome returns what a's limiter says to id, or said to it earlier on this
// request, for a gate to use. The caller holds mu.
func (root *attached) outcome(a *attached, r *http.Request, g *Gate) *outcome {
	for o := root.outcomes; o != nil; o = o.earlier {
		if o.limiter == a.Limiter && o.id == g.id && o.cost == g.cost {
			// The request behind that gate is in use, maybe at this moment.
			again := &outcome{err: o.err}
			again.Decision = o.Decision
			return again
		}
	}
	o := &root.first
	if root.outcomes != nil {
		o = new(outcome)
	}
	o.limiter, o.id, o.cost, o.earlier = a.Limiter, g.id, g.cost, root.outcomes
	o.Decision, o.err = a.Limiter.Check(r.Context(), sentinel.Request{
		EndpointID:    g.id,
		Cost:          g.cost,
		Authorization: r.Header["Authorization"],
		Cookies:       r.Header["Cookie"],
		Peer:          a.Peer,
	})
	root.outcomes = o
	return o
}

// sendCookie adds the cookie to the response, at most one on a request: each of
// several anonymous gates offers one, and two of one name confuse clients. The
// caller holds mu.
func (root *attached) sendCookie(h http.Header, c *sentinel.Cookie) {
	if c == nil || root.cookie != "" {
		return
	}
	root.cookie = (&http.Cookie{
		Name:     c.Name,
		Value:    c.Value,
		Path:     "/",
		MaxAge:   int(c.MaxAge.Seconds()),
		Secure:   c.Secure,
		HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	}).String()
	if root.cookie != "" {
		h.Add("Set-Cookie", root.cookie)
	}
}

// withdrawCookie takes back what an earlier gate has added, because a cookie
// goes out only with an allowed response. The application's own cookies stay.
// The caller holds mu.
func (root *attached) withdrawCookie(h http.Header) {
	if root.cookie == "" {
		return
	}
	kept := slices.DeleteFunc(h["Set-Cookie"], func(v string) bool { return v == root.cookie })
	if len(kept) == 0 {
		h.Del("Set-Cookie")
	} else {
		h["Set-Cookie"] = kept
	}
}
