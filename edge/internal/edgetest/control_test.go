package edgetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

const token = "a-token-for-tests"

// plane is a `sentinel-control serve` process.
type plane struct {
	*process
	db, nodes, admin string
	more             []string
}

// startPlane starts one on any ports, with a new database if db is "".
func startPlane(t testing.TB, db string, more ...string) *plane {
	t.Helper()
	if db == "" {
		db = filepath.Join(t.TempDir(), "control.db")
	}
	return startPlaneOn(t, db, "127.0.0.1:0", more...)
}

func startPlaneOn(t testing.TB, db, nodes string, more ...string) *plane {
	t.Helper()
	p := &plane{db: db, more: more}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.process = start(t, "sentinel-control", append([]string{"serve", "-db", db, "-listen", nodes, "-admin", "127.0.0.1:0", "-token-file", file}, more...)...)
	var at struct{ Nodes, Admin string }
	line := p.line(func(s string) bool { return strings.Contains(s, `"msg":"listening"`) })
	if err := json.Unmarshal([]byte(line), &at); err != nil {
		t.Fatal(err)
	}
	p.nodes, p.admin = at.Nodes, at.Admin
	return p
}

// restart starts another one in its place, after kill.
func (p *plane) restart() *plane {
	p.t.Helper()
	return startPlaneOn(p.t, p.db, p.nodes, p.more...)
}

// written is what an edit is answered.
type written struct {
	Version int64
	SHA256  string
	Detail  string
	status  int
}

// ask sends a request with the token. The error is that there is no answer.
func (p *plane) ask(ctx context.Context, method, path, body string) (written, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.admin+path, strings.NewReader(body))
	if err != nil {
		return written{}, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("If-Match", "*")
	resp, err := client.Do(r)
	if err != nil {
		return written{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return written{}, err
	}
	w := written{status: resp.StatusCode}
	_ = json.Unmarshal(text, &w) // what is no edit has another form
	return w, nil
}

// apply makes a version.
func (p *plane) apply(yaml string) written {
	p.t.Helper()
	w, err := p.ask(p.t.Context(), http.MethodPut, "/v1/config", yaml)
	if err != nil || w.status != http.StatusOK {
		p.t.Fatalf("%d %s %v", w.status, w.Detail, err)
	}
	return w
}

// nodeStatus is a node as the control plane sees it.
type nodeStatus struct {
	Node, Certificate          string
	Connected                  bool
	Applied, Rejected, Waiting int64
	Errors                     []string
}

func (p *plane) node(name string) nodeStatus {
	p.t.Helper()
	var all []nodeStatus
	if err := json.Unmarshal(get(p.t, "http://"+p.admin+"/v1/nodes").body, &all); err != nil {
		p.t.Fatal(err)
	}
	for _, n := range all {
		if n.Node == name {
			return n
		}
	}
	return nodeStatus{}
}

// launchNode starts an edge that follows a control plane, known as a unless more has
// another name. It is quick to come back, and keeps no file, unless more says where.
func launchNode(t testing.TB, p *plane, local string, more ...string) *edge {
	t.Helper()
	return launchEdge(t, local, append([]string{"-control", p.nodes, "-node", "a", "-reconnect", "100ms", "-state", "off"}, more...)...)
}

// until waits until a node has this version in force.
func (e *edge) until(version int64) {
	e.t.Helper()
	Soon(e.t, fmt.Sprintf("version %d is in force", version), func() bool { return e.ready().Version == version })
}

// readiness is what /readyz says.
type readiness struct {
	Ready      bool
	Source     string
	Version    int64 `json:"config_version"`
	Conditions []struct{ Name, Why string }
}

func (e *edge) ready() readiness {
	e.t.Helper()
	var r readiness
	if err := json.Unmarshal(get(e.t, e.adminURL("/readyz")).body, &r); err != nil {
		e.t.Fatal(err)
	}
	return r
}

// routed is a shared configuration with one route.
func routed(path string, b *backend) string {
	return "routes: [{path: " + path + ", backend: web}]\nbackends:\n" + pool("web", "", b)
}

func TestANodeFollowsTheControlPlane(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	e := launchNode(t, p, "")
	Soon(t, "it is connected", func() bool { return p.node("a").Connected })
	if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(resp.body), "not_configured") {
		t.Errorf("without a configuration: %s %s", resp.Status, resp.body)
	}
	if r := e.ready(); r.Ready || r.Source != "none" {
		t.Errorf("without a configuration: %+v", r)
	}
	p.apply(routed("/ok", b))
	e.until(1)
	Soon(t, "it is ready", func() bool { return e.ready().Ready })
	if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusOK || e.ready().Source != "control" {
		t.Errorf("%s, %+v", resp.Status, e.ready())
	}
	if got := e.metric("sentinel_edge_control_connected"); got != 1 {
		t.Errorf("connected is %v", got)
	}

	// Only the node knows that it has no library: the version is good, and it refuses it.
	w := p.apply("rate_limit: {mode: distributed, policy: orders}\n" + routed("/new", b))
	Soon(t, "it refuses", func() bool { return p.node("a").Rejected == w.Version })
	if n := p.node("a"); n.Applied != 1 || len(n.Errors) != 1 || !strings.Contains(n.Errors[0], "rate_limit.mode: distributed needs sentinel") {
		t.Errorf("%+v", n)
	}
	if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusOK || e.metric("sentinel_edge_config_rejected_total") != 1 {
		t.Errorf("after a version it refused: %s", resp.Status)
	}
	if w, err := p.ask(t.Context(), http.MethodPost, "/v1/versions/1/rollback", ""); err != nil || w.Version != 3 {
		t.Errorf("%+v %v", w, err)
	}
	e.until(3)
	Soon(t, "the control plane knows that it has it", func() bool {
		n := p.node("a")
		return n.Applied == 3 && n.Rejected == 0 && n.Errors == nil
	})

	e.signal(syscall.SIGHUP)
	e.line(func(s string) bool { return strings.Contains(s, "configuration unchanged") })
	e.write(t, "rate_limit: {capacity: 1, refill_rate: 0.001}\n") // its own, which goes before
	e.signal(syscall.SIGHUP)
	Soon(t, "its own limit holds", func() bool { return get(t, e.url("/ok")).StatusCode == http.StatusTooManyRequests })
	e.write(t, routed("/ok", b))
	e.signal(syscall.SIGHUP)
	e.line(func(s string) bool { return strings.Contains(s, "comes from the control plane; remove it here") })
	e.signal(syscall.SIGTERM)
	if code := e.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Whatever happens to the control plane, traffic does not notice.
func TestTrafficGoesOnWithoutTheControlPlane(t *testing.T) {
	t.Parallel()
	b, p, state := startBackend(t, "b", ""), startPlane(t, ""), t.TempDir()
	p.apply(routed("/ok", b))
	e := launchNode(t, p, "", "-state", state)
	e.until(1)
	Soon(t, "the file is there", func() bool { _, err := os.Stat(state + "/last-good.pb"); return err == nil })
	failed, stop := hammer(t, e.url("/ok"))

	p.signal(syscall.SIGSTOP)
	time.Sleep(300 * time.Millisecond)
	p.signal(syscall.SIGCONT)
	p.apply(routed("/*rest", b))
	e.until(2)
	p.kill()
	Soon(t, "it notices", func() bool { return e.metric("sentinel_edge_control_connected") == 0 })
	if r := e.ready(); !r.Ready || r.Version != 2 {
		t.Errorf("%+v", r)
	}
	p = p.restart()
	p.apply(routed("/:any", b))
	e.until(3)
	stop()
	if n := failed.Load(); n != 0 {
		t.Errorf("%d requests failed", n)
	}

	// It is started again when nobody is there.
	Soon(t, "the last is kept", func() bool {
		text, err := os.ReadFile(state + "/last-good.pb")
		return err == nil && strings.Contains(string(text), "/:any")
	})
	p.kill()
	e.kill()
	e = launchNode(t, p, "", "-state", state)
	Soon(t, "it is ready", func() bool { return e.ready().Ready })
	if r := e.ready(); r.Source != "disk" || r.Version != 3 || !strings.Contains(r.Conditions[0].Why, "from the disk") {
		t.Errorf("%+v", r)
	}
	if resp := get(t, e.url("/x")); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if age := e.metric("sentinel_edge_config_age_seconds"); age <= 0 || age > 60 {
		t.Errorf("its age is %v", age)
	}
	p = p.restart()
	Soon(t, "it is confirmed", func() bool { return e.ready().Source == "control" })
	p.kill()
	e.kill()

	if err := os.WriteFile(state+"/last-good.pb", []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	e = launchNode(t, p, "", "-state", state)
	if resp := get(t, e.url("/x")); resp.StatusCode != http.StatusServiceUnavailable || e.ready().Ready {
		t.Errorf("from a damaged file: %s", resp.Status)
	}
	if !strings.Contains(e.output(), "the last good configuration on the disk is not used") {
		t.Error("it does not say so")
	}
	p.restart()
	e.until(3)
}

// hammer asks for a URL until stop is called, and counts what is no 200.
func hammer(t testing.TB, url string) (failed *atomic.Int64, stop func()) {
	failed = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		keep := &http.Client{Transport: &http.Transport{}}
		defer keep.CloseIdleConnections()
		for ctx.Err() == nil {
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) // the URL is a good one
			resp, err := keep.Do(r)
			if err != nil {
				if ctx.Err() == nil {
					failed.Add(1)
				}
				continue
			}
			if _, err := io.Copy(io.Discard, resp.Body); resp.StatusCode != http.StatusOK || err != nil && ctx.Err() == nil {
				failed.Add(1)
			}
			resp.Body.Close()
			time.Sleep(2 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return failed, stop
}

// A node was away while versions 2 and 3 were made, and the control plane restarted.
func TestAfterItWasAwayANodeGoesForwardOnly(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	p.apply(routed("/one", b))
	e := launchNode(t, p, "")
	e.until(1)
	p.kill()
	Soon(t, "it notices", func() bool { return e.metric("sentinel_edge_control_connected") == 0 })
	p = startPlane(t, p.db) // where the node does not look for it
	p.apply(routed("/two", b))
	p.apply(routed("/three", b))
	backup := filepath.Join(t.TempDir(), "backup.db")
	if out, err := control(t, "backup", "-db", p.db, backup); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	p.apply(routed("/four", b))
	p.kill()
	p = startPlaneOn(t, p.db, e.follows())
	e.until(4)
	p.kill()

	// An earlier copy of the file, as from a snapshot of the machine: nothing goes back.
	old := filepath.Join(t.TempDir(), "old.db")
	text, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// The backup has an epoch of its own: it is taken on purpose, and the node goes along.
	p = startPlaneOn(t, old, e.follows())
	e.until(3)
	if got := get(t, e.url("/three")).StatusCode; got != http.StatusOK {
		t.Errorf("/three: %d", got)
	}
	if !strings.Contains(e.output(), "versions begin anew") {
		t.Error("it does not say so")
	}
	p.kill()
	empty := startPlaneOn(t, filepath.Join(t.TempDir(), "empty.db"), e.follows())
	Soon(t, "it is connected", func() bool { return empty.node("a").Connected })
	if got := get(t, e.url("/three")).StatusCode; got != http.StatusOK || e.ready().Version != 3 {
		t.Errorf("an empty control plane takes the routes away: %d", got)
	}
}

// follows is the address that it was told to follow.
func (e *edge) follows() string {
	for i, arg := range e.cmd.Args {
		if arg == "-control" {
			return e.cmd.Args[i+1]
		}
	}
	e.t.Fatal("it follows nobody")
	return ""
}

// control runs a command of sentinel-control to its end.
func control(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command(t, "sentinel-control"), args...) // #nosec G204 -- our own
	cmd.Env = append(os.Environ(), "SENTINEL_CONTROL_TOKEN="+token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func exitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// Each of fifty times it is killed somewhere among edits, of which there are more than a
// thousand, and each edit that it acknowledged is there afterwards.
func TestNoAcknowledgedEditIsLostByAKill(t *testing.T) {
	t.Parallel()
	kills := 50
	if testing.Short() {
		kills = 10
	}
	p := startPlane(t, "")
	journal := map[int64]string{} // version: hash of the content, as acknowledged
	unanswered, edits := 0, 0
	for round := range kills {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var all sync.WaitGroup
		var made atomic.Int64 // in this round
		for writer := range 3 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					w, err := p.ask(ctx, http.MethodPut, "/v1/config",
						fmt.Sprintf("routes:\n  - {path: /r%d/w%d/e%d, backend: web}\nbackends:\n  - {name: web, url: \"http://127.0.0.1:1\"}\n", round, writer, i))
					mu.Lock()
					edits++
					switch {
					case err != nil:
						unanswered++
					case w.status != http.StatusOK:
						t.Errorf("%d %s", w.status, w.Detail)
					default:
						journal[w.Version] = w.SHA256
						made.Add(1)
					}
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
		Soon(t, "there are edits", func() bool { return made.Load() >= 20 })
		time.Sleep(time.Duration(rand.Int64N(20_000)) * time.Microsecond) // #nosec G404 -- any moment
		p.kill()
		cancel()
		all.Wait()
		p = p.restart()
	}
	var all []struct {
		Version int64
		SHA256  string
	}
	kept := map[int64]string{}
	for before := ""; ; before = "&before=" + strconv.FormatInt(all[len(all)-1].Version, 10) {
		if err := json.Unmarshal(get(t, "http://"+p.admin+"/v1/versions?limit=1000"+before).body, &all); err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			break
		}
		for _, v := range all {
			kept[v.Version] = v.SHA256
		}
	}
	lost := 0
	for version, hash := range journal {
		if kept[version] != hash {
			lost++
		}
	}
	t.Logf("%d kills among %d edits: %d acknowledged, %d unanswered, %d versions, %d lost", kills, edits, len(journal), unanswered, len(kept), lost)
	if lost > 0 || len(journal) < kills {
		t.Errorf("of %d acknowledged versions %d are lost", len(journal), lost)
	}
	p.kill()
	if out, err := control(t, "check", "-db", p.db); err != nil {
		t.Errorf("%s %v", out, err)
	}
}

func TestADamagedDatabaseDoesNotStart(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	p.apply(routed("/ok", b))
	p.signal(syscall.SIGTERM)
	p.wait()
	good, err := os.ReadFile(p.db)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		good[i] = 0
	}
	if err := os.WriteFile(p.db, good, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "-db", p.db, "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0"}, {"check", "-db", p.db}, {"backup", "-db", p.db, p.db + ".copy"}} {
		out, err := control(t, args...)
		if exitCode(err) != 3 || !strings.Contains(out, "put a backup in its place") {
			t.Errorf("%s: %v %s", args[0], err, out)
		}
	}
	if out, err := control(t, "check", "-json", "-db", filepath.Join(t.TempDir(), "none")); exitCode(err) != 3 || !strings.Contains(out, `"ok": false`) {
		t.Errorf("%v %s", err, out)
	}
}

// A full disk: no file may grow. Edits are refused, nodes are served, and when there
// is room again so are edits.
func TestAFullDiskRefusesEditsAndNothingElse(t *testing.T) {
	t.Parallel()
	b, p, state := startBackend(t, "b", ""), startPlane(t, ""), t.TempDir()
	p.apply(routed("/ok", b))
	e := launchNode(t, p, "", "-state", state)
	e.until(1)
	before, held := e.baseline(), p.descriptors()
	p.mayWrite(1 << 10)
	w, err := p.ask(t.Context(), http.MethodPut, "/v1/config", routed("/new", b))
	if err != nil || w.status < 500 || !strings.Contains(w.Detail, "nothing is changed") {
		t.Errorf("%+v %v", w, err)
	}
	Soon(t, "it is not ready", func() bool { return get(t, "http://"+p.admin+"/readyz").StatusCode == http.StatusServiceUnavailable })
	late := launchNode(t, p, "", "-node", "late")
	late.until(1)
	if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusOK || !e.ready().Ready {
		t.Errorf("traffic: %s", resp.Status)
	}
	p.mayWrite(1 << 40)
	Soon(t, "it is ready again", func() bool { return get(t, "http://"+p.admin+"/readyz").StatusCode == http.StatusOK })
	w = p.apply(routed("/new", b))
	e.until(w.Version)

	e.mayWrite(16) // the node cannot keep what it gets, and uses it all the same
	w = p.apply(routed("/newer", b))
	e.until(w.Version)
	e.line(func(s string) bool { return strings.Contains(s, "is not kept for the next start") })
	if got := get(t, e.url("/newer")).StatusCode; got != http.StatusOK {
		t.Errorf("/newer: %d", got)
	}
	if left, err := filepath.Glob(state + "/.last-good-*"); err != nil || len(left) > 0 {
		t.Errorf("there is left %v, %v", left, err)
	}
	if got := e.metric("sentinel_edge_config_version"); got != float64(w.Version) || e.metric("sentinel_edge_control_connected") != 1 {
		t.Errorf("version %v is in force", got)
	}
	e.quiet(before)
	late.kill()
	Soon(t, "the control plane's descriptors are back", func() bool { return p.descriptors() <= held+2 })
	p.signal(syscall.SIGTERM)
	p.wait()
	if out, err := control(t, "check", "-db", p.db); err != nil {
		t.Errorf("%s %v", out, err)
	}
}

// mayWrite bounds the size of the files that a process writes.
func (p *process) mayWrite(bytes uint64) { p.t.Helper(); p.bound(syscall.RLIMIT_FSIZE, bytes) }

// mayOpen bounds how many descriptors it has.
func (p *process) mayOpen(descriptors uint64) {
	p.t.Helper()
	p.bound(syscall.RLIMIT_NOFILE, descriptors)
}

// bound sets a limit of a process, which may be raised again.
func (p *process) bound(resource int, most uint64) {
	p.t.Helper()
	var limit syscall.Rlimit
	prlimit := func(to, old *syscall.Rlimit) {
		_, _, e := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(p.cmd.Process.Pid), uintptr(resource), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(old)), 0, 0) // #nosec G103 G115 -- as the call wants them
		if e != 0 {
			p.t.Fatal(e)
		}
	}
	prlimit(nil, &limit)
	limit.Cur = min(most, limit.Max)
	prlimit(&limit, nil)
}

// Each version has a limit and a pool that tell which one it is. The configuration changes
// every 100 ms under load; no request sees two, none fails, and on no connection one goes back.
func TestNoRequestSeesTwoVersions(t *testing.T) {
	t.Parallel()
	versions := int64(30)
	p := startPlane(t, "")
	backends := [2]*backend{startBackend(t, "even", ""), startBackend(t, "odd", "")}
	shared := func(v int64) string {
		return fmt.Sprintf("routes: [{path: /ok, backend: pool%d, rate_limit: {capacity: %d, refill_rate: 1000000}}]\nbackends:\n%s",
			v%2, 1_000_000+v, pool(fmt.Sprintf("pool%d", v%2), "", backends[v%2]))
	}
	p.apply(shared(1))
	e := launchNode(t, p, "")
	e.until(1)
	Soon(t, "it is ready", func() bool { return e.ready().Ready })

	type answer struct {
		id      string
		version int64
	}
	const clients = 4
	answers := make([][]answer, clients)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			one := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
			defer one.CloseIdleConnections()
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("client%d-%d", c, i)
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url("/ok"), http.NoBody) // the URL is a good one
				r.Header.Set("X-Request-Id", id)
				resp, err := one.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					t.Error(err)
				}
				resp.Body.Close()
				version := policyOf(resp.Header.Get("RateLimit-Policy")) - 1_000_000
				if name := backends[((version%2)+2)%2].name; resp.StatusCode != http.StatusOK || resp.Header.Get("X-Backend") != name {
					t.Errorf("%s: limit of version %d, backend %s", resp.Status, version, resp.Header.Get("X-Backend"))
				}
				answers[c] = append(answers[c], answer{id, version})
				time.Sleep(time.Millisecond)
			}
		})
	}
	for v := int64(2); v <= versions; v++ {
		p.apply(shared(v))
		time.Sleep(100 * time.Millisecond)
	}
	e.until(versions)
	cancel()
	all.Wait()
	logged := e.accesses("client") // no id that the edge makes begins with it
	requests, seen := 0, map[int64]bool{}
	for _, of := range answers {
		last := int64(0)
		for _, a := range of {
			switch l := logged[a.id]; {
			case l.ConfigVersion != a.version:
				t.Fatalf("%s: the router saw version %d, the proxy %d", a.id, l.ConfigVersion, a.version)
			case a.version < last:
				t.Fatalf("%s: version %d after %d", a.id, a.version, last)
			}
			last = a.version
			seen[last] = true
			requests++
		}
	}
	t.Logf("%d requests saw %d of %d versions", requests, len(seen), versions)
	if int64(len(seen)) < versions*8/10 {
		t.Error("too few for anything to be shown")
	}
}

// policyOf is the quota in a RateLimit-Policy.
func policyOf(header string) int64 {
	_, rest, _ := strings.Cut(header, "q=")
	digits, _, _ := strings.Cut(rest, ";")
	n, _ := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	return n
}

// accesses waits for the access lines of all requests so far whose id begins so, by id.
func (e *edge) accesses(prefix string) map[string]access {
	e.t.Helper()
	get(e.t, e.url("/ok")) // its line comes after all others
	e.line(func(s string) bool { return strings.Contains(s, `"reason":`) && !strings.Contains(s, `"id":"`+prefix) })
	all := map[string]access{}
	Soon(e.t, "the log is written", func() bool {
		for line := range strings.Lines(e.output()) {
			var a access
			if strings.Contains(line, `"reason":`) && json.Unmarshal([]byte(line), &a) == nil && strings.HasPrefix(a.ID, prefix) {
				all[a.ID] = a
			}
		}
		return true
	})
	return all
}

func TestOperatorsCommands(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, other := file("good.yaml", routed("/one", b)), file("other.yaml", routed("/two", b))
	bad := file("bad.yaml", "server: {port: 1}\n"+routed("nonsense", b))
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"validate " + good, 0, "fine, routes: 1, backends: 1"},
		{"validate " + bad, 2, bad + ":1: server: unknown key"},
		{"validate " + bad, 2, bad + ":2: routes[0].path: nonsense must begin with /"},
		{"validate -json " + bad, 2, `"ok": false`},
		{"validate", 2, "which file?"},
		{"validate /none", 2, "no such file"},
		{"validate -json /none", 2, `"ok": false`},
		{"history", 0, "VERSION"},
		{"diff " + good, 0, "+routes: [{path: /one"},
		{"apply -if-version 3 " + good, 1, "the newest is 0"},
		{"apply -comment first -author ann " + good, 0, "version 1\n"},
		{"apply " + good, 0, "nothing changes; version 1 has this content"},
		{"apply " + bad, 2, bad + ":2: routes[0].path"},
		{"apply -json " + bad, 2, `"faults"`},
		{"apply -dry-run " + other, 0, "+routes: [{path: /two"},
		{"apply -dry-run -if-version 3 " + other, 1, "the newest is 1"},
		{"apply -json -if-version 1 " + other, 0, `"version": 2`},
		{"diff 2", 0, "-routes: [{path: /one"},
		{"diff 2 1", 0, "-routes: [{path: /two"},
		{"diff -json 2 1", 0, `"diff": "-routes`},
		{"diff 9", 1, "no such version"},
		{"history", 0, "ann     "},
		{"history -json", 0, `"comment": "first"`},
		{"rollback 1", 0, "version 3\n"},
		{"rollback", 2, "to which version?"},
		{"rollback 77", 1, "no such version"},
		{"history -limit 1", 0, "rollback to 1"},
		{"nodes", 0, "NODE"},
		{"nodes -json", 0, "[]"},
		{"backup -db " + p.db + " " + dir + "/b.db", 0, "has everything up to version 3"},
		{"backup -db " + p.db + " " + dir + "/b.db", 1, "file already exists"},
		{"backup -json -db " + p.db + " " + dir + "/b.db", 1, `"detail": "store: ` + dir},
		{"check -db " + dir + "/b.db", 0, "whole, newest version: 3"},
		{"check -json -db " + p.db, 0, `"ok": true`},
		{"check -db " + good, 3, "the file is damaged"},
		{"serve -listen 0.0.0.0:0", 2, "without certificates anybody may be a node"},
		{"serve -admin-host control.internal:9902", 2, "without a port"},
		{"serve -admin :0", 2, "whoever reaches it reads everything"},
		{"serve -tls-ca x", 2, "all of authority, certificate and key are needed"},
		{"serve -token-file " + file("short", "short"), 2, "at least 16 characters"},
		{"serve -keep -1", 2, "-keep"},
		{"serve -json -db " + good + " -listen 127.0.0.1:0", 3, `"ok": false`},
		{"version", 0, "sentinel-control "},
		{"help", 0, "sentinel-control rollback"},
		{"nonsense", 2, "there is no command"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "-admin") && args[0] != "version" && args[0] != "help" && args[0] != "nonsense" {
			at := p.admin
			if args[0] == "serve" {
				at = "127.0.0.1:0"
			}
			args = append([]string{args[0], "-admin", at}, args[1:]...)
		}
		out, err := control(t, args...)
		if exitCode(err) != c.code || !strings.Contains(out, c.want) {
			t.Errorf("sentinel-control %s\nexits %d with %s\nwant %d and %s", c.args, exitCode(err), out, c.code, c.want)
		}
	}
	if out, err := control(t, "nodes", "-admin", "127.0.0.1:1"); exitCode(err) != 1 || !strings.Contains(out, "no control plane answers") {
		t.Errorf("%v %s", err, out)
	}
}

// What a version does not concern stays: a client's empty bucket, a request in flight, an
// open breaker and a failed check.
func TestAVersionKeepsTheStateItDoesNotConcern(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	shared := func(more string) string {
		return "routes:\n  - {path: /ok, backend: web, rate_limit: {capacity: 1, refill_rate: 0.001}}\n  - {path: /slowbody, backend: web}\n  - {path: /status/503, backend: broken}\n" + more +
			"backends:\n" + pool("web", "", b) + pool("broken", ", breaker: {failures: 1, open_for: 1m}, health: {type: off}", b) +
			"  - {name: down, url: \"http://127.0.0.1:1\", health: {interval: 20ms, timeout: 20ms, fall: 1}}\n"
	}
	p.apply(shared(""))
	e := launchNode(t, p, "")
	e.until(1)
	Soon(t, "it is ready", func() bool { return e.ready().Ready })
	if first, second := get(t, e.url("/ok")).StatusCode, get(t, e.url("/ok")).StatusCode; first != http.StatusOK || second != http.StatusTooManyRequests {
		t.Fatalf("%d and %d", first, second)
	}
	get(t, e.url("/status/503"))
	open := `sentinel_breaker_state{name="broken/` + b.addr + `",scope="backend"}`
	down := `sentinel_edge_backend_up{backend="127.0.0.1:1",pool="down"}`
	Soon(t, "breaker and check have noticed", func() bool { return e.metric(open) == 2 && e.metric(down) == 0 })
	resp, err := http.Get(e.url("/slowbody?n=20&d=20ms")) //nolint:noctx // it ends by itself
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i := range 5 {
		e.until(p.apply(shared(fmt.Sprintf("  - {path: /new%d, backend: web}\n", i))).Version)
		if got := get(t, e.url("/ok")).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("the bucket is full again: %d", got)
		}
		if e.metric(open) != 2 || e.metric(down) != 0 {
			t.Errorf("breaker %v, up %v", e.metric(open), e.metric(down))
		}
		if got := e.metric(`sentinel_edge_inflight{backend="` + b.addr + `",pool="web"}`); got != 1 {
			t.Errorf("%v requests are in flight", got)
		}
	}
	if body, err := io.ReadAll(resp.Body); err != nil || strings.Count(string(body), "chunk") != 20 {
		t.Errorf("what was in flight: %q, %v", body, err)
	}
}

// A control plane that is stopped, not ended, closes nothing: that it is gone shows in its
// silence alone, within the 40 s of the keepalive. Traffic goes on.
func TestAControlPlaneThatHangsIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("the keepalive takes 40 s")
	}
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	p.apply(routed("/ok", b))
	e := launchNode(t, p, "")
	e.until(1)
	failed, stop := hammer(t, e.url("/ok"))
	p.signal(syscall.SIGSTOP)
	begun := time.Now()
	for e.metric("sentinel_edge_control_connected") != 0 {
		if time.Since(begun) > 80*time.Second {
			t.Fatal("it is not noticed")
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("noticed after %s", time.Since(begun).Round(time.Second))
	p.signal(syscall.SIGCONT)
	p.apply(routed("/*rest", b))
	e.until(2)
	if stop(); failed.Load() != 0 {
		t.Errorf("%d requests failed", failed.Load())
	}
}

// A node that does nothing at all while a hundred edits are made holds none of them up,
// and gets the last one when it goes on.
func TestAStoppedNodeGetsTheLastVersion(t *testing.T) {
	t.Parallel()
	b, p := startBackend(t, "b", ""), startPlane(t, "")
	p.apply(routed("/first", b))
	e := launchNode(t, p, "")
	Soon(t, "the node has it, and has said so", func() bool { return p.node("a").Applied == 1 })
	e.signal(syscall.SIGSTOP)
	var last written
	for i := range 100 {
		last = p.apply(routed(fmt.Sprintf("/r%d", i), b))
	}
	if n := p.node("a"); n.Applied != 1 || n.Waiting == 0 {
		t.Errorf("%+v", n)
	}
	e.signal(syscall.SIGCONT)
	e.until(last.Version)
	// The one that was on its way, and the last.
	if got := strings.Count(e.output(), `"msg":"configuration applied"`); got != 3 {
		t.Errorf("it has applied %d versions", got)
	}
}
