package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// CommandStats returns how often the server has run each command since it
// started or since CONFIG RESETSTAT, by the lower-case name as INFO writes it
// ("evalsha", "config|get"). On the shared server that counts every test's
// commands; take a server of your own.
func CommandStats(t testing.TB, c *redis.Client) map[string]int {
	t.Helper()
	info, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatalf("redistest: INFO commandstats: %v", err)
	}
	calls := make(map[string]int)
	for line := range strings.Lines(info) {
		name, fields, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "cmdstat_")), ":calls=")
		if !ok {
			continue
		}
		count, _, _ := strings.Cut(fields, ",")
		if calls[name], err = strconv.Atoi(count); err != nil {
			t.Fatalf("redistest: INFO commandstats: %q: %v", line, err)
		}
	}
	return calls
}
