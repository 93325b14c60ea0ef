package sentinel

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var uuid7Form = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// The time of RFC 9562's own example, appendix A.6.
func TestDecisionIDForm(t *testing.T) {
	at := time.UnixMilli(0x017F22E279B0)
	seen := make(map[string]bool)
	for i := range uint64(10_000) {
		id := decisionID{at.UnixNano(), i}.String()
		if !uuid7Form.MatchString(id) || !strings.HasPrefix(id, "017f22e2-79b0-7") {
			t.Fatalf("id %q", id)
		}
		if seen[id] {
			t.Fatalf("%s twice", id)
		}
		seen[id] = true
	}
	// 0xCC3 of 4096 parts of the millisecond, rounded up to whole nanoseconds.
	nanos := at.UnixNano() + (0xCC3*int64(time.Millisecond)+4095)/4096
	if id := uuid7(uint64(nanos), 0x18C4DC0C0C07398F<<2); id != "017f22e2-79b0-7cc3-98c4-dc0c0c07398f" {
		t.Errorf("the example of RFC 9562 is %s", id)
	}
	if id := (Decision{}).ID(); id != "" {
		t.Errorf("the zero Decision has the id %s", id)
	}
}

// What was denied, or admitted although the store failed, has an id of its own,
// and the log has it. What the store admitted has none.
func TestDecisionID(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	log := slog.New(slog.NewJSONHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	}), nil))
	l := openMemory(t, memoryConfig(bucketPolicy("jobs", Token, 0)), WithLogger(log), WithEveryDenialLogged())
	defer l.Close()
	ids := make(map[string]bool)
	for i := range 5 {
		d, err := l.Allow(t.Context(), "acme", "jobs")
		if err != nil || d.Allowed != (i == 0) || (d.ID() == "") != d.Allowed || !d.Allowed && !uuid7Form.MatchString(d.ID()) {
			t.Fatalf("%+v, id %q, %v", d, d.ID(), err)
		}
		if d.ID() != "" {
			ids[d.ID()] = true
		}
	}
	if len(ids) != 4 {
		t.Errorf("ids %v", ids)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(out.String()), "\n") {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if id, denied := fields["decision_id"].(string); denied {
			delete(ids, id)
		}
	}
	if len(ids) > 0 {
		t.Errorf("not in the log: %v\n%s", ids, out.String())
	}

	open := bucketPolicy("open", Token, 0)
	open.FailMode = FailOpen
	cfg := memoryConfig(open)
	cfg.App.RedisURL = NewSecret("redis://127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // does not wait for the Redis that is not there
	away, err := Open(ctx, cfg, WithLogger(silent))
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if d, err := away.Allow(t.Context(), "acme", "open"); err != nil || !d.Allowed || d.FromStore || !uuid7Form.MatchString(d.ID()) {
		t.Errorf("by the emergency bucket: %+v, id %q, %v", d, d.ID(), err)
	}
}

// Decisions of one instant have ids of their own, wherever they are counted, and
// where nothing is.
func TestDecisionIDsOfOneInstant(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	var all [2][3]seen // there at the same time: memory that is free again may give a number again, at another time
	for i, m := range []*metrics{m, nil} {
		for j, d := range []*Decision{{EndpointID: "a"}, {EndpointID: "b"}, {EndpointID: "b", Reason: ReasonCircuitOpen}} {
			at := &all[i][j]
			for range 1000 {
				for stripe := range uint64(4) {
					for _, latency := range []time.Duration{0, time.Second} {
						id := decisionID{1, m.decided(at, d, stripe, latency)}.String()
						if known[id] {
							t.Fatalf("%s twice", id)
						}
						known[id] = true
					}
					id := decisionID{1, m.floodOf(at, d).add(stripe)}.String()
					if known[id] {
						t.Fatalf("%s of a flood twice", id)
					}
					known[id] = true
				}
			}
		}
	}
	runtime.KeepAlive(&all)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
