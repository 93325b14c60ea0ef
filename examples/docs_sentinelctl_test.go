package examples

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// buildSentinelctl builds the command once, and returns its folder.
var buildSentinelctl = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sentinelctl")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./sentinelctl")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return dir, nil
})

const sentinelctlPage = "docs/sentinelctl.md"

// sentinelctl runs a line of its page in a folder that has the page's file and a
// log, and returns what it printed. What needs a Redis is run by the module
// integration; here it must have its arguments right.
func sentinelctl(t *testing.T, line string) (string, error) {
	t.Helper()
	bin, err := buildSentinelctl()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("JWT_SECRET", "documents-only-0123456789abcdef-jwt-secret")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var config string
	all, _ := split(t, sentinelctlPage)
	for _, b := range all {
		if b.lang == "json" && b.mark == "" {
			config = b.text
		}
	}
	for name, text := range map[string]string{
		"sentinel.json": config,
		"access.log":    `192.0.2.1 - acme [01/Mar/2026:12:00:00 +0000] "POST /export HTTP/1.1" 200 1` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	exit, ended := errors.AsType[*exec.ExitError](err)
	offline := strings.Contains(string(out), "sentinel: redis_url: ") || strings.Contains(line, "doctor") // there need be no Redis here
	switch {
	case err == nil, ended && exit.ExitCode() == 1, ended && exit.ExitCode() == 3 && offline:
		return string(out), nil
	default:
		return "", errors.Join(err, errors.New(string(out)))
	}
}

// Each block of the page that follows a command is what that prints, or how
// that begins. doctor's depends on its Redis.
func TestSentinelctlPage(t *testing.T) {
	var command string
	compared := 0
	all, _ := split(t, sentinelctlPage)
	for _, b := range all {
		switch {
		case b.lang == "sh":
			command = strings.TrimSpace(b.text)
		case b.lang == "text" && !strings.Contains(command, "doctor"):
			got, err := sentinelctl(t, command)
			if err != nil {
				t.Errorf("%s: %v", b, err)
			}
			if !strings.HasPrefix(got, b.text) {
				t.Errorf("%s: %s prints\n%s", b, command, got)
			}
			compared++
		}
	}
	if compared < 4 {
		t.Errorf("only %d outputs: they are not found", compared)
	}
}
