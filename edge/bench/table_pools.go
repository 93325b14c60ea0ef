package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sentinelgo/sentinel/measure"
)

func balances(c *contestant) bool { return c.balances }
func limits(c *contestant) bool   { return c.limits }

// balancers are the ways to choose a backend, by the last part of the path.
var balancers = []struct{ path, name string }{
	{"rr", "round robin"},
	{"lc", "least connections"},
	{"p2c", "power of two"},
}

// measureSlow is about one backend of three that is slow.
func measureSlow(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "3 One of three backends is 20 times slower",
		About: fmt.Sprintf("A backend works on %d requests at once, %v each, the slow one %d times that; who comes meanwhile waits. A closed loop over %d connections.",
			workers, workTime, slowness, connections),
	}
	type entry struct {
		*contestant
		balancer string
		request  request
	}
	var all []entry
	for _, c := range l.those(balances) {
		for _, b := range balancers {
			all = append(all, entry{c, b.name, get(pathWork+b.path, small)})
		}
	}
	cells, err := measure.Interleave(l.Rounds, len(all), func(i int) (*cell, error) {
		return closedLoop(l.ctx, all[i].process, all[i].request, l.Cell/2)
	})
	if err != nil {
		return nil, err
	}
	t := &measure.Table{Columns: []string{"", "req/s", "p50 ms", "p99 ms", "p99 to its round robin"}}
	for i, e := range all {
		robin := cells[i-i%len(balancers)]
		ratio := measure.RatioOf(p99s(cells[i]), p99s(robin))
		t.Add(e.name+": "+e.balancer, measure.StatOf(rates(cells[i])).String(),
			measure.StatOf(measure.Each(cells[i], func(c *cell) float64 { return c.millis(0.5) })).String(), measure.StatOf(p99s(cells[i])).String(), ratio.Factor())
		if e.name == nameSentinel && i%len(balancers) > 0 {
			s.Bars = append(s.Bars, measure.AtMost("one slow backend: p99 of "+e.balancer+" to round robin's", ratio, 0.5).AsGate())
		}
	}
	s.Tables = append(s.Tables, t)
	return s, nil
}

// measureDead is about one backend of three that refuses connections.
func measureDead(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "4 One of three backends refuses connections",
		About: "GET of 64 bytes, a closed loop as in section 1. Each asks another backend if one refuses; HAProxy and sentinel also check health.",
	}
	r := get(pathDead, small)
	r.tolerant = true
	g, err := l.measure(l.those(balances), r, l.Cell/2)
	if err != nil {
		return nil, err
	}
	s.Tables = append(s.Tables, g.counted("answers that are no 200"))
	return s, nil
}

// counted is a table with how many answers were others than those wanted.
func (g *grid) counted(others string) *measure.Table {
	t := &measure.Table{Columns: []string{"", "k req/s", "p99 ms", "CPU s per 1,000 requests", "answers", others}}
	for i, name := range g.names {
		c := g.cells[i]
		total := 0.0
		for _, one := range c {
			total += one.answers
		}
		t.Add(name, measure.StatOf(measure.Each(rates(c), func(v float64) float64 { return v / 1e3 })).String(), measure.StatOf(p99s(c)).String(), fine(costs(c)),
			fmt.Sprintf("%.0f", total), fmt.Sprintf("%.0f", failures(c)))
	}
	return t
}

// measureLimited is about clients that are over their quota.
func measureLimited(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "5 Over the quota",
		About: "Every request is one too many, and answered with 429. A closed loop as in section 1. What a quota lets through meanwhile is counted: nginx's is one a minute.",
	}
	r := get(pathLimited, nil)
	r.status, r.tolerant = http.StatusTooManyRequests, true
	g, err := l.measure(l.those(limits), r, l.Cell/2)
	if err != nil {
		return nil, err
	}
	s.Tables = append(s.Tables, g.counted("let through"))
	return s, nil
}

// swapsPerSecond is how often the configuration changes.
const swapsPerSecond = 10

// measureSwaps is about a configuration that changes all the time.
func measureSwaps(l *lab) (*measure.Section, error) {
	s := &measure.Section{
		Title: "6 Another configuration ten times a second",
		About: "GET of 64 bytes, a closed loop as in section 1. The file is replaced and read again on SIGHUP; every answer is looked at, and every configuration is counted.",
	}
	ours := l.named(nameSentinel)
	names := []string{"sentinel", fmt.Sprintf("sentinel, %d configurations a second", swapsPerSecond)}
	r := get(pathGet, small)
	swaps := 0
	cells, err := measure.Interleave(l.Rounds, len(names), func(i int) (*cell, error) {
		if i == 0 {
			return closedLoop(l.ctx, ours.process, r, l.Cell)
		}
		c, n, err := l.whileSwapping(func() (*cell, error) { return closedLoop(l.ctx, ours.process, r, l.Cell) })
		swaps += n
		return c, err
	})
	if err != nil {
		return nil, err
	}
	t := &measure.Table{Columns: []string{"", "k req/s", "to no swaps", "p99 ms", "CPU s per 1,000 requests", "swaps"}}
	for i, name := range names {
		n := []string{"0", strconv.Itoa(swaps)}[i]
		t.Add(name, measure.StatOf(measure.Each(rates(cells[i]), func(v float64) float64 { return v / 1e3 })).String(), measure.RatioOf(rates(cells[i]), rates(cells[0])).Factor(),
			measure.StatOf(p99s(cells[i])).String(), fine(costs(cells[i])), n)
	}
	s.Tables = append(s.Tables, t)
	return s, nil
}

// whileSwapping runs f while sentinel gets one configuration after another, and
// returns how many it has taken.
func (l *lab) whileSwapping(f func() (*cell, error)) (*cell, int, error) {
	before, err := l.configVersion()
	if err != nil {
		return nil, 0, err
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() { stopped <- l.swap(stop) }()
	c, err := f()
	close(stop)
	if swapErr := <-stopped; err == nil {
		err = swapErr
	}
	if err != nil {
		return nil, 0, err
	}
	after, err := l.configVersion()
	if err == nil && after == before {
		err = fmt.Errorf("sentinel has the configuration that it had")
	}
	return c, after - before, err
}

// swap changes the timeout of requests, of which none takes that long.
func (l *lab) swap(stop <-chan struct{}) error {
	ticker := time.NewTicker(time.Second / swapsPerSecond)
	defer ticker.Stop()
	s := l.stage
	for i := 0; ; i++ {
		s.Timeout = l.stage.Timeout + time.Duration(1+i%2)*time.Second
		if _, err := s.write("sentinel.yaml"); err != nil {
			return err
		}
		if err := l.named(nameSentinel).cmd.Process.Signal(syscall.SIGHUP); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-ticker.C:
		}
	}
}

// configVersion is the version of sentinel's configuration, as it says.
func (l *lab) configVersion() (int, error) {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, "http://"+l.stage.Admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "sentinel_edge_config_version "); ok {
			return strconv.Atoi(v)
		}
	}
	return 0, fmt.Errorf("sentinel does not say which configuration it has")
}
