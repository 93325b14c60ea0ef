package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// traffic describes requests: so many tenants, each of which begins with a burst
// and goes on at a rate.
type traffic struct {
	tenants int
	rate    float64 // requests a second, of each tenant
	burst   int
	length  time.Duration
	poisson bool
	seed    uint64
}

// maxRequests bounds what is kept in memory.
const maxRequests = 5_000_000

var units = map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}

// parseRate reads "12/s", "600/m", "0.5/s".
func parseRate(text string) (float64, error) {
	amount, unit, ok := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(amount, 64)
	if !ok || err != nil || units[unit] == 0 || !(n > 0 && n <= 1e9) {
		return 0, errors.New("-rate must be a number of requests per s, m, h or d, as in 12/s")
	}
	return n / units[unit], nil
}

func (t traffic) check() error {
	switch expected := float64(t.tenants) * (float64(t.burst) + t.rate*t.length.Seconds()); {
	case t.tenants < 1:
		return errors.New("-tenants must be at least 1")
	case t.tenants > maxRequests:
		return fmt.Errorf("at most %s tenants are simulated", grouped(maxRequests))
	case t.burst < 0:
		return errors.New("-burst must not be negative")
	case t.length <= 0:
		return errors.New("-for must be longer than 0, as in 10m")
	case expected > maxRequests:
		return fmt.Errorf("that is some %s requests; at most %s are simulated: fewer tenants, or a shorter -for", number(expected), grouped(maxRequests))
	}
	return nil
}

// each makes the requests of tenant number i, in order. The same seed makes the
// same ones, and more tenants change nothing for those before them.
func (t traffic) each(i int, request func(at int64)) {
	for range t.burst {
		request(0)
	}
	end := float64(t.length.Microseconds())
	random := rand.New(rand.NewPCG(t.seed, uint64(i)))
	at := 0.0
	for n := 1; ; n++ {
		if t.poisson {
			at += random.ExpFloat64() * 1e6 / t.rate
		} else {
			at = float64(n) * 1e6 / t.rate
		}
		if at >= end {
			return
		}
		request(int64(math.Floor(at)))
	}
}
