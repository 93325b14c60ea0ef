package measure

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Today is the date as it stands in a document.
func Today() string { return time.Now().UTC().Format("2 January 2006") }

// Machine says what this is run on. sharers are those who have its CPUs together.
func Machine(sharers string) string {
	return fmt.Sprintf("%s, %d CPUs shared by %s, Linux %s", cpuModel(), runtime.NumCPU(), sharers, kernel())
}

// Versions are the versions of modules that are built into this program.
func Versions(modules []string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "versions unknown"
	}
	found := map[string]string{}
	for _, m := range info.Deps {
		found[m.Path] = m.Version
	}
	var texts []string
	for _, m := range modules {
		texts = append(texts, strings.TrimPrefix(m, "github.com/")+" "+found[m])
	}
	return strings.Join(texts, ", ")
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "of unknown version"
	}
	return strings.TrimSpace(string(text))
}
