package main

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

//go:embed clock/clock.c
var clockSource []byte

// clock is the wall clock of one server.
type clock struct {
	s    *scope
	file *os.File
}

// shim compiles the library that gives a process such a clock.
func shim(s *scope) (library string) {
	dir, err := os.MkdirTemp("", "sentinel-clock-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		s.Fatal(err)
	}
	out, err := exec.CommandContext(s.Context(), "gcc", "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput() // #nosec G204 -- our own file
	if err != nil {
		s.Fatalf("gcc, which the proof of clocks needs (Debian: apt-get install gcc libc6-dev): %v\n%s", err, out)
	}
	return library
}

// startClocked starts a server whose clock is set by the proof, right at first.
func startClocked(s *scope, library string, flags ...string) (*redistest.Server, *clock) {
	file, err := os.CreateTemp(filepath.Dir(library), "clock-")
	if err != nil {
		s.Fatal(err)
	}
	c := &clock{s, file}
	s.Cleanup(func() { file.Close() })
	c.write(0, 0)
	return redistest.StartProcess(s, []string{"LD_PRELOAD=" + library, "PROOF_CLOCK=" + file.Name()}, flags...), c
}

// hold lets the clock stand at this time, microseconds since 1970.
func (c *clock) hold(at int64) { c.write(at, 0) }

// run lets the clock run, that much ahead of the right one.
func (c *clock) run(ahead time.Duration) { c.write(0, ahead.Microseconds()) }

// write is seen at once: the file is mapped into the server. Between the two
// numbers the server may read one old and one new, so one of them is 0.
func (c *clock) write(held, ahead int64) {
	text := binary.NativeEndian.AppendUint64(nil, uint64(held))
	text = binary.NativeEndian.AppendUint64(text, uint64(ahead))
	if _, err := c.file.WriteAt(text, 0); err != nil {
		c.s.Fatal(err)
	}
}
