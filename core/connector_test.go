package sentinel

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Reasons that take turns are told once in each outage, and again in the next.
func TestEachReasonOfAnOutageIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	s := &redisStore{max: 1, log: slog.New(slog.NewTextHandler(&log, nil)), onReady: func(bool) {}}
	for outage := range 2 {
		log.Reset()
		for range 100 {
			for _, why := range []string{"the connection was closed", "connection reset by peer"} {
				if !s.finish(nil, &storeFailure{kind: kindConnection, detail: why}) {
					t.Fatal("nobody tries again")
				}
			}
		}
		if n := strings.Count(log.String(), "Redis is away"); n != 2 {
			t.Errorf("outage %d: %d lines, want 2:\n%s", outage+1, n, log.String())
		}
		s.finish(&line{}, nil)
		s.open, s.free = 0, nil // it breaks again
	}
}
