package sentinel

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Option sets what is code and not data: [Open] and [New] take any number of
// them, and ignore one that is nil. What belongs into the policy file has no
// Option.
type Option interface {
	apply(*options)
}

type options struct {
	registerer  prometheus.Registerer
	logger      *slog.Logger
	strictStart bool
	allDenials  bool
	oneByOne    bool
	keys        KeySource
	tenant      func(context.Context) (string, error)
	plan        func(context.Context, string) string
	observers   []observer
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithRegisterer registers the metrics on r. Several limiters may share one
// registerer: they count into the same series. Without it, or with nil, no
// metric is kept.
func WithRegisterer(r prometheus.Registerer) Option {
	return optionFunc(func(o *options) { o.registerer = r })
}

// WithLogger writes the log to l; without it, or with nil, to [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(o *options) { o.logger = l })
}

// WithStrictStart makes Open and New fail where Redis does not answer within
// two seconds. Without it they succeed, loudly, and every check takes its
// failure row until Redis answers.
func WithStrictStart() Option {
	return optionFunc(func(o *options) { o.strictStart = true })
}

// WithEveryDenialLogged writes one line for each denial. Without it at most 10
// lines a second are written per endpoint and reason, and the next line of the
// pair says how many were held back. An attacker chooses how many denials
// there are, so this is for an audit, not for every day.
func WithEveryDenialLogged() Option {
	return optionFunc(func(o *options) { o.allDenials = true })
}

// WithoutGathering sends each decision in a call of its own. Without it,
// decisions that wait at the same time go to Redis together, up to 128 in one
// call, which costs both sides a fraction. It is for comparing, and for a Redis
// on which other users cannot bear a script of half a millisecond.
func WithoutGathering() Option {
	return optionFunc(func(o *options) { o.oneByOne = true })
}

// WithKeys takes the public keys of jwt_jwks_url from s, beside those of
// jwt_keys. Package sentineljwks fetches them.
func WithKeys(s KeySource) Option {
	return optionFunc(func(o *options) { o.keys = s })
}

// WithTenant is for an application that authenticates its requests itself:
// tenant returns whom it has found, from the request's context, where the
// application's own middleware has put it, before any guard. It is called once
// for every check of a tenant endpoint, concurrently. An error, and a name that
// is blank, longer than 1024 bytes or not UTF-8, is ErrUnauthenticated (401);
// the error is not passed on.
//
// It goes with "authentication": "application"; no token is then read. Whoever
// vouches for a tenant answers for it: tenant must not return what a client
// wrote and nobody has verified.
func WithTenant(tenant func(context.Context) (string, error)) Option {
	if tenant == nil {
		panic("sentinel: WithTenant: the function is nil")
	}
	return optionFunc(func(o *options) { o.tenant = tenant })
}

// fit returns an error where options and configuration contradict each other.
func (o *options) fit(app *App) error {
	switch {
	case app.JWKSURL != "" && o.keys == nil:
		return errors.New("sentinel: app.jwt_jwks_url: nothing fetches it; open it with package sentineljwks, and pass WithKeys")
	case o.keys != nil && app.JWKSURL == "":
		return errors.New("sentinel: WithKeys: the configuration has no app.jwt_jwks_url")
	case o.tenant != nil && app.Authentication != ByApplication:
		return errors.New(`sentinel: WithTenant: app.authentication must be "application", so that no token is read`)
	}
	return nil
}

// WithPlan asks the application for the name of a tenant's plan, "" where it
// knows none. What the configuration says of a tenant counts more, a claim of the
// token less. It is called for each decision at an endpoint that has plans, while
// the request waits, and concurrently: it must answer from memory.
func WithPlan(plan func(ctx context.Context, tenant string) string) Option {
	return optionFunc(func(o *options) { o.plan = plan })
}

// observer is what WithObserver takes.
type observer func(ctx context.Context, d Decision, start time.Time, latency time.Duration)

// WithObserver has observe see every decision of Check and Allow after it is
// taken and before they return; with several, each sees each. What is no
// decision (401, 404, a caller who has gone) and Peek are not seen.
//
// ctx is the caller's; it may end at any moment. d is the decision without its
// cookie. start is when the check began, by the wall clock, and latency what the
// histogram of the metrics counts, both up to here. observe is called
// concurrently, while the request waits: it must be quick, and must not panic.
func WithObserver(observe func(ctx context.Context, d Decision, start time.Time, latency time.Duration)) Option {
	if observe == nil {
		panic("sentinel: WithObserver: the function is nil")
	}
	return optionFunc(func(o *options) { o.observers = append(o.observers, observe) })
}

func newOptions(opts []Option) options {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	return o
}
