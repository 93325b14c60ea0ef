package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sentinelgo/sentinel/core/breaker"
	"github.com/sentinelgo/sentinel/edge/internal/wire"
)

// buffers are copySize bytes each.
var buffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// relay passes a response on, and closes its body.
func (x *exchange) relay(a *attempt, resp *http.Response) {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		x.switchProtocols(a, resp)
		return
	}
	defer resp.Body.Close()
	outcome := x.route.outcomeOf(resp.StatusCode)
	stream := isStream(resp)
	if outcome == breaker.Failure {
		a.lease.Failed(errors.New("status " + strconv.Itoa(resp.StatusCode)))
	}
	if stream || outcome == breaker.Failure {
		a.lease.Report(outcome) // a breaker's probe does not last as long as a stream
	}
	var failed *problem
	switch {
	case !hasBody(x.r, resp):
		a.inTime()
		x.writeHead(resp)
	case stream:
		a.inTime()
		failed = x.relayStream(a, resp)
	default:
		failed = x.relayBody(a, resp)
	}
	if failed != nil {
		a.lease.Report(failed.outcome)
		x.answer(failed)
		return
	}
	a.lease.Report(outcome)
	x.reason = OK
}

// hasBody reports whether a body follows.
func hasBody(r *http.Request, resp *http.Response) bool {
	return r.Method != http.MethodHead && resp.ContentLength != 0 &&
		resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusNotModified
}

// isStream reports whether the body may come bit by bit, for as long as it likes:
// its length is not known, or it is made of events.
func isStream(resp *http.Response) bool {
	if resp.ContentLength < 0 {
		return true
	}
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.EqualFold(textproto.TrimString(media), "text/event-stream")
}

// writeHead writes the header.
func (x *exchange) writeHead(resp *http.Response) {
	h := x.front.Header()
	copyResponseHeader(h, resp)
	if names := trailing(resp.Trailer); len(names) > 0 {
		h["Trailer"] = []string{strings.Join(names, ", ")}
		defer func() {
			for _, name := range names {
				delete(h, name) // what is there now is not the trailer's
			}
		}()
	}
	x.settleEarly()
	x.front.WriteHeader(resp.StatusCode)
}

// settleEarly is settle for a response that comes while the request's body
// is perhaps still on its way to the backend.
func (x *exchange) settleEarly() {
	if x.body != nil && !x.body.complete() {
		x.hangUp()
	}
}

// trailing is the names of the fields that may follow the body.
func trailing(t http.Header) []string {
	var names []string
	for name := range t {
		if mayTrail(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// relayBody relays a body of known length. The header waits for the first of it, so that a
// backend that dies before is a 502 and no torn response. The body may
// take as long as it needs, unless it stands still.
func (x *exchange) relayBody(a *attempt, resp *http.Response) *problem {
	buffer := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buffer)
	left := resp.ContentLength
	n, err := resp.Body.Read(buffer[:])
	a.inTime()
	if n == 0 && err != nil {
		return a.truncation(err)
	}
	x.writeHead(resp)
	for {
		left -= int64(n)
		_, werr := x.front.Write(buffer[:n])
		if werr == nil && n < copySize && left > 0 {
			werr = x.front.flush() // there is no more at the moment
		}
		switch {
		case werr != nil:
			return x.gone()
		case err == io.EOF:
			return nil
		case err != nil:
			return a.truncation(err)
		}
		a.extend()
		n, err = resp.Body.Read(buffer[:])
		a.inTime()
	}
}

// relayStream relays a body as it comes, and its trailer.
func (x *exchange) relayStream(a *attempt, resp *http.Response) *problem {
	buffer := buffers.Get().(*[copySize]byte)
	defer buffers.Put(buffer)
	old := !x.r.ProtoAtLeast(1, 1) // only a reset tells it that a body without a length breaks off
	if old {
		wire.SetTorn(x.r, true)
	}
	x.writeHead(resp)
	werr := x.front.flush()
	for werr == nil {
		n, err := resp.Body.Read(buffer[:])
		if n > 0 {
			if _, werr = x.front.Write(buffer[:n]); werr == nil {
				werr = x.front.flush()
			}
		}
		switch {
		case werr != nil:
		case err == io.EOF:
			copyTrailer(x.front.Header(), resp.Trailer, http.TrailerPrefix)
			if old {
				wire.SetTorn(x.r, false)
			}
			return nil
		case err != nil:
			return a.truncation(err)
		}
	}
	return x.gone()
}
