package wire

import "math"

// body is where in a body a scanner is.
type body struct {
	left   int64 // of it, or of the chunk
	digits int   // of the chunk's size that were there
	line   int   // bytes of the line with the chunk's size
	excess int64 // see tooChatty
	// trailer and fields are how many bytes and lines of the trailer there were.
	trailer, fields int
}

const (
	maxDigits    = 16
	maxChunkLine = 1 << 10
	maxExcess    = 16 << 10
	maxTrailer   = 4000 // net/http takes no more than its buffer has, 4096
)

// skip passes over up to n bytes, and returns how many they are.
func (b *body) skip(n int) int {
	n = int(min(int64(n), b.left))
	b.left -= int64(n)
	return n
}

// scanChunks looks at a body in chunks, of which phase p was reached. It returns
// how much of b is well, the phase that is reached then, inHead after its end, and
// whether that is all, or the body ends there.
func (b *body) scanChunks(p phase, data []byte, fields int) (n int, next phase, ok bool) {
	for n < len(data) {
		if p == inData {
			n += b.skip(len(data) - n)
			if b.left == 0 {
				p = inDataCR
			}
			continue
		}
		next, ok := b.step(p, data[n], fields)
		if !ok {
			return n, p, false
		}
		n++
		p = next
		if p == inHead {
			break
		}
	}
	return n, p, true
}

// step is what comes after c in a phase of a body in chunks, data aside; inHead
// stands for its end.
func (b *body) step(p phase, c byte, fields int) (next phase, ok bool) {
	switch p {
	case inSize, inExt, inSizeLF:
		b.line++
		return b.stepSize(p, c)
	case inDataCR:
		return inDataLF, c == '\r'
	case inDataLF:
		b.digits, b.line, b.left = 0, 0, 0
		return inSize, c == '\n'
	default:
		b.trailer++
		next, ok = stepTrailer(p, c)
		if next == inValueLF {
			b.fields++
		}
		return next, ok && b.trailer <= maxTrailer && b.fields <= fields
	}
}

// stepSize is step in the line with a chunk's size. Neither spaces nor quoted
// line ends are taken.
func (b *body) stepSize(p phase, c byte) (next phase, ok bool) {
	switch {
	case p == inSizeLF:
		if c != '\n' || b.tooChatty() {
			return 0, false
		}
		if b.left == 0 {
			return inTrailer, true
		}
		return inData, true
	case c == '\r':
		return inSizeLF, b.digits > 0
	case p == inExt:
		return inExt, classes[c]&inFieldValue != 0 && b.line <= maxChunkLine
	case c == ';':
		return inExt, b.digits > 0
	}
	d, ok := hexDigit(c)
	b.digits++
	if !ok || b.digits > maxDigits || b.left > math.MaxInt64>>5 {
		return 0, false
	}
	b.left = b.left<<4 | int64(d)
	return inSize, true
}

// tooChatty reports that the lines with sizes are long for what they bring. It
// counts like net/http, which takes no more.
func (b *body) tooChatty() bool {
	b.excess = max(0, b.excess+int64(b.line)-16-2*min(b.left, maxExcess))
	return b.excess > maxExcess
}

// stepTrailer is step in the trailer.
func stepTrailer(p phase, c byte) (next phase, ok bool) {
	switch p {
	case inTrailer:
		if c == '\r' {
			return inLastLF, true
		}
		return inName, classes[c]&inToken != 0
	case inName:
		if c == ':' {
			return inValue, true
		}
		return inName, classes[c]&inToken != 0
	case inValue:
		if c == '\r' {
			return inValueLF, true
		}
		return inValue, classes[c]&inFieldValue != 0
	case inValueLF:
		return inTrailer, c == '\n'
	default: // inLastLF
		return inHead, c == '\n'
	}
}

// poison is what fails for certain in net/http after what has passed of a body in
// chunks, up to a phase. Without it, it would wait for more.
func poison(p phase) []byte {
	switch p {
	case inSize, inExt:
		return []byte("\n") // a line with no CR
	case inSizeLF:
		return []byte("\r\n") // a line with two
	case inDataCR, inDataLF:
		return []byte("!!")
	default:
		// No line of a trailer may have this, neither in its name nor in its value.
		// It looks only when it sees an end.
		return []byte("\x00\r\n\r\n")
	}
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	default:
		return 0, false
	}
}
