package main

import (
	"fmt"

	"github.com/sentinelgo/sentinel/measure"
)

// measureLatency is about a proxy that is not saturated.
func measureLatency(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "2 Latency at a fixed rate of arrivals",
		About: fmt.Sprintf("An open loop over %d connections: requests of 64 bytes are due at instants that do not depend on the answers, spread as a Poisson process. "+
			"A latency counts from the instant a request was due, so that a stall is charged to everyone who had to wait for it. All get the same rate, "+
			"half of what the tuned ReverseProxy can do at most.", connections),
	}
	r := get(pathGet, small)
	most, err := l.measure([]*contestant{l.named(nameReverseProxy)}, r, l.Cell/4)
	if err != nil {
		return nil, err
	}
	rate := measure.StatOf(rates(most.cells[0])).Median / 2
	all := l.contestants
	cells, err := measure.Interleave(l.Rounds, len(all), func(i int) (*cell, error) { return openLoop(l.ctx, all[i].process, r, rate, l.Cell) })
	if err != nil {
		return nil, err
	}
	t := &measure.Table{
		Title:   fmt.Sprintf("%.0f requests a second", rate),
		Columns: []string{"", "p50 ms", "p99 ms", "p99.9 ms", "p99 to ReverseProxy", "CPU s per 1,000 requests"},
	}
	g := &grid{cells: cells}
	for _, c := range all {
		g.names = append(g.names, c.name)
	}
	for i, c := range all {
		row := []string{c.name}
		for _, q := range []float64{0.5, 0.99, 0.999} {
			row = append(row, measure.StatOf(measure.Each(cells[i], func(c *cell) float64 { return c.millis(q) })).String())
		}
		t.Add(append(row, measure.RatioOf(p99s(cells[i]), p99s(g.of(nameReverseProxy))).Factor(), fine(costs(cells[i])))...)
	}
	s.Tables = append(s.Tables, t)
	s.Bars = append(s.Bars, measure.AtMost("p99 at a fixed rate to "+nameReverseProxy,
		measure.RatioOf(p99s(g.of(nameSentinel)), p99s(g.of(nameReverseProxy))), 1).AsGate())
	return s, nil
}
