package main

import (
	"fmt"
	"strings"

	"github.com/sentinelgo/sentinel/core/bucket"
)

// simulated is the JSON of simulate. Times are seconds: since 1970 for a log,
// since the beginning for a described traffic.
type simulated struct {
	From     float64           `json:"from"`
	To       float64           `json:"to"`
	Requests int               `json:"requests"`
	Admitted int               `json:"admitted"`
	Denied   int               `json:"denied"`
	NoTenant int               `json:"without_tenant"`
	NoPolicy int               `json:"without_endpoint"`
	Tenants  []simulatedTenant `json:"tenants"`
}

type simulatedTenant struct {
	Endpoint string            `json:"endpoint"`
	Tenant   string            `json:"tenant"`
	Requests int               `json:"requests"`
	Admitted int               `json:"admitted"`
	Denied   int               `json:"denied"`
	Longest  *float64          `json:"longest_wait,omitempty"` // absent: none, or it never ends
	Denials  []simulatedDenial `json:"denials,omitempty"`
}

type simulatedDenial struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Count int     `json:"count"`
}

// tell prints what came of it.
func (c *cli) tell(s *simulation, o simulateFlags) {
	if c.asJSON {
		c.json(s.result())
		return
	}
	if s.described != "" {
		fmt.Fprintf(c.out, "%s, %s\n\n", s.described, span(float64(s.to-s.from)/1e6))
	} else {
		fmt.Fprintf(c.out, "%s to %s UTC\n\n", s.when(s.from), s.when(s.to-1))
	}
	all := s.worst()
	var rows [][]string
	for _, st := range all[:min(o.top, len(all))] {
		row := []string{
			st.endpoint, plainText(st.tenant), grouped(int64(st.requests)), grouped(int64(st.requests - st.denied)),
			grouped(int64(st.denied)), share(st.denied, st.requests), "", "", "",
		}
		if st.denied > 0 {
			row[6], row[7], row[8] = s.when(st.first), s.when(st.last), waitText(st.longest)
		}
		rows = append(rows, row)
	}
	if len(all) > 1 {
		rows = append(rows, []string{
			"all", plural(len(all), "bucket"), grouped(int64(len(s.requests))), grouped(int64(s.admitted)),
			grouped(int64(s.denied)), share(s.denied, len(s.requests)), "", "", "",
		})
	}
	fmt.Fprint(c.out, table(
		[]string{"endpoint", "tenant", "requests", "admitted", "denied", "share", "first denied", "last denied", "longest wait"},
		"llrrrrrrr", rows))
	if left := s.leftOut(); left != "" {
		fmt.Fprintf(c.out, "\nnot decided: %s\n", left)
	}
	if o.chart {
		fmt.Fprint(c.out, "\n", s.chart(o.top))
	}
	if o.svg != "" {
		fmt.Fprintf(c.out, "\nthe chart is in %s\n", o.svg)
	}
}

func share(part, whole int) string {
	percent := 100 * float64(part) / float64(whole)
	switch {
	case part > 0 && percent < 1:
		return "<1 %"
	case part < whole && percent > 99:
		return ">99 %"
	default:
		return fmt.Sprintf("%.0f %%", percent)
	}
}

func waitText(micro int64) string {
	if micro == bucket.Never {
		return "for ever"
	}
	return span(float64(micro) / 1e6)
}

func (s *simulation) result() simulated {
	seconds := func(at int64) float64 { return float64(at) / 1e6 }
	r := simulated{
		From: seconds(s.from), To: seconds(s.to), Requests: len(s.requests), Admitted: s.admitted, Denied: s.denied,
		NoTenant: s.noTenant, NoPolicy: s.noPolicy,
	}
	for _, st := range s.worst() {
		t := simulatedTenant{
			Endpoint: st.endpoint, Tenant: st.tenant,
			Requests: st.requests, Admitted: st.requests - st.denied, Denied: st.denied,
		}
		if st.denied > 0 && st.longest != bucket.Never {
			longest := seconds(st.longest)
			t.Longest = &longest
		}
		for _, d := range st.denials {
			t.Denials = append(t.Denials, simulatedDenial{seconds(d.from), seconds(d.to), d.count})
		}
		r.Tenants = append(r.Tenants, t)
	}
	return r
}

// tally is what happened in one column of a chart.
type tally struct{ requests, denied int }

// columns counts the requests by time, for all together and for each stream that
// is shown: a log may have millions.
func (s *simulation) columns(n int, shown []*stream) (all []tally, of map[*stream][]tally) {
	all, of = make([]tally, n), make(map[*stream][]tally, len(shown))
	for _, st := range shown {
		of[st] = make([]tally, n)
	}
	for _, r := range s.requests {
		i := int(min(float64(r.at-s.from)/float64(s.to-s.from)*float64(n), float64(n-1)))
		all[i].count(r.denied)
		if mine := of[r.stream]; mine != nil {
			mine[i].count(r.denied)
		}
	}
	return all, of
}

func (t *tally) count(denied bool) {
	t.requests++
	if denied {
		t.denied++
	}
}

// chartColumns is how wide the chart on the terminal is.
const chartColumns = 60

// chart has a row for each tenant, and a column for each piece of the time.
func (s *simulation) chart(top int) string {
	width := 0
	streams := s.worst()
	streams = streams[:min(top, len(streams))]
	_, of := s.columns(chartColumns, streams)
	for _, st := range streams {
		width = max(width, len([]rune(s.label(st))))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "denied, in columns of %s:  · none  ░ some  ▒ a quarter  ▓ half  █ three quarters or more\n\n",
		span(float64(s.to-s.from)/1e6/chartColumns))
	for _, st := range streams {
		name := s.label(st)
		b.WriteString(name + strings.Repeat(" ", width-len([]rune(name))) + " │")
		for _, t := range of[st] {
			b.WriteRune(shade(t))
		}
		b.WriteString("│\n")
	}
	ends := [2]string{s.when(s.from), s.when(s.to)}
	fmt.Fprintf(&b, "%s  %s%*s\n", strings.Repeat(" ", width), ends[0], chartColumns-len(ends[0]), ends[1])
	return b.String()
}

func shade(t tally) rune {
	switch {
	case t.requests == 0:
		return ' '
	case t.denied == 0:
		return '·'
	case t.denied*4 < t.requests:
		return '░'
	case t.denied*2 < t.requests:
		return '▒'
	case t.denied*4 < t.requests*3:
		return '▓'
	default:
		return '█'
	}
}

// label is the tenant's name, with its endpoint where there are several.
func (s *simulation) label(st *stream) string {
	name := plainText(st.tenant)
	for _, other := range s.streams {
		if other.endpoint != st.endpoint {
			name += " " + st.endpoint
			break
		}
	}
	if runes := []rune(name); len(runes) > 32 {
		name = string(runes[:31]) + "…"
	}
	return name
}
