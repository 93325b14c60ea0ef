package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/core/bucket"
	"github.com/sentinelgo/sentinel/measure"
)

const httprateWindow = time.Hour

const (
	nameVerify    = "bare golang-jwt verify of the same token"
	nameOurVerify = "Sentinel's verify of the same token"
	nameStore     = "the store alone: clock and bucket.Table"
	nameHTTPRate  = "chi with httprate, no token"
)

// measureGuard is about what a guard adds to a route, Redis left out.
func measureGuard(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "5 Guard without Redis",
		About: "One request, served again and again without a network, by one goroutine. The limiter keeps its buckets in memory://, so a guard here " +
			"verifies the token, decides and sets headers. \"The guard\" is the guarded route less the bare route of the same framework, in the same round; " +
			"without the store it is also less what " + nameStore + " costs. Of its allocations, those of Sentinel's own verify are left out, and those of " +
			"a route with two middlewares that do nothing, for the framework makes them for anybody's. Sentinel's verify is a check at an endpoint that has no " +
			"policy, so that nothing is left to decide. A request that is denied is over its quota, and gets the problem document.",
	}
	gin.SetMode(gin.ReleaseMode)
	spinners, done, err := guardSpinners(l)
	defer done()
	if err != nil {
		return nil, err
	}
	r, err := l.spinAll(1, l.Cell, spinners)
	if err != nil {
		return nil, err
	}
	s.Tables = append(s.Tables, r.table("", nameVerify), r.guards())
	for _, f := range frameworks {
		s.Bars = append(s.Bars,
			measure.AtMost("guard of "+f.name+" without the store to a bare verify", r.guardToVerify(f.name, true), 1.15),
			measure.AtMost("guard of "+f.name+", allocations of ours beside the JWT's", r.allocsOfOurs(f.name, guarded(f.name)), 3).In(""))
	}
	return s, nil
}

func bare(f string) string    { return f + ", bare route" }
func idle(f string) string    { return f + ", two middlewares that do nothing" }
func guarded(f string) string { return f + ", guarded" }
func headers(f string) string { return f + ", guarded, with RateLimit headers" }
func denied(f string) string  { return f + ", guarded, denied, with headers" }

func guardSpinners(l *lab) (all []spinner, done func(), err error) {
	var limiters []*sentinel.Limiter
	done = func() {
		for _, limiter := range limiters {
			_ = limiter.Close()
		}
	}
	open := func(q quota, headers bool) (*sentinel.Limiter, error) {
		cfg := settings("memory://", q)
		cfg.App.DisableRateLimitHeaders = !headers
		limiter, err := openWith(l.ctx, cfg)
		if err == nil {
			limiters = append(limiters, limiter)
		}
		return limiter, err
	}
	silent, err := open(plenty, false)
	if err != nil {
		return nil, done, err
	}
	talking, err := open(plenty, true)
	if err != nil {
		return nil, done, err
	}
	denying, err := open(scarce, true)
	if err != nil {
		return nil, done, err
	}
	token := bearer("tenant-00000000")
	add := func(name string, want bool, call func() bool) {
		all = append(all, spinner{name: name, want: want, call: func(int, int) bool { return call() }})
	}
	add(nameVerify, true, verifier(strings.TrimPrefix(token, "Bearer ")))
	add(nameOurVerify, true, ourVerifier(l.ctx, silent, token))
	add(nameStore, true, storeAlone())
	for _, f := range frameworks {
		add(bare(f.name), true, client(f.bare(), with(token)))
		add(idle(f.name), true, client(f.idle(), with(token)))
		add(guarded(f.name), true, client(f.guarded(silent, endpoint), with(token)))
		add(headers(f.name), true, client(f.guarded(talking, endpoint), with(token)))
		over := client(f.guarded(denying, endpoint), with(token))
		for range scarce.burst {
			over()
		}
		add(denied(f.name), false, over)
		if err := proveGuard(l, f); err != nil {
			return nil, done, err
		}
	}
	add(nameHTTPRate, true, client(chiWithHTTPRate(plenty), with(token)))
	return all, done, proveHandler(l.ctx, nameHTTPRate, chiWithHTTPRate(scarce))
}

// verifier is golang-jwt at its best: one parser, the claims that a quota needs.
func verifier(token string) func() bool {
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithExpirationRequired(), jwt.WithStrictDecoding())
	var secret any = []byte(jwtSecret)
	return func() bool {
		claims := jwt.MapClaims{}
		if _, err := parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return secret, nil }); err != nil {
			return false
		}
		sub, err := claims.GetSubject()
		return err == nil && sub != ""
	}
}

// ourVerifier verifies the token and decides nothing.
func ourVerifier(ctx context.Context, limiter *sentinel.Limiter, token string) func() bool {
	req := sentinel.Request{EndpointID: "no.policy", Authorization: []string{token}}
	return func() bool {
		_, err := limiter.Check(ctx, req)
		return errors.Is(err, sentinel.ErrUnknownEndpoint) // a bad token is another error
	}
}

func storeAlone() func() bool {
	table := bucket.NewTable(1000)
	overflow := bucket.New(bucket.NewTokenBucket(plenty.microCapacity(), plenty.microRate()))
	base := time.Now()
	return func() bool {
		group := [1]bucket.Item{{Key: "key", Overflow: overflow}}
		var answers [1]bucket.Answer
		return table.Decide(time.Since(base).Microseconds(), group[:], answers[:])
	}
}

// proveGuard has the guarded service keep a quota, and turn away who has no
// token.
func proveGuard(l *lab, f framework) error {
	limiter, err := openMemory(l, scarce)
	if err != nil {
		return err
	}
	defer limiter.Close()
	h := f.guarded(limiter, endpoint)
	if client(h, func(*http.Request) {})() {
		return fmt.Errorf("%s: a request without a token was let in", f.name)
	}
	return proveHandler(l.ctx, f.name, h)
}

func proveHandler(ctx context.Context, name string, h http.Handler) error {
	return prove(ctx, name, func(_ context.Context, key string) (bool, error) { return client(h, with(bearer(key)))(), nil })
}

// guardCost is the guard alone, in ns, in every round.
func (r *spins) guardCost(f string, withoutStore bool) []float64 {
	without := [][]spun{r.of(bare(f))}
	if withoutStore {
		without = append(without, r.of(nameStore))
	}
	return less(func(s spun) float64 { return s.perCall }, r.of(guarded(f)), without...)
}

func (r *spins) guardToVerify(f string, withoutStore bool) measure.Stat {
	return measure.RatioOf(r.guardCost(f, withoutStore), nanoseconds(r.of(nameVerify)))
}

// allocsOfOurs is what a guarded row of the framework allocates beside the
// verification and what the framework does for any two middlewares.
func (r *spins) allocsOfOurs(f, row string) measure.Stat {
	return measure.StatOf(less(wholeAllocs, r.of(row), r.of(idle(f)), r.of(nameOurVerify)))
}

// wholeAllocs leaves out what the runtime allocates by itself now and then.
func wholeAllocs(s spun) float64 { return math.Round(s.allocs) }

// less is what of the rounds of a row is left without those of other rows.
func less(of func(spun) float64, row []spun, without ...[]spun) []float64 {
	left := measure.Each(row, of)
	for _, other := range without {
		for i, v := range measure.Each(other, of) {
			left[i] -= v
		}
	}
	return left
}

// guards shows what each framework's guard adds.
func (r *spins) guards() *measure.Table {
	t := &measure.Table{Title: "The guard alone", Columns: []string{
		"", "ns", "to a bare verify", "without the store",
		"allocs of ours", "with headers", "denied", "the framework's",
	}}
	for _, f := range frameworks {
		t.Add(f.name, measure.StatOf(r.guardCost(f.name, false)).String(),
			r.guardToVerify(f.name, false).Factor(), r.guardToVerify(f.name, true).Factor(),
			measure.Number(r.allocsOfOurs(f.name, guarded(f.name)).Median),
			measure.Number(r.allocsOfOurs(f.name, headers(f.name)).Median),
			measure.Number(r.allocsOfOurs(f.name, denied(f.name)).Median),
			measure.Number(measure.StatOf(less(wholeAllocs, r.of(idle(f.name)), r.of(bare(f.name)))).Median))
	}
	return t
}
