package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestScopeEndsAsAContextDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := &scope{Context: context.WithValue(context.Background(), key{}, 1)}
		child, cancel := context.WithCancel(s)
		defer cancel()
		called := 0
		context.AfterFunc(s, func() { called++ })
		stop := context.AfterFunc(s, func() { called += 10 })
		stopToo := s.AfterFunc(func() { called += 100 })
		if s.Err() != nil || context.Cause(s) != nil || s.Value(key{}) != 1 {
			t.Fatalf("before the end: %v, %v", s.Err(), s.Value(key{}))
		}
		if !stop() || stop() || !stopToo() || stopToo() {
			t.Error("a call is taken back once")
		}
		s.end(errDeadline)
		s.end(errOver)
		synctest.Wait()
		for _, c := range []context.Context{s, child} {
			select {
			case <-c.Done():
			default:
				t.Error("it is not done")
			}
			if cause := context.Cause(c); !errors.Is(cause, errDeadline) {
				t.Errorf("cause %v", cause)
			}
		}
		if called != 1 {
			t.Errorf("%d calls", called)
		}
		late := false
		stop = s.AfterFunc(func() { late = true })
		synctest.Wait()
		if stop() || !late {
			t.Error("what comes after the end is called at once")
		}
	})
}
