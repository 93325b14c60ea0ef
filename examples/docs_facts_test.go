package examples

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/sentineljwks"
)

// collectors is a registerer that keeps what it is given.
type collectors struct {
	*prometheus.Registry
	all []prometheus.Collector
}

func (c *collectors) Register(one prometheus.Collector) error {
	c.all = append(c.all, one)
	return c.Registry.Register(one)
}

// metrics returns the labels of every metric of a limiter, by its name.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	cfg, err := sentinel.ParseConfig([]byte(base))
	if err != nil {
		t.Fatal(err)
	}
	registerer := &collectors{Registry: prometheus.NewRegistry()}
	limiter, err := sentinel.Open(context.Background(), cfg, sentinel.WithRegisterer(registerer),
		sentinel.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close()
	fetchKeys(t, registerer)
	found := map[string][]string{}
	for _, c := range registerer.all {
		descs := make(chan *prometheus.Desc, 10)
		c.Describe(descs)
		close(descs)
		for desc := range descs {
			m := describes.FindStringSubmatch(desc.String())
			if m == nil {
				t.Fatalf("cannot read %s", desc)
			}
			found[m[1]] = nil
			if m[2] != "" {
				found[m[1]] = strings.Split(m[2], ",")
			}
		}
	}
	if len(found) < 9 {
		t.Fatalf("only %d metrics", len(found))
	}
	return found
}

// fetchKeys registers the metrics of sentineljwks.
func fetchKeys(t *testing.T, registerer prometheus.Registerer) {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
	}))
	defer issuer.Close()
	keys, err := sentineljwks.Open(t.Context(), issuer.URL, sentineljwks.WithRegisterer(registerer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
}

var describes = regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)

// row returns the cells of the table rows of a document that begin with a name
// in backquotes, by that name.
func rows(t *testing.T, file string) map[string][]string {
	t.Helper()
	_, prose := split(t, file)
	found := map[string][]string{}
	for line := range strings.SplitSeq(prose, "\n") {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			found[name] = strings.Split(strings.Trim(line, "| "), " | ")
		}
	}
	return found
}

// The table of metrics has every metric with its labels, and none besides.
func TestMetricsAreDocumented(t *testing.T) {
	table := rows(t, "docs/operations.md")
	all := metrics(t)
	for name, labels := range all {
		cells := table[name]
		if len(cells) != 4 {
			t.Errorf("docs/operations.md has no row for %s", name)
			continue
		}
		want := "none"
		if len(labels) > 0 {
			want = "`" + strings.Join(labels, "`, `") + "`"
		}
		if cells[2] != want {
			t.Errorf("%s has the labels %s; the document says %s", name, want, cells[2])
		}
	}
	for name := range table {
		if _, there := all[name]; strings.HasPrefix(name, "sentinel_") && !there {
			t.Errorf("docs/operations.md documents %s, which there is not", name)
		}
	}
}

var (
	// notMetrics are the cookie's name, and parameters of redis_url.
	notMetrics = []string{"sentinel_anon_id", "sentinel_username", "sentinel_password"}
	metricName = regexp.MustCompile(`\bsentinel_[a-z_]+`)
	selector   = regexp.MustCompile(`(sentinel_[a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"([^"]*)"`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// Whatever a document calls sentinel_..., in an alert or in running text, is a
// metric, with labels and values that it has.
func TestMetricsInTheDocumentsExist(t *testing.T) {
	m := newMetricNames(t)
	for _, file := range documents(t) {
		m.check(t, file, read(t, file))
	}
}

// ownMetrics returns the names of the metrics of the edge or of its control plane, from
// its code, which nothing outside of the module can import.
func ownMetrics(t *testing.T, file string) []string {
	t.Helper()
	var names []string
	for _, m := range ownMetric.FindAllStringSubmatch(read(t, file), -1) {
		names = append(names, m[1])
	}
	if len(names) < 10 {
		t.Fatalf("only %d metrics in %s", len(names), file)
	}
	return names
}

var ownMetric = regexp.MustCompile(`"(sentinel_(?:edge|control)_[a-z_]+)"`)

const (
	edgeMetrics    = "edge/internal/observe/metrics.go"
	controlMetrics = "edge/internal/control/metrics.go"
)

// The operators' pages name each metric of what they are about.
func TestMetricsOfTheEdgeAreDocumented(t *testing.T) {
	for file, page := range map[string]string{edgeMetrics: edgePage, controlMetrics: controlPage} {
		text := read(t, page)
		for _, name := range ownMetrics(t, file) {
			if !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s does not name %s", page, name)
			}
		}
	}
}

// metricNames are what a text may say of metrics.
type metricNames struct {
	all           map[string][]string // labels by name
	values, known map[string]bool     // of labels
}

func newMetricNames(t *testing.T) metricNames {
	t.Helper()
	m := metricNames{all: metrics(t), values: labelValues(t), known: map[string]bool{"instance": true, "le": true}}
	for _, name := range append(ownMetrics(t, edgeMetrics), ownMetrics(t, controlMetrics)...) {
		m.all[name] = nil
	}
	for _, labels := range m.all {
		for _, l := range labels {
			m.known[l] = true
		}
	}
	return m
}

// check finds names, labels and values in text that there are not.
func (n metricNames) check(t *testing.T, file, text string) {
	t.Helper()
	for _, name := range metricName.FindAllString(text, -1) {
		if !n.has(name) && !n.has(plain(name)) && !slices.Contains(notMetrics, name) {
			t.Errorf("%s: there is no metric %s", file, name)
		}
	}
	for _, m := range selector.FindAllStringSubmatch(text, -1) {
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(n.all[plain(m[1])], label[1]) {
				t.Errorf("%s: %s has no label %s", file, m[1], label[1])
			}
			for value := range strings.SplitSeq(label[2], "|") {
				if label[1] != "endpoint_id" && !n.values[value] {
					t.Errorf("%s: %s is never %q", file, label[1], value)
				}
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(text, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if !n.known[strings.TrimSpace(label)] {
				t.Errorf("%s: no metric has the label %s", file, label)
			}
		}
	}
}

func (n metricNames) has(name string) bool {
	_, there := n.all[name]
	return there
}

// plain is a metric's name without the suffixes of a histogram's series.
func plain(name string) string {
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

// labelValues returns all values that labels other than endpoint_id may have.
func labelValues(t *testing.T) map[string]bool {
	t.Helper()
	values := map[string]bool{"limiter": true, "redis": true, "closed": true, "half_open": true, "open": true, "denied": true}
	for _, kind := range []string{"Reason", "failureKind", "authFailure"} {
		maps.Copy(values, constants(t, kind))
	}
	return values
}

// constants returns the values of core's constants of one type.
func constants(t *testing.T, kind string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range parseDir(t, filepath.Join(root, "core")) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); ok && id.Name == kind {
				found[literal(spec.Values[0])] = true
			}
			return true
		})
	}
	if len(found) == 0 {
		t.Fatalf("core has no constants of type %s", kind)
	}
	return found
}

// literal is the text of a string constant, or of the first one in a sum; ""
// if there is none.
func literal(e ast.Expr) string {
	var text string
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && text == "" {
			text, _ = strconv.Unquote(l.Value)
		}
		return text == ""
	})
	return text
}

// The tables of kinds have every kind that is counted.
func TestKindsAreDocumented(t *testing.T) {
	table := rows(t, "docs/operations.md")
	for _, kind := range []string{"failureKind", "authFailure"} {
		for value := range constants(t, kind) {
			// The breaker counts nothing: it never asked the store.
			if value != "circuit" && len(table[value]) != 2 {
				t.Errorf("docs/operations.md has no row for the %s %s", kind, value)
			}
		}
	}
	reasons := read(t, "docs/failure-semantics.md")
	for reason := range constants(t, "Reason") {
		if !strings.Contains(reasons, "`"+reason+"`") {
			t.Errorf("docs/failure-semantics.md has no word of %s", reason)
		}
	}
}

// logging are the methods that write a log line, and which of their arguments
// is the message.
var logging = map[string]int{"Info": 0, "Warn": 0, "Error": 0, "LogAttrs": 2}

// Every log line of the library is in the operator's table, with its level.
func TestLogLinesAreDocumented(t *testing.T) {
	var table []string
	for line := range strings.SplitSeq(read(t, "docs/operations.md"), "\n") {
		if strings.HasPrefix(line, "| ERROR |") || strings.HasPrefix(line, "| WARN |") || strings.HasPrefix(line, "| INFO |") {
			table = append(table, line)
		}
	}
	found := 0
	for _, dir := range []string{"core", "adapters/sentinelhttp", "adapters/sentinelgin", "adapters/sentinelecho", "adapters/sentinelchi", "sentineljwks"} {
		for _, file := range parseDir(t, filepath.Join(root, dir)) {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				s, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				i, ok := logging[s.Sel.Name]
				if !ok || len(call.Args) <= i {
					return true
				}
				message := literal(call.Args[i])
				if strings.TrimPrefix(message, "sentinel: ") == "" {
					return true // what follows is put together elsewhere: below
				}
				found++
				documented(t, table, strings.TrimSpace(strings.TrimPrefix(message, ": ")), s.Sel.Name)
				return true
			})
		}
	}
	if found < 9 {
		t.Errorf("only %d log lines: they are not found any more", found)
	}
	for _, message := range []string{
		"can be read neither by CONFIG GET nor by INFO",                          // connector.go
		"skip_verify=true encrypts but does not prove who the server is",         // config.go
		"these keys never expire, and every new client adds one",                 // config.go
		"make sure that it is noeviction and that maxmemory is set",              // connector.go
		"sentinel: circuit breaker open` (or `half_open`, `closed`)",             // check.go
		"a Guard met no Middleware, so it answers 503 to every request; add the", // gate.go
	} {
		documented(t, table, message, "")
	}
}

func documented(t *testing.T, table []string, message, method string) {
	t.Helper()
	i := slices.IndexFunc(table, func(row string) bool { return strings.Contains(row, message) })
	if i < 0 {
		t.Errorf("docs/operations.md does not have the log line %q", message)
		return
	}
	if level := strings.ToUpper(method); method != "" && method != "LogAttrs" && !strings.HasPrefix(table[i], fmt.Sprintf("| %s |", level)) {
		t.Errorf("docs/operations.md: the log line %q is at %s", message, level)
	}
}

// testName is a test or a fuzz target in running text; tested is where one is
// defined.
var (
	testName   = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	tested     = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	attackName = regexp.MustCompile(`^TestAttack\w`)
	oneCase    = regexp.MustCompile(`case: ([^|]+?) \|`)
)

// Every claim of the security model names tests that there are, and every test
// that attacks is named by a claim.
func TestClaimsAreTried(t *testing.T) {
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range tested.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, suite := read(t, "docs/security.md"), read(t, "docs/conformance.md")
	named := map[string]bool{}
	for _, m := range testName.FindAllStringSubmatch(page, -1) {
		named[m[1]] = true
		if m[1] != "TestAttack" && !tests[m[1]] {
			t.Errorf("docs/security.md: there is no %s", m[1])
		}
	}
	attacks := 0
	for name := range tests {
		if attackName.MatchString(name) {
			attacks++
			if !named[name] {
				t.Errorf("docs/security.md has no claim for %s", name)
			}
		}
	}
	cases := oneCase.FindAllStringSubmatch(page, -1)
	for _, m := range cases {
		if !strings.Contains(suite, "\n- "+m[1]+"\n") {
			t.Errorf("docs/security.md: there is no case %q", m[1])
		}
	}
	if attacks == 0 || len(cases) == 0 {
		t.Errorf("%d attacks and %d cases were found: the expressions do not find them", attacks, len(cases))
	}
}
