// Package importrules holds the workspace to its layers: who may import whom,
// directly. The lists here are the rules; a new dependency is a change of them,
// made on purpose.
package importrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const prefix = "github.com/sentinelgo/sentinel/"

// Every package that is not of the standard library is meant with all below it.
var (
	coreMay = []string{
		prefix + "lua", prefix + "core",
		"github.com/redis/go-redis/v9", "github.com/golang-jwt/jwt/v5", "github.com/prometheus/client_golang",
	}
	frameworks = map[string][]string{
		"adapters/sentinelgin":   {"github.com/gin-gonic/gin"},
		"adapters/sentinelecho":  {"github.com/labstack/echo/v4"},
		"adapters/sentinelecho5": {"github.com/labstack/echo/v5"},
		"adapters/sentinelchi":   {"github.com/go-chi/chi/v5"},
		"adapters/sentinelgrpc":  {"google.golang.org/grpc", "google.golang.org/genproto/googleapis/rpc"},
	}
	// neverPublished are modules that a user of core or of an adapter must not
	// inherit: the test machinery, what measures, and the peers of the benchmarks.
	neverPublished = []string{
		prefix + "measure",
		"github.com/testcontainers", "github.com/docker", "github.com/moby",
		"github.com/redis/rueidis", "github.com/go-redis/redis_rate", "github.com/ulule/limiter",
		"github.com/throttled", "github.com/sethvargo/go-limiter", "github.com/mennanov/limiters",
		"github.com/didip/tollbooth", "github.com/go-chi/httprate", "github.com/sony/gobreaker",
	}
	leaves      = []string{"integration", "examples", "bench"} // nothing imports them
	measurers   = []string{"bench", "edge/bench", "integration"}
	edgeControl = []string{"edge/cmd", "edge/proto", "edge/internal/control", "edge/internal/store"}
	edgePolicy  = "edge/internal/policy" // and no other knows the library
	edgeHeavy   = []string{"google.golang.org/grpc", "google.golang.org/protobuf", "modernc.org/sqlite", "database/sql"}
)

// pkg is what `go list` says of a package, and mod what `go mod edit` says of a
// module; only the fields that the rules need.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

type mod struct {
	Module  struct{ Path string }
	Require []struct{ Path string }
}

// in says whether path is one of the given ones, or below it.
func in(path string, parents ...string) bool {
	return slices.ContainsFunc(parents, func(p string) bool {
		return path == p || strings.HasPrefix(path, p+"/")
	})
}

// standard: only the standard library's paths have no dot in their first element.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// forbidden returns why the package at from (below prefix) may not import path,
// or "". A test may import more than the code it tests.
func forbidden(from, path string, test bool) string {
	to, ours := strings.CutPrefix(path, prefix)
	if ours && in(to, leaves...) {
		if slices.ContainsFunc(leaves, func(l string) bool { return in(from, l) && in(to, l) }) {
			return ""
		}
		return "nothing imports integration, examples or bench"
	}
	if test && from == to {
		return "" // a test in a package of its own
	}
	if ours && in(to, "measure") {
		if in(from, measurers...) {
			return ""
		}
		return "only bench, edge/bench and integration import measure"
	}
	switch {
	case from == "lua":
		if path != "embed" && (!test || !standard(path)) {
			return "lua imports only embed"
		}
	case in(from, "core/bucket", "core/breaker"):
		root := strings.Join(strings.Split(from, "/")[:2], "/")
		if !standard(path) && !in(path, prefix+root) {
			return "core/bucket and core/breaker import only the standard library, never each other"
		}
	case in(from, "core"):
		return forbiddenToCore(path, test)
	case in(from, "adapters"):
		return forbiddenToAdapter(from, path, test)
	case from == "sentineltest":
		if !standard(path) && !in(path, prefix+"core", "github.com/golang-jwt/jwt/v5", "github.com/alicebob/miniredis/v2") {
			return "sentineltest imports core, golang-jwt and miniredis, nothing else of ours and no framework"
		}
	case from == "sentinelctl":
		if !standard(path) && !in(path, prefix+"core", prefix+"lua", "github.com/redis/go-redis/v9") {
			return "sentinelctl imports core, core/bucket, lua and go-redis, nothing else"
		}
	case from == "sentineljwks":
		if !standard(path) && !in(path, prefix+"core", "github.com/MicahParks/jwkset", "github.com/prometheus/client_golang") && (!test || !in(path, "github.com/golang-jwt/jwt/v5")) {
			return "sentineljwks imports core, jwkset and client_golang, nothing else of ours"
		}
	case from == "sentinelotel":
		return forbiddenToOtel(path, test)
	case from == "measure":
		if !standard(path) {
			return "measure imports only the standard library"
		}
	case in(from, "edge"):
		return forbiddenToEdge(from, path, test)
	}
	return ""
}

// forbiddenToOtel: its users choose the SDK, and whether they have one.
func forbiddenToOtel(path string, test bool) string {
	const otel = "go.opentelemetry.io/otel"
	switch {
	case standard(path), path == prefix+"core", in(path, otel) && (test || !in(path, otel+"/sdk")):
		return ""
	default:
		return "sentinelotel imports core and the API of OpenTelemetry, not its SDK, and nothing else of ours"
	}
}

func forbiddenToCore(path string, test bool) string {
	if standard(path) {
		if in(path, "net/http") && !test {
			return "core does not know net/http; that is sentinelhttp's"
		}
		return ""
	}
	if in(path, coreMay...) {
		return ""
	}
	if test && !strings.HasPrefix(path, prefix) && !isFramework(path) && !in(path, neverPublished...) {
		return ""
	}
	return "core imports only lua, its own packages, go-redis, golang-jwt and client_golang"
}

func isFramework(path string) bool {
	for _, f := range frameworks {
		if in(path, f...) {
			return true
		}
	}
	return false
}

func forbiddenToAdapter(from, path string, test bool) string {
	framework, other := frameworks[from]
	switch {
	case standard(path), path == prefix+"core":
		return ""
	case other && (in(path, framework...) || path == prefix+"adapters/sentinelhttp"):
		return ""
	case from == "adapters/sentinelgrpc" && in(path, "google.golang.org/protobuf"): // a part of gRPC
		return ""
	case test && !strings.HasPrefix(path, prefix) && !isFramework(path) && !in(path, neverPublished...):
		return ""
	case other:
		return "an adapter imports core, sentinelhttp and its framework, nothing else"
	default:
		return "sentinelhttp imports core and the standard library, nothing else"
	}
}

// forbiddenToEdge knows the request path as all of edge but edgeControl. The tests
// of edgetest are of the whole; what it exports is for those of the request path.
func forbiddenToEdge(from, path string, test bool) string {
	if to, ours := strings.CutPrefix(path, prefix); ours {
		switch {
		case in(to, "edge") && in(to, edgeControl...) && !in(from, edgeControl...) && (!test || from != "edge/internal/edgetest"):
			return "the request path of edge does not import the control plane"
		case in(to, "edge"), to == "core/bucket", to == "core/breaker":
			return ""
		case from == edgePolicy && (to == "core" || to == "adapters/sentinelhttp"):
			return ""
		}
		return "edge imports core/bucket and core/breaker, edge/internal/policy core and sentinelhttp, and nothing else of ours"
	}
	if in(path, edgeHeavy...) && !in(from, edgeControl...) {
		return "the request path of edge imports neither gRPC nor SQLite"
	}
	return ""
}

// faults returns one line for each import that breaks a rule.
func faults(pkgs []pkg) []string {
	var out []string
	for _, p := range pkgs {
		from, ours := strings.CutPrefix(p.ImportPath, prefix)
		if !ours {
			continue
		}
		check := func(imports []string, test bool) {
			for _, path := range imports {
				if why := forbidden(from, path, test); why != "" {
					out = append(out, fmt.Sprintf("%s imports %s: %s", from, path, why))
				}
			}
		}
		check(p.Imports, false)
		check(p.TestImports, true)
		check(p.XTestImports, true)
	}
	return out
}

// modFaults returns one line for each module that a published one must not
// require, indirectly or not. What a go.mod names, every user downloads.
func modFaults(m mod) []string {
	name, ours := strings.CutPrefix(m.Module.Path, prefix)
	if !ours || !in(name, "lua", "core", "adapters", "sentineltest", "sentinelctl", "sentineljwks", "sentinelotel") {
		return nil
	}
	var out []string
	for _, r := range m.Require {
		foreign := isFramework(r.Path) && !in(r.Path, frameworks[name]...)
		if foreign || in(r.Path, neverPublished...) || in(r.Path, "go.opentelemetry.io") && name != "sentinelotel" {
			out = append(out, fmt.Sprintf("%s/go.mod requires %s", name, r.Path))
		}
	}
	return out
}

func TestWorkspaceKeepsTheRules(t *testing.T) {
	var pkgs []pkg
	decode(t, &pkgs, "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "work")
	if !slices.ContainsFunc(pkgs, func(p pkg) bool { return p.ImportPath == prefix+"core" && len(p.Imports) > 0 }) {
		t.Fatalf("go list gives %d packages, and among them no core with imports", len(pkgs))
	}
	for _, f := range faults(pkgs) {
		t.Error(f)
	}
	var dirs []struct{ Dir string }
	decode(t, &dirs, "list", "-m", "-json=Dir")
	for _, d := range dirs {
		var m []mod
		decode(t, &m, "mod", "edit", "-json", d.Dir+"/go.mod")
		for _, f := range modFaults(m[0]) {
			t.Error(f)
		}
	}
}

// decode runs go at the workspace's root and reads the JSON values it prints.
func decode[T any](t *testing.T, into *[]T, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOWORK=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var v T
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("go %s: %v", strings.Join(args, " "), err)
		}
		*into = append(*into, v)
	}
}

func TestRulesRefuse(t *testing.T) {
	const gin, chi = "github.com/gin-gonic/gin", "github.com/go-chi/chi/v5/middleware"
	for _, c := range []struct {
		from, imports string
		test, refused bool
	}{
		{from: "lua", imports: "embed"},
		{from: "lua", imports: "strings", refused: true},
		{from: "lua", imports: "strings", test: true},
		{from: "lua", imports: prefix + "core", test: true, refused: true},

		{from: "core/bucket", imports: "math/bits"},
		{from: "core/bucket", imports: prefix + "core/breaker", refused: true},
		{from: "core/bucket/buckettest", imports: prefix + "core/bucket"},
		{from: "core/bucket", imports: prefix + "core/bucket/buckettest", test: true},
		{from: "core/breaker", imports: prefix + "core/bucket", test: true, refused: true},
		{from: "core/breaker", imports: prefix + "core", refused: true},
		{from: "core/breaker", imports: "github.com/redis/go-redis/v9", refused: true},
		{from: "core/breaker", imports: prefix + "core/breaker", test: true},

		{from: "core", imports: "github.com/redis/go-redis/v9"},
		{from: "core", imports: "github.com/prometheus/client_golang/prometheus"},
		{from: "core", imports: prefix + "lua"},
		{from: "core", imports: prefix + "core/bucket"},
		{from: "core", imports: "net/netip"},
		{from: "core", imports: "net/http", refused: true},
		{from: "core", imports: "net/http/httptest", refused: true},
		{from: "core", imports: "net/http/httptest", test: true},
		{from: "core", imports: gin, refused: true},
		{from: "core", imports: gin, test: true, refused: true},
		{from: "core", imports: prefix + "adapters/sentinelhttp", test: true, refused: true},
		{from: "core", imports: prefix + "edge", refused: true},
		{from: "core", imports: "github.com/stretchr/testify", refused: true},
		{from: "core", imports: "github.com/prometheus/client_model/go", test: true},
		{from: "core", imports: "github.com/testcontainers/testcontainers-go", test: true, refused: true},
		{from: "core", imports: prefix + "integration/redistest", test: true, refused: true},
		{from: "core/internal/x", imports: "net/http", refused: true},

		{from: "adapters/sentinelhttp", imports: "net/http"},
		{from: "adapters/sentinelhttp", imports: prefix + "core"},
		{from: "adapters/sentinelhttp", imports: "github.com/redis/go-redis/v9", refused: true},
		{from: "adapters/sentinelhttp", imports: prefix + "core/bucket", refused: true},
		{from: "adapters/sentinelhttp", imports: "github.com/golang-jwt/jwt/v5", test: true},
		{from: "adapters/sentinelgin", imports: gin},
		{from: "adapters/sentinelgin", imports: prefix + "adapters/sentinelhttp"},
		{from: "adapters/sentinelgin", imports: prefix + "adapters/sentinelchi", refused: true},
		{from: "adapters/sentinelgin", imports: chi, refused: true},
		{from: "adapters/sentinelgin", imports: chi, test: true, refused: true},
		{from: "adapters/sentinelchi", imports: chi},

		{from: "sentinelctl", imports: prefix + "core/bucket"},
		{from: "sentinelctl", imports: "github.com/redis/go-redis/v9"},
		{from: "sentinelctl", imports: "github.com/spf13/cobra", refused: true},
		{from: "sentinelctl", imports: prefix + "integration/redistest", test: true, refused: true},
		{from: "sentineljwks", imports: prefix + "core"},
		{from: "sentineljwks", imports: "github.com/MicahParks/jwkset"},
		{from: "sentineljwks", imports: "github.com/golang-jwt/jwt/v5", test: true},
		{from: "sentineljwks", imports: prefix + "adapters/sentinelhttp", refused: true},
		{from: "core", imports: "github.com/MicahParks/jwkset", refused: true},
		{from: "sentinelotel", imports: prefix + "core"},
		{from: "sentinelotel", imports: "go.opentelemetry.io/otel/trace"},
		{from: "sentinelotel", imports: "go.opentelemetry.io/otel/sdk/trace", refused: true},
		{from: "sentinelotel", imports: "go.opentelemetry.io/otel/sdk/trace/tracetest", test: true},
		{from: "sentinelotel", imports: prefix + "adapters/sentinelhttp", test: true, refused: true},
		{from: "core", imports: "go.opentelemetry.io/otel/trace", refused: true},

		{from: "integration", imports: "github.com/testcontainers/testcontainers-go"},
		{from: "integration", imports: prefix + "integration/redistest", test: true},
		{from: "bench", imports: prefix + "integration/redistest", refused: true},
		{from: "examples/worker", imports: prefix + "examples/quickstart", test: true},

		{from: "bench", imports: prefix + "measure"},
		{from: "edge/bench", imports: prefix + "measure"},
		{from: "integration/proof", imports: prefix + "measure"},
		{from: "measure", imports: "flag"},
		{from: "measure", imports: prefix + "core", refused: true},
		{from: "measure", imports: "github.com/redis/go-redis/v9", test: true, refused: true},
		{from: "core", imports: prefix + "measure", test: true, refused: true},
		{from: "adapters/sentinelgin", imports: prefix + "measure", test: true, refused: true},
		{from: "sentineltest", imports: prefix + "measure", refused: true},
		{from: "edge/internal/proxy", imports: prefix + "measure", test: true, refused: true},
		{from: "edge/internal/control/measure", imports: prefix + "measure", refused: true},
		{from: "examples/worker", imports: prefix + "measure", refused: true},

		{from: "edge/internal/proxy", imports: prefix + "core/breaker"},
		{from: "edge/internal/proxy", imports: prefix + "edge/internal/control", refused: true},
		{from: "edge/internal/proxy", imports: "google.golang.org/grpc", refused: true},
		{from: "edge/internal/proxy", imports: "database/sql", refused: true},
		{from: "edge/internal/store", imports: "modernc.org/sqlite"},
		{from: "edge/cmd/sentinel", imports: prefix + "edge/internal/control"},
		{from: "edge/internal/node", imports: prefix + "edge/internal/control/follow", refused: true},
		{from: "edge/internal/control/follow", imports: "google.golang.org/grpc"},
		{from: "edge/internal/control/follow", imports: prefix + "edge/internal/node"},
		{from: "edge/internal/edgetest", imports: prefix + "edge/internal/control/mtls", test: true},
		{from: "edge/internal/edgetest", imports: prefix + "edge/internal/control/mtls", refused: true},
		{from: "edge/internal/proxy", imports: prefix + "edge/internal/edgetest", test: true},
		{from: "edge/internal/policy", imports: prefix + "core"},
		{from: "edge/internal/policy", imports: prefix + "adapters/sentinelhttp"},
		{from: "edge/internal/policy", imports: prefix + "adapters/sentinelgin", refused: true},
		{from: "edge/internal/policy", imports: prefix + "edge/internal/control", refused: true},
		{from: "edge/internal/policy/deeper", imports: prefix + "core", refused: true},
		{from: "edge/internal/proxy", imports: prefix + "core", refused: true},
		{from: "edge/internal/proxy", imports: prefix + "core", test: true, refused: true},
		{from: "edge/cmd/sentinel", imports: prefix + "core", refused: true},
		{from: "edge", imports: prefix + "adapters/sentinelhttp", refused: true},
	} {
		p := pkg{ImportPath: prefix + c.from}
		if c.test {
			p.XTestImports = []string{c.imports}
		} else {
			p.Imports = []string{c.imports}
		}
		if got := faults([]pkg{p}); (len(got) > 0) != c.refused {
			t.Errorf("%s imports %s (in a test: %v): %q, want refused: %v", c.from, c.imports, c.test, got, c.refused)
		}
	}
}

func TestModFaults(t *testing.T) {
	for _, c := range []struct {
		module, requires string
		refused          bool
	}{
		{"core", "github.com/redis/go-redis/v9", false},
		{"core", "github.com/testcontainers/testcontainers-go", true},
		{"core", "github.com/moby/moby/client", true},
		{"sentinelctl", prefix + "measure", true},
		{"bench", prefix + "measure", false},
		{"core", "github.com/gin-gonic/gin", true},
		{"adapters/sentinelgin", "github.com/gin-gonic/gin", false},
		{"adapters/sentinelgin", "github.com/labstack/echo/v4", true},
		{"adapters/sentinelhttp", "github.com/throttled/throttled/v2", true},
		{"adapters/sentinelhttp", "go.opentelemetry.io/otel", true},
		{"sentinelotel", "go.opentelemetry.io/otel", false},
		{"sentinelotel", "github.com/gin-gonic/gin", true},
		{"integration", "github.com/testcontainers/testcontainers-go", false},
		{"bench", "github.com/throttled/throttled/v2", false},
	} {
		var m mod
		m.Module.Path = prefix + c.module
		m.Require = []struct{ Path string }{{c.requires}}
		if got := modFaults(m); (len(got) > 0) != c.refused {
			t.Errorf("%s requires %s: %q, want refused: %v", c.module, c.requires, got, c.refused)
		}
	}
}
