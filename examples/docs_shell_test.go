package examples

import (
	"bufio"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// Every command in a sh block, and in running text, is one of these. What can
// be run here is run; of what needs a registry, a Docker or a long time, the
// parts that can be wrong are looked at.
func TestCommands(t *testing.T) {
	runner := commands{t: t, checks: map[string]func([]string) error{}}
	runner.checks = map[string]func([]string) error{
		"bash":                 runner.script,
		"bin/sentinel":         runner.edge,
		"bin/sentinel-control": runner.control,
		"docker":               runner.docker,
		"export":               func([]string) error { return nil },
		"go":                   runner.golang,
		"make":                 runner.makefile,
		"openssl":              runner.anything,
		"printf":               runner.anything,
		"redis-cli":            runner.operations,
		"redis-server":         runner.operations,
		"sentinelctl":          runner.sentinelctl,
	}
	for _, file := range documents(t) {
		all, prose := split(t, file)
		runner.file = file
		for _, b := range all {
			if b.lang != "sh" || strings.Contains(b.text, tokenMaker) {
				continue
			}
			for _, line := range lines(b.text) {
				runner.check(b.String(), line)
			}
		}
		for _, m := range inline.FindAllStringSubmatch(prose, -1) {
			runner.check(file, m[1])
		}
	}
	if runner.done < 20 {
		t.Errorf("only %d commands: the expressions do not find them", runner.done)
	}
}

// inline is a command in running text.
var inline = regexp.MustCompile("`((?:go (?:run|test|doc) |make )[^`]*)`")

// tokenMaker begins the block of README that makes a token and uses it up.
const tokenMaker = "b64() {"

// The token that README makes in a shell is one that its policy file admits, ten
// times, and the requests carry it.
func TestReadmeToken(t *testing.T) {
	all, _ := split(t, "README.md")
	shell := slices.IndexFunc(all, func(b block) bool { return strings.Contains(b.text, tokenMaker) })
	policy := slices.IndexFunc(all, func(b block) bool { return b.lang == "json" })
	if shell < 0 || policy < 0 {
		t.Fatal("README.md does not make a token")
	}
	t.Setenv("JWT_SECRET", "tests-only-jwt-0123456789abcdef0123456789")
	cfg, err := sentinel.ParseConfig([]byte(strings.Replace(all[policy].text, "redis://localhost:6379/0", "memory://", 1)))
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := sentinel.Open(t.Context(), cfg, sentinel.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close()
	// In curl's place: its arguments, one a line.
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "curl() { printf '%s\\n' \"$@\"; }\n"+all[shell].text).Output()
	if err != nil {
		t.Fatal(err)
	}
	requests := regexp.MustCompile(`(?m)^Authorization: (.*)$`).FindAllSubmatch(out, -1)
	if len(requests) != 11 || strings.Count(string(out), "http://127.0.0.1:8080/export\n") != 11 {
		t.Fatalf("%d requests, want 11: %s", len(requests), out)
	}
	for i, r := range requests {
		d, err := limiter.Check(t.Context(), sentinel.Request{EndpointID: "billing.export", Authorization: []string{string(r[1])}})
		if err != nil || d.Allowed != (i < 10) {
			t.Errorf("request %d: allowed %t, %v", i+1, d.Allowed, err)
		}
	}
}

// lines returns the commands of a block: one for each line, without comments,
// continued lines joined.
func lines(text string) []string {
	var found []string
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		line, _, _ = strings.Cut(line, " # ")
		line = strings.TrimSpace(strings.TrimSuffix(line, " #"))
		if line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found
}

type commands struct {
	t      *testing.T
	file   string
	checks map[string]func(words []string) error
	done   int
	seen   []string
}

var assignment = regexp.MustCompile(`^\w+=\S*$`)

func (c *commands) check(where, line string) {
	c.done++
	if slices.Contains(c.seen, line) {
		return
	}
	c.seen = append(c.seen, line)
	words := strings.Fields(line)
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 || c.checks[words[0]] == nil {
		c.t.Errorf("%s: %q: nothing here knows this command; teach docs_shell_test.go to run it", where, line)
		return
	}
	switch {
	case strings.Contains(line, "| sentinelctl "):
		words = []string{"sentinelctl", line}
	case words[0] == "printf", words[0] == "openssl", words[0] == "sentinelctl":
		words = append(words[:1:1], line)
	}
	if err := c.checks[words[0]](words[1:]); err != nil {
		c.t.Errorf("%s: %q: %v", where, line, err)
	}
}

// anything runs a line that is quick and harmless, as it is.
func (c *commands) anything(line []string) error {
	run(c.t, root, "sh", "-c", line[0])
	return nil
}

// sentinelctl runs a line of its page.
func (c *commands) sentinelctl(line []string) error {
	_, err := sentinelctl(c.t, line[0])
	return err
}

// edge runs a command of the edge, in whose page it has been built into bin.
func (c *commands) edge(args []string) error {
	if args[0] == "run" { // until it is stopped: only its flags can be looked at
		args = append(args, "-h")
	}
	command := filepath.Join(c.t.TempDir(), "sentinel")
	run(c.t, root, "go", "build", "-o", command, "./edge/cmd/sentinel")
	run(c.t, root, command, args...)
	return nil
}

// control looks at the flags of a command that needs a control plane; the tests of
// edge/internal/edgetest run them.
func (c *commands) control(args []string) error {
	command := filepath.Join(c.t.TempDir(), "sentinel-control")
	run(c.t, root, "go", "build", "-o", command, "./edge/cmd/sentinel-control")
	run(c.t, root, command, append(args, "-h")...)
	return nil
}

// script is bash PATH.
func (c *commands) script(args []string) error {
	_, err := os.Stat(filepath.Join(root, args[0]))
	return err
}

// makefile asks make what it would do.
func (c *commands) makefile(args []string) error {
	run(c.t, root, "make", append([]string{"-n", "--no-print-directory"}, args...)...)
	return nil
}

// operations are commands of the operator's page, all of which
// integration/operations_test.go runs on a real Redis.
func (c *commands) operations([]string) error {
	if c.file != "docs/operations.md" {
		return errors.New("commands to a Redis are run only where they stand in docs/operations.md")
	}
	return nil
}

// docker starts the Redis of compose.yaml, and nothing else.
func (c *commands) docker(args []string) error {
	compose := read(c.t, "compose.yaml")
	if args[0] == "compose" {
		if service := args[len(args)-1]; !strings.Contains(compose, "\n  "+service+":\n") {
			return errors.New("compose.yaml has no such service")
		}
		return nil
	}
	i := slices.IndexFunc(args, func(a string) bool { return strings.Contains(compose, "image: "+a+"\n") })
	if i < 0 || !strings.Contains(compose, "command: "+strings.Join(args[i+1:], " ")+"\n") {
		return errors.New("image or command are not those of compose.yaml")
	}
	return nil
}

// golang is go run of an example, or another command of go, run as it is.
func (c *commands) golang(args []string) error {
	switch {
	case args[0] == "run" && strings.HasPrefix(args[1], "./examples/"):
		return c.example(args[1], args[2:])
	case args[0] == "run" && args[1] == "./sentinelctl":
		run(c.t, root, "go", append(args, "help")...)
		return nil
	case args[0] == "run" && args[1] == "./integration/proof":
		_, err := os.Stat(filepath.Join(root, args[1], "main.go"))
		return err // it takes minutes; the tests of its package run it
	case args[0] == "build" && args[1] == "-o" && strings.HasPrefix(args[2], "bin/"):
		run(c.t, root, "go", "build", "-o", filepath.Join(c.t.TempDir(), "program"), args[3])
		return nil
	case args[0] == "run" && args[1] == ".":
		return nil // the reader's program: releasecheck runs it
	case args[0] == "doc":
		run(c.t, ".", "go", args...)
		return nil
	case args[0] == "get", args[0] == "install":
		// releasecheck runs it; here it must name a module of ours, or a command of the edge's.
		name, _, _ := strings.Cut(strings.TrimPrefix(args[1], ours), "@")
		if command, ok := strings.CutPrefix(name, "edge/cmd/"); ok {
			_, err := os.Stat(filepath.Join(root, "edge/cmd", command, "main.go"))
			return err
		}
		_, err := os.Stat(filepath.Join(root, name, "go.mod"))
		return err
	case args[0] == "test":
		// The packages exist and compile; their tests run on their own.
		run(c.t, root, "go", append([]string{"vet"}, packagesOf(args[1:])...)...)
		return nil
	}
	return errors.New("go run ./examples/..., go run ./sentinelctl, go run ./integration/proof, go get, go install, go test and go doc are what is checked here")
}

func packagesOf(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return !strings.HasPrefix(a, "./") })
}

// example runs one of our programs: to its end, or, where it serves, until it
// listens. The tour that kills a Redis is run by the program's own test.
func (c *commands) example(path string, args []string) error {
	binary := filepath.Join(c.t.TempDir(), "program")
	run(c.t, root, "go", "build", "-o", binary, path)
	serves := path == "./examples/quickstart" && !slices.Contains(args, "-tour")
	switch {
	case slices.Contains(args, "-redis-server"):
		run(c.t, root, binary, append(args, "-h")...) // fails at a flag that is not known
		return nil
	case !serves:
		run(c.t, root, binary, args...)
		return nil
	}
	// A file that the reader is to write is stood in for by one that is there.
	if i := slices.Index(args, "-config"); i >= 0 {
		args = slices.Clone(args)
		args[i+1] = "examples/quickstart/sentinel.json"
	}
	cmd := exec.CommandContext(c.t.Context(), binary, append(args, "-addr", "127.0.0.1:0")...)
	cmd.Dir = root
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // "signal: killed" is what was asked for
	if !strings.HasPrefix(line, "listening on ") {
		return errors.Join(errors.New("it does not serve: "+line), err)
	}
	return nil
}

// path is a file or a pattern of files of ours in running text.
var path = regexp.MustCompile("`((?:core|adapters|docs|examples|integration|lua|scripts|\\.ci)/[\\w./*-]*)`")

// What the text calls a path of ours is there.
func TestPathsInTheTextExist(t *testing.T) {
	found := 0
	for _, file := range documents(t) {
		_, prose := split(t, file)
		for _, m := range path.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(m[1], "sentinelX") {
				continue // stands for the reader's own
			}
			found++
			matches, err := filepath.Glob(filepath.Join(root, m[1]))
			if err != nil || len(matches) == 0 {
				t.Errorf("%s: there is no %s", file, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no path was found: the expression does not find them")
	}
}
