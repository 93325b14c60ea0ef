package wiretest

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
)

// The types of frames of HTTP/2, and their flags.
const (
	dataFrame, headersFrame, resetFrame, settingsFrame, goawayFrame = 0, 1, 3, 4, 7

	endStream, endHeaders = 1, 4
)

// frame is one of stream 1, or of the connection for settings.
func frame(kind, flags byte, payload string) string {
	stream := byte(1)
	if kind == settingsFrame {
		stream = 0
	}
	return string([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, stream}) + payload
}

// block is fields, each as name=value, none shorter or longer than it stands there.
func block(fields []string) string {
	var b strings.Builder
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		b.WriteByte(0) // a literal that is not to be remembered
		for _, s := range []string{name, value} {
			b.WriteByte(byte(len(s))) // less than 127
			b.WriteString(s)
		}
	}
	return b.String()
}

// answered sends a request of HTTP/2, and waits for what comes of it: a whole answer, a
// reset, or the end of the connection.
func (e *edge) answered(t *testing.T, fields []string, body string, trailer []string) {
	t.Helper()
	c, r := e.dial(t)
	raw := preface + frame(settingsFrame, 0, "")
	switch {
	case body == "" && trailer == nil:
		raw += frame(headersFrame, endHeaders|endStream, block(fields))
	case trailer == nil:
		raw += frame(headersFrame, endHeaders, block(fields)) + frame(dataFrame, endStream, body)
	default:
		raw += frame(headersFrame, endHeaders, block(fields)) + frame(dataFrame, 0, body) + frame(headersFrame, endHeaders|endStream, block(trailer))
	}
	_, _ = io.WriteString(c, raw)
	var head [9]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		switch length := binary.BigEndian.Uint32(head[:4]) >> 8; head[3] {
		case resetFrame, goawayFrame:
			return
		case headersFrame, dataFrame: // the first may be a 100
			if head[4]&endStream != 0 {
				return
			}
			fallthrough
		default:
			_, _ = io.CopyN(io.Discard, r, int64(length))
		}
	}
}

// What HTTP/2 can say, and HTTP/1 cannot, or in two ways, does not get to a backend,
// which has HTTP/1; what gets there is what was sent.
func TestHTTP2AsHTTP1(t *testing.T) {
	s := newStage(t, "")
	const method, path, scheme, host = ":method=POST", ":path=/a/x?y", ":scheme=http", ":authority=edge"
	with := func(more ...string) []string { return append([]string{method, path, scheme, host}, more...) }
	without := func(all []string, old, instead string) []string {
		var left []string
		for _, f := range all {
			if f == old {
				f = instead
			}
			if f != "" {
				left = append(left, f)
			}
		}
		return left
	}
	const smuggled = "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: edge\r\n\r\n"
	for name, c := range map[string]struct {
		fields  []string
		body    string
		trailer []string
		passes  bool
	}{
		"plain":                         {with(), "", nil, true},
		"body":                          {with(), "hello", nil, true},
		"length":                        {with("content-length=5"), "hello", nil, true},
		"trailer":                       {with("trailer=x-sum"), "hello", []string{"x-sum=42"}, true},
		"trailer with length":           {with(), "hello", []string{"content-length=99", "x-sum=42"}, true},
		"trailer with coding":           {with(), "hello", []string{"transfer-encoding=chunked"}, true},
		"body like a request":           {with(), smuggled, nil, true},
		"body like a last chunk":        {with(), "0" + smuggled, nil, true},
		"te trailers":                   {with("te=trailers"), "", nil, true},
		"two cookies":                   {with("cookie=a=b", "cookie=c=d"), "", nil, true},
		"underscore":                    {with("x_a=b", "content_length=3"), "hello", nil, true},
		"spoofed":                       {with("x-forwarded-for=203.0.113.9", "x-real-ip=203.0.113.9", "via=1.1 a", "x-request-id=a b"), "", nil, true},
		"expect":                        {with("expect=100-continue"), "hello", nil, true},
		"host beside authority":         {with("host=edge"), "", nil, true},
		"method that is odd":            {without(with(), method, ":method=A!b"), "", nil, true},
		"transfer-encoding":             {with("transfer-encoding=chunked"), "0" + smuggled, nil, false},
		"transfer-encoding with spaces": {with("transfer-encoding =chunked"), "0" + smuggled, nil, false},
		"connection":                    {with("connection=close"), "", nil, false},
		"connection transfer-encoding":  {with("connection=transfer-encoding", "transfer-encoding=chunked"), "0" + smuggled, nil, false},
		"upgrade":                       {with("upgrade=websocket"), "", nil, false},
		"te gzip":                       {with("te=gzip"), "", nil, false},
		"length too short":              {with("content-length=3"), "hello", nil, false},
		"length too long":               {with("content-length=9"), "hello", nil, false},
		"length of nothing":             {with("content-length=9"), "", nil, false},
		"length with a sign":            {with("content-length=+5"), "hello", nil, false},
		"two lengths":                   {with("content-length=5", "content-length=3"), "hello", nil, false},
		"list of lengths":               {with("content-length=5, 5"), "hello", nil, false},
		"CR LF in a value":              {with("x-a=b" + smuggled), "", nil, false},
		"LF in a value":                 {with("x-a=b\ncontent-length: 3"), "hello", nil, false},
		"CR in a value":                 {with("x-a=b\rc"), "", nil, false},
		"NUL in a value":                {with("x-a=b\x00c"), "", nil, false},
		"CR LF in a name":               {with("x-a: b\r\nx-b=c"), "", nil, false},
		"colon in a name":               {with("x-a: b=c"), "", nil, false},
		"space in a name":               {with("x a=b"), "", nil, false},
		"capital in a name":             {with("X-A=b"), "", nil, false},
		"empty name":                    {with("=b"), "", nil, false},
		"CR LF in the path":             {without(with(), path, ":path=/a/x HTTP/1.1"+smuggled), "", nil, false},
		"space in the path":             {without(with(), path, ":path=/a/x y"), "", nil, false},
		"fragment in the path":          {without(with(), path, ":path=/a/x#y"), "", nil, false},
		"dots in the path":              {without(with(), path, ":path=/a/../smuggled"), "", nil, false},
		"absolute path":                 {without(with(), path, ":path=http://other/a/x"), "", nil, false},
		"relative path":                 {without(with(), path, ":path=a/x"), "", nil, false},
		"empty path":                    {without(with(), path, ":path="), "", nil, false},
		"no path":                       {without(with(), path, ""), "", nil, false},
		"two paths":                     {with(":path=/smuggled"), "", nil, false},
		"CR LF in the method":           {without(with(), method, ":method=GET / HTTP/1.1"+smuggled), "", nil, false},
		"space in the method":           {without(with(), method, ":method=GET /smuggled HTTP/1.1"), "", nil, false},
		"no method":                     {without(with(), method, ""), "", nil, false},
		"connect":                       {[]string{":method=CONNECT", ":authority=edge:443"}, "", nil, false},
		"extended connect":              {append(without(with(), method, ":method=CONNECT"), ":protocol=websocket"), "", nil, false},
		"trace":                         {without(with(), method, ":method=TRACE"), "", nil, false},
		"CR LF in the host":             {without(with(), host, ":authority=edge"+smuggled), "", nil, false},
		"space in the host":             {without(with(), host, ":authority=edge other"), "", nil, false},
		"path in the host":              {without(with(), host, ":authority=edge/a"), "", nil, false},
		"user in the host":              {without(with(), host, ":authority=user@edge"), "", nil, false},
		"another host beside":           {with("host=other"), "", nil, false},
		"no host":                       {without(with(), host, ""), "", nil, false},
		"pseudo field late":             {with("x-a=b", ":path=/smuggled"), "", nil, false},
		"pseudo field unknown":          {with(":x=y"), "", nil, false},
		"expect a miracle":              {with("expect=a miracle"), "", nil, false},
		"CR LF in a trailer":            {with(), "hello", []string{"x-sum=42" + smuggled}, false},
		"pseudo field in a trailer":     {with(), "hello", []string{":path=/smuggled"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s.answered(t, c.fields, c.body, c.trailer)
			if answers, _ := s.barrier(t); c.passes != (len(answers) == 1) {
				t.Fatalf("the backend got %d requests", len(answers))
			} else if c.passes {
				if m := answers[0]; m.method != strings.TrimPrefix(c.fields[0], ":method=") || m.target != "/a/x?y" || string(m.body) != c.body || values(m.header, "Host")[0] != "edge" {
					t.Errorf("the backend got %+v", m)
				}
			}
		})
	}
}

// barrier returns what the backend got before a request that is sent now. What is logged
// of HTTP/2 may come behind its answer, and is looked at the next time.
func (s *stage) barrier(t *testing.T) (whole, torn []*message) {
	t.Helper()
	s.mark(t)
	for _, line := range s.access.take() {
		if strings.Contains(string(line), `"status":5`) {
			t.Errorf("logged %s", line)
		}
	}
	whole, torn, wrong := s.drain()
	if len(wrong) > 0 {
		t.Errorf("the backend got %q", wrong)
	}
	return whole, torn
}
