package proxy

import (
	"net/http"
	"net/textproto"
	"time"
)

// hintDelay is how long a 1xx waits to see if its response is one after which the
// request is sent again: those of a backend that is overloaded come quickly, and
// hints that are late are worth nothing.
const hintDelay = 25 * time.Millisecond

// hints are the 1xx of an attempt that were not passed on yet.
type hints struct {
	wait   bool // they are to wait
	timer  *time.Timer
	queued []interim
}

// interim is a 1xx.
type interim struct {
	status int
	header http.Header
}

// hint passes a 1xx on, at once or a little later.
func (a *attempt) hint(status int, h textproto.MIMEHeader) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
	case !a.hints.wait:
		a.x.front.inform(status, h)
	default:
		a.hints.queued = append(a.hints.queued, interim{status, http.Header(h)})
		if a.hints.timer == nil {
			a.hints.timer = time.AfterFunc(hintDelay, a.hintsLate)
		}
	}
}

// hintsLate passes on what has waited long enough.
func (a *attempt) hintsLate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.hints.wait = false
		a.tellHints()
	}
}

// tellHints passes on what has waited. It is for who holds the lock, or for after seal.
func (a *attempt) tellHints() {
	for _, h := range a.hints.queued {
		a.x.front.inform(h.status, textproto.MIMEHeader(h.header))
	}
	a.hints.queued = nil
}
