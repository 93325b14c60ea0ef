package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// tokens is an amount as an exact decimal.
func tokens(m sentinel.Micro) string {
	whole, rest := int64(m/sentinel.Token), int64(m%sentinel.Token)
	if rest == 0 {
		return grouped(whole)
	}
	return grouped(whole) + "." + strings.TrimRight(fmt.Sprintf("%06d", rest), "0")
}

// grouped is 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// number is a float for people.
func number(f float64) string {
	switch {
	case f >= 1e6:
		return fmt.Sprintf("%.3g million", f/1e6)
	case f >= 100:
		return grouped(int64(math.Round(f)))
	default:
		return strconv.FormatFloat(math.Round(f*1000)/1000, 'g', -1, 64)
	}
}

// perTime is a rate in the largest unit of time in which it is at least one.
func perTime(perSecond float64) string {
	switch {
	case perSecond >= 1:
		return number(perSecond) + " a second"
	case perSecond*60 >= 1:
		return number(perSecond*60) + " a minute"
	case perSecond*3600 >= 1:
		return number(perSecond*3600) + " an hour"
	default:
		return fmt.Sprintf("%.3g a day", perSecond*86400)
	}
}

var spans = []struct {
	name    string
	seconds float64
}{{"y", 365 * 86400}, {"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}

// span is a time in at most two units: 1m30s, 2d4h, 250ms.
func span(seconds float64) string {
	switch {
	case seconds <= 0:
		return "0s"
	case seconds < 1:
		return fmt.Sprintf("%.3gms", seconds*1000)
	case seconds < 10:
		return strconv.FormatFloat(math.Round(seconds*1000)/1000, 'g', -1, 64) + "s"
	case seconds < 60:
		return strconv.FormatFloat(math.Round(seconds*10)/10, 'g', -1, 64) + "s"
	case seconds > 1e6*spans[0].seconds:
		return "for ever, in practice"
	}
	for i, u := range spans {
		if seconds < u.seconds {
			continue
		}
		next := spans[i+1]
		n := math.Floor(seconds / u.seconds)
		rest := math.Round((seconds - n*u.seconds) / next.seconds)
		if rest*next.seconds >= u.seconds {
			n, rest = n+1, 0
		}
		if rest == 0 {
			return fmt.Sprintf("%.0f%s", n, u.name)
		}
		return fmt.Sprintf("%.0f%s%.0f%s", n, u.name, rest, next.name)
	}
	return "0s"
}

// times is a factor.
func times(f float64) string { return number(math.Round(f*100)/100) + " times" }

// plainText is text that comes from elsewhere, safe on a terminal.
func plainText(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}

// table writes rows under a head; columns that right has are on the right.
func table(head []string, right string, rows [][]string) string {
	all := append([][]string{head}, rows...)
	width := make([]int, len(head))
	for _, row := range all {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if right[i] == 'r' {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell + "  ")
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
