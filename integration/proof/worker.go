package main

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"sync"
	"time"
)

// workerEnv makes this program a process of the service that is proved: it then
// answers calls in JSON on its standard input and output, until that ends.
const workerEnv = "SENTINEL_PROOF_WORKER"

// roles are the kinds of worker. What a role returns is registered with net/rpc
// under the role's name.
var roles = map[string]func() any{}

// stdio is a connection over the standard streams.
type stdio struct {
	io.Reader
	io.Writer
}

func (stdio) Close() error { return nil }

// serveWorker is the main of a worker.
func serveWorker(role string) {
	newRole := roles[role]
	if newRole == nil {
		fmt.Fprintf(os.Stderr, "proof: no role %q\n", role)
		os.Exit(2)
	}
	server := rpc.NewServer()
	if err := server.RegisterName(role, newRole()); err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		os.Exit(2)
	}
	// Nothing else may write to the standard output.
	conn := stdio{os.Stdin, os.Stdout}
	os.Stdout = os.Stderr
	server.ServeCodec(jsonrpc.NewServerCodec(conn))
}

// worker is such a process, as the proof sees it.
type worker struct {
	role   string
	cmd    *exec.Cmd
	client *rpc.Client
	// end has the process end, which it does when its input ends, and waits for
	// it. It may be called twice.
	end func() error
}

// startWorker starts a process of its own. command stands before the program's
// name, such as "ip netns exec NAME"; env is added to the environment; all that
// the process writes to its standard error goes to log, which must not block.
func startWorker(s *scope, role string, command, env []string, log io.Writer) *worker {
	program, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	args := append(append([]string{}, command...), program)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), workerEnv+"="+role), env...)
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	w := &worker{role: role, cmd: cmd, client: jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})}
	w.end = sync.OnceValue(w.wait)
	s.Cleanup(func() {
		if err := w.end(); err != nil {
			s.Errorf("worker %s: %v", role, err)
		}
	})
	return w
}

func (w *worker) wait() error {
	_ = w.client.Close()
	timer := time.AfterFunc(10*time.Second, func() { _ = w.cmd.Process.Kill() })
	defer timer.Stop()
	return w.cmd.Wait()
}

// call calls a method of the worker's role. A worker that does not answer in
// time is an error.
func (w *worker) call(method string, args, reply any) error {
	call := w.client.Go(w.role+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return fmt.Errorf("worker %s.%s: %w", w.role, method, call.Error)
		}
		return nil
	case <-time.After(2 * time.Minute):
		return errors.Join(fmt.Errorf("worker %s.%s does not answer", w.role, method), w.cmd.Process.Kill())
	}
}
