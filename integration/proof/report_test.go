package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(workerEnv); role != "" {
		roles["echo"] = func() any { return echo{} }
		serveWorker(role)
		return
	}
	os.Exit(m.Run())
}

// echo is a role for tests.
type echo struct{}

func (echo) Say(text string, reply *string) error {
	fmt.Fprint(os.Stderr, "said "+text)
	*reply = text + " " + os.Getenv("PROOF_TEST")
	return nil
}

func TestWorker(t *testing.T) {
	var log bytes.Buffer
	err := within(t.Context(), func(s *scope) {
		w := startWorker(s, "echo", []string{"env", "PROOF_TEST=there"}, nil, &log)
		var got string
		if err := w.call("Say", "hello", &got); err != nil || got != "hello there" {
			s.Errorf("%q, %v", got, err)
		}
		if err := w.call("Shout", "hello", &got); err == nil {
			s.Error("a method that is not there was called")
		}
	})
	if err != nil {
		t.Error(err)
	}
	if log.String() != "said hello" {
		t.Errorf("log %q", log.String())
	}
}

func TestBrokenPromises(t *testing.T) {
	good := promise{text: "a", tries: 1, held: true}
	for name, bad := range map[string]promise{
		"broken":    {text: "b", tries: 3},
		"not tried": {text: "c", held: true},
		"zero":      {},
	} {
		r := &report{sections: []*section{{title: "S", promises: []promise{good, bad}}}}
		if r.broken() != 1 {
			t.Errorf("%s: %d broken, want 1", name, r.broken())
		}
		if !strings.Contains(r.markdown(), "Broken:") {
			t.Errorf("%s is not in the report", name)
		}
	}
	late := promise{text: "d", held: true, unjudged: []string{"x: gone, while the machine was late"}}
	r := &report{sections: []*section{{title: "S", promises: []promise{good, late}}}}
	if got := r.markdown(); r.broken() != 0 || !strings.Contains(got, "No promise was broken.") || !strings.Contains(got, "Not judged") ||
		!strings.Contains(got, "x: gone") || strings.Contains(got, "All promises") {
		t.Errorf("%d broken in\n%s", r.broken(), got)
	}
	once := promise{text: "e", tries: 2, held: true, passed: []string{"y: over"}}
	r = &report{sections: []*section{{title: "S", promises: []promise{good, once}}}}
	if got := r.markdown(); r.broken() != 0 || !strings.Contains(got, "not when the same was met again") || !strings.Contains(got, "y: over") {
		t.Errorf("%d broken in\n%s", r.broken(), got)
	}
	r = &report{sections: []*section{{title: "S", promises: []promise{good}}}}
	if r.broken() != 0 || !strings.Contains(r.markdown(), "All promises were held.") {
		t.Errorf("%d broken in\n%s", r.broken(), r.markdown())
	}
}

func TestScope(t *testing.T) {
	var order []string
	err := within(t.Context(), func(s *scope) {
		s.Cleanup(func() { order = append(order, "first") })
		s.Cleanup(func() { order = append(order, "second"); s.Fatal("while cleaning up") })
		s.Errorf("one %d", 1)
		s.Fatal("two")
		order = append(order, "after Fatal")
	})
	if got := strings.Join(order, ","); got != "second,first" {
		t.Errorf("ran %s", got)
	}
	if err == nil || err.Error() != "one 1\ntwo\nwhile cleaning up" {
		t.Errorf("%v", err)
	}
	if err := within(t.Context(), func(*scope) {}); err != nil {
		t.Error(err)
	}
}

func TestChoose(t *testing.T) {
	if _, err := choose("faults,nothing", false); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("%v", err)
	}
	if got, err := choose("faults", false); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := choose("topology", true); err != nil || len(got) != 1 {
		t.Errorf("what is named is run in the short form, too: %v, %v", got, err)
	}
	full, _ := choose("", false)
	short, _ := choose("", true)
	if len(full) != len(short)+len(long) || len(full) != len(chapters)-len(apart) {
		t.Errorf("%d chapters, %d of them in the full form and %d in the short one", len(chapters), len(full), len(short))
	}
}
