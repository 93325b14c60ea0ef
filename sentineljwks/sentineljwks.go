// Package sentineljwks fetches the public keys of a JSON Web Key Set (RFC 7517)
// for a [sentinel.Limiter], and keeps them fresh in the background.
//
//	keys, err := sentineljwks.Open(ctx, cfg.App.JWKSURL)
//	...
//	defer keys.Close()
//	limiter, err := sentinel.Open(ctx, cfg, sentinel.WithKeys(keys))
//
// No request ever waits for a key. The set is fetched once before Open returns,
// then every 15 minutes, and sooner, but at most once in 10 seconds, when a
// token names a key that is not there: that token is refused, and the next one
// finds the key. Where the server is dead, or answers nonsense, the last keys
// stay in force, for as long as it takes; [Keys.Age] says how old they are.
//
// It is a module of its own so that who needs no JWKS inherits none of this.
package sentineljwks

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
)

const (
	defaultRefresh = 15 * time.Minute
	// leastPause is the shortest time between two fetches: tokens that name keys
	// which do not exist cost the server no more than that.
	leastPause = 10 * time.Second
	// fetchLimit is how long one fetch may take.
	fetchLimit = 5 * time.Second
	// maxSetBytes is far beyond any real set.
	maxSetBytes = 1 << 20
	// The sizes of an RSA key that the limiter takes.
	minRSABits, maxRSABits = 2048, 8192
)

type options struct {
	client     *http.Client
	logger     *slog.Logger
	refresh    time.Duration
	registerer prometheus.Registerer
}

// Option changes how [Open] works. One that is nil is ignored.
type Option interface {
	apply(*options)
}

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// WithClient fetches with c, for a proxy or an authority of your own. A fetch is
// given up after 5 seconds all the same. Without it, a client that follows no
// redirect is used: whoever answers is trusted to name every key.
func WithClient(c *http.Client) Option {
	return optionFunc(func(o *options) { o.client = c })
}

// WithLogger writes to l; without it, or with nil, to [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(o *options) { o.logger = l })
}

// WithRefresh fetches every d, at least every 10 seconds; the default is 15
// minutes. A key that the issuer has withdrawn counts until then.
func WithRefresh(d time.Duration) Option {
	return optionFunc(func(o *options) { o.refresh = d })
}

// WithRegisterer registers two metrics on r: sentinel_jwks_age_seconds, how long
// ago the keys were fetched, and sentinel_jwks_fetch_failures_total. Without it,
// or with nil, there are none. Close unregisters them. For a second URL in one
// process wrap r with [prometheus.WrapRegistererWith], or Open fails.
func WithRegisterer(r prometheus.Registerer) Option {
	return optionFunc(func(o *options) { o.registerer = r })
}

// Keys are the keys of one URL. Make them with [Open]. They are safe for
// concurrent use.
type Keys struct {
	url     string
	client  *http.Client
	log     *slog.Logger
	current atomic.Pointer[set]
	missing chan struct{} // room for one
	stop    context.CancelFunc
	done    chan struct{}

	failures   prometheus.Counter
	unregister func()
}

// set is what one fetch has found. It is never changed.
type set struct {
	keys map[string]crypto.PublicKey
	at   time.Time
}

var _ sentinel.KeySource = (*Keys)(nil)

// Open fetches the set and keeps it fresh until Close. It waits for the first
// answer, 5 seconds or until ctx ends, and fails where there is none with a key
// in it: a server that can verify no token would answer 401 to everybody, which
// looks like everybody's fault. Let what starts the process start it again.
func Open(ctx context.Context, url string, opts ...Option) (*Keys, error) {
	o := options{refresh: defaultRefresh}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	if o.client == nil {
		o.client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if o.refresh < leastPause {
		return nil, fmt.Errorf("sentineljwks: WithRefresh: %v is less than %v", o.refresh, leastPause)
	}
	k := &Keys{url: url, client: o.client, log: o.logger, missing: make(chan struct{}, 1), done: make(chan struct{})}
	first, err := k.fetch(ctx)
	if err != nil {
		return nil, fmt.Errorf("sentineljwks: fetch the keys of app.jwt_jwks_url: %w", err)
	}
	k.current.Store(first)
	if err := k.register(o.registerer); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	k.stop = stop
	go k.keepFresh(life, o.refresh)
	return k, nil
}

// register shows on r how the fetching goes; nil: to nobody.
func (k *Keys) register(r prometheus.Registerer) error {
	k.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sentinel_jwks_fetch_failures_total",
		Help: "Fetches of the JSON Web Key Set that failed; the last keys stay in force.",
	})
	k.unregister = func() {}
	if r == nil {
		return nil
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sentinel_jwks_age_seconds",
		Help: "Time since the JSON Web Key Set was fetched, in seconds.",
	}, func() float64 { return k.Age().Seconds() })
	k.unregister = sync.OnceFunc(func() {
		r.Unregister(age)
		r.Unregister(k.failures)
	})
	if err := errors.Join(r.Register(age), r.Register(k.failures)); err != nil {
		return fmt.Errorf("sentineljwks: WithRegisterer: %w; for a second URL wrap it with prometheus.WrapRegistererWith", err)
	}
	return nil
}

// PublicKeys implements [sentinel.KeySource].
func (k *Keys) PublicKeys() map[string]crypto.PublicKey { return k.current.Load().keys }

// Missing implements [sentinel.KeySource]: it asks for a fetch, soon and in the
// background.
func (k *Keys) Missing() {
	select {
	case k.missing <- struct{}{}:
	default: // it is asked for already
	}
}

// Age is how long ago the set was fetched. Beyond twice the refresh time, its
// server is in trouble: an alert on the metric of [WithRegisterer] says so.
func (k *Keys) Age() time.Duration { return time.Since(k.current.Load().at) }

// Close ends the fetching. The last keys stay in force. It may be called more
// than once.
func (k *Keys) Close() error {
	k.stop()
	<-k.done
	k.unregister() // once: the metrics may be another one's by now
	return nil
}

// keepFresh fetches at least every refresh, at most every leastPause.
func (k *Keys) keepFresh(ctx context.Context, refresh time.Duration) {
	defer close(k.done)
	healthy := true
	for {
		if !sleep(ctx, leastPause) {
			return
		}
		timer := time.NewTimer(refresh - leastPause)
		select {
		case <-ctx.Done():
		case <-k.missing:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		healthy = k.refetch(ctx, healthy)
	}
}

// refetch fetches once and reports whether that went well. It writes a line for
// each change for the worse or the better, and for each change of the keys.
func (k *Keys) refetch(ctx context.Context, healthy bool) bool {
	before := k.current.Load()
	next, err := k.fetch(ctx)
	switch {
	case ctx.Err() != nil:
		return healthy
	case err != nil:
		k.failures.Inc()
		if healthy {
			k.log.Warn("sentineljwks: the keys cannot be fetched; the last ones stay in force", "detail", err.Error(), "age", k.Age().Round(time.Second).String())
		}
		return false
	}
	k.current.Store(next)
	if !healthy {
		k.log.Info("sentineljwks: the keys are fetched again")
	}
	ids, old := slices.Sorted(maps.Keys(next.keys)), slices.Sorted(maps.Keys(before.keys))
	if replaced := replaced(before.keys, next.keys); len(replaced) > 0 || !slices.Equal(ids, old) {
		k.log.Info("sentineljwks: the keys have changed", "ids", ids, "before", old, "replaced", replaced)
	}
	return true
}

// replaced are the ids of both that stand for another key than before, which no
// issuer should do.
func replaced(before, now map[string]crypto.PublicKey) []string {
	var ids []string
	for id, key := range now {
		old, known := before[id].(interface{ Equal(crypto.PublicKey) bool }) // as all public keys
		if known && !old.Equal(key) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (k *Keys) fetch(ctx context.Context) (*set, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read from
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxSetBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxSetBytes:
		return nil, errors.New("the answer is larger than 1 MiB")
	}
	keys, err := parse(body)
	if err != nil {
		return nil, err
	}
	return &set{keys: keys, at: time.Now()}, nil
}

// parse returns the keys of a set that verify signatures. Others, for other uses
// and of kinds that nobody here knows, are no fault of the set: an issuer may
// add them. A secret is no key of ours, whatever it says it is for.
func parse(body []byte) (map[string]crypto.PublicKey, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, errors.New("the answer is no JSON Web Key Set")
	}
	keys := make(map[string]crypto.PublicKey, len(raw.Keys))
	for _, text := range raw.Keys {
		id, key := parseKey(text)
		if _, twice := keys[id]; key != nil && !twice { // the first counts
			keys[id] = key
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the set has no public key that verifies signatures")
	}
	return keys, nil
}

// parseKey returns nil for what is no public key that verifies signatures.
func parseKey(text []byte) (id string, key crypto.PublicKey) {
	var m jwkset.JWKMarshal
	if json.Unmarshal(text, &m) != nil {
		return "", nil
	}
	verifies := len(m.KEYOPS) == 0 || slices.Contains(m.KEYOPS, jwkset.KeyOpsVerify)
	if m.USE != "" && m.USE != jwkset.UseSig || !verifies || m.ALG != "" && !slices.Contains(algorithms, m.ALG) {
		return "", nil
	}
	// Only what the key is made of is read: a certificate beside it says nothing
	// more, and a URL of one would be fetched.
	bare := jwkset.JWKMarshal{KTY: m.KTY, KID: m.KID, CRV: m.CRV, X: m.X, Y: m.Y, N: m.N, E: m.E}
	k, err := jwkset.NewJWKFromMarshal(bare, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
	if err != nil {
		return "", nil
	}
	switch public := k.Key().(type) {
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return "", nil
		}
		return m.KID, public
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return m.KID, public
	default:
		return "", nil
	}
}

// algorithms are those of which the limiter takes signatures. A key may name what
// it is for, RSA-OAEP say, and is then for nothing else.
var algorithms = []jwkset.ALG{
	"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", // RFC 9864 has the last
}
