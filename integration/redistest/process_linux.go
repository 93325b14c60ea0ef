package redistest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the child when the test binary ends, also
// when that panics on a timeout or is killed itself.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
