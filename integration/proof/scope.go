package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// scope stands where a test has its *testing.T, so that the proof uses redistest
// as the tests do. What a testing.TB can and this cannot panics.
type scope struct {
	testing.TB
	ctx      context.Context
	mu       sync.Mutex
	failures []error
	cleanups []func()
}

// within runs f with a scope, and what f has left to clean up. The error is what
// f called Fatal or Error with; both are for what the proof itself could not do.
// A panic of f ends the proof.
func within(ctx context.Context, f func(*scope)) error {
	ctx, cancel := context.WithCancel(ctx)
	s := &scope{ctx: ctx}
	done := make(chan struct{})
	go func() { // Fatal ends the goroutine
		defer close(done)
		defer s.cleanUp()
		defer cancel()
		f(s)
	}()
	<-done
	return s.failed()
}

// cleanUp runs the last cleanup first, and the others also where one fails.
func (s *scope) cleanUp() {
	for {
		s.mu.Lock()
		n := len(s.cleanups)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		f := s.cleanups[n-1]
		s.cleanups = slices.Delete(s.cleanups, n-1, n)
		s.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		<-done
	}
}

// failed is what went wrong so far.
func (s *scope) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failures...)
}

func (s *scope) fail(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, errors.New(text))
}

// Context implements testing.TB.
func (s *scope) Context() context.Context { return s.ctx }

// Helper implements testing.TB.
func (s *scope) Helper() {}

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Error implements testing.TB.
func (s *scope) Error(args ...any) { s.fail(fmt.Sprint(args...)) }

// Errorf implements testing.TB.
func (s *scope) Errorf(format string, args ...any) { s.fail(fmt.Sprintf(format, args...)) }

// Fatal implements testing.TB.
func (s *scope) Fatal(args ...any) {
	s.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (s *scope) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}
