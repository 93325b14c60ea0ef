package main

import (
	"fmt"
	"time"

	"github.com/sentinelgo/sentinel/measure"
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
	cells, err := measure.Interleave(l.Rounds, len(all), func(i int) (*cell, error) { return closedLoop(l.ctx, all[i].process, r, d) })
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

func rates(cells []*cell) []float64 { return measure.Each(cells, (*cell).perSecond) }
func costs(cells []*cell) []float64 { return measure.Each(cells, (*cell).cost) }
func p99s(cells []*cell) []float64 {
	return measure.Each(cells, func(c *cell) float64 { return c.millis(0.99) })
}

func failures(cells []*cell) float64 {
	total := 0.0
	for _, c := range cells {
		total += c.failed
	}
	return total
}

// table compares all with a bare handler and with a ReverseProxy.
func (g *grid) table(title string) *measure.Table {
	t := &measure.Table{Title: title, Columns: []string{"", "k req/s", "to the bare handler", "to ReverseProxy", "p50 ms", "p99 ms", "CPU s per 1,000 requests"}}
	for i, name := range g.names {
		c := g.cells[i]
		t.Add(name, measure.StatOf(measure.Each(rates(c), func(v float64) float64 { return v / 1e3 })).String(),
			measure.RatioOf(rates(c), rates(g.of(nameBare))).Factor(), measure.RatioOf(rates(c), rates(g.of(nameReverseProxy))).Factor(),
			measure.StatOf(measure.Each(c, func(c *cell) float64 { return c.millis(0.5) })).String(), measure.StatOf(p99s(c)).String(), fine(costs(c)))
	}
	return t
}

// fine is a Stat's text for what is far below 1.
func fine(values []float64) string {
	s := measure.StatOf(values)
	return fmt.Sprintf("%.3f (%.3f..%.3f)", s.Median, s.Least, s.Most)
}

// measureProxies is about what a proxy can do at most, and what that costs.
func measureProxies(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "1 Throughput and cost",
		About: fmt.Sprintf("A closed loop over %d connections: each sends a request as soon as it has its answer. Latencies here are those of a saturated machine. "+
			"sentinel routes, limits, balances, guards by breakers, would try again, and counts; the others do no more than they must. "+
			"The CPU time is the proxy's own, of all its processes; without a proxy it is the backend's.", connections),
	}
	for _, sc := range scenarios() {
		g, err := l.measure(l.contestants, sc.request, time.Duration(sc.part*float64(l.Cell)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", sc.name, err)
		}
		s.Tables = append(s.Tables, g.table(sc.name))
		s.Bars = append(s.Bars, g.bars(sc)...)
	}
	return s, nil
}

func (g *grid) bars(sc scenario) []measure.Bar {
	var bars []measure.Bar
	for _, rival := range []struct {
		name  string
		bound float64
	}{{nameBare, 0.85}, {nameReverseProxy, 1}, {nameCaddy, 1.5}} {
		if cells := g.of(rival.name); cells != nil {
			b := measure.AtLeast(sc.name+": throughput to "+rival.name, measure.RatioOf(rates(g.of(nameSentinel)), rates(cells)), rival.bound)
			b.Gate = sc.gate
			bars = append(bars, b)
		}
	}
	return bars
}
