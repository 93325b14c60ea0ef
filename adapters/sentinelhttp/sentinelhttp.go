package sentinelhttp

import (
	"net/http"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// config is what the options fill. Its zero value is not used: Middleware
// starts from the defaults.
type config struct {
	peer   func(*http.Request) string
	denial func(http.ResponseWriter, *http.Request, Denial)
	skip   func(*http.Request) bool
}

// Option changes how [Middleware] works. One that is nil is ignored.
type Option interface {
	apply(*config)
}

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithTrustedPeer says which address counts at anonymous endpoints, as "ip" or
// "ip:port". The default is r.RemoteAddr. Only an application that sits behind
// a proxy needs it, and only it can know how many proxies to trust: an address
// taken from a header that the client can write gives every request a bucket
// of its own. All addresses that are no IP, "" among them, share one bucket.
//
// It is called once for every request that passes the Middleware.
func WithTrustedPeer(peer func(*http.Request) string) Option {
	if peer == nil {
		panic("sentinelhttp: WithTrustedPeer: the function is nil")
	}
	return optionFunc(func(c *config) { c.peer = peer })
}

// WithDenial replaces the body of denials. When write is called, Retry-After,
// WWW-Authenticate, RateLimit and Cache-Control are set already, as the denial
// asks for; write adds a Content-Type, the status, which is d.Status, and the
// body. A body without a status goes out with d.Status, and where write sends
// nothing at all, the client still gets the default response: a denial never
// turns into an empty 200. write's ResponseWriter can neither flush nor hijack.
func WithDenial(write func(w http.ResponseWriter, r *http.Request, d Denial)) Option {
	if write == nil {
		panic("sentinelhttp: WithDenial: the function is nil")
	}
	return optionFunc(func(c *config) { c.denial = write })
}

// WithSkip lets the requests for which skip is true pass every guard without a
// decision: nothing is charged, no header is set, [sentinel.FromContext] finds
// nothing. It is for health checks and CORS preflights. Do not decide by
// anything that a client could write to escape its quota.
//
// It is called once for every request that passes the Middleware.
func WithSkip(skip func(*http.Request) bool) Option {
	if skip == nil {
		panic("sentinelhttp: WithSkip: the function is nil")
	}
	return optionFunc(func(c *config) { c.skip = skip })
}

// Middleware hands the limiter to the guards behind it. Put it around the whole
// server, once; it decides nothing by itself, so routes without a [Guard] are
// not limited. Where it is nested, the inner one's limiter and options count.
// It panics if the limiter is nil.
func Middleware(l *sentinel.Limiter, opts ...Option) func(http.Handler) http.Handler {
	if l == nil {
		panic("sentinelhttp: Middleware: the limiter is nil")
	}
	cfg := config{
		peer: func(r *http.Request) string { return r.RemoteAddr },
		skip: func(*http.Request) bool { return false },
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&cfg)
		}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			attached := Attach(r, Attachment{Limiter: l, Peer: cfg.peer(r), Skip: cfg.skip(r), Options: &cfg})
			next.ServeHTTP(w, attached)
			HandBack(r, attached)
		})
	}
}

// Guard lets a request through to the handler only if the limiter admits it at
// the endpoint with this id. The id is one of the configuration's, written
// down, never a piece of a URL; Guard panics if it does not match
// ^[a-z0-9._-]+$. A Guard without a [Middleware] around it answers 503 and logs
// once what is missing. Put it on routes: around a whole mux it also charges
// for the paths that the mux does not know.
//
// A cost says as how many requests one counts here, as in
// Guard("billing.export", sentinel.Cost(5)); call [sentinel.Limiter.RequireCost]
// with it at the start.
func Guard(id string, cost ...sentinel.Cost) func(http.Handler) http.Handler {
	return NewGate("sentinelhttp", id, "handler = sentinelhttp.Middleware(limiter)(handler)", cost...).Handler
}

// Handler returns next behind the gate. It is for adapters to frameworks whose
// handlers are net/http's and whose Middleware is [Middleware].
func (g *Gate) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decided, denial := g.Decide(w, r)
		if denial != nil {
			respond(w, decided, *denial)
			return
		}
		next.ServeHTTP(w, decided)
		HandBack(r, decided)
	})
}

// respond answers a denial with the application's function, where there is
// one, else, or if that wrote nothing, by default.
func respond(w http.ResponseWriter, r *http.Request, d Denial) {
	cfg, ok := Options(r).(*config)
	if !ok || cfg.denial == nil {
		d.ServeHTTP(w, r)
		return
	}
	dw := &denialWriter{ResponseWriter: w, status: d.Status}
	cfg.denial(dw, r, d)
	if !dw.done {
		d.ServeHTTP(w, r)
	}
}

// denialWriter is what a WithDenial function writes to. It is wrapped, other
// than the handler's, because only so a forgotten status or body shows. It has
// no Unwrap on purpose: a flush or hijack behind its back would be unseen.
type denialWriter struct {
	http.ResponseWriter
	status int  // sent if the function sends none
	done   bool // a final status went out
}

func (w *denialWriter) WriteHeader(status int) {
	// 1xx are announcements; the final status is still to come.
	w.done = w.done || status >= http.StatusOK || status == http.StatusSwitchingProtocols
	w.ResponseWriter.WriteHeader(status)
}

func (w *denialWriter) Write(p []byte) (int, error) {
	if !w.done {
		w.WriteHeader(w.status)
	}
	return w.ResponseWriter.Write(p)
}
