package proxy

import (
	"context"
	"sync"
)

// scope is the context of an attempt. It ends by a cause, which is its Err, too. It is
// no child of the request's context: net/http cancels that also when we ourselves end
// the reading of the body, and an answer may still come then. Package context could make one
// like it of three parts, at twice the price; every request has one. The zero scope
// has no values and must not be copied.
type scope struct {
	context.Context // has the values, and never ends

	mu    sync.Mutex
	cause error         // nil: it has not ended
	done  chan struct{} // nil: nobody has asked for it
	calls []*call
}

// call is what is to be called at the end.
type call struct{ f func() }

// Done implements context.Context.
func (s *scope) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.cause != nil {
			close(s.done)
		}
	}
	return s.done
}

// Err is the cause of the end, nil before.
func (s *scope) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// end ends the scope; further calls do nothing.
func (s *scope) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	s.cause = cause
	if s.done != nil {
		close(s.done)
	}
	for _, c := range s.calls {
		go c.f()
	}
	s.calls = nil
}

// AfterFunc is what context.AfterFunc asks for, and does as that.
func (s *scope) AfterFunc(f func()) (stop func() bool) {
	c := &call{f}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		go f()
	} else {
		s.calls = append(s.calls, c)
	}
	return func() bool { return s.forget(c) }
}

// forget takes a call back, and reports whether it was still to be made.
func (s *scope) forget(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.calls {
		if s.calls[i] == c {
			s.calls = append(s.calls[:i], s.calls[i+1:]...)
			return true
		}
	}
	return false
}
