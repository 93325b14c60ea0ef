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

// notes is what no run can measure: what each peer means, and where the time
// goes.
//
//go:embed notes.md
var notes string

// peers are the modules whose versions belong to the figures.
var peers = []string{
	"github.com/redis/go-redis/v9",
	"github.com/go-redis/redis_rate/v10",
	"github.com/throttled/throttled/v2",
	"github.com/ulule/limiter/v3",
	"github.com/sethvargo/go-limiter",
	"github.com/sethvargo/go-redisstore",
	"github.com/redis/rueidis",
	"github.com/go-chi/httprate",
	"golang.org/x/time",
	"github.com/juju/ratelimit",
	"go.uber.org/ratelimit",
	"github.com/golang-jwt/jwt/v5",
	"github.com/gin-gonic/gin",
	"github.com/labstack/echo/v4",
	"github.com/go-chi/chi/v5",
}

// aboutRun says when, where and with what.
func aboutRun(l *lab) []string {
	kind := "This is the short form: it shows that everything runs and is right. Its figures are worth nothing."
	if l.full {
		kind = "Written by `make bench-full`. Only ratios inside one table mean anything elsewhere than on this machine."
	}
	return []string{
		kind,
		"",
		fmt.Sprintf("- %s; %d rounds of %s for each contestant, in turn", time.Now().UTC().Format("2 January 2006"), l.rounds, l.cell),
		fmt.Sprintf("- %s, %d CPUs shared by this process and Redis, Linux %s", cpuModel(), runtime.NumCPU(), kernel()),
		fmt.Sprintf("- %s, Redis %s on a loopback TCP connection, %s", runtime.Version(), l.redis.version(l.ctx), versions()),
		"",
		"Printed is the median of the rounds and, in parentheses, the least and the greatest. A ratio is taken within each round. " +
			"Before anything is measured, every contestant proves that it admits exactly its quota, one after the other and concurrently; " +
			"while it is measured, every answer is looked at.",
	}
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

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimSpace(string(text))
}
