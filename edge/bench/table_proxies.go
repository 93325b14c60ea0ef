package main

import (
	"fmt"
	"time"
)

// scenario is one kind of request.
type scenario struct {
	name    string
	request request
	part    float64 // of the time that the first one has
	gate    bool
}

func scenarios() []scenario {
	fresh := get(pathGet, small)
	fresh.fresh = true
	return []scenario{
		{"GET of 64 bytes, connections kept", get(pathGet, small), 1, true},
		{"GET of 64 KiB", get(pathBody, large), 0.6, false},
		{"POST of 16 KiB", post(upload, small), 0.6, false},
		{"GET of 64 bytes, a new connection for each", fresh, 0.6, false},
	}
}

// grid is what contestants did, by contestant and round.
type grid struct {
	names []string
	cells [][]*cell
}

// measure has contestants send a request in a closed loop.
func (l *lab) measure(all []*contestant, r request, d time.Duration) (*grid, error) {
	cells, err := interleave(l.rounds, len(all), func(i int) (*cell, error) { return closedLoop(l.ctx, all[i].process, r, d) })
	if err != nil {
		return nil, err
	}
	g := &grid{cells: cells}
	for _, c := range all {
		g.names = append(g.names, c.name)
	}
	return g, nil
}

// of is what one of them did; nil if it is absent.
func (g *grid) of(name string) []*cell {
	for i, n := range g.names {
		if n == name {
			return g.cells[i]
		}
	}
	return nil
}

func rates(cells []*cell) []float64 { return each(cells, (*cell).perSecond) }
func costs(cells []*cell) []float64 { return each(cells, (*cell).cost) }
func p99s(cells []*cell) []float64 {
	return each(cells, func(c *cell) float64 { return c.millis(0.99) })
}

func failures(cells []*cell) float64 {
	total := 0.0
	for _, c := range cells {
		total += c.failed
	}
	return total
}

// table compares all with a bare handler and with a ReverseProxy.
func (g *grid) table(title string) *table {
	t := &table{title: title, columns: []string{"", "k req/s", "to the bare handler", "to ReverseProxy", "p50 ms", "p99 ms", "CPU s per 1,000 requests"}}
	for i, name := range g.names {
		c := g.cells[i]
		t.add(name, statOf(each(rates(c), func(v float64) float64 { return v / 1e3 })).text(),
			factor(ratioOf(rates(c), rates(g.of(nameBare)))), factor(ratioOf(rates(c), rates(g.of(nameReverseProxy)))),
			statOf(each(c, func(c *cell) float64 { return c.millis(0.5) })).text(), statOf(p99s(c)).text(), statOf(costs(c)).fine())
	}
	return t
}

// fine is text for what is far below 1.
func (s stat) fine() string { return fmt.Sprintf("%.3f (%.3f..%.3f)", s.median, s.least, s.most) }

// measureProxies is about what a proxy can do at most, and what that costs.
func measureProxies(l *lab) ([]*section, error) {
	s := &section{
		title: "1 Throughput and cost",
		about: fmt.Sprintf("A closed loop over %d connections: each sends a request as soon as it has its answer. Latencies here are those of a saturated machine. "+
			"sentinel routes, limits, balances, guards by breakers, would try again, and counts; the others do no more than they must. "+
			"The CPU time is the proxy's own, of all its processes; without a proxy it is the backend's.", connections),
	}
	for _, sc := range scenarios() {
		g, err := l.measure(l.contestants, sc.request, time.Duration(sc.part*float64(l.cell)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", sc.name, err)
		}
		s.tables = append(s.tables, g.table(sc.name))
		s.bars = append(s.bars, g.bars(sc)...)
	}
	return []*section{s}, nil
}

func (g *grid) bars(sc scenario) []bar {
	var bars []bar
	for _, rival := range []struct {
		name  string
		bound float64
	}{{nameBare, 0.85}, {nameReverseProxy, 1}, {nameCaddy, 1.5}} {
		if cells := g.of(rival.name); cells != nil {
			b := atLeast(sc.name+": throughput to "+rival.name, ratioOf(rates(g.of(nameSentinel)), rates(cells)), rival.bound)
			b.gate = sc.gate
			bars = append(bars, b)
		}
	}
	return bars
}
