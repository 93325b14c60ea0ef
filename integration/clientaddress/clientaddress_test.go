// Package clientaddress checks docs/client-address.md.
package clientaddress

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each program in the page is one that an adapter's test runs against requests
// as its proxies send them.
func TestCodeIsTested(t *testing.T) {
	page := read(t, "../../docs/client-address.md")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(page, -1)
	tested := map[string]string{}
	for _, adapter := range []string{"sentinelgin", "sentinelecho", "sentinelchi", "sentinelhttp"} {
		tested[adapter] = unindent(read(t, "../../adapters/"+adapter+"/clientaddress_test.go"))
	}
	for _, block := range blocks {
		found := false
		for adapter, code := range tested {
			if strings.Contains(code, unindent(block[1])) {
				delete(tested, adapter)
				found = true
			}
		}
		if !found {
			t.Errorf("no adapter's clientaddress_test.go has:\n%s", block[1])
		}
	}
	for adapter := range tested {
		t.Errorf("the page has no code for %s", adapter)
	}
}

// The versions that the page speaks of are those that the adapters require.
func TestVersions(t *testing.T) {
	page := read(t, "../../docs/client-address.md")
	for framework, module := range map[string]string{
		"gin": "github.com/gin-gonic/gin ", "echo": "github.com/labstack/echo/v4 ", "chi": "github.com/go-chi/chi/v5 ",
	} {
		_, after, found := strings.Cut(read(t, "../../adapters/sentinel"+framework+"/go.mod"), "\t"+module)
		version, _, _ := strings.Cut(after, "\n")
		if !found || !strings.Contains(page, "| "+framework+" "+version+" |") {
			t.Errorf("the page does not speak of %s %s", framework, version)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unindent drops the tabs at the start of each line.
func unindent(code string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "")
}
