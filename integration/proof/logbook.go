package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// logBook reads what a process writes to its default logger. It is safe for
// concurrent use; its zero value is empty.
type logBook struct {
	mu      sync.Mutex
	partial []byte
	lines   map[string]denials // by "endpoint reason"
	moves   map[string]int     // of breakers, by the state they went to
	others  int
	some    []string // of the others
}

// denials is how many a log speaks of: each in a line of its own, or counted as
// suppressed.
type denials struct{ Lines, Suppressed int }

var (
	deniedLine   = regexp.MustCompile(`sentinel: denied .*endpoint_id=(\S+) decision_reason=(\S+)`)
	heldLine     = regexp.MustCompile(`sentinel: denials held back until close.*endpoint_id=(\S+) decision_reason=(\S+)`)
	suppressedIn = regexp.MustCompile(`\bsuppressed=(\d+)`)
	moveLine     = regexp.MustCompile(`sentinel: circuit breaker (\w+)`)
)

// Write implements io.Writer.
func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.partial = append(b.partial, p...)
	for {
		line, rest, whole := bytes.Cut(b.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		b.read(string(line))
		b.partial = append(b.partial[:0], rest...)
	}
}

func (b *logBook) read(line string) {
	if b.lines == nil {
		b.lines, b.moves = map[string]denials{}, map[string]int{}
	}
	suppressed := 0
	if m := suppressedIn.FindStringSubmatch(line); m != nil {
		suppressed, _ = strconv.Atoi(m[1]) // digits
	}
	if m := deniedLine.FindStringSubmatch(line); m != nil {
		d := b.lines[m[1]+" "+m[2]]
		b.lines[m[1]+" "+m[2]] = denials{d.Lines + 1, d.Suppressed + suppressed}
		return
	}
	if m := heldLine.FindStringSubmatch(line); m != nil {
		d := b.lines[m[1]+" "+m[2]]
		b.lines[m[1]+" "+m[2]] = denials{d.Lines, d.Suppressed + suppressed}
		return
	}
	if m := moveLine.FindStringSubmatch(line); m != nil {
		b.moves[m[1]]++
		return
	}
	b.others++
	if len(b.some) < 20 {
		b.some = append(b.some, line)
	}
}

// of returns what the log says of one endpoint and reason.
func (b *logBook) of(endpoint, reason string) denials {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines[endpoint+" "+reason]
}

// rest is the lines that are neither denials nor transitions, and some of them.
func (b *logBook) rest() (int, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.others, strings.Join(b.some, "\n")
}
