package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestReadValueTakesExactlyOneValue(t *testing.T) {
	for _, value := range []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n",
		"$3\r\na\r\n\r\n", "$0\r\n\r\n", "$-1\r\n", "!3\r\nERR\r\n", "=5\r\ntxt:a\r\n",
		"*0\r\n", "*-1\r\n", "*2\r\n:1\r\n*1\r\n$1\r\na\r\n", "~1\r\n:1\r\n", ">2\r\n+a\r\n+b\r\n",
		"%1\r\n+k\r\n:1\r\n", "|1\r\n+ttl\r\n:9\r\n*1\r\n:1\r\n",
	} {
		r := bufio.NewReader(strings.NewReader(value + "+NEXT\r\n"))
		if got, err := readValue(r); err != nil || string(got) != value {
			t.Errorf("%q: got %q, %v", value, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "+NEXT\r\n" {
			t.Errorf("%q leaves %q", value, rest)
		}
	}
}

func TestReadValueRefuses(t *testing.T) {
	for name, value := range map[string]string{
		"unknown type":   "?1\r\n",
		"empty line":     "\r\n",
		"no number":      "$x\r\n",
		"huge number":    "$99999999999999999999\r\n",
		"nested forever": strings.Repeat("*1\r\n", 1000) + ":1\r\n",
	} {
		if got, err := readValue(bufio.NewReader(strings.NewReader(value))); !errors.Is(err, errProtocol) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	for _, cut := range []string{"", "+OK", "$5\r\nab", "*2\r\n:1\r\n", "$2147483647\r\nab"} {
		if got, err := readValue(bufio.NewReader(strings.NewReader(cut))); err == nil {
			t.Errorf("%q is cut short, but gives %q", cut, got)
		}
	}
}

func TestReadCommandNames(t *testing.T) {
	for raw, want := range map[string]string{
		"*2\r\n$3\r\nget\r\n$1\r\nk\r\n": "GET",
		"*1\r\n$4\r\nPING\r\n":           "PING",
		"ping\r\n":                       "PING",
		" Ping hello\r\n":                "PING",
		"\r\n":                           "",
		"*0\r\n":                         "",
	} {
		name, got, err := readCommand(bufio.NewReader(strings.NewReader(raw)))
		if err != nil || name != want || string(got) != raw {
			t.Errorf("%q: got %q, %q, %v, want the name %q", raw, name, got, err, want)
		}
	}
}

func FuzzReadValue(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nget\r\n|1\r\n+a\r\n:1\r\n%1\r\n_\r\n#t\r\n"))
	f.Add([]byte("$2147483647\r\n"))
	f.Add([]byte("*2147483647\r\n*-1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readValue(bufio.NewReader(bytes.NewReader(in)))
		if !bytes.HasPrefix(in, got) {
			t.Fatalf("%q is not the start of %q", got, in)
		}
		if err != nil {
			return
		}
		again, err := readValue(bufio.NewReader(bytes.NewReader(got)))
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("%q read again: %q, %v", got, again, err)
		}
	})
}
