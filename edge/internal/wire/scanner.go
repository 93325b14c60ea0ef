package wire

import "strings"

// phase is what a scanner expects.
type phase uint8

const (
	idle phase = iota // of a backend: no response has begun
	inHead
	inBody    // of a known length
	inSize    // the digits of a chunk's
	inExt     // what may stand behind them
	inSizeLF  // the LF of that line
	inData    // of a chunk
	inDataCR  // the CR behind a chunk
	inDataLF  // and its LF
	inTrailer // a line of the trailer, at its beginning
	inName    // the name in such a line
	inValue   // its value
	inValueLF // its LF
	inLastLF  // the LF of the empty line
	undecided // HTTP, or whatever the handler makes of it
	opaque    // not HTTP/1: everything passes
	over      // nothing passes any more
)

// preface is how HTTP/2 begins.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// scanner follows the requests of one connection, whose bytes it is shown in
// order. It keeps none of them.
type scanner struct {
	limits   *Limits
	phase    phase
	first    bool  // no request has passed
	requests int64 // that have passed, at least with their heads
	head     head
	body     body
	// instead is set when something was refused, for the caller to take.
	instead []byte
}

// scan looks at b, whose first byte is the first that has not passed yet, and
// returns how many bytes pass. The others it wants to see again with what comes
// after them, unless the scanner is over. If empty is set, they begin with an
// empty line that has to be taken out before.
func (s *scanner) scan(b []byte) (n int, empty bool) {
	for {
		switch s.phase {
		case inHead:
			passed, empty := s.scanHead(b[n:])
			if passed == 0 && s.phase != opaque {
				return n, empty
			}
			n += passed
		case inBody:
			n += s.body.skip(len(b) - n)
			if s.body.left > 0 {
				return n, false
			}
			s.end()
		case opaque:
			return len(b), false
		case undecided, over:
			return n, false
		default:
			passed, next, ok := s.body.scanChunks(s.phase, b[n:], s.limits.HeaderFields)
			n += passed
			s.phase = next
			if next == inHead {
				s.end()
			}
			if !ok {
				s.instead = poison(s.phase)
				s.phase = over
			}
			if s.phase != inHead && s.phase != undecided {
				return n, false
			}
		}
	}
}

// scanHead looks at a head. It returns its length if it is whole and may pass.
func (s *scanner) scanHead(b []byte) (n int, empty bool) {
	if s.first && !s.head.afterEmpty && len(b) > 0 && strings.HasPrefix(preface, string(b[:min(len(b), len(preface))])) {
		if len(b) >= len(preface) {
			s.phase = opaque
		}
		return 0, false
	}
	end, f := s.head.scan(b, s.limits)
	switch {
	case f != noFault:
		s.instead = f.head(s.head.ofHead)
		s.phase = over
		return 0, false
	case s.head.empty:
		s.head = head{afterEmpty: true}
		return 0, true
	case end == 0:
		return 0, false
	}
	s.begin()
	return end, false
}

// begin goes on after a head to the body.
func (s *scanner) begin() {
	s.first = false
	s.requests++
	switch {
	case s.head.chunked:
		s.phase, s.body = inSize, body{}
	case s.head.length > 0:
		s.phase, s.body = inBody, body{left: s.head.length}
	default:
		s.end()
	}
}

// end goes on to what comes after a request.
func (s *scanner) end() {
	s.phase = inHead
	if s.head.switches {
		s.phase = undecided
	}
	s.head = head{}
}
