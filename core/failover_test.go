package sentinel

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A Sentinel that was cut off still names the old master, and may be the first to
// answer.
func TestNewestConfigurationIsBelieved(t *testing.T) {
	type reply struct {
		after time.Duration
		named
	}
	old, fresh := named{master: "old:6379", epoch: 3}, named{master: "new:6379", epoch: 4}
	down := named{err: errors.New("no route")}
	for name, tc := range map[string]struct {
		known   int64
		replies []reply
		want    string
		within  time.Duration
	}{
		"the first is right":                {4, []reply{{0, fresh}, {time.Second, old}}, "new:6379", watchPatience},
		"the second is newer":               {3, []reply{{0, old}, {watchPatience / 2, fresh}, {time.Second, down}}, "new:6379", 2 * watchPatience},
		"the first is old, and known so":    {4, []reply{{0, old}, {800 * time.Millisecond, fresh}, {time.Second, down}}, "new:6379", 900 * time.Millisecond},
		"nobody is as new as what is known": {4, []reply{{0, old}, {time.Second, down}}, "old:6379", time.Second},
		"nobody answers":                    {4, []reply{{0, down}, {time.Second, down}}, "", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan named, len(tc.replies))
				for _, r := range tc.replies {
					time.AfterFunc(r.after, func() { answers <- r.named })
				}
				start := time.Now()
				got, err := newest(answers, len(tc.replies), tc.known)
				if got.master != tc.want || (err != nil) != (tc.want == "") {
					t.Errorf("believes %q, %v", got.master, err)
				}
				if took := time.Since(start); took > tc.within {
					t.Errorf("took %v, want %v", took, tc.within)
				}
				time.Sleep(time.Second) // the others
			})
		})
	}
}

// The watch does not go back to a deposed master, unless the one that is known
// cannot be used.
func TestOlderConfigurationIsNotBelieved(t *testing.T) {
	m := &masters{}
	for i, step := range []struct {
		hears named
		doubt bool
		want  string
	}{
		{named{master: "a", epoch: 3}, false, "a"},
		{named{master: "b", epoch: 4}, false, "b"},
		{named{master: "a", epoch: 3}, false, "b"},
		{named{master: "c", epoch: 4}, false, "c"},
		{named{master: "d", epoch: 0}, true, "d"}, // they were set up anew
		{named{master: "e", epoch: 1}, false, "e"},
	} {
		if step.doubt {
			m.doubt()
		}
		if got := m.believe(step.hears); got != step.want || m.deposed(step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}
