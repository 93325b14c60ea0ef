package sentinel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The configuration is read as tokens and not into structs, because
// encoding/json then takes the last of two equal names without a word, matches
// names in any case, mends broken text silently, and quotes the file in its
// errors.

// jsonKind is what a JSON value is.
type jsonKind string

const (
	jsonNull   jsonKind = "null"
	jsonBool   jsonKind = "a boolean"
	jsonNumber jsonKind = "a number"
	jsonString jsonKind = "a string"
	jsonArray  jsonKind = "a list"
	jsonObject jsonKind = "an object"
)

// jsonValue is a JSON value with nothing lost: numbers as they were written,
// members in order and duplicates among them.
type jsonValue struct {
	kind    jsonKind
	text    string       // of a string, unescaped; of a number or boolean, as written
	items   []jsonValue  // of an array
	members []jsonMember // of an object
}

type jsonMember struct {
	name  string
	at    int // offset of the name
	value jsonValue
}

// not says that v should have been something else.
func (v jsonValue) not(wanted string) string {
	return "must be " + wanted + ", not " + string(v.kind)
}

// maxJSONDepth is far beyond what a configuration needs and far below what the
// stack bears.
const maxJSONDepth = 32

// jsonError is where and why a text is no JSON. It holds none of the text.
type jsonError struct {
	line, column int // from 1; the column in characters
	text         string
}

func (e jsonError) Error() string {
	return "line " + strconv.Itoa(e.line) + ", column " + strconv.Itoa(e.column) + ": " + e.text
}

// lineAndColumn says where offset at is, both counted from 1.
func lineAndColumn(data []byte, at int) (line, column int) {
	before := data[:min(at, len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[start:]) + 1
}

// parseJSON reads exactly one JSON value: UTF-8 without a byte order mark,
// nothing behind the value.
func parseJSON(data []byte) (jsonValue, error) {
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return jsonValue{}, jsonErrorAt(data, 0, "begins with a byte order mark; save the file as UTF-8 without one")
	}
	if at := invalidUTF8(data); at >= 0 {
		return jsonValue{}, jsonErrorAt(data, at, "is not UTF-8 here")
	}
	p := jsonParser{data: data, tokens: json.NewDecoder(bytes.NewReader(data))}
	p.tokens.UseNumber() // as written, never through a float
	v := p.value(0)
	if p.problem == nil {
		end := p.start()
		if _, err := p.tokens.Token(); !errors.Is(err, io.EOF) {
			p.failAt(end, "has something behind its end")
		}
	}
	if p.problem != nil {
		return jsonValue{}, p.problem
	}
	return v, nil
}

func jsonErrorAt(data []byte, at int, text string) error {
	line, column := lineAndColumn(data, at)
	return jsonError{line: line, column: column, text: text}
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
	return -1
}

// jsonParser builds values from the tokens of encoding/json. After the first
// problem every method returns at once.
type jsonParser struct {
	data    []byte
	tokens  *json.Decoder
	problem error
}

// start is the offset of the next token.
func (p *jsonParser) start() int {
	at := int(p.tokens.InputOffset())
	for at < len(p.data) && strings.IndexByte(" \t\r\n,:", p.data[at]) >= 0 {
		at++
	}
	return at
}

func (p *jsonParser) fail(text string) { p.failAt(p.start(), text) }

func (p *jsonParser) failAt(at int, text string) {
	if p.problem == nil {
		p.problem = jsonErrorAt(p.data, at, text)
	}
}

// quotedCharacter is where an error of encoding/json quotes the file, which
// may hold a credential.
var quotedCharacter = regexp.MustCompile(`(?s)^invalid character '.*'`)

// token returns the next token, or nil after a problem; the token of null is
// nil as well.
func (p *jsonParser) token() json.Token {
	if p.problem != nil {
		return nil
	}
	at := p.start()
	token, err := p.tokens.Token()
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		if text, ok := token.(string); ok && strings.ContainsRune(text, utf8.RuneError) {
			// What encoding/json makes of half a surrogate pair: one text of many.
			p.failAt(at, "holds a character that is no character")
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		p.failAt(at, "ends too early")
	case errors.As(err, &syntax):
		at = max(at, int(syntax.Offset)-1)
		p.failAt(at, "is not JSON: "+p.advice(at, syntax))
	default:
		p.failAt(at, "cannot be read")
	}
	return token
}

// advice is what a person most likely did, else what encoding/json says.
func (p *jsonParser) advice(at int, syntax *json.SyntaxError) string {
	text := quotedCharacter.ReplaceAllString(syntax.Error(), "unexpected character")
	if at >= len(p.data) {
		return text
	}
	before := bytes.TrimRight(p.data[:at], " \t\r\n")
	switch {
	case p.data[at] == '/' || p.data[at] == '#':
		return "it has no comments"
	case bytes.HasSuffix(before, []byte(",")) && strings.IndexByte("}],", p.data[at]) >= 0:
		return "there is a comma too many before this"
	case len(before) < at && (strings.Contains(text, "after object key:value pair") || strings.Contains(text, "after array element")):
		return "a comma is missing before this"
	default:
		return text
	}
}

func (p *jsonParser) value(depth int) jsonValue {
	if depth > maxJSONDepth {
		p.fail("is nested too deeply")
	}
	switch token := p.token().(type) {
	case json.Delim:
		if token == '{' {
			return p.object(depth)
		}
		return p.array(depth)
	case string:
		return jsonValue{kind: jsonString, text: token}
	case json.Number:
		return jsonValue{kind: jsonNumber, text: token.String()}
	case bool:
		return jsonValue{kind: jsonBool, text: fmt.Sprint(token)}
	default:
		return jsonValue{kind: jsonNull}
	}
}

// more reports whether the object or list goes on, and takes its end if not.
func (p *jsonParser) more() bool {
	if p.problem == nil && p.tokens.More() {
		return true
	}
	p.token()
	return false
}

func (p *jsonParser) object(depth int) jsonValue {
	v := jsonValue{kind: jsonObject}
	for p.more() {
		m := jsonMember{at: p.start()}
		m.name, _ = p.token().(string)
		m.value = p.value(depth + 1)
		v.members = append(v.members, m)
	}
	return v
}

func (p *jsonParser) array(depth int) jsonValue {
	v := jsonValue{kind: jsonArray}
	for p.more() {
		v.items = append(v.items, p.value(depth+1))
	}
	return v
}
