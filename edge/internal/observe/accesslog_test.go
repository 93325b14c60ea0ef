package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

func record() *proxy.Record {
	return &proxy.Record{
		Start: time.Date(2026, 11, 30, 8, 0, 0, 123456000, time.UTC), ID: "abc", Client: netip.MustParseAddr("192.0.2.1"),
		Method: "GET", Host: "example.com", Path: "/users/1", Route: "/users/:id", Status: 200, Reason: proxy.OK,
		BytesIn: 1, BytesOut: 2, Duration: 1500 * time.Microsecond, Upstream: time.Millisecond, Backend: "10.0.0.1:80",
		Attempts: 1, Breaker: "closed", ConfigVersion: 7, Proto: "HTTP/1.1",
	}
}

func TestALineHasEveryField(t *testing.T) {
	const want = `{"ts":"2026-11-30T08:00:00.123456Z","id":"abc","client":"192.0.2.1","method":"GET","host":"example.com","path":"/users/1","route":"/users/:id","status":200,"reason":"ok","bytes_in":1,"bytes_out":2,"dur_ms":1.500,"up_ms":1.000,"backend":"10.0.0.1:80","attempts":1,"retry_ms":0.000,"breaker":"closed","config_version":7,"proto":"HTTP/1.1","upgrade":""}` + "\n"
	if got := string(appendRecord(nil, record())); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func FuzzALineIsOneLineOfJSON(f *testing.F) {
	f.Add("a\nb\"\\\x00\x7f\u2028\x85\xff")
	f.Fuzz(func(t *testing.T, text string) {
		r := record()
		r.Path, r.Host, r.Method = text, text, text
		line := appendRecord(nil, r)
		var v struct{ Path string }
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		body := line[:len(line)-1]
		if bytes.ContainsFunc(body, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) || !utf8.Valid(body) {
			t.Fatalf("a control character is in %q", line)
		}
		if plain := strings.IndexFunc(text, func(r rune) bool { return r >= 0x7f }) < 0; plain && v.Path != text {
			t.Fatalf("%q became %q", text, v.Path)
		}
	})
}

// stuck is a disk that stands still until it is let go.
type stuck struct {
	let   chan struct{}
	mu    sync.Mutex
	lines int
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.let
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

func TestAStuckDiskHoldsUpNobodyAndDropsAreCounted(t *testing.T) {
	disk := &stuck{let: make(chan struct{})}
	log := NewAccessLog(disk)
	const n = 3 * waiting
	for range n {
		log.Ended(record()) // would hang
	}
	if log.Dropped() == 0 {
		t.Error("nothing was dropped")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := log.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a log that cannot be written was closed: %v", err)
	}
	close(disk.let)
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := int64(disk.lines) + log.Dropped(); got != n {
		t.Errorf("%d lines were written or dropped, of %d", got, n)
	}
}

// Clients choose how long their paths and hosts are.
func TestLongLinesWaitInAsMuchMemoryAsShortOnes(t *testing.T) {
	disk := &stuck{let: make(chan struct{})}
	log := NewAccessLog(disk)
	r := record()
	r.Host = strings.Repeat("h", 100_000)
	const n = waiting
	for range n {
		log.Ended(r)
	}
	close(disk.let)
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := waitingBytes/len(r.Host) + 1; disk.lines > most+1 { // and the one that was being written
		t.Errorf("%d lines of %d bytes waited, want at most %d", disk.lines, len(r.Host), most)
	}
	if got := int64(disk.lines) + log.Dropped(); got != n || log.bytes.Load() != 0 {
		t.Errorf("%d lines were written or dropped, of %d; %d bytes still wait", got, n, log.bytes.Load())
	}
}

func BenchmarkAccessLog(b *testing.B) {
	log := NewAccessLog(discard{})
	r := record()
	b.ReportAllocs()
	for b.Loop() {
		log.Ended(r)
	}
	b.ReportMetric(float64(log.Dropped())/float64(b.N), "dropped/op")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
