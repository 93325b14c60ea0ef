package node

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// sharedOf is a shared configuration with so many routes, and a pool for each ten.
func sharedOf(routes int) []byte {
	var b strings.Builder
	b.WriteString("routes:\n")
	for i := range routes {
		fmt.Fprintf(&b, "  - {path: /service-%d/v1/things/:id, backend: p%d}\n", i, i/10)
	}
	b.WriteString("backends:\n")
	for i := range (routes + 9) / 10 {
		fmt.Fprintf(&b, "  - {name: p%d, url: 'http://127.0.0.1:%d', health: {type: off}}\n", i, 10_000+i)
	}
	return []byte(b.String())
}

// A version on a node, from its text to requests that use it: reading and checking it, and
// building and swapping the snapshot.
func BenchmarkVersion(b *testing.B) {
	for _, routes := range []int{100, 1000, 10_000} {
		local, err := config.ParseLocal("local", []byte("server: {listen: '127.0.0.1:0', access_log: off}\nadmin: {listen: '127.0.0.1:0'}\n"), nil)
		if err != nil {
			b.Fatal(err)
		}
		text := sharedOf(routes)
		joined, err := local.Join("version", text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("read/%d", routes), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := local.Join("version", text); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("build/%d", routes), func(b *testing.B) {
			n := newNode(Options{Stdout: io.Discard, Stderr: io.Discard})
			if err := n.build(b.Context(), joined); err != nil {
				b.Fatal(err)
			}
			defer n.close(b.Context())
			b.ReportAllocs()
			for version := int64(2); b.Loop(); version++ {
				if err := n.enforce(b.Context(), joined, version, "control", time.Now()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
