package edgetest

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// limit ends a test that hangs; nothing is timed by it.
const limit = 30 * time.Second

// Soon waits until a condition holds, and fails the test where it does not come to
// that.
func Soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not come to this: %s", what)
		}
	}
}

// Nowhere is a URL at whose address nobody listens.
func Nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// Descriptors is how many a process has open; 0 where that cannot be seen.
func Descriptors(t testing.TB, pid int) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
