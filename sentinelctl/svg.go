package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
)

// The chart's measures, in pixels, and its colours. Blue and orange stay apart
// for those who do not tell red from green.
const (
	svgWidth, svgLeft, svgRight = 960, 190, 118
	svgTop, svgHigh             = 92, 220 // the upper panel
	rowHigh, rowGap             = 18, 6
	svgColumns                  = 120

	colourAdmitted = "#3b76b8"
	colourDenied   = "#d9601a"
	colourText     = "#24292f"
	colourFaint    = "#6e7781"
	colourGrid     = "#dfe3e8"
)

// svg draws the requests of all over the time, admitted and denied, and below it
// a row for each tenant: where it asked, and what share was denied.
func (s *simulation) svg(top int) string {
	streams := s.worst()
	streams = streams[:min(top, len(streams))]
	all, of := s.columns(svgColumns, streams)
	rows := svgTop + svgHigh + 62
	bottom := rows + len(streams)*(rowHigh+rowGap)
	var d drawing
	fmt.Fprintf(&d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="12">`+"\n",
		svgWidth, bottom+58, svgWidth, bottom+58)
	d.rect(0, 0, svgWidth, float64(bottom+58), "#ffffff", "")
	d.text(svgLeft, 30, "start", colourText, `font-size="17" font-weight="600"`,
		fmt.Sprintf("%s of %s requests denied (%s)", grouped(int64(s.denied)), grouped(int64(len(s.requests))), share(s.denied, len(s.requests))))
	subtitle := s.described
	if subtitle == "" {
		subtitle = s.when(s.from) + " to " + s.when(s.to-1) + " UTC, " + plural(len(s.streams), "bucket")
	}
	d.text(svgLeft, 50, "start", colourFaint, "", subtitle)
	d.rect(svgLeft, 62, 12, 12, colourAdmitted, "")
	d.text(svgLeft+18, 72, "start", colourText, "", "admitted")
	d.rect(svgLeft+92, 62, 12, 12, colourDenied, "")
	d.text(svgLeft+110, 72, "start", colourText, "", "denied")

	s.requestsPanel(&d, all)
	d.text(svgLeft, float64(rows-12), "start", colourFaint, "", "share denied, by tenant; blank where it did not ask")
	s.scale(&d, float64(rows-21))
	for i, st := range streams {
		y := float64(rows + i*(rowHigh+rowGap))
		d.text(svgLeft-10, y+13, "end", colourText, "", s.label(st))
		d.rect(svgLeft, y, svgWidth-svgLeft-svgRight, rowHigh, "#f6f8fa", "")
		for j, t := range of[st] {
			if t.requests > 0 {
				d.rect(columnX(j), y, columnX(j+1)-columnX(j), rowHigh, heat(t), "")
			}
		}
		d.text(svgWidth-svgRight+10, y+13, "start", colourText, "",
			fmt.Sprintf("%s of %s", share(st.denied, st.requests), grouped(int64(st.requests))))
	}
	s.timeAxis(&d, float64(bottom-rowGap+4), svgTop)
	if hidden := len(s.streams) - len(streams); hidden > 0 {
		d.text(svgLeft, float64(bottom+48), "start", colourFaint, "", "and "+plural(hidden, "tenant")+" with fewer denials")
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// drawing is an SVG under way.
type drawing struct{ strings.Builder }

func (d *drawing) rect(x, y, w, h float64, colour, more string) {
	fmt.Fprintf(d, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"%s/>`+"\n", x, y, w, h, colour, more)
}

func (d *drawing) text(x, y float64, anchor, colour, more, text string) {
	fmt.Fprintf(d, `<text x="%.2f" y="%.2f" text-anchor="%s" fill="%s" %s>`, x, y, anchor, colour, more)
	_ = xml.EscapeText(d, []byte(text)) // a Builder takes everything
	d.WriteString("</text>\n")
}

func (d *drawing) line(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(d, `<line x1="%.2f" y1="%.2f" x2="%.2f" y2="%.2f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

// columnX is where a column begins.
func columnX(i int) float64 {
	return svgLeft + float64(i)*(svgWidth-svgLeft-svgRight)/svgColumns
}

// requestsPanel draws stacked columns: what was admitted, and what was denied on
// top of it, in a unit of time in which there is at least one.
func (s *simulation) requestsPanel(d *drawing, all []tally) {
	seconds := float64(s.to-s.from) / 1e6 / svgColumns
	most, unit := 0.0, "requests a second"
	for _, t := range all {
		most = max(most, float64(t.requests)/seconds)
	}
	switch {
	case most < 1.0/60:
		most, seconds, unit = most*3600, seconds/3600, "requests an hour"
	case most < 1:
		most, seconds, unit = most*60, seconds/60, "requests a minute"
	}
	step := niceStep(most / 4)
	high := math.Ceil(most/step) * step
	const base = svgTop + svgHigh
	for v := 0.0; v <= high+step/2; v += step {
		y := base - v/high*svgHigh
		d.line(svgLeft, y, svgWidth-svgRight, y, colourGrid)
		d.text(svgLeft-10, y+4, "end", colourFaint, "", number(v))
	}
	d.text(svgLeft-10, svgTop-14, "end", colourFaint, "", unit)
	for i, t := range all {
		if t.requests == 0 {
			continue
		}
		admitted := float64(t.requests-t.denied) / seconds / high * svgHigh
		denied := float64(t.denied) / seconds / high * svgHigh
		x, w := columnX(i), columnX(i+1)-columnX(i)-0.6
		if t.denied < t.requests {
			d.rect(x, base-admitted, w, admitted, colourAdmitted, "")
		}
		if t.denied > 0 {
			d.rect(x, base-admitted-denied, w, denied, colourDenied, "")
		}
	}
	d.line(svgLeft, base, svgWidth-svgRight, base, colourFaint)
}

// scale is the legend of the rows.
func (s *simulation) scale(d *drawing, y float64) {
	x := float64(svgWidth - svgRight - 5*14)
	d.text(x-8, y+9, "end", colourFaint, "", "0 %")
	for i := range 5 {
		d.rect(x+float64(i)*14, y, 14, 11, heat(tally{4, i}), "")
	}
	d.text(svgWidth-svgRight+8, y+9, "start", colourFaint, "", "100 %")
}

// heat mixes the two colours by the share that was denied; none at all is pale.
func heat(t tally) string {
	if t.denied == 0 {
		return "#c9dbef"
	}
	from, to := [3]float64{252, 222, 200}, [3]float64{190, 66, 8}
	f := float64(t.denied) / float64(t.requests)
	var rgb [3]int
	for i := range rgb {
		rgb[i] = int(math.Round(from[i] + f*(to[i]-from[i])))
	}
	return fmt.Sprintf("#%02x%02x%02x", rgb[0], rgb[1], rgb[2])
}

// timeAxis draws ticks at round times, with faint lines from top on.
func (s *simulation) timeAxis(d *drawing, y, top float64) {
	length := float64(s.to-s.from) / 1e6
	step := niceTime(length / 7)
	d.line(svgLeft, y, svgWidth-svgRight, y, colourFaint)
	start := float64(s.from) / 1e6
	for at := math.Ceil(start/step) * step; at <= start+length; at += step {
		x := svgLeft + (at-start)/length*(svgWidth-svgLeft-svgRight)
		d.line(x, y, x, y+5, colourFaint)
		d.line(x, top+svgHigh, x, top+svgHigh+5, colourFaint)
		label := span(at)
		if s.clock {
			label = clockLabel(int64(at), step)
		}
		d.text(x, y+19, "middle", colourFaint, "", label)
	}
	name := "time since the beginning"
	if s.clock {
		name = "time of the log, UTC"
	}
	d.text(float64(svgLeft+svgWidth-svgRight)/2, y+36, "middle", colourFaint, "", name)
}

func clockLabel(at int64, step float64) string {
	t := time.Unix(at, 0).UTC()
	switch {
	case step >= 86400:
		return t.Format("2 Jan")
	case step >= 60:
		return t.Format("15:04")
	default:
		return t.Format("15:04:05")
	}
}

// niceStep is 1, 2 or 5 times a power of ten, and at least f.
func niceStep(f float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(f)))
	for _, m := range []float64{1, 2, 5} {
		if f <= m*power*1.0000001 {
			return m * power
		}
	}
	return 10 * power
}

// niceTime is a step that clocks have, in seconds, and at least f.
func niceTime(f float64) float64 {
	for _, step := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400} {
		if f <= step {
			return step
		}
	}
	return math.Ceil(f/(30*86400)) * 30 * 86400
}
