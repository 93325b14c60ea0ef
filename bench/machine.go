package main

import (
	_ "embed"
	"fmt"
	"runtime"

	"github.com/sentinelgo/sentinel/measure"
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
	if l.Full {
		kind = "Written by `make bench-full`. Only ratios inside one table mean anything elsewhere than on this machine."
	}
	return []string{
		kind,
		"",
		fmt.Sprintf("- %s; %d rounds of %s for each contestant, in turn", measure.Today(), l.Rounds, l.Cell),
		"- " + measure.Machine("this process and Redis"),
		fmt.Sprintf("- %s, Redis %s on a loopback TCP connection, %s", runtime.Version(), l.redis.version(l.ctx), measure.Versions(peers)),
		"",
		"Printed is the median of the rounds and, in parentheses, the least and the greatest. A ratio is taken within each round. " +
			"Before anything is measured, every contestant proves that it admits exactly its quota, one after the other and concurrently; " +
			"while it is measured, every answer is looked at.",
	}
}
