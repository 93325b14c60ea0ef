package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// entry is one line of a log.
type entry struct {
	time     int64 // microseconds since 1970
	tenant   string
	endpoint string // only in JSON, where it is there
	peer     string // the client's address
	method   string
	path     string
}

// maxLogLine is far beyond any line of a log.
const maxLogLine = 1 << 20

// misread is what of a log was not understood.
type misread struct {
	lines int
	first int   // the first of them, from 1
	why   error // of that
}

// readLog reads a log: lines of JSON, or of the common or combined format. It
// passes each entry on; a line that is too long ends it.
func readLog(r io.Reader, each func(entry)) (misread, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLogLine)
	var bad misread
	for n := 1; lines.Scan(); n++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		e, err := parseLine(text)
		if err == nil {
			each(e)
			continue
		}
		if bad.lines++; bad.lines == 1 {
			bad.first, bad.why = n, err
		}
	}
	return bad, lines.Err()
}

// parseLine reads one line, which is JSON if it begins as an object does.
func parseLine(text []byte) (entry, error) {
	if text[0] == '{' {
		return parseJSONLine(text)
	}
	return parseCombined(string(text))
}

// parseJSONLine reads {"time": ..., "tenant": ..., "endpoint": ...}. The time is
// RFC 3339, or seconds since 1970.
func parseJSONLine(text []byte) (entry, error) {
	var line struct {
		Time     json.RawMessage `json:"time"`
		Tenant   string          `json:"tenant"`
		Endpoint string          `json:"endpoint"`
		Peer     string          `json:"peer"`
		Method   string          `json:"method"`
		Path     string          `json:"path"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return entry{}, errors.New("not a JSON object with time, tenant and endpoint")
	}
	at, err := parseTime(line.Time)
	if err != nil {
		return entry{}, err
	}
	return entry{time: at, tenant: line.Tenant, endpoint: line.Endpoint, peer: line.Peer, method: line.Method, path: line.Path}, nil
}

var errTime = errors.New("time must be as in \"2026-03-01T12:00:00.5Z\", or seconds since 1970")

func parseTime(raw json.RawMessage) (int64, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return 0, errTime
		}
		return microOf(t)
	}
	seconds, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || !(seconds >= 0 && seconds < float64(maxTime)/1e6) {
		return 0, errTime
	}
	return int64(math.Round(seconds * 1e6)), nil
}

// maxTime is the last instant that the arithmetic takes, in the year 2112.
const maxTime = 1 << 52

func microOf(t time.Time) (int64, error) {
	if t.Year() < 1970 || t.UnixMicro() < 0 || t.UnixMicro() >= maxTime {
		return 0, errTime
	}
	return t.UnixMicro(), nil
}

var errCombined = errors.New(`not a line like: host - user [10/Oct/2026:13:55:36 +0000] "GET /path HTTP/1.1" 200 2326`)

// parseCombined reads the common log format of web servers, and the combined
// one, which adds to it. What comes behind the request is not looked at.
// https://httpd.apache.org/docs/2.4/logs.html#accesslog
func parseCombined(line string) (entry, error) {
	before, rest, ok := strings.Cut(line, " [")
	words := strings.Fields(before)
	if !ok || len(words) < 3 {
		return entry{}, errCombined
	}
	stamp, rest, ok := strings.Cut(rest, "] \"")
	if !ok {
		return entry{}, errCombined
	}
	t, err := time.Parse("02/Jan/2006:15:04:05 -0700", stamp)
	if err != nil {
		return entry{}, errCombined
	}
	at, err := microOf(t)
	if err != nil {
		return entry{}, err
	}
	request, ok := quotedText(rest)
	if !ok {
		return entry{}, errCombined
	}
	e := entry{time: at, peer: words[0]}
	// A user's name may have spaces; servers do not quote it.
	if user := strings.Join(words[2:], " "); user != "-" {
		e.tenant = user
	}
	// Not every request is one: a scanner sends anything, and it is logged.
	if parts := strings.Split(request, " "); len(parts) >= 2 {
		e.method, e.path = parts[0], parts[1]
	}
	return e, nil
}

// quotedText is the text before the next quote that no backslash is before.
func quotedText(s string) (string, bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], true
		}
	}
	return "", false
}

// routes says to which endpoint a request goes, as a server's mux does.
type routes struct {
	mux      *http.ServeMux
	endpoint map[string]string // by the pattern
}

// newRoutes takes "PATTERN=ENDPOINT", with the patterns of net/http.ServeMux.
func newRoutes(maps []string) (r *routes, err error) {
	r = &routes{mux: http.NewServeMux(), endpoint: map[string]string{}}
	for _, m := range maps {
		i := strings.LastIndexByte(m, '=')
		if i < 0 {
			return nil, errors.New("-map must be PATTERN=ENDPOINT, as in 'POST /export=billing.export'")
		}
		if err := r.add(m[:i], m[i+1:]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *routes) add(pattern, endpoint string) (err error) {
	defer func() {
		if recover() != nil { // how ServeMux says it
			err = errors.New("-map " + strconv.Quote(pattern) + ": not a pattern of net/http.ServeMux, as in 'POST /export/{id}', or one that contradicts another")
		}
	}()
	r.mux.Handle(pattern, http.NotFoundHandler())
	r.endpoint[pattern] = endpoint
	return nil
}

// of returns the endpoint of a request, "" if none is.
func (r *routes) of(method, path string) string {
	req, err := http.NewRequest(method, path, nil) //nolint:noctx // It is not sent.
	if err != nil || !strings.HasPrefix(path, "/") {
		return ""
	}
	_, pattern := r.mux.Handler(req)
	return r.endpoint[pattern]
}
