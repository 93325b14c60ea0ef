package router

// A path is matched in an alphabet of its own. A byte that stands for itself is
// itself. An encoded slash belongs to its segment, and an encoded percent sign
// begins no escape, so both get bytes that no path may have in the raw. What
// decodes to another control byte matches no pattern's text.
const (
	encodedSlash   = 0x00
	encodedPercent = 0x01
	encodedControl = 0x02
)

// Why a path is refused.
const (
	whyNoSlash   = "the path does not begin with /"
	whyControl   = "the path has a control byte"
	whyNUL       = "the path has an encoded NUL"
	whyBackslash = `the path has a \, plain or encoded`
	whyEscape    = "the path has a % without two hexadecimal digits"
	whyDots      = "the path has a segment . or .., plain or encoded"
)

// suspect marks the bytes that need a second look.
var suspect = func() (t [256]bool) {
	for c := range 0x20 {
		t[c] = true
	}
	for _, c := range []byte{0x7f, '\\', '%', '.'} {
		t[c] = true
	}
	return t
}()

// stop marks the bytes that a plain segment does not have: the suspect ones, but for
// the dot, and the slash behind it.
var stop = func() [256]bool {
	t := suspect
	t['.'], t['/'] = false, true
	return t
}()

// inspect says what is wrong with a path, "" if nothing is, and whether it has escapes.
func inspect(path string) (why string, escaped bool) {
	for i := range len(path) {
		if !suspect[path[i]] {
			continue
		}
		switch path[i] {
		case '.':
			if i > 0 && path[i-1] == '/' && dotSegment(path[i:]) {
				return whyDots, false
			}
		case '%':
			return inspectEscaped(path), true
		case '\\':
			return whyBackslash, false
		default:
			return whyControl, false
		}
	}
	return "", false
}

// dotSegment reports whether text begins with a segment . or .., be it with
// parameters behind a semicolon, which some servers take off first.
func dotSegment(text string) bool {
	n := 1
	if len(text) > 1 && text[1] == '.' {
		n = 2
	}
	return len(text) == n || text[n] == '/' || text[n] == ';'
}

// inspectEscaped is inspect for a path with escapes. For dots an encoded slash
// parts segments too: there are servers that decode first.
func inspectEscaped(path string) (why string) {
	const other = 3
	dots := other // of the segment so far: how many, if it is made of nothing else
	for i := 0; i < len(path); {
		c, width := unescape(path, i)
		switch {
		case width == 0:
			return whyEscape
		case c == 0 && width > 1:
			return whyNUL
		case c == '\\':
			return whyBackslash
		case width == 1 && (c < 0x20 || c == 0x7f):
			return whyControl
		}
		switch {
		case (c == '/' || c == ';') && (dots == 1 || dots == 2):
			return whyDots
		case c == '/':
			dots = 0
		case c == '.' && dots < other:
			dots++
		default:
			dots = other
		}
		i += width
	}
	if dots == 1 || dots == 2 {
		return whyDots
	}
	return ""
}

// unescape returns the byte at i and how many bytes it takes in the path, 0 if
// they are a bad escape.
func unescape(path string, i int) (c byte, width int) {
	if path[i] != '%' {
		return path[i], 1
	}
	if i+2 >= len(path) {
		return 0, 0
	}
	high, low := hexDigit(path[i+1]), hexDigit(path[i+2])
	if high > 15 || low > 15 {
		return 0, 0
	}
	return high<<4 | low, 3
}

// hexDigit returns the digit's value, and more than 15 for what is none.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	default:
		return 0xff
	}
}

// symbol is the byte at i, of a path that inspect lets through, in the alphabet
// of matching.
func symbol(path string, i int) (c byte, width int) {
	c, width = unescape(path, i)
	if width == 1 {
		return c, 1
	}
	switch {
	case c == '/':
		return encodedSlash, width
	case c == '%':
		return encodedPercent, width
	case c < 0x20 || c == 0x7f:
		return encodedControl, width
	default:
		return c, width
	}
}

// decode returns a text of a good path without its escapes.
func decode(text string) string {
	i := 0
	for i < len(text) && text[i] != '%' {
		i++
	}
	if i == len(text) {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:i]...)
	for i < len(text) {
		c, width := unescape(text, i)
		out = append(out, c)
		i += max(width, 1)
	}
	return string(out)
}
