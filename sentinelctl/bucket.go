package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// patience is how long a person waits, who may be far from Redis.
const patience = time.Second

// open opens a limiter on the Redis of a file, for looking. Its budget is a
// person's, and nothing is remembered. plan is that of tenants of whom the file says
// nothing; "" for none.
func open(f *policyFile, plan string) (*sentinel.Limiter, error) {
	if f.cfg.App.InMemory() {
		return nil, errInMemory
	}
	cfg := *f.cfg
	cfg.App.RedisBudget = patience
	cfg.App.DisableKnownDenials = true
	return sentinel.Open(context.Background(), &cfg, sentinel.WithStrictStart(), sentinel.WithLogger(slog.New(slog.DiscardHandler)),
		sentinel.WithPlan(func(context.Context, string) string { return plan }))
}

var errInMemory = errors.New("redis_url is memory://: its buckets are in the process that uses them, and nowhere else")

// oneBucket reads the arguments of peek and reset, and opens the limiter. With a
// nil limiter the command ends with the code.
func (c *cli) oneBucket(fs *flag.FlagSet, args []string) (l *sentinel.Limiter, p sentinel.Policy, tenant string, code int) {
	endpoint := fs.String("endpoint", "", "the endpoint's `id`")
	name := fs.String("tenant", "", "the tenant's `name`: the sub of its token")
	plan := fs.String("plan", "", "the tenant's plan, by `name`, where its token or the application says it")
	file, code, ok := c.parse(fs, args)
	if !ok {
		return nil, p, "", code
	}
	f := c.load(file, false)
	if f == nil {
		return nil, p, "", exitUsage
	}
	p, ok = f.cfg.Policies[*endpoint]
	switch {
	case !ok:
		return nil, p, "", c.unknownEndpoint(f, *endpoint)
	case p.Identity == sentinel.Anonymous:
		return nil, p, "", c.usage("%s counts anonymous clients; only a tenant's bucket can be looked at", *endpoint)
	case strings.TrimSpace(*name) == "":
		return nil, p, "", c.usage("say whose with -tenant")
	}
	if _, known := p.Plans[*plan]; !known && *plan != "" {
		return nil, p, "", c.usage("-plan: %s has no plan %q", *endpoint, *plan)
	}
	l, err := open(f, *plan)
	if errors.Is(err, errInMemory) {
		return nil, p, "", c.usage("%v", err)
	}
	if err != nil {
		return nil, p, "", c.noRedis(err)
	}
	return l, p, *name, exitFine
}

// noRedis says that Redis gives no answer, or none that helps.
func (c *cli) noRedis(err error) int {
	fmt.Fprintln(c.err, "sentinelctl:", err)
	return exitRedis
}

// peeked is the JSON of peek and reset. Times are seconds; absent: never, or
// already.
type peeked struct {
	Endpoint   string  `json:"endpoint"`
	Tenant     string  `json:"tenant"`
	RedisKey   string  `json:"redis_key"`
	Admits     bool    `json:"admits"`
	Remaining  int64   `json:"remaining"`
	Limit      int64   `json:"limit"`
	Unenforced bool    `json:"unenforced,omitempty"` // lets through what it does not admit
	RetryAfter float64 `json:"retry_after,omitempty"`
	NextAfter  float64 `json:"next_after,omitempty"`
	ResetAfter float64 `json:"reset_after,omitempty"`
}

func (c *cli) peek(fs *flag.FlagSet, args []string) int {
	l, p, tenant, code := c.oneBucket(fs, args)
	if l == nil {
		return code
	}
	defer l.Close()
	return c.look(l, p, tenant)
}

// look tells of a bucket what Peek says.
func (c *cli) look(l *sentinel.Limiter, p sentinel.Policy, tenant string) int {
	d, err := l.Peek(context.Background(), tenant, p.EndpointID)
	if errors.Is(err, sentinel.ErrStoreUnavailable) {
		return c.noRedis(err)
	}
	if err != nil {
		return c.usage("%v", err)
	}
	r := peeked{
		Endpoint: p.EndpointID, Tenant: tenant, RedisKey: p.RedisKey(tenant), Admits: d.Allowed && !d.WouldDeny, Unenforced: d.Unenforced, Remaining: d.Remaining, Limit: d.Limit,
		RetryAfter: d.RetryAfter.Seconds(), NextAfter: d.NextAfter.Seconds(), ResetAfter: d.ResetAfter.Seconds(),
	}
	if c.asJSON {
		c.json(r)
	} else {
		fmt.Fprint(c.out, r.words())
	}
	if !r.Admits {
		return exitFound
	}
	return exitFine
}

func (r peeked) words() string {
	text := fmt.Sprintf("%s at %s has %s of %s requests left", plainText(r.Tenant), r.Endpoint, grouped(r.Remaining), grouped(r.Limit))
	switch {
	case !r.Admits && r.RetryAfter > 0:
		text += fmt.Sprintf("; it is denied for another %s", span(r.RetryAfter))
	case !r.Admits:
		text += "; it is denied, and that does not end by itself"
	case r.NextAfter > 0:
		text += fmt.Sprintf("; one more in %s", span(r.NextAfter))
	}
	if r.ResetAfter > 0 {
		text += fmt.Sprintf("; as new in %s", span(r.ResetAfter))
	}
	if r.Unenforced {
		text += "; not enforced"
	}
	return text + "\n" + r.RedisKey + "\n"
}

func (c *cli) reset(fs *flag.FlagSet, args []string) int {
	yes := fs.Bool("yes", false, "do not ask")
	l, p, tenant, code := c.oneBucket(fs, args)
	if l == nil {
		return code
	}
	defer l.Close()
	if !*yes && !c.confirm(fmt.Sprintf("Give %s a fresh bucket at %s?", plainText(tenant), p.EndpointID)) {
		return c.usage("nothing was done; say -yes, or answer y on a terminal")
	}
	if err := l.Reset(context.Background(), tenant, p.EndpointID); err != nil {
		if errors.Is(err, sentinel.ErrStoreUnavailable) {
			return c.noRedis(err)
		}
		return c.usage("%v", err)
	}
	return c.look(l, p, tenant)
}

// confirm asks on a terminal; where there is none the answer is no.
func (c *cli) confirm(question string) bool {
	if !c.terminal {
		return false
	}
	fmt.Fprint(c.err, question, " [y/N] ")
	answer, err := bufio.NewReader(c.in).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	return err == nil && (answer == "y" || answer == "yes")
}
