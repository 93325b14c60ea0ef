package proxy

import (
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"time"
)

// past is a deadline that is over.
var past = time.Unix(1, 0)

// front is the client's side of a request: the response, and the deadlines of
// its connection. Each write has a deadline of its own, so that a client may
// take hours as long as it goes on taking. It is for one goroutine at a time.
type front struct {
	http.ResponseWriter
	control http.ResponseController
	idle    time.Duration // of a write
	http2   bool
	pace    pace

	status int       // 0: there is no final one yet
	bytes  int64     // of the body
	armed  time.Time // when the write deadline was set last
}

func newFront(w http.ResponseWriter, r *http.Request, idle time.Duration) front {
	return front{
		ResponseWriter: w, control: *http.NewResponseController(w),
		idle: idle, http2: r.ProtoMajor == 2, pace: pace{size: copySize},
	}
}

// Unwrap is for http.ResponseController.
func (f *front) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader begins the final response.
func (f *front) WriteHeader(status int) {
	if status >= 200 && f.status == 0 {
		f.status = status
	}
	f.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the body.
func (f *front) Write(p []byte) (int, error) {
	if f.status == 0 {
		f.WriteHeader(http.StatusOK)
	}
	written := 0
	for written < len(p) {
		piece := f.pace.of(p[written:])
		f.arm()
		n, err := f.ResponseWriter.Write(piece)
		f.disarm()
		f.pace.took(time.Since(f.armed), f.idle)
		written += n
		f.bytes += int64(n)
		if err == nil && n < len(piece) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// flush sends what has been written.
func (f *front) flush() error {
	f.arm()
	defer f.disarm()
	return f.control.Flush()
}

// inform writes a 1xx response, with the fields of h and no others.
func (f *front) inform(status int, h textproto.MIMEHeader) {
	header := f.Header()
	ours := maps.Clone(header)
	clear(header)
	own := listedBy(h["Connection"])
	for key, values := range h {
		if !hopByHop(key) && !own.has(key) && key != "Content-Length" {
			header[key] = values
		}
	}
	f.arm()
	f.ResponseWriter.WriteHeader(status)
	f.disarm()
	clear(header)
	maps.Copy(header, ours)
}

// arm gives the next write its time. An error is that of a connection that is gone:
// the write will have it.
func (f *front) arm() {
	f.armed = time.Now()
	_ = f.control.SetWriteDeadline(f.armed.Add(f.idle))
}

// disarm ends the time of a write. In HTTP/2 a deadline ends the stream even
// while nobody is writing. In HTTP/1 only a write heeds it, and the next one has
// another.
func (f *front) disarm() {
	if f.http2 {
		_ = f.control.SetWriteDeadline(time.Time{})
	}
}

// end gives what net/http writes after the handler its time, unless it has enough.
func (f *front) end() {
	if f.http2 || time.Since(f.armed) > f.idle/4 {
		f.arm()
	}
}
