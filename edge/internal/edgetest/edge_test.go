package edgetest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// edge is a `sentinel run` process.
type edge struct {
	*process
	file        string // its configuration
	addr, admin string
}

// startEdge starts one with this configuration, and waits until it is ready.
// The file needs neither server nor admin: both listen on any port.
func startEdge(t testing.TB, yaml string, args ...string) *edge {
	t.Helper()
	e := launchEdge(t, yaml, args...)
	Soon(t, "the edge is ready", func() bool { return get(t, e.adminURL("/readyz")).StatusCode == http.StatusOK })
	return e
}

// launchEdge is startEdge without the wait.
func launchEdge(t testing.TB, yaml string, args ...string) *edge {
	t.Helper()
	e := &edge{file: filepath.Join(t.TempDir(), "edge.yaml")}
	e.write(t, yaml)
	e.process = start(t, "sentinel", append([]string{"run", "-config", e.file}, args...)...)
	e.listening(t)
	return e
}

// listening waits until it says where it listens.
func (e *edge) listening(t testing.TB) {
	t.Helper()
	var at struct{ Traffic, Admin string }
	line := e.line(func(s string) bool { return strings.Contains(s, `"msg":"listening"`) })
	if err := json.Unmarshal([]byte(line), &at); err != nil {
		t.Fatal(err)
	}
	e.addr, e.admin = at.Traffic, at.Admin
}

// write replaces its file; a reload reads it.
func (e *edge) write(t testing.TB, yaml string) {
	t.Helper()
	if !strings.Contains(yaml, "server:") {
		yaml = "server: {listen: \"127.0.0.1:0\"}\n" + yaml
	}
	if !strings.Contains(yaml, "admin:") {
		yaml = "admin: {listen: \"127.0.0.1:0\"}\n" + yaml
	}
	if err := os.WriteFile(e.file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (e *edge) url(path string) string      { return "http://" + e.addr + path }
func (e *edge) adminURL(path string) string { return "http://" + e.admin + path }

// metric is the value of a series, as "sentinel_edge_inflight{backend=\"...\"}";
// 0 if there is none.
func (e *edge) metric(series string) float64 {
	e.t.Helper()
	for line := range strings.Lines(string(get(e.t, e.adminURL("/metrics")).body)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				e.t.Fatal(err)
			}
			return value
		}
	}
	return 0
}

// access is a line of the access log.
type access struct {
	ID, Client, Method, Host, Path, Route, Reason, Backend, Breaker, Proto, Upgrade string
	Status, Attempts                                                                int
	BytesIn                                                                         int64   `json:"bytes_in"`
	BytesOut                                                                        int64   `json:"bytes_out"`
	Duration                                                                        float64 `json:"dur_ms"`
	ConfigVersion                                                                   int64   `json:"config_version"`
}

// logged waits for the access line of the request with this id.
func (e *edge) logged(id string) access {
	e.t.Helper()
	line := e.line(func(s string) bool {
		return strings.Contains(s, `"id":"`+id+`"`) && strings.Contains(s, `"reason":`)
	})
	var a access
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		e.t.Fatalf("%v: %s", err, line)
	}
	return a
}

// response is one that has been read to its end.
type response struct {
	*http.Response
	body []byte
	err  error // of the body
}

// client keeps no connection: a test's own must not hold up what it counts.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       limit,
}

// get is the answer to a GET.
func get(t testing.TB, url string) *response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, r)
}

// do sends a request; one that is not answered at all fails the test.
func do(t testing.TB, r *http.Request) *response {
	t.Helper()
	return doWith(t, client, r)
}

// doWith is do with a client of the caller's.
func doWith(t testing.TB, c *http.Client, r *http.Request) *response {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return &response{resp, body, err}
}

// raw sends these bytes, and returns what comes back until the other side closes,
// or nothing has come for a second.
func raw(t testing.TB, addr, bytes string) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(bytes)); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	reader := bufio.NewReader(conn)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		b, err := reader.ReadByte()
		if err != nil {
			return all.String()
		}
		all.WriteByte(b)
	}
}

// pool is the YAML of a pool of these backends.
func pool(name, more string, backends ...*backend) string {
	var urls []string
	for _, b := range backends {
		urls = append(urls, b.url())
	}
	return fmt.Sprintf("  - {name: %s, urls: [%s]%s}\n", name, strings.Join(urls, ", "), more)
}
