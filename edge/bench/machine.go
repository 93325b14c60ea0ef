package main

import (
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
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
	if l.full {
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
		fmt.Sprintf("- %s; %d rounds of %s and less for each contestant, in turn; load at the start: %s", time.Now().UTC().Format("2 January 2006"), l.rounds, l.cell, loadAverage()),
		fmt.Sprintf("- %s, %d CPUs shared by load, proxy and backend, Linux %s", cpuModel(), runtime.NumCPU(), firstLine("/proc/sys/kernel/osrelease")),
		fmt.Sprintf("- %s, %s, %s", runtime.Version(), strings.Join(programs, ", "), versions()),
	}
	if len(l.absent) > 0 {
		lines = append(lines, "- Not installed, and so not measured: "+strings.Join(l.absent, "; "))
	}
	return append(lines, "",
		"Printed is the median of the rounds and, in parentheses, the least and the greatest. A ratio is taken within each round. Status and every byte of each body are compared with what the backend sent.")
}

func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "versions unknown"
	}
	found := map[string]string{}
	for _, m := range info.Deps {
		found[m.Path] = m.Version
	}
	var texts []string
	for _, p := range peers {
		texts = append(texts, strings.TrimPrefix(p, "github.com/")+" "+found[p])
	}
	return strings.Join(texts, ", ")
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage is how many processes were running or wanted to, in the last minute.
func loadAverage() string {
	average, _, _ := strings.Cut(firstLine("/proc/loadavg"), " ")
	return average
}

func firstLine(file string) string {
	text, err := os.ReadFile(file) // #nosec G304 -- our own words
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}
