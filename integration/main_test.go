package integration_test

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

func TestMain(m *testing.M) {
	// What guards and servers report to nobody in particular would hide what
	// failed. A test that looks at a log takes a logger of its own.
	slog.SetDefault(silent)
	switch v := os.Getenv("SENTINEL_TEST_GATHERING"); v {
	case "", "on", "off":
		redistest.Main(m)
	default:
		fmt.Fprintf(os.Stderr, "SENTINEL_TEST_GATHERING is %q; use off, on, or leave it unset\n", v)
		os.Exit(1)
	}
}
