package control

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sentinelgo/sentinel/edge/internal/edgetest"
	pb "github.com/sentinelgo/sentinel/edge/proto"

	"github.com/sentinelgo/sentinel/edge/internal/store"
)

// metric is the value of a series.
func (p *plane) metric(series string) string {
	p.t.Helper()
	_, text := p.ask("GET", "/metrics", "")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "none"
}

func TestMetricsSayWhatNodesHaveAndWhatBecomesOfEdits(t *testing.T) {
	p := start(t, "", "")
	if got := p.metric("sentinel_control_version"); got != "0" {
		t.Errorf("version %s", got)
	}
	p.apply(shared(1))
	current, refusing, behind := dial(t, p, "current"), dial(t, p, "refusing"), dial(t, p, "behind")
	greet(t, p, &pb.Hello{Node: "ahead", Instance: "ahead", Epoch: p.store.Epoch(), Version: 7})
	gone := dial(t, p, "gone")
	gone.leave()
	current.ack(current.snapshot())
	refusing.nack(refusing.snapshot(), "no")
	behind.snapshot()
	p.apply(shared(1)) // changes nothing
	for _, header := range [][]string{{"If-Match", `"5"`}, {"If-Match", "*", "Authorization", "Bearer x"}} {
		p.ask("PUT", "/v1/config", shared(2), header...)
	}
	p.ask("PUT", "/v1/config", "nonsense", "If-Match", "*")
	p.ask("DELETE", "/v1/services/none", "")
	p.ask("PUT", "/v1/config?dry_run=true", shared(3))
	edgetest.Soon(t, "all is counted", func() bool {
		return p.metric(`sentinel_control_nodes{state="gone"}`) == "1" && p.metric(`sentinel_control_answers_total{answer="nack"}`) == "1" && p.metric(`sentinel_control_answers_total{answer="ack"}`) == "1"
	})
	for series, want := range map[string]string{
		`sentinel_control_nodes{state="current"}`:               "1",
		`sentinel_control_nodes{state="behind"}`:                "1",
		`sentinel_control_nodes{state="refusing"}`:              "1",
		`sentinel_control_nodes{state="ahead"}`:                 "1",
		`sentinel_control_version`:                              "1",
		`sentinel_control_ready`:                                "1",
		`sentinel_control_streams_total`:                        "5",
		`sentinel_control_answer_seconds_count`:                 "2",
		`sentinel_control_commit_seconds_count`:                 "1",
		`sentinel_control_edits_total{result="version"}`:        "1",
		`sentinel_control_edits_total{result="unchanged"}`:      "1",
		`sentinel_control_edits_total{result="stale"}`:          "1",
		`sentinel_control_edits_total{result="refused"}`:        "2",
		`sentinel_control_edits_total{result="unauthorized"}`:   "1",
		`sentinel_control_edits_total{result="failed"}`:         "0",
		`sentinel_control_store_failures_total{kind="busy"}`:    "0",
		`sentinel_control_store_failures_total{kind="other"}`:   "0",
		`sentinel_control_store_failures_total{kind="damaged"}`: "0",
	} {
		if got := p.metric(series); got != want {
			t.Errorf("%s is %s, want %s", series, got, want)
		}
	}
	if n, err := testutil.GatherAndCount(p.metrics.registry, "sentinel_control_versions_sent_total"); n != 1 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if problems, err := testutil.GatherAndLint(p.metrics.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// Nodes choose their names, and what they say of a version; neither makes a series.
func TestSeriesDoNotGrowWithWhatNodesSend(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	before, err := testutil.GatherAndCount(p.metrics.registry)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		n := p.join(&pb.Hello{Node: fmt.Sprint("n", i), Instance: fmt.Sprint(i), Build: fmt.Sprint(i)}, fmt.Sprint(i), "")
		sent := p.next(n)
		if !p.answered(n, &pb.FromNode{Kind: &pb.FromNode_Nack{Nack: &pb.Nack{Nonce: sent.GetNonce(), Errors: []string{fmt.Sprint(i)}}}}, sent) {
			t.Fatal("it is no answer")
		}
	}
	if after, err := testutil.GatherAndCount(p.metrics.registry); after != before || err != nil {
		t.Errorf("%d series were %d: %v", after, before, err)
	}
}

// A disk that is full can be read: only a write that has gone well says that it is not.
func TestWhatCanBeReadDoesNotEndTheTrouble(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	p.failed(fmt.Errorf("a test's: %w", store.ErrFull))
	for _, path := range []string{"/v1/versions/1", "/v1/versions", "/v1/versions/1/diff", "/status"} {
		p.ask("GET", path, "")
	}
	p.apply(shared(1)) // is there already, so that nothing is written
	if p.trouble.Load() == nil {
		t.Error("it is forgotten")
	}
	edgetest.Soon(t, "a write works", func() bool { status, _ := p.ask("GET", "/readyz", ""); return status == http.StatusOK })
	if got := p.metric(`sentinel_control_store_failures_total{kind="full"}`); got != "1" {
		t.Errorf("%s failures are counted", got)
	}
}

// A version on the disk that is not what was written is for good: another write does not
// mend it, and nodes keep what they have.
func TestADamagedVersionIsSaidForGood(t *testing.T) {
	p := start(t, "", "")
	p.apply(shared(1))
	p.apply(shared(2))
	other, err := sql.Open("sqlite", "file:"+p.db)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "UPDATE versions SET content = x'00' WHERE version = 1"); err != nil {
		t.Fatal(err)
	}
	if status, body := p.ask("GET", "/v1/versions/1", ""); status != http.StatusServiceUnavailable || !strings.Contains(body, "is not what was written") {
		t.Errorf("%d %s", status, body)
	}
	p.look(t.Context())
	p.apply(shared(3))
	if status, body := p.ask("GET", "/readyz", ""); status != http.StatusServiceUnavailable || !strings.Contains(body, "is not what was written") {
		t.Errorf("%d %s", status, body)
	}
	p.failed(io.ErrUnexpectedEOF) // tells no less
	if got := p.trouble.Load(); got == nil || !got.forGood {
		t.Errorf("%+v", got)
	}
	if got := p.metric(`sentinel_control_store_failures_total{kind="damaged"}`); got != "1" {
		t.Errorf("%s failures are counted", got)
	}
	if s := dial(t, p, "a").snapshot(); s.GetVersion() != 3 {
		t.Errorf("a node gets %v", s)
	}
}
