package sentinel

import (
	"net"
	"reflect"
	"strings"
	"testing"
)

func TestSlotOf(t *testing.T) {
	for key, want := range map[string]uint16{
		"123456789":            0x31c3, // the check value of CRC16/XMODEM
		"":                     0,
		"foo":                  12182,
		"bar":                  5061,
		"{user1000}.following": slotOf("user1000"),
		"foo{}{bar}":           8363, // the whole key
		"foo{{bar}}zap":        slotOf("{bar"),
		"foo{bar}{zap}":        5061,
		"foo{bar":              slotOf("foo{bar"),
	} {
		if got := slotOf(key); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
}

func TestParseRedirect(t *testing.T) {
	for text, want := range map[string]string{
		"MOVED 3999 127.0.0.1:6381":       "127.0.0.1:6381",
		"ASK 0 redis-2.example:6379":      "redis-2.example:6379",
		"MOVED 16383 2001:db8::1:6379":    "[2001:db8::1]:6379",
		"MOVED 16383 [2001:db8::1]:6379":  "[2001:db8::1]:6379",
		"MOVED 3999 :6381":                ":6381",
		"MOVED 3999 ?:6381":               ":6381",
		"MOVED 16384 127.0.0.1:6381":      "",
		"MOVED -1 127.0.0.1:6381":         "",
		"MOVED  127.0.0.1:6381":           "",
		"MOVED 1 127.0.0.1":               "",
		"MOVED 1 127.0.0.1:0":             "",
		"MOVED 1 127.0.0.1:65536":         "",
		"MOVED 1 127.0.0.1:6381 and more": "",
		"MOVED":                           "",
		"MOVED 1 0[:1":                    "",
	} {
		got, err := parseRedirect(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	if got := resolveNode(":6381", "10.0.0.1:6379"); got != "10.0.0.1:6381" {
		t.Error(got)
	}
	if got := resolveNode("10.0.0.2:6381", "10.0.0.1:6379"); got != "10.0.0.2:6381" {
		t.Error(got)
	}
}

// Whatever a node says, what is taken for an address is one.
func FuzzParseRedirect(f *testing.F) {
	for _, seed := range []string{"MOVED 3999 127.0.0.1:6381", "ASK 0 :1", "MOVED 1 ::1:6379", "MOVED 1 [::]:1", "MOVED 1 a:b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, err := parseRedirect(text)
		if err != nil {
			if addr != "" {
				t.Errorf("%q with %v", addr, err)
			}
			return
		}
		_, port, err := net.SplitHostPort(addr)
		if n, ok := parseDigits(port, 65535); err != nil || !ok || n < 1 {
			t.Errorf("%q of %q: %v", addr, text, err)
		}
		if f := classifyCluster("MOVED" + strings.TrimLeft(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_")); f != nil && f.redirect == nil {
			t.Errorf("%q: %+v", text, f)
		}
	})
}

func TestParseSlots(t *testing.T) {
	node := func(host any, port int64) []any { return []any{host, port, "id", []any{}} }
	reply := []any{
		[]any{int64(0), int64(5460), node("10.0.0.1", 6379), node("10.0.0.4", 6379)},
		[]any{int64(5461), int64(5461), node(nil, 6380)},
		[]any{int64(5462), int64(16383), node("", 6381)},
	}
	got, err := parseSlots(reply, "10.0.0.9:7000")
	want := []slotRange{{0, 5460, "10.0.0.1:6379"}, {5461, 5461, "10.0.0.9:6380"}, {5462, 16383, "10.0.0.9:6381"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for name, each := range map[string]any{
		"no array":       "0",
		"no master":      []any{int64(0), int64(1)},
		"no numbers":     []any{"0", "1", node("a", 1)},
		"backwards":      []any{int64(1), int64(0), node("a", 1)},
		"beyond the end": []any{int64(0), int64(16384), node("a", 1)},
		"below 0":        []any{int64(-1), int64(1), node("a", 1)},
		"no port":        []any{int64(0), int64(1), []any{"a"}},
		"port 0":         []any{int64(0), int64(1), node("a", 0)},
		"no node":        []any{int64(0), int64(1), "a"},
	} {
		if got, err := parseSlots([]any{each}, "10.0.0.9:7000"); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The start check has a key in any range of slots, however small.
func TestCheckKey(t *testing.T) {
	for _, r := range []slotRange{{low: 0, high: 0}, {low: 16383, high: 16383}, {low: 100, high: 9000}} {
		if slot := int(slotOf(r.checkKey())); slot < r.low || slot > r.high {
			t.Errorf("%v: %d", r, slot)
		}
	}
}

// A batch is cut at each new slot and each new mode, and loses nobody.
func TestCut(t *testing.T) {
	ask := func(slot uint16, m mode) *waiter {
		return &waiter{question: question{slot: slot, mode: m, group: groupOf(cookieSubject)}}
	}
	ln := &line{batch: []*waiter{ask(1, modePeek), ask(1, modeDecide), ask(1, modeDecide), ask(2, modeDecide)}}
	if !ln.cut() || !reflect.DeepEqual(ln.parts, []part{{0, 1}, {1, 3}, {3, 4}}) {
		t.Errorf("%v", ln.parts)
	}
	ln = &line{batch: []*waiter{ask(1, modeDecide), ask(1, modeDecide)}}
	if ln.cut() || len(ln.parts) != 1 {
		t.Errorf("%v", ln.parts)
	}
	ln.batch[0].asking = true
	if !ln.cut() {
		t.Error("nobody says ASKING")
	}
}

func TestBySlot(t *testing.T) {
	at := func(slot uint16) *subject { return &subject{slot: slot} }
	a, b, c := at(1), at(2), at(1)
	g := groupOf(a, b)
	parts := g.bySlot()
	if len(parts) != 2 || parts[0].group != groupOf(a) || parts[1].group != groupOf(b) || parts[1].at[0] != 1 {
		t.Errorf("%+v", parts)
	}
	g = groupOf(a, c)
	if parts := g.bySlot(); len(parts) != 1 || parts[0].group != g || parts[0].at[1] != 1 {
		t.Errorf("%+v", parts)
	}
}

// The further limits of an identity are in its slot, whatever their own keys are.
func TestFurtherLimitsAreInOneSlot(t *testing.T) {
	c := newSubjects()
	c.slotted = true
	for _, tenant := range []string{"acme", "globex", "initech"} {
		s := c.of(newEndpoint(twoLimits("jobs"), 0), "", tenant)
		for _, each := range append([]*subject{s}, s.further...) {
			if each.slot != specSlot(each.key) || each.slot != specSlot(s.key) {
				t.Errorf("%s: %s is in slot %d, not %d", tenant, each.key, specSlot(each.key), each.slot)
			}
		}
	}
}

// A group that is cut has each of its buckets once, further limits too.
func TestBySlotOfSeveralLimits(t *testing.T) {
	identity := func(slot uint16) *subject {
		s := &subject{slot: slot}
		for range maxLimits - 1 {
			s.further = append(s.further, &subject{slot: slot})
		}
		return s
	}
	cookie, peer := identity(1), identity(2)
	g := groupOf(cookie, peer)
	parts := g.bySlot()
	if len(parts) != 2 || parts[0].group != groupOf(cookie) || parts[1].group != groupOf(peer) {
		t.Fatalf("%+v", parts)
	}
	for i := range maxLimits {
		if parts[0].at[i] != i || parts[1].at[i] != maxLimits+i {
			t.Errorf("bucket %d: %d and %d", i, parts[0].at[i], parts[1].at[i])
		}
	}
}
