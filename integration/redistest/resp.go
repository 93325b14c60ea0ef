package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxDepth bounds the nesting of a value, and with it this parser's stack.
const maxDepth = 32

// errProtocol: the bytes are not RESP.
var errProtocol = errors.New("redistest: not RESP")

// readValue reads one whole RESP2 or RESP3 value, aggregates with all that they
// contain, and returns its bytes as they were sent.
func readValue(r *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	err := copyValue(&raw, r, 0)
	return raw.Bytes(), err
}

// copyValue appends the next value of r to dst. It stores no more than arrives,
// whatever length a header claims.
func copyValue(dst *bytes.Buffer, r *bufio.Reader, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested too deep", errProtocol)
	}
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	dst.Write(line)
	head := strings.TrimRight(string(line), "\r\n")
	if head == "" {
		return fmt.Errorf("%w: an empty line", errProtocol)
	}
	switch head[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return nil
	}
	n, err := strconv.ParseInt(head[1:], 10, 32)
	if err != nil {
		return fmt.Errorf("%w: %q", errProtocol, head)
	}
	switch head[0] {
	case '$', '!', '=':
		if n < 0 {
			return nil // a null
		}
		_, err := io.CopyN(dst, r, n+int64(len("\r\n")))
		return err
	case '*', '~', '>':
	case '%':
		n *= 2
	case '|':
		n = 2*n + 1 // the attributes, then the value that they belong to
	default:
		return fmt.Errorf("%w: %q", errProtocol, head)
	}
	for range n { // none for a null, which has -1
		if err := copyValue(dst, r, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// readCommand reads one command, an array or an inline line, and returns its
// upper-case name and its bytes as they were sent.
func readCommand(r *bufio.Reader) (name string, raw []byte, err error) {
	first, err := r.Peek(1)
	if err != nil {
		return "", nil, err
	}
	if first[0] != '*' {
		raw, err = r.ReadBytes('\n')
		if fields := bytes.Fields(raw); err == nil && len(fields) > 0 {
			name = strings.ToUpper(string(fields[0]))
		}
		return name, raw, err
	}
	if raw, err = readValue(r); err != nil {
		return "", nil, err
	}
	// "*2\r\n$3\r\nGET\r\n...": the name is the third line.
	if lines := bytes.SplitN(raw, []byte("\r\n"), 4); len(lines) == 4 {
		name = strings.ToUpper(string(lines[2]))
	}
	return name, raw, nil
}
