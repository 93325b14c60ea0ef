package main

import (
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/sentinelgo/sentinel/measure"
)

// notes is what no run can measure: what each peer means.
//
//go:embed notes.md
var notes string

// peers are the modules whose versions belong to the figures.
var peers = []string{
	"github.com/gin-gonic/gin",
	"github.com/labstack/echo/v4",
	"github.com/julienschmidt/httprouter",
	"github.com/go-kratos/kratos/v2",
	"github.com/sony/gobreaker/v2",
}

// aboutRun says when, where and with what.
func aboutRun(l *lab) []string {
	kind := "This is the short form: it shows that everything runs and is right. Its figures are worth nothing."
	if l.Full {
		kind = "Written by `make bench-edge-full`. Only ratios inside one table mean anything elsewhere than on this machine."
	}
	var programs []string
	for _, c := range l.contestants {
		if c.version != "" {
			programs = append(programs, c.version)
		}
	}
	lines := []string{
		kind,
		"",
		fmt.Sprintf("- %s; %d rounds of %s and less for each contestant, in turn; load at the start: %s", measure.Today(), l.Rounds, l.Cell, loadAverage()),
		"- " + measure.Machine("load, proxy and backend"),
		fmt.Sprintf("- %s, %s, %s", runtime.Version(), strings.Join(programs, ", "), measure.Versions(peers)),
	}
	if len(l.absent) > 0 {
		lines = append(lines, "- Not installed, and so not measured: "+strings.Join(l.absent, "; "))
	}
	return append(lines, "",
		"Printed is the median of the rounds and, in parentheses, the least and the greatest. A ratio is taken within each round. Status and every byte of each body are compared with what the backend sent.")
}

// loadAverage is how many processes were running or wanted to, in the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	average, _, _ := strings.Cut(string(text), " ")
	return average
}
