//go:build !race

package sentinel

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// An anonymous client whose cookie and address are known costs no memory. Under the
// race detector pools forget on purpose.
func TestKnownAnonymousClientsDoNotAllocate(t *testing.T) {
	p := bucketPolicy("login", 1<<52, 1<<40)
	p.Identity = Anonymous
	l := openMemory(t, memoryConfig(p), WithRegisterer(prometheus.NewRegistry()))
	defer l.Close()
	for _, peer := range []string{"203.0.113.255:65535", "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535"} {
		cookies := []string{sent(anonymous(t, l, peer).Cookie)}
		n := testing.AllocsPerRun(100, func() { anonymous(t, l, peer, cookies...) })
		if n >= 1 {
			t.Errorf("%s: %v allocations a decision", peer, n)
		}
	}
}
