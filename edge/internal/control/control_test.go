package control

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
	"github.com/sentinelgo/sentinel/edge/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "0123456789abcdef"

// plane is a control plane in this process, on real listeners.
type plane struct {
	*Server
	t            testing.TB
	db           string
	nodes, admin string
	stop         func()
}

// start starts one; db is "" for a new store, and at is where nodes are served, "" for any port.
func start(t testing.TB, db, at string) *plane {
	t.Helper()
	if db == "" {
		db = filepath.Join(t.TempDir(), "control.db")
	}
	return serve(t, db, at, insecure.NewCredentials(), store.Options{Busy: 50 * time.Millisecond})
}

func serve(t testing.TB, db, at string, c credentials.TransportCredentials, o store.Options) *plane {
	t.Helper()
	st, err := store.Open(t.Context(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), Options{Store: st, Logger: slog.New(slog.DiscardHandler), Token: token, Build: "test", Hosts: []string{"control.internal"}})
	if err != nil {
		t.Fatal(err)
	}
	if at == "" {
		at = "127.0.0.1:0"
	}
	nodes, operator := listen(t, at), listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error)
	go func() { done <- s.Serve(ctx, nodes, c, operator) }()
	p := &plane{Server: s, t: t, db: db, nodes: nodes.Addr().String(), admin: "http://" + operator.Addr().String()}
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

func listen(t testing.TB, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at) //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request with the token, and returns status and body.
func (p *plane) ask(method, path, body string, header ...string) (int, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.admin+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r.Host = r.Header.Get("Host") // "": the URL's
	resp, err := client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// apply makes a version, and returns its number.
func (p *plane) apply(text string) int64 {
	p.t.Helper()
	status, body := p.ask("PUT", "/v1/config", text, "If-Match", "*")
	var o outcome
	if err := json.Unmarshal([]byte(body), &o); err != nil || status != http.StatusOK {
		p.t.Fatalf("%d %s", status, body)
	}
	return o.Version
}

// shared is a good configuration that says which one it is.
func shared(n int) string {
	return fmt.Sprintf("routes:\n  - {path: /r%d, backend: web}\nbackends:\n  - {name: web, url: \"http://127.0.0.1:9001\"}\n", n)
}

func TestEveryPartCanBeEdited(t *testing.T) {
	p := start(t, "", "")
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // in the answer
	}{
		{"GET", "/v1/config", "", 409, "there is no configuration yet"},
		{"PUT", "/v1/services/a", "{url: 'http://h:1'}", 409, "begin with a whole one"},
		{"PUT", "/v1/config", shared(1), 428, "If-Match"},
		{"PUT", "/v1/config?dry_run=true", shared(1), 200, `"diff":"+routes:`},
		{"GET", "/v1/config", "", 409, "there is no configuration yet"},
		{"PUT", "/v1/config", "If-Match: *\n" + shared(1), 200, `"version":1`},
		{"PUT", "/v1/config", "If-Match: *\n" + shared(1), 200, `"changed":false`},
		{"PUT", "/v1/config", "If-Match: \"9\"\n" + shared(2), 412, `the newest is 1`},
		{"PUT", "/v1/config", "If-Match: nonsense\n" + shared(2), 400, "must be a version"},

		{"PUT", "/v1/services/api", `{"url":"http://10.0.0.1:80"}`, 200, `"version":2`},
		{"GET", "/v1/services/api", "", 200, `{"name":"api","url":"http://10.0.0.1:80"}`},
		{"PUT", "/v1/services/api", "name: other\nurl: http://10.0.0.1:80", 422, "the path's"},
		{"PUT", "/v1/services/api", "urls: [http://10.0.0.1:80, http://10.0.0.2]\nbalance: power_of_two", 200, `"version":3`},
		{"PUT", "/v1/services/api", "urls: [nonsense]\nbalance: nonsense", 422, "must begin with http"},
		{"PUT", "/v1/services/api", "urls: [nonsense]\nbalance: nonsense", 422, "must be one of round_robin"},
		{"GET", "/v1/services/none", "", 404, "no service"},
		{"DELETE", "/v1/services/none", "", 404, "no service"},

		{"GET", "/v1/services/api/backends", "", 200, `[{"url":"http://10.0.0.1:80"},{"url":"http://10.0.0.2"}]`},
		{"PUT", "/v1/services/api/backends/10.0.0.2:80", "{url: 'http://10.0.0.2', weight: 3}", 200, `"version":4`},
		{"GET", "/v1/services/api/backends/10.0.0.2:80", "", 200, `{"url":"http://10.0.0.2","weight":3}`},
		{"PUT", "/v1/services/api/backends/10.0.0.3:80", "{url: 'http://10.0.0.4'}", 422, "with the address of the path"},
		{"PUT", "/v1/services/api/backends/10.0.0.3:80", "{url: 'http://10.0.0.3:80', weight: -1}", 422, "weight"},
		{"DELETE", "/v1/services/api/backends/10.0.0.1:80", "", 200, `"version":5`},
		{"DELETE", "/v1/services/api/backends/10.0.0.1:80", "", 404, "no backend at"},
		{"DELETE", "/v1/services/api/backends/10.0.0.2:80", "", 422, "is empty"},
		{"DELETE", "/v1/services/none/backends/10.0.0.2:80", "", 404, "no service"},

		{"POST", "/v1/routes", "{path: /users/:id, backend: api, methods: [GET]}", 200, `"version":6`},
		{"POST", "/v1/routes", "{path: /users/:id, backend: api, methods: [POST]}", 200, `"version":7`},
		{"POST", "/v1/routes", "{path: /users/:name, backend: nobody}", 422, "there is no backend with this name"},
		{"GET", "/v1/routes?path=/users/:id", "", 200, `[{"backend":"api","methods":["GET"],"path":"/users/:id"},{"backend":"api","methods":["POST"],"path":"/users/:id"}]`},
		{"PUT", "/v1/routes?path=/users/:id", "{path: /users/:id, backend: web}", 409, "say which one"},
		{"PUT", "/v1/routes?path=/users/:id&method=POST", "{path: /users/:id, backend: web, methods: [POST]}", 200, `"version":8`},
		{"PUT", "/v1/routes?path=/none", "{path: /none, backend: web}", 404, "no route"},
		{"DELETE", "/v1/routes?path=/users/:id&method=GET", "", 200, `"version":9`},
		{"DELETE", "/v1/services/web", "", 422, "there is no backend with this name"},

		{"PUT", "/v1/rate_limit", "{capacity: 10, refill_rate: 5}", 200, `"version":10`},
		{"GET", "/v1/rate_limit", "", 200, `{"capacity":10,"refill_rate":5}`},
		{"PUT", "/v1/rate_limit", "{capacity: 0, refill_rate: 5}", 422, "capacity"},
		{"PUT", "/v1/rate_limit?dry_run=true", "{capacity: 11, refill_rate: 5}", 200, `+rate_limit: {capacity: 11`},
		{"DELETE", "/v1/rate_limit", "", 200, `"version":11`},

		{"PUT", "/v1/config", "If-Match: *\nserver: {port: 1}\n" + shared(1), 422, "server: unknown key"},
		{"PUT", "/v1/config", "If-Match: *\nadmin: {listen: ':1'}\n" + shared(1), 422, "admin: unknown key"},
		{"PUT", "/v1/config", "If-Match: *\nsentinel: x\n" + shared(1), 422, "sentinel: unknown key"},
		{"PUT", "/v1/config", "If-Match: *\n" + strings.Replace(shared(1), "http://127.0.0.1:9001", "${HOME}", 1), 422, "the environment is a node's own"},
		{"PUT", "/v1/config", "If-Match: *\n", 422, "is empty"},
		{"PUT", "/v1/config", "If-Match: *\n- a\n", 422, "must be a mapping"},
		{"PUT", "/v1/config", "If-Match: *\n" + strings.Repeat("#", mostBody+1), 413, "more than"},
		{"POST", "/v1/routes", "{", 422, "the body"},
		{"POST", "/v1/routes", "a: 1\n---\nb: 2", 422, "more than one document"},
		{"POST", "/v1/routes", "&a {path: *a, backend: web}", 422, ""},
		{"PUT", "/v1/config?author=%0a", "If-Match: *\n" + shared(1), 400, "author must be one line"},

		{"POST", "/v1/versions/1/rollback", "", 200, `"version":12`},
		{"POST", "/v1/versions/1/rollback", "", 200, `"changed":false`},
		{"POST", "/v1/versions/99/rollback", "", 404, "no such version"},
		{"POST", "/v1/versions/x/rollback", "", 400, "is a number"},
		{"GET", "/v1/versions/12", "", 200, `path: /r1,`},
		{"GET", "/v1/versions/12/diff?from=11", "", 200, `-  - name: api`},
		{"GET", "/v1/versions/12/diff?from=99", "", 404, "no such version"},
		{"GET", "/v1/versions?limit=2", "", 200, `[{"version":12,`},
		{"GET", "/v1/versions?limit=-2", "", 400, "limit"},
		{"GET", "/v1/nodes", "", 200, "[]"},
		{"GET", "/readyz", "", 200, `"version":12`},
		{"GET", "/status", "", 200, "Newest version"},
	} {
		body, header := c.body, []string{}
		if rest, ok := strings.CutPrefix(body, "If-Match: "); ok {
			match, text, _ := strings.Cut(rest, "\n")
			body, header = text, []string{"If-Match", match}
		}
		status, got := p.ask(c.method, c.path, body, header...)
		if status != c.status || !strings.Contains(plain(got), c.want) {
			t.Fatalf("%s %s %.200s\ngives %d %s\nwant %d %s", c.method, c.path, c.body, status, got, c.status, c.want)
		}
	}
}

// plain is JSON with the escapes of line ends taken out.
func plain(text string) string { return strings.ReplaceAll(text, `\n`, "\n") }

func TestWhatIsNotTouchedStaysAsItWasWritten(t *testing.T) {
	p := start(t, "", "")
	p.apply("# who we are\nroutes:\n  # for people\n  - path: /a # short\n    backend: web\nbackends:\n  - {name: web, url: 'http://h:1'}\n")
	if status, body := p.ask("POST", "/v1/routes", `{"path":"/b","backend":"web"}`); status != 200 {
		t.Fatal(body)
	}
	_, text := p.ask("GET", "/v1/config", "")
	for _, want := range []string{"# who we are\n", "  # for people\n", "path: /a # short\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestAWriteNeedsTheToken(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	for _, given := range []string{"", "Bearer ", "Bearer " + token[1:], "Bearer " + token + "x", "Basic " + token, token} {
		for _, c := range [][2]string{
			{"PUT", "/v1/config"},
			{"PUT", "/v1/config?dry_run=true"},
			{"POST", "/v1/versions/1/rollback"},
			{"PUT", "/v1/services/a"},
			{"DELETE", "/v1/services/a"},
			{"PUT", "/v1/services/a/backends/h:1"},
			{"DELETE", "/v1/services/a/backends/h:1"},
			{"POST", "/v1/routes"},
			{"PUT", "/v1/routes"},
			{"DELETE", "/v1/routes"},
			{"PUT", "/v1/rate_limit"},
			{"DELETE", "/v1/rate_limit"},
		} {
			if status, body := p.ask(c[0], c[1], shared(2), "Authorization", given, "If-Match", "*"); status != http.StatusUnauthorized {
				t.Errorf("%s %s with %q: %d %s", c[0], c[1], given, status, body)
			}
		}
	}
	if status, _ := p.ask("GET", "/v1/config", "", "Authorization", ""); status != http.StatusOK {
		t.Errorf("reading needs a token: %d", status)
	}
	if v, err := p.store.Newest(t.Context()); err != nil || v != 1 {
		t.Errorf("version %d, %v", v, err)
	}
}

// A page in a browser whose name leads here may neither read nor write.
func TestAnotherNameIsNotAnswered(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	for host, want := range map[string]int{"evil.example": http.StatusMisdirectedRequest, "evil.example:9902": http.StatusMisdirectedRequest, "control.internal:9902": http.StatusOK, "localhost": http.StatusOK} {
		for _, path := range []string{"/v1/config", "/status", "/v1/nodes", "/v1/versions/1", "/readyz", "/healthz"} {
			if status, body := p.ask("GET", path, "", "Host", host); status != want || want != http.StatusOK && !strings.Contains(body, "-admin-host NAME") {
				t.Errorf("%s %s: %d %s", host, path, status, body)
			}
		}
		if status, _ := p.ask("PUT", "/v1/config?dry_run=true", shared(2), "Host", host); status != want {
			t.Errorf("%s: a write: %d", host, status)
		}
	}
}

// Case H9. Each has a backend of its own: an edit that was lost would show in its weight.
func TestEightWritersAtOnceMakeEightHundredVersions(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(0))
	const writers, edits = 8, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for e := range edits {
				at := fmt.Sprintf("10.0.0.%d:80", w)
				if status, body := p.ask("PUT", "/v1/services/web/backends/"+at, fmt.Sprintf(`{"url":"http://%s","weight":%d}`, at, e+1)); status != http.StatusOK {
					t.Errorf("writer %d, edit %d: %d %s", w, e, status, body)
				}
			}
		})
	}
	all.Wait()
	if v, err := p.store.Newest(t.Context()); err != nil || v != 1+writers*edits {
		t.Errorf("the newest version is %d, %v", v, err)
	}
	_, body := p.ask("GET", "/v1/services/web/backends", "")
	if n := strings.Count(body, `"weight":100`); n != writers {
		t.Errorf("an edit is lost: %s", body)
	}
}

// Of many who edit the same version, one succeeds.
func TestOfEditsOfOneVersionOneSucceeds(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(0))
	var mu sync.Mutex
	got := map[int]int{}
	var all sync.WaitGroup
	for w := range 10 {
		all.Go(func() {
			status, _ := p.ask("PUT", "/v1/config", shared(w+1), "If-Match", `"1"`)
			mu.Lock()
			defer mu.Unlock()
			got[status]++
		})
	}
	all.Wait()
	if got[http.StatusOK] != 1 || got[http.StatusPreconditionFailed] != 9 {
		t.Errorf("got %v", got)
	}
}

func TestALockedStoreIsBusyAndNodesAreNot(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	n := dial(t, p, "a")
	n.ack(n.snapshot())
	other, err := sql.Open("sqlite", "file:"+p.db+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := p.ask("PUT", "/v1/config", shared(2), "If-Match", "*"); status != http.StatusServiceUnavailable || !strings.Contains(body, "locked") {
		t.Errorf("got %d %s", status, body)
	}
	if status, _ := p.ask("GET", "/readyz", ""); status != http.StatusOK {
		t.Errorf("not ready: %d", status)
	}
	late := dial(t, p, "b")
	if got := late.snapshot(); got.GetVersion() != 1 {
		t.Errorf("a new node gets %d", got.GetVersion())
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if v := p.apply(shared(2)); v != 2 {
		t.Errorf("version %d", v)
	}
	if got := n.snapshot(); got.GetVersion() != 2 {
		t.Errorf("the node gets %d", got.GetVersion())
	}
}

// The file is overwritten while it is used: what nodes get is in memory.
func TestAStoreThatIsDestroyedDoesNotHurtNodes(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	n := dial(t, p, "a")
	n.ack(n.snapshot())
	for _, path := range []string{p.db, p.db + "-wal"} {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, int(info.Size())), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edgetest.Soon(t, "it is not ready", func() bool {
		p.ask("PUT", "/v1/config", shared(2), "If-Match", "*") // may go well or not
		p.ask("GET", "/v1/versions/1", "")
		status, _ := p.ask("GET", "/readyz", "")
		return status == http.StatusServiceUnavailable
	})
	if status, body := p.ask("GET", "/healthz", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if got := dial(t, p, "b").snapshot(); got.GetVersion() < 1 || !strings.Contains(string(got.GetConfig()), "/r") {
		t.Errorf("a new node gets %v", got)
	}
	if status, body := p.ask("GET", "/status", ""); status != http.StatusOK || !strings.Contains(body, "the store fails") {
		t.Errorf("the page: %d", status)
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"a\nb\n", "a\nb\n", ""},
		{"a\n", "b\n", "-a\n+b\n"},
		{"", "a\nb\n", "+a\n+b\n"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nx\n6\n7\n8\n9\n", " 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n...\n"},
		{"a\nb\nc\nd\n", "a\nc\nd\ne\n", " a\n-b\n c\n d\n+e\n"},
	} {
		if got := diff([]byte(c.from), []byte(c.to)); got != c.want {
			t.Errorf("from %q to %q:\n%s\nwant\n%s", c.from, c.to, got, c.want)
		}
	}
}

// Every line of the old text is there with its sign, and every one of the new.
func FuzzDiff(f *testing.F) {
	f.Add("a\nb\n", "b\nc\n")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, from, to string) {
		if len(from)+len(to) > 2000 || strings.ContainsRune(from+to, '\r') {
			t.Skip("lines end in a newline alone, and long ones only slow the search")
		}
		a, b := split([]byte(from)), split([]byte(to))
		var old, fresh []string
		for _, line := range middle(a, b) {
			if line[0] != '+' {
				old = append(old, line[1:])
			}
			if line[0] != '-' {
				fresh = append(fresh, line[1:])
			}
		}
		if strings.Join(old, "\n") != strings.Join(a, "\n") || strings.Join(fresh, "\n") != strings.Join(b, "\n") {
			t.Errorf("%q and %q", from, to)
		}
		if d := diff([]byte(from), []byte(to)); (d == "") != slices.Equal(a, b) {
			t.Errorf("%q and %q: %q", from, to, d)
		}
	})
}

// Whatever is sent as a part, it is refused or makes a good configuration, which has it.
func FuzzEdit(f *testing.F) {
	f.Add("{path: /a, backend: web}", "web", "h:1")
	f.Add("{url: 'http://h:1'}", "api", "h:1")
	f.Add("&a {path: *a}", "", "")
	f.Add("servers: [{url: 'http://h:1', weight: 2}, {url: 'http://h'}]", "web", "h:80")
	f.Fuzz(func(t *testing.T, body, name, at string) {
		n, err := parseNode([]byte(body))
		if err != nil {
			t.Skip("no YAML: refused before any edit begins")
		}
		for what, do := range map[string]func(*document) error{
			"add a route":    func(d *document) error { return d.addRoute(n) },
			"put a route":    func(d *document) error { return d.putRoute("/r1", "", n) },
			"put a service":  func(d *document) error { return d.putService(name, n) },
			"put a backend":  func(d *document) error { return d.putBackend(name, at, n) },
			"put the limit":  func(d *document) error { set(d.root, "rate_limit", n); return nil },
			"remove":         func(d *document) error { return d.removeBackend(name, at) },
			"remove a route": func(d *document) error { return d.removeRoute(name, at) },
		} {
			content, err := edit{ifVersion: anyVersion, change: change(do)}.content(store.Version{Content: []byte(shared(1))})
			if err != nil {
				continue
			}
			if err := checkShared(content); err != nil {
				t.Errorf("%s: %v\n%s", what, err, content)
			}
			again, err := replace(content)(nil)
			if err != nil || !bytes.Equal(again, content) {
				t.Errorf("%s: written again it is\n%s\nand was\n%s\n%v", what, again, content, err)
			}
		}
	})
}
