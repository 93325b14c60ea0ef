package examples

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	_ "github.com/sentinelgo/sentinel/sentinelotel" // the snippets'
)

// packages are what a snippet, which has no imports, may mean by a name.
var packages = map[string]string{
	"context": "context", "errors": "errors", "fmt": "fmt", "io": "io", "log": "log", "net": "net", "netip": "net/netip",
	"http": "net/http", "httptest": "net/http/httptest", "os": "os", "slices": "slices", "slog": "log/slog",
	"strings": "strings", "testing": "testing", "time": "time", "tls": "crypto/tls", "x509": "crypto/x509",

	"gin": "github.com/gin-gonic/gin", "echo": "github.com/labstack/echo/v4",
	"chi": "github.com/go-chi/chi/v5", "middleware": "github.com/go-chi/chi/v5/middleware",
	"redis": "github.com/redis/go-redis/v9", "jwt": "github.com/golang-jwt/jwt/v5",
	"prometheus": "github.com/prometheus/client_golang/prometheus",
	"promhttp":   "github.com/prometheus/client_golang/prometheus/promhttp",

	"sentinel":     ours + "core",
	"sentinelhttp": ours + "adapters/sentinelhttp",
	"sentinelgin":  ours + "adapters/sentinelgin",
	"sentinelecho": ours + "adapters/sentinelecho",
	"sentinelchi":  ours + "adapters/sentinelchi",
	"sentineljwks": ours + "sentineljwks",
	"sentinelotel": ours + "sentinelotel",
}

const ours = "github.com/sentinelgo/sentinel/"

// variables are what a snippet may use without declaring it.
var variables = map[string]string{
	"ctx": "context.Context", "cfg": "*sentinel.Config", "limiter": "*sentinel.Limiter", "err": "error",
	"mux": "*http.ServeMux", "proxies": "[]string", "e": "*echo.Echo",
}

// byFramework are those whose type depends on whose adapter the snippet uses.
var byFramework = []struct{ adapter, r, export string }{
	{"sentinelgin.", "*gin.Engine", "gin.HandlerFunc"},
	{"sentinelecho.", "", "echo.HandlerFunc"},
	{"sentinelchi.", "chi.Router", "http.HandlerFunc"},
	{"", "*http.Request", "http.HandlerFunc"},
}

// Every go block compiles; what is a test is run as well.
func TestGoBlocks(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := map[string]string{}
	var build, test []string
	for _, b := range blocks(t, "go") {
		name := "docblocks/" + strings.Trim(notWord.ReplaceAllString(b.String(), "_"), "_")
		source, file := b.text, "main.go"
		if !packageClause.MatchString(source) {
			source = snippet(t, b)
		}
		if strings.Contains(source, "\t\"testing\"\n") {
			file = "doc_test.go"
			test = append(test, "./"+name)
		} else {
			build = append(build, "./"+name)
		}
		stored := filepath.Join(dir, filepath.Base(name)+".go")
		if err := os.WriteFile(stored, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(here, filepath.FromSlash(name), file)] = stored
	}
	list := filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	// Without -o, which would leave out whatever is no program. Of several
	// packages go build writes none.
	run(t, here, "go", append([]string{"build", "-overlay", list}, build...)...)
	run(t, here, "go", append([]string{"test", "-c", "-vet=off", "-overlay", list, "-o", dir + "/"}, test...)...)
	for _, pkg := range test {
		if out := run(t, dir, filepath.Join(dir, filepath.Base(pkg)+".test"), "-test.v"); !strings.Contains(out, "--- PASS: ") {
			t.Errorf("%s: no test ran", pkg)
		}
	}
}

var (
	notWord       = regexp.MustCompile(`\W+`)
	packageClause = regexp.MustCompile(`(?m)^package \w+$`)
)

// run runs a command in dir to its end, reports what it printed if it fails,
// and returns it.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

// snippet makes a file of a block that is a piece of one: declarations, or
// statements, which it puts into a function.
func snippet(t *testing.T, b block) string {
	t.Helper()
	free, _, isFile := freeNames("package docblocks\n" + b.text)
	if isFile {
		return "package docblocks\n" + imports(free) + b.text
	}
	free, defined, ok := freeNames("package docblocks\nfunc _() {\n" + b.text + "\n}\n")
	if !ok {
		t.Errorf("%s: neither declarations nor statements", b)
		return "package docblocks\n"
	}
	var parameters []string
	for _, name := range free {
		if kind := variableType(name, b.text); kind != "" {
			parameters = append(parameters, name+" "+kind)
			qualifier, _, _ := strings.Cut(strings.TrimLeft(kind, "*[]"), ".")
			free = append(free, qualifier)
		}
	}
	text := "package docblocks\n" + imports(free)
	text += "func _(" + strings.Join(parameters, ", ") + ") {\n{\n" + b.text
	for _, name := range defined {
		text += "_ = " + name + "\n" // a snippet need not use what it makes
	}
	return text + "}\n}\n"
}

func variableType(name, text string) string {
	for _, f := range byFramework {
		if strings.Contains(text, f.adapter) {
			switch name {
			case "r":
				return f.r
			case "export":
				return f.export
			}
			break
		}
	}
	return variables[name]
}

func imports(names []string) string {
	var text string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if path, ok := packages[name]; ok {
			text += fmt.Sprintf("import %s %q\n", name, path)
		}
	}
	return text
}

// freeNames returns the names that a file uses and does not declare, and those
// that its functions declare on their outermost level.
func freeNames(source string) (free, defined []string, ok bool) {
	file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
	if err != nil {
		return nil, nil, false
	}
	names := map[string]bool{}
	for _, id := range file.Unresolved {
		names[id.Name] = true
	}
	for _, d := range file.Decls {
		if f, isFunc := d.(*ast.FuncDecl); isFunc && f.Name.Name == "_" {
			for _, s := range f.Body.List {
				if a, isAssign := s.(*ast.AssignStmt); isAssign && a.Tok == token.DEFINE {
					for _, e := range a.Lhs {
						if id, isName := e.(*ast.Ident); isName && id.Name != "_" {
							defined = append(defined, id.Name)
						}
					}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names)), defined, true
}

// reference is a name of one of our packages in running text.
var reference = regexp.MustCompile("`(sentinel|sentinelhttp|sentinelgin|sentinelecho|sentinelchi)\\.([A-Z]\\w*)")

// What the text calls sentinel.X, there is in the package.
func TestNamesInTheTextExist(t *testing.T) {
	exported := map[string]map[string]bool{}
	for name, path := range packages {
		if dir, ok := strings.CutPrefix(path, ours); ok {
			exported[name] = exports(t, filepath.Join(root, dir))
		}
	}
	found := 0
	for _, file := range documents(t) {
		_, prose := split(t, file)
		for _, m := range reference.FindAllStringSubmatch(prose, -1) {
			found++
			if !exported[m[1]][m[2]] {
				t.Errorf("%s: there is no %s.%s", file, m[1], m[2])
			}
		}
	}
	if found == 0 {
		t.Error("no name was found: the expression does not find them")
	}
}

// exports returns the exported names of a package's top level.
func exports(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, file := range parseDir(t, dir) {
		for name := range file.Scope.Objects {
			if ast.IsExported(name) {
				names[name] = true
			}
		}
	}
	return names
}

// parseDir parses the files of a package, tests excepted.
func parseDir(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		t.Fatalf("no Go files in %s", dir)
	}
	return files
}
