package main

import (
	"fmt"
	"sync"
)

// trials counts the tries of one promise and keeps what broke it first. The zero
// trials is ready, and safe for concurrent use.
type trials struct {
	mu     sync.Mutex
	tries  int
	broken int
	first  string
}

// check counts one try, and says what broke unless it held.
func (t *trials) check(held bool, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tries++
	if held {
		return
	}
	if t.broken++; t.broken == 1 {
		t.first = fmt.Sprintf(format, args...)
	}
}

// promise is what came of it. measured stands where it was held.
func (t *trials) promise(text, measured string) promise {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := promise{text: text, tries: t.tries, held: t.broken == 0, measured: measured}
	if !p.held {
		p.measured = fmt.Sprintf("broken %d times, first: %s", t.broken, t.first)
	}
	return p
}
