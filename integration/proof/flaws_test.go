package main

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// The proof can fail: a service with flaws meets a fault, and each flaw breaks
// the promise that it should. Lanes without one, in the same processes, hold all
// that a busy machine does not break.
func TestFlawsBreakPromises(t *testing.T) {
	f := &fault{
		name: "flawed", begin: onRoads((*redistest.Proxy).BlackHole), end: pass,
		reason: timeoutReason, lossy: true, brief: true,
	}
	double, leak := lane{0, true}, lane{0, false}
	patient, quiet := lane{1, true}, lane{2, true}
	o := &outcome{fault: f}
	o.reset()
	err := within(t.Context(), func(s *scope) {
		a := &arena{
			scope: s, fault: f, machine: &sync.Mutex{},
			lab:   &lab{short: true, budget: 50 * time.Millisecond, log: io.Discard},
			flaws: map[lane]string{double: flawDouble, leak: flawLeak, patient: flawPatient, quiet: flawQuiet},
		}
		a.run(o)
	})
	if err != nil {
		t.Fatal(err)
	}
	broken := map[string][]string{} // who, by promise
	for _, n := range o.notes {
		if len(n.broken) > 0 && !n.excused() {
			broken[n.text] = append(broken[n.text], n.who)
		}
	}
	for text, who := range map[string]string{
		pOnce: double.String(), pCloses: "process 1", pBudget: patient.String(), pLog: quiet.String(),
	} {
		if !slices.ContainsFunc(broken[text], func(at string) bool { return strings.Contains(at, who) }) {
			t.Errorf("%s: held by %s, which is flawed", text, who)
		}
	}
	for _, good := range []lane{{1, false}, {2, false}} {
		for _, text := range []string{pRows, pOnce, pEmergency, pLog, pBudget} {
			if slices.ContainsFunc(broken[text], func(at string) bool { return strings.Contains(at, good.String()) }) {
				t.Errorf("%s: broken by %s, which has no flaw: %v", text, good, broken[text])
			}
		}
	}
}
