// Package examples holds the documentation to what the code does: every block
// of code in the Markdown files of the repository is compiled, parsed or run,
// every link resolves, and every metric and log line is documented. A block of
// a kind that nothing checks is a fault, so that none slips through.
package examples

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// root is the repository, seen from this package's folder.
const root = ".."

// block is one fenced block of a document.
type block struct {
	file string // from the root
	line int    // of its first line of content
	lang string // the word after the fence
	mark string // what follows the word
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// documents returns all Markdown files of the repository, from the root.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata"):
			return filepath.SkipDir
		case filepath.Ext(name) == ".md":
			rel, err := filepath.Rel(root, path)
			found = append(found, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(found, "README.md") || !slices.Contains(found, "docs/operations.md") {
		t.Fatalf("the documents are not where they were: %v", found)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// split returns the blocks of a document and the text around them, in which
// the blocks are blank lines.
func split(t *testing.T, file string) (blocks []block, prose string) {
	t.Helper()
	var open *block
	var indent string
	var rest []string
	for i, line := range strings.Split(read(t, file), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			lang, mark, _ := strings.Cut(fence, " ")
			open = &block{file: file, line: i + 2, lang: lang, mark: mark}
			indent, _, _ = strings.Cut(line, "`")
			rest = append(rest, "")
		case isFence:
			blocks, open = append(blocks, *open), nil
			rest = append(rest, "")
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
			rest = append(rest, "")
		default:
			rest = append(rest, line)
		}
	}
	if open != nil {
		t.Errorf("%s: the block has no end", open)
	}
	return blocks, strings.Join(rest, "\n")
}

// blocks returns the blocks of all documents in one language.
func blocks(t *testing.T, lang string) []block {
	t.Helper()
	var found []block
	for _, file := range documents(t) {
		all, _ := split(t, file)
		for _, b := range all {
			if b.lang == lang {
				found = append(found, b)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("no document has a block of %s", lang)
	}
	return found
}

// checked are the languages of blocks that a test below holds to the code.
// text is what a program prints, or no language at all.
var checked = []string{"go", "json", "sh", "yaml", "promql", "text"}

func TestEveryBlockIsOfACheckedKind(t *testing.T) {
	for _, file := range documents(t) {
		all, _ := split(t, file)
		for _, b := range all {
			if !slices.Contains(checked, b.lang) {
				t.Errorf("%s: a block of kind %q is checked by nothing; make it one of %v", b, b.lang, checked)
			}
			if b.mark != "" && (b.lang != "json" || b.mark != "fragment") {
				t.Errorf("%s: %q after %s means nothing here", b, b.mark, b.lang)
			}
		}
	}
}

// base is what a fragment of a configuration is merged into.
const base = `{
	"app": {"redis_url": "memory://", "jwt_secret": "documents-only-0123456789abcdef-0123"},
	"policies": {"a": {"endpoint_id": "a", "algorithm": "sliding_window", "fail_mode": "fail_closed",
		"policy_version": 1, "limit": 1, "fallback_per_second": 1}}
}`

// A json block is a whole configuration, or, marked as a fragment, members of
// one.
func TestConfigurationsAreValid(t *testing.T) {
	for _, b := range blocks(t, "json") {
		var config map[string]any
		text := b.text
		if b.mark == "fragment" {
			config = decode(t, b, base)
			if !strings.HasPrefix(strings.TrimSpace(text), "{") {
				text = "{" + text + "}"
			}
		}
		config = merge(config, decode(t, b, text))
		data, err := json.Marshal(supply(t, "", config))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sentinel.ParseConfig(data); err != nil {
			t.Errorf("%s:\n%v", b, err)
		}
	}
}

func decode(t *testing.T, b block, text string) map[string]any {
	t.Helper()
	var config map[string]any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&config); err != nil {
		t.Errorf("%s: %v", b, err)
	}
	return config
}

// merge puts what from has into a copy of into.
func merge(into, from map[string]any) map[string]any {
	merged := maps.Clone(into)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range from {
		old, both := merged[name].(map[string]any)
		if inner, ok := value.(map[string]any); ok && both {
			value = merge(old, inner)
		}
		merged[name] = value
	}
	return merged
}

// supply provides the variables and files that a configuration names.
func supply(t *testing.T, name string, value any) any {
	t.Helper()
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			v[name] = supply(t, name, inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = supply(t, fmt.Sprintf("%d_%s", i, name), inner)
		}
	case string:
		content := "documents-only-0123456789abcdef-" + name
		if strings.HasPrefix(name, "redis_url") {
			content = "redis://:password@localhost:6379/0"
		}
		if m := variable.FindStringSubmatch(v); m != nil {
			t.Setenv(m[1], content)
		}
		if strings.HasSuffix(name, "_file") {
			file := filepath.Join(t.TempDir(), "content")
			if err := os.WriteFile(file, []byte(content+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}
	}
	return value
}

var variable = regexp.MustCompile(`^\$\{(\w+)\}$`)

// The README's configuration has the endpoint that its program guards.
func TestReadmeConfigurationFitsItsProgram(t *testing.T) {
	all, _ := split(t, "README.md")
	for _, lang := range []string{"go", "json"} {
		i := slices.IndexFunc(all, func(b block) bool { return b.lang == lang })
		if i < 0 || !strings.Contains(all[i].text, `"billing.export"`) {
			t.Errorf("the first block of %s does not have billing.export", lang)
		}
	}
}

// edgePage is the operators' page of the edge. There, and in the README, YAML is
// the edge's configuration; elsewhere it is alert rules.
const edgePage, controlPage = "docs/edge.md", "docs/control-plane.md"

func ofEdge(b block) bool {
	return b.file == edgePage || b.file == controlPage || b.file == "README.md"
}

func TestConfigurationsOfTheEdgeAreValid(t *testing.T) {
	command := filepath.Join(t.TempDir(), "sentinel")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", command, "../edge/cmd/sentinel").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, value := range map[string]string{ // of the library's file
		"REDIS_URL": "redis://127.0.0.1:1", "JWT_SECRET": "tests-only-jwt-0123456789abcdef0123456789", "COOKIE_SECRET": "tests-only-cookie-0123456789abcdef0123456789",
	} {
		t.Setenv("SENTINELCTL_TEST_"+name, value)
	}
	found, policies := 0, read(t, "sentinelctl/testdata/sentinel.json")
	for _, b := range blocks(t, "yaml") {
		if !ofEdge(b) {
			continue
		}
		found++
		dir := t.TempDir()
		file := filepath.Join(dir, "edge.yaml")
		if err := os.WriteFile(filepath.Join(dir, "sentinel.json"), []byte(policies), 0o600); err != nil { // which some of them name
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), command, "check", "-config", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", b, out)
		}
	}
	if found == 0 {
		t.Errorf("%s shows no configuration", edgePage)
	}
}

// Alert rules are YAML of the shape that Prometheus reads, with an expression
// and a summary each.
func TestRulesAreWellFormed(t *testing.T) {
	for _, b := range blocks(t, "yaml") {
		if ofEdge(b) {
			continue
		}
		var file struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Alert       string
					Expr        string
					For         string
					Labels      map[string]string
					Annotations map[string]string
				}
			}
		}
		if err := yaml.NewDecoder(bytes.NewReader([]byte(b.text)), yaml.DisallowUnknownField()).Decode(&file); err != nil {
			t.Errorf("%s: %v", b, err)
		}
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" || r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
					t.Errorf("%s: an incomplete rule: %+v", b, r)
				}
			}
		}
		if len(file.Groups) == 0 {
			t.Errorf("%s: no groups", b)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Every link inside the repository leads to a file, and to a heading in it.
func TestLinksResolve(t *testing.T) {
	found := 0
	for _, file := range documents(t) {
		_, prose := split(t, file)
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			found++
			path, anchor, _ := strings.Cut(target, "#")
			to := file
			if path != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(file), path))
			}
			if _, err := os.Stat(filepath.Join(root, to)); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the link to %s leads nowhere", file, target)
				continue
			}
			if anchor != "" && !slices.Contains(headings(t, to), anchor) {
				t.Errorf("%s: %s has no heading for #%s", file, to, anchor)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d links: the expression does not find them", found)
	}
}

// headings returns the anchors that GitHub gives to the headings of a file.
func headings(t *testing.T, file string) []string {
	t.Helper()
	_, prose := split(t, file)
	var anchors []string
	for line := range strings.SplitSeq(prose, "\n") {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		title = link.ReplaceAllString(title, "")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(title)))
		anchors = append(anchors, anchor)
	}
	return anchors
}

// The index names every page, and the README the pages that it promises.
func TestTheIndexIsComplete(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, file := range documents(t) {
		name, ok := strings.CutPrefix(file, "docs/")
		if !ok || name == "README.md" || strings.HasPrefix(name, "adr/") {
			continue
		}
		if !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/README.md does not link to %s", name)
		}
	}
}
