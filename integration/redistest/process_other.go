//go:build !linux

package redistest

import "os/exec"

// dieWithParent does nothing where the kernel offers no such thing: a test
// binary that is killed leaves its servers behind.
func dieWithParent(*exec.Cmd) {}
