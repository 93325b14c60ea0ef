package main

import "fmt"

// measureLatency is about a proxy that is not saturated.
func measureLatency(l *lab) ([]*section, error) {
	s := &section{
		title: "2 Latency at a fixed rate of arrivals",
		about: fmt.Sprintf("An open loop over %d connections: requests of 64 bytes are due at instants that do not depend on the answers, spread as a Poisson process. "+
			"A latency counts from the instant a request was due, so that a stall is charged to everyone who had to wait for it. All get the same rate, "+
			"half of what the tuned ReverseProxy can do at most.", connections),
	}
	r := get(pathGet, small)
	most, err := l.measure([]*contestant{l.named(nameReverseProxy)}, r, l.cell/4)
	if err != nil {
		return nil, err
	}
	rate := statOf(rates(most.cells[0])).median / 2
	all := l.contestants
	cells, err := interleave(l.rounds, len(all), func(i int) (*cell, error) { return openLoop(l.ctx, all[i].process, r, rate, l.cell) })
	if err != nil {
		return nil, err
	}
	t := &table{
		title:   fmt.Sprintf("%.0f requests a second", rate),
		columns: []string{"", "p50 ms", "p99 ms", "p99.9 ms", "p99 to ReverseProxy", "CPU s per 1,000 requests"},
	}
	g := &grid{cells: cells}
	for _, c := range all {
		g.names = append(g.names, c.name)
	}
	for i, c := range all {
		row := []string{c.name}
		for _, q := range []float64{0.5, 0.99, 0.999} {
			row = append(row, statOf(each(cells[i], func(c *cell) float64 { return c.millis(q) })).text())
		}
		t.add(append(row, factor(ratioOf(p99s(cells[i]), p99s(g.of(nameReverseProxy)))), statOf(costs(cells[i])).fine())...)
	}
	s.tables = append(s.tables, t)
	s.bars = append(s.bars, atMost("p99 at a fixed rate to "+nameReverseProxy,
		ratioOf(p99s(g.of(nameSentinel)), p99s(g.of(nameReverseProxy))), 1).asGate())
	return []*section{s}, nil
}
