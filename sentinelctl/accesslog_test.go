package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseLine(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for line, want := range map[string]entry{
		`10.0.0.1 - acme [01/Mar/2026:13:00:00 +0100] "GET /a?b=c HTTP/1.1" 200 1`:     {time: noon, tenant: "acme", peer: "10.0.0.1", method: "GET", path: "/a?b=c"},
		`::1 - a b [01/Mar/2026:12:00:00 +0000] "GET / HTTP/2.0" 200 - "a \"b" "c"`:    {time: noon, tenant: "a b", peer: "::1", method: "GET", path: "/"},
		`h - - [01/Mar/2026:12:00:00 +0000] "\x16" 400 0`:                              {time: noon, peer: "h"},
		`{"time": "2026-03-01T12:00:00.000001Z", "tenant": "a", "endpoint": "b"}`:      {time: noon + 1, tenant: "a", endpoint: "b"},
		`{"time": 1772366400.5, "tenant": "a", "method": "GET", "path": "/", "x": {}}`: {time: noon + 500_000, tenant: "a", method: "GET", path: "/"},
	} {
		if got, err := parseLine([]byte(line)); err != nil || got != want {
			t.Errorf("%s:\n%+v, %v; want\n%+v", line, got, err, want)
		}
	}
	for _, line := range []string{
		"x", `{"time": 1`, `{"tenant": "a"}`, `{"time": -1}`, `{"time": 1e300}`, `{"time": "1969-12-31T23:59:59Z"}`, `{"time": "3000-01-01T00:00:00Z"}`,
		`h - - [01/Mar/2026:12:00:00 +0000] GET /`, `h - - [1 March] "GET / HTTP/1.1"`, `h [01/Mar/2026:12:00:00 +0000] "GET /"`, `h - - [01/Mar/2026:12:00:00 +0000] "GET /`,
	} {
		if got, err := parseLine([]byte(line)); err == nil {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func TestRoutes(t *testing.T) {
	r, err := newRoutes([]string{"POST /export/{id}=export", "/=rest", "GET /search=search"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, path, want string }{
		{"POST", "/export/7?a=b", "export"},
		{"GET", "/export/7", "rest"},
		{"GET", "/search", "search"},
		{"POST", "/export/7/8", "rest"},
		{"", "", ""},
		{"GE T", "/search", ""},
		{"OPTIONS", "*", ""},
		{"CONNECT", "host:443", ""},
		{"GET", "http://a/search", ""},
	} {
		if got := r.of(c.method, c.path); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.method, c.path, got, c.want)
		}
	}
}

// A line is refused or holds a time that the arithmetic takes; and one that we
// write is read as it was meant.
func FuzzParseLine(f *testing.F) {
	f.Add(`10.0.0.1 - acme [01/Mar/2026:13:00:00 +0100] "GET /a HTTP/1.1" 200 1 "-" "x"`, int64(1))
	f.Add(`{"time": "2026-03-01T12:00:00Z", "tenant": "a", "endpoint": "b"}`, int64(1772366400))
	f.Add(`{"time": 1e15}`, int64(4e9))
	routes, err := newRoutes([]string{"POST /export/{id}=export", "/=rest"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string, at int64) {
		_, _ = readLog(strings.NewReader(line), func(e entry) {
			if e.time < 0 || e.time > maxTime {
				t.Errorf("%q: the time %d", line, e.time)
			}
			routes.of(e.method, e.path)
		})
		at = max(0, min(at, maxTime/1_000_000-1))
		stamp := time.Unix(at, 0).UTC().Format("02/Jan/2006:15:04:05 -0700")
		user := strings.Join(strings.FieldsFunc(line, func(r rune) bool { return r <= ' ' || r == '[' || r > '~' }), "")
		if user == "" || user == "-" {
			user = "u"
		}
		got, err := parseLine(fmt.Appendf(nil, "h - %s [%s] \"GET /p HTTP/1.1\" 200 1", user, stamp))
		if want := (entry{time: at * 1_000_000, tenant: user, peer: "h", method: "GET", path: "/p"}); err != nil || got != want {
			t.Errorf("user %q at %d: %+v, %v", user, at, got, err)
		}
	})
}

// A line that is too long ends the reading with an error, not in silence.
func TestLongLine(t *testing.T) {
	if _, err := readLog(bytes.NewReader(bytes.Repeat([]byte("x"), maxLogLine+1)), func(entry) {}); err == nil {
		t.Error("no error")
	}
}
