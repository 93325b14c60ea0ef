package integration_test

import (
	"testing"

	"github.com/sentinelgo/sentinel/integration/conformance"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// adapters are all that must conform. A new one is one file and a word here.
var adapters = []conformance.Adapter{nethttp, chiAdapter, ginAdapter, echoAdapter, echo5Adapter}

func TestConformanceOnRedis(t *testing.T) {
	t.Parallel()
	url := redistest.URL(t)
	for _, a := range adapters {
		conformance.Run(t, a, url)
	}
}

func TestConformanceInMemory(t *testing.T) {
	t.Parallel()
	for _, a := range adapters {
		conformance.Run(t, a, "memory://")
	}
}
