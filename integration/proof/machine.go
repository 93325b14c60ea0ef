package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// libraries are the modules whose versions belong to the result.
var libraries = []string{
	"github.com/redis/go-redis/v9",
	"github.com/golang-jwt/jwt/v5",
	"github.com/prometheus/client_golang",
}

// aboutRun says when, where and with what.
func aboutRun(ctx context.Context, l *lab) []string {
	kind := "Written by `make proof`. A promise is a sentence of the documentation; the proof tries to break it on real servers, and this file says how often, and what came of it."
	if l.short {
		kind = "This is the short form, `make proof-short`: a part of the faults, a budget of 100 ms for a check, and few tries of everything. `make proof` tries all of it with the default budget of 20 ms."
	}
	return []string{
		kind,
		"",
		"- " + time.Now().UTC().Format("2 January 2006"),
		fmt.Sprintf("- %s, %d CPUs shared by the services, Redis and the proof, Linux %s", cpuModel(), runtime.NumCPU(), kernel()),
		fmt.Sprintf("- %s, %s, %s", runtime.Version(), redisVersion(ctx), versions()),
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
	for _, p := range libraries {
		texts = append(texts, strings.TrimPrefix(p, "github.com/")+" "+found[p])
	}
	return strings.Join(texts, ", ")
}

// redisVersion is "Redis 7.0.15", as the server on the PATH calls itself.
func redisVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return "Redis of unknown version"
	}
	for field := range strings.FieldsSeq(string(out)) {
		if v, ok := strings.CutPrefix(field, "v="); ok {
			return "Redis " + v
		}
	}
	return strings.TrimSpace(string(out))
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
