package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/measure"
)

// measureAncestor repeats the cells that the ancestor, a Python package,
// published, and five that it never measured.
func measureAncestor(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "9 The ancestor's cells",
		About: "For whoever comes from the Python package sentinel-rate-limiter: the cells of its own table, at one and eight clients. HTTP cells go " +
			"over the loopback to a net/http service and carry a token. Where the port is dead the breaker is open, as it is in service after five failures; " +
			"the failures themselves are the failure path's.",
	}
	cells, done, err := ancestorCells(l)
	defer done()
	if err != nil {
		return nil, err
	}
	if err := proveAncestor(l); err != nil {
		return nil, err
	}
	for _, set := range []struct {
		title string
		cells []ancestorCell
	}{{"Tenants", cells.tenants}, {"Anonymous clients", cells.anonymous}} {
		for _, clients := range []int{1, 8} {
			g, err := l.ancestorGrid(set.cells, clients)
			if err != nil {
				return nil, err
			}
			s.Tables = append(s.Tables, g.table(set.title+", "+plural(clients, "client"), g.names[0]))
		}
	}
	return s, nil
}

// ancestorCell is a contestant that may be meant to be denied.
type ancestorCell struct {
	contestant
	want bool
}

func (l *lab) ancestorGrid(all []ancestorCell, clients int) (*grid, error) {
	g := &grid{}
	for _, c := range all {
		g.names = append(g.names, c.name)
	}
	var err error
	g.cells, err = measure.Interleave(l.Rounds, len(all), func(i int) (*cell, error) {
		c, err := l.run(load{workers: clients, keys: uniformKeys, want: all[i].want}, l.Cell, all[i].take)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].name, err)
		}
		return c, nil
	})
	return g, err
}

type ancestorSets struct{ tenants, anonymous []ancestorCell }

// bench opens what the cells need and closes it in the opposite order.
type bench struct {
	l      *lab
	closer []func()
	err    error
}

func (b *bench) done() {
	for _, c := range slices.Backward(b.closer) {
		c()
	}
}

func (b *bench) limiter(open func() (*sentinel.Limiter, error)) *sentinel.Limiter {
	if b.err != nil {
		return nil
	}
	limiter, err := open()
	if err != nil {
		b.err = err
		return nil
	}
	b.closer = append(b.closer, closing(limiter))
	return limiter
}

func (b *bench) service(limiter *sentinel.Limiter, ids ...string) *service {
	if b.err != nil {
		return nil
	}
	svc, err := startService(limiter, ids...)
	if err != nil {
		b.err = err
		return nil
	}
	b.closer = append(b.closer, svc.stop)
	return svc
}

func (b *bench) http(svc *service, requests [][]byte) taker {
	if b.err != nil {
		return nil
	}
	take, done, err := svc.overHTTP(b.l.ctx, 8, func(i int) []byte { return requests[i%len(requests)] })
	if err != nil {
		b.err = err
		return nil
	}
	b.closer = append(b.closer, done)
	return take
}

func ancestorCells(l *lab) (sets ancestorSets, done func(), err error) {
	b := &bench{l: l}
	on := b.limiter(func() (*sentinel.Limiter, error) { return openLimiter(l, plenty) })
	over := b.limiter(func() (*sentinel.Limiter, error) { return openLimiter(l, scarce) })
	dead := b.limiter(func() (*sentinel.Limiter, error) { return openBroken(l) })
	ids := []string{endpoint, window, failOpen, anonymous}
	svc, overSvc, deadSvc := b.service(on, ids...), b.service(over, ids...), b.service(dead, ids...)
	var floor limit
	if b.err == nil {
		var closer func()
		if floor, closer, b.err = openProven(l, peerNamed(nameBarePool), plenty); b.err == nil {
			b.closer = append(b.closer, closer)
		}
	}
	if b.err != nil {
		return sets, b.done, b.err
	}
	keys := names("tenant", uniformKeys)
	alone := func(limiter *sentinel.Limiter, id string) taker {
		return func(ctx context.Context, i int) (bool, error) { return genuine(limiter.Allow(ctx, keys[i], id)) }
	}
	broken := func(ctx context.Context, i int) (bool, error) {
		d, err := dead.Allow(ctx, keys[i], endpoint)
		return d.Allowed, err
	}
	tokens := func(id string) [][]byte { return tokenRequests("/"+id, 1000) }
	sets.tenants = []ancestorCell{
		{contestant{"HTTP, unguarded", b.http(svc, [][]byte{raw("/", "")})}, true},
		{contestant{"HTTP, token bucket", b.http(svc, tokens(endpoint))}, true},
		{contestant{"HTTP, sliding window", b.http(svc, tokens(window))}, true},
		{contestant{"limiter alone, token bucket", alone(on, endpoint)}, true},
		{contestant{"limiter alone, sliding window", alone(on, window)}, true},
		{contestant{nameBarePool, func(ctx context.Context, i int) (bool, error) { return floor(ctx, keys[i]) }}, true},
		{contestant{"limiter alone, breaker open", broken}, false},
		{contestant{"HTTP, dead port, fail open", b.http(deadSvc, tokens(failOpen))}, true},
		{contestant{"HTTP, dead port, fail closed", b.http(deadSvc, tokens(endpoint))}, false},
	}
	sets.anonymous = anonymousCells(b, svc, overSvc, deadSvc)
	return sets, b.done, b.err
}

// anonymousCells are the five that the ancestor never measured. All clients of
// the concurrent cell have a cookie and an address in common.
func anonymousCells(b *bench, svc, over, dead *service) []ancestorCell {
	path := "/" + anonymous
	stranger := [][]byte{raw(path, "")}
	known := make([][]byte, 1000)
	for i := range known {
		known[i] = raw(path, "Cookie: "+cookie(i)+"\r\n")
	}
	return []ancestorCell{
		{contestant{"no cookie: a fresh one is minted", b.http(svc, stranger)}, true},
		{contestant{"valid cookies, one address", b.http(svc, known)}, true},
		{contestant{"denial", b.exhausted(over, known[:1])}, false},
		{contestant{"all clients with one cookie", b.http(svc, known[:1])}, true},
		{contestant{"Redis down, fail closed", b.http(dead, known)}, false},
	}
}

// exhausted is http after the quota is used up.
func (b *bench) exhausted(svc *service, requests [][]byte) taker {
	take := b.http(svc, requests)
	for i := int64(0); b.err == nil && i <= scarce.burst; i++ {
		_, b.err = take(b.l.ctx, 0)
	}
	return take
}

// proveAncestor has each algorithm keep its quota through a guard, and so has
// the anonymous endpoint.
func proveAncestor(l *lab) error {
	limiter, err := openLimiter(l, scarce)
	if err != nil {
		return err
	}
	defer limiter.Close()
	for _, id := range []string{endpoint, window, failOpen} {
		if err := proveHandler(l.ctx, "guard at "+id, guardedHTTP(limiter, id)); err != nil {
			return err
		}
	}
	h := guardedHTTP(limiter, anonymous)
	return prove(l.ctx, "guard at "+anonymous, func(_ context.Context, key string) (bool, error) {
		return client(h, fromAddressOf(key))(), nil
	})
}

// fromAddressOf gives a request an address that stands for the key.
func fromAddressOf(key string) func(*http.Request) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return func(r *http.Request) { r.RemoteAddr = address(int(h.Sum32())) }
}
