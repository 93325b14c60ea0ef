package conformance

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// A case is found, and run alone, by its name, which the documentation lists.
func TestCases(t *testing.T) {
	page, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Count(string(page), "\n- ") - strings.Count(string(page), "\n- **")
	seen := map[string]bool{}
	for _, c := range cases() {
		if seen[c.name] || strings.ContainsAny(c.name, "/\n\t_") {
			t.Errorf("%q is not a name of its own in plain words", c.name)
		}
		seen[c.name] = true
		line := "\n- " + c.name
		if c.errors {
			line += " (frameworks with `Adapter.Errors`)"
		}
		if !strings.Contains(string(page), line+"\n") {
			t.Errorf("docs/conformance.md does not list %q", c.name)
		}
	}
	if listed != len(seen) || !strings.Contains(string(page), " as "+strconv.Itoa(listed)+" cases") {
		t.Errorf("docs/conformance.md lists %d cases, and its first line counts them; there are %d", listed, len(seen))
	}
}
