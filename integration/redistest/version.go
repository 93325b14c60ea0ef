package redistest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// Binaries returns the servers of the compatibility matrix, where
// scripts/redis-versions has put them below root, else the one on the PATH.
func Binaries(root string) ([]string, error) {
	if found, err := filepath.Glob(filepath.Join(root, "bin/servers/*/redis-server")); err == nil && len(found) > 0 {
		return found, nil
	}
	binary, err := serverBinary()
	return []string{binary}, err
}

// StartBinary is Start with a server of its own kind, as a process.
func StartBinary(t testing.TB, binary string, flags ...string) *Server {
	t.Helper()
	if _, err := os.Stat(binary); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	inst, err := processes{binary: binary}.start(ctx, flagsFor(flags))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, inst: inst}
	t.Cleanup(func() { s.do("remove", inst.remove) })
	return s
}
