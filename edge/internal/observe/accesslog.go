// Package observe is what an operator sees: metrics, the access log, and the
// admin listener.
package observe

import (
	"context"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sentinelgo/sentinel/edge/internal/proxy"
)

// waiting is how many lines may wait to be written, and waitingBytes of how many
// bytes: a client may make a line long. What comes beyond is dropped: a disk that
// stands still must neither hold up a request nor take the memory.
const (
	waiting      = 4096
	waitingBytes = 8 << 20
)

// AccessLog writes one line of JSON for each request. It is safe for concurrent
// use.
type AccessLog struct {
	lines   chan *[]byte
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed when all is written
	once    sync.Once
	dropped atomic.Int64
	bytes   atomic.Int64 // of the lines that wait
	pool    sync.Pool    // of *[]byte
}

// NewAccessLog returns a log on w, to which one goroutine writes until Close.
func NewAccessLog(w io.Writer) *AccessLog {
	a := &AccessLog{
		lines: make(chan *[]byte, waiting), stop: make(chan struct{}), done: make(chan struct{}),
		pool: sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }},
	}
	go a.write(w)
	return a
}

// Dropped is how many lines found no room.
func (a *AccessLog) Dropped() int64 { return a.dropped.Load() }

// Ended writes the line of a request that has ended. It never blocks.
func (a *AccessLog) Ended(r *proxy.Record) {
	line := a.pool.Get().(*[]byte)
	*line = appendRecord((*line)[:0], r)
	if !a.queue(line) {
		a.dropped.Add(1)
		a.pool.Put(line)
	}
}

// queue reports whether there is room for a line to wait.
func (a *AccessLog) queue(line *[]byte) bool {
	size := int64(len(*line))
	if a.bytes.Add(size) <= waitingBytes {
		select {
		case a.lines <- line:
			return true
		default:
		}
	}
	a.bytes.Add(-size)
	return false
}

// Close writes what waits, as long as the context lasts. Lines that come later
// are dropped.
func (a *AccessLog) Close(ctx context.Context) error {
	a.once.Do(func() { close(a.stop) })
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write gathers the lines that wait into one write.
func (a *AccessLog) write(w io.Writer) {
	defer close(a.done)
	var batch []byte
	for {
		select {
		case line := <-a.lines:
			batch = a.gather(batch[:0], line)
			if _, err := w.Write(batch); err != nil {
				a.dropped.Add(1) // at least; there is nowhere to say so but the metric
			}
		case <-a.stop:
			select {
			case line := <-a.lines: // the last ones
				batch = a.gather(batch[:0], line)
				_, _ = w.Write(batch)
			default:
				return
			}
		}
	}
}

func (a *AccessLog) gather(batch []byte, line *[]byte) []byte {
	for {
		batch = append(batch, *line...)
		a.bytes.Add(-int64(len(*line)))
		a.pool.Put(line)
		if len(batch) > 64<<10 {
			return batch
		}
		select {
		case line = <-a.lines:
		default:
			return batch
		}
	}
}

// appendRecord is the line. Queries are not in it, for secrets are in queries.
func appendRecord(b []byte, r *proxy.Record) []byte {
	b = append(b, `{"ts":"`...)
	b = r.Start.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	b = append(b, '"')
	b = appendText(b, "id", r.ID)
	b = append(b, `,"client":"`...)
	if r.Client.IsValid() {
		b = r.Client.AppendTo(b)
	}
	b = append(b, '"')
	b = appendText(b, "method", r.Method)
	b = appendText(b, "host", r.Host)
	b = appendText(b, "path", r.Path)
	b = appendText(b, "route", r.Route)
	b = appendNumber(b, "status", int64(r.Status))
	b = appendText(b, "reason", string(r.Reason))
	b = appendNumber(b, "bytes_in", r.BytesIn)
	b = appendNumber(b, "bytes_out", r.BytesOut)
	b = appendMillis(b, "dur_ms", r.Duration)
	b = appendMillis(b, "up_ms", r.Upstream)
	b = appendText(b, "backend", r.Backend)
	b = appendNumber(b, "attempts", int64(r.Attempts))
	b = appendMillis(b, "retry_ms", r.RetryDelay)
	b = appendText(b, "breaker", r.Breaker)
	b = appendNumber(b, "config_version", r.ConfigVersion)
	b = appendText(b, "proto", r.Proto)
	b = appendText(b, "upgrade", r.Upgrade)
	return append(b, '}', '\n')
}

func appendNumber(b []byte, name string, n int64) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	return strconv.AppendInt(b, n, 10)
}

func appendMillis(b []byte, name string, d time.Duration) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':')
	return strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', 3, 64)
}

// appendText writes a string as JSON, on one line and without a control byte,
// whatever a client has put into it.
func appendText(b []byte, name, text string) []byte {
	b = append(append(append(b, ',', '"'), name...), '"', ':', '"')
	const hex = "0123456789abcdef"
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, size := utf8.DecodeRuneInString(text[i:])
			if r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029' { // C1 control characters, and line ends of JavaScript
				r = utf8.RuneError
			}
			b = utf8.AppendRune(b, r)
			i += size
			continue
		}
		i++
	}
	return append(b, '"')
}
