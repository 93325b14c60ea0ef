package wiretest

import (
	"fmt"
	"strings"
	"testing"
)

// A limit lets through what is as long as it may be, and nothing that is longer.
func TestLimitsAreExact(t *testing.T) {
	s := newStage(t, ", max_header_bytes: 1024, max_header_fields: 12, max_url_bytes: 200")
	fill := func(request string, length int) string { // up to a length of the head
		return strings.Replace(request, "FILL", strings.Repeat("x", length-len(request)+len("FILL")), 1)
	}
	fields := func(n int) string {
		return "GET /a/x HTTP/1.1\r\nHost: edge\r\n" + strings.Repeat("A: b\r\n", n-1) + "\r\n"
	}
	target := func(n int) string {
		return "GET /a/" + strings.Repeat("x", n-len("/a/")) + " HTTP/1.1\r\nHost: edge\r\n\r\n"
	}
	body := func(n int) string {
		return fmt.Sprintf("POST /a/x HTTP/1.1\r\nHost: edge\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("x", n))
	}
	chunks := func(n int) string {
		return fmt.Sprintf("POST /a/x HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n, strings.Repeat("x", n))
	}
	const padded = "GET /a/x HTTP/1.1\r\nHost: edge\r\nX: FILL\r\n\r\n"
	for name, c := range map[string]struct{ at, beyond, want string }{
		"header":             {fill(padded, 1024), fill(padded, 1025), "431:header_too_large"},
		"fields":             {fields(12), fields(13), "431:header_too_large"},
		"URL":                {target(200), target(201), "414:header_too_large"},
		"query":              {strings.Replace(target(200), "xxx", "x?x", 1), strings.Replace(target(201), "xxx", "x?x", 1), "414:header_too_large"},
		"body":               {body(65536), body(65537), "413:body_too_large"},
		"body in a chunk":    {chunks(65536), chunks(65537), "413:body_too_large"},
		"body that is kept":  {"PUT" + body(65536)[4:], "PUT" + body(65537)[4:], "413:body_too_large"},
		"chunk that is kept": {"PUT" + chunks(65536)[4:], "PUT" + chunks(65537)[4:], "413:body_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			if answers, got := s.exchange(t, []byte(c.at), most); answersText(answers) != "200" || len(got) != 1 {
				t.Errorf("at the limit: %v", answers)
			}
			if answers, got := s.exchange(t, []byte(c.beyond), most); answersText(answers) != c.want || len(got) != 0 {
				t.Errorf("beyond it: %v, want %s", answers, c.want)
			}
		})
	}
}
