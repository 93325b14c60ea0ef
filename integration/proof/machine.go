package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"github.com/sentinelgo/sentinel/measure"
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
		"- " + measure.Today(),
		"- " + measure.Machine("the services, Redis and the proof"),
		fmt.Sprintf("- %s, %s, %s", runtime.Version(), redisVersion(ctx), measure.Versions(libraries)),
	}
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
