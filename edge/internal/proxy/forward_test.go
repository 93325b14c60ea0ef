package proxy

import (
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// echoHead answers with the request's head as it came, and nothing of net/http
// between.
func echoHead(p *peer) {
	for {
		head := p.head()
		if head == "" {
			return
		}
		p.say("HTTP/1.1 200 OK\r\nContent-Length: " + itoa(len(head)) + "\r\n\r\n" + head)
	}
}

// headOf reads an echoed head.
func headOf(t *testing.T, body string) (line string, h http.Header) {
	t.Helper()
	line, rest, _ := strings.Cut(body, "\r\n")
	h = http.Header{}
	for f := range strings.SplitSeq(strings.TrimSuffix(rest, "\r\n\r\n"), "\r\n") {
		k, v, ok := strings.Cut(f, ": ")
		if !ok {
			t.Fatalf("field %q", f)
		}
		h[k] = append(h[k], v)
	}
	return line, h
}

func TestTheTargetIsForwardedByteForByte(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	for _, target := range []string{
		"/x?p=1;q=2&z=%zz", // what net/http's own proxy drops
		"/x?", "/", "/a%2Fb", "/a%2fb/%41", "//x//", "/x?a=b?c=d#e", "/~a!$&'()*+,;=:@b", "/%E2%82%AC?q=%E2%82%AC|\xe2\x82\xac",
	} {
		c := e.dial()
		c.send("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n")
		a := c.response("GET")
		if a.StatusCode == http.StatusBadRequest { // package wire is stricter than the proxy
			continue
		}
		line, _ := headOf(t, a.body)
		if want := "GET " + target + " HTTP/1.1"; line != want {
			t.Errorf("the backend got %q, want %q", line, want)
		}
	}
}

func TestTheQueryOfPublicReportsArrives(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
		r := e.request(http.MethodGet, "/x", nil)
		r.URL.RawQuery = "p=1;q=2&z=%zz"
		line, _ := headOf(t, e.do(e.client(version), r).body)
		if want := "GET /x?p=1;q=2&z=%zz HTTP/1.1"; line != want {
			t.Errorf("the backend got %q, want %q", line, want)
		}
	})
}

func TestTheBackendGetsTheClientsHeaderAndOurs(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: shop.example\r\nX-A: 1\r\nX-A: 2\r\nX-Request-Id: abc-1\r\n\r\n")
	_, got := headOf(t, c.response("GET").body)
	want := http.Header{
		"Host": {"shop.example"}, "X-A": {"1", "2"}, "X-Request-Id": {"abc-1"}, "Via": {"1.1 sentinel"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"shop.example"},
	}
	for k, v := range want {
		if !slices.Equal(got[k], v) {
			t.Errorf("%s: %q, want %q", k, got[k], v)
		}
	}
	for k := range got { // no User-Agent, no Accept-Encoding, nothing else
		if want[k] == nil {
			t.Errorf("added %s: %q", k, got[k])
		}
	}
}

func TestHostIsTheBackendsWhereTheRouteSaysSo(t *testing.T) {
	backend := raw(t, echoHead)
	e := newEdge(t, setup{backends: []string{backend}, route: Route{RewriteHost: true}})
	_, h := headOf(t, e.get(1, "/").body)
	if want := strings.TrimPrefix(backend, "http://"); h.Get("Host") != want {
		t.Errorf("Host %q, want %q", h.Get("Host"), want)
	}
	if got := h.Get("X-Forwarded-Host"); got != e.addr {
		t.Errorf("X-Forwarded-Host %q, want %q", got, e.addr)
	}
}

func TestConnectionCannotStripWhatWeAdd(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	c := e.dial()
	c.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: \r\n" +
		"Connection: close, X-Forwarded-For, X-Forwarded-Proto, via, X-Request-Id, X-Tenant , X-Forwarded-Host\r\n" +
		"X-Tenant: evil\r\nX-Kept: 1\r\n\r\n")
	_, got := headOf(t, c.response("GET").body)
	for _, k := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Via", "X-Request-Id", "X-Kept"} {
		if got.Get(k) == "" {
			t.Errorf("%s is lost", k)
		}
	}
	for _, k := range []string{"X-Tenant", "Connection"} {
		if got[k] != nil {
			t.Errorf("%s is forwarded", k)
		}
	}
}

func TestHopByHopFieldsAreNotForwarded(t *testing.T) {
	r := &http.Request{Method: "GET", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
		"Connection": {"keep-alive, X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"1"}, "Proxy-Connection": {"1"},
		"Proxy-Authenticate": {"1"}, "Proxy-Authorization": {"1"}, "Te": {"gzip, trailers;q=1"}, "Trailer": {"X"},
		"Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"}, "Http2-Settings": {"x"}, "X_A": {"1"}, "X-A": {"1"},
		"X-Forwarded-For": {"9.9.9.9"}, "X-Forwarded-Port": {"1"}, "Forwarded": {"for=9.9.9.9"}, "X-Real-Ip": {"9.9.9.9"},
	}}
	before := r.Header.Clone()
	got := requestHeader(r, netip.MustParseAddr("192.0.2.1"), netip.Addr{}, "id", "")
	want := http.Header{
		"X-A": {"1"}, "Connection": {"TE"}, "Te": {"trailers"}, "User-Agent": {""}, "X-Request-Id": {"id"}, "Via": {"1.1 sentinel"},
		"X-Forwarded-For": {"192.0.2.1"}, "X-Forwarded-Proto": {"http"},
	}
	equalHeaders(t, got, want)
	equalHeaders(t, r.Header, before)
}

// RFC 9110, 10.1.4: who sends TE says that it is for this connection.
func TestConnectionNamesWhatIsForIt(t *testing.T) {
	for _, c := range []struct{ te, upgrade, want string }{
		{"", "", ""}, {"gzip", "", ""}, {"trailers", "", "TE"}, {"", "websocket", "Upgrade"}, {"trailers", "websocket", "Upgrade, TE"},
	} {
		r := &http.Request{Method: "GET", Host: "h", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Te": {c.te}}}
		if got := requestHeader(r, netip.MustParseAddr("192.0.2.1"), netip.Addr{}, "id", c.upgrade).Get("Connection"); got != c.want {
			t.Errorf("TE %q, Upgrade %q: Connection is %q, want %q", c.te, c.upgrade, got, c.want)
		}
	}
}

// RFC 9110, 7.6.2: OPTIONS goes as far as it says; others need not mind.
func TestOptionsGoesAsFarAsItSays(t *testing.T) {
	for _, c := range []struct{ method, has, want string }{
		{"OPTIONS", "3", "2"}, {"OPTIONS", "1", "0"}, {"OPTIONS", "-1", "-1"}, {"OPTIONS", "x", "x"}, {"GET", "3", "3"}, {"GET", "0", "0"},
	} {
		r := &http.Request{Method: c.method, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Max-Forwards": {c.has}}}
		if got := requestHeader(r, netip.MustParseAddr("192.0.2.1"), netip.Addr{}, "id", "")["Max-Forwards"]; !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s with %s: the backend gets %q, want %s", c.method, c.has, got, c.want)
		}
		if r.Header["Max-Forwards"][0] != c.has {
			t.Error("the client's header has changed")
		}
	}
}

// A proxy that is trusted for X-Forwarded-For may pass on what its client has written in
// the fields that it does not know: of those the backend gets what the chain says, or nothing.
func TestATrustedPeersWordIsPassedOn(t *testing.T) {
	r := &http.Request{Method: "GET", ProtoMajor: 2, Host: "h", Header: http.Header{
		"X-Forwarded-For": {"9.9.9.9", "8.8.8.8, 7.7.7.7"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"public"},
		"X-Forwarded-Port": {"443"}, "Forwarded": {"for=9.9.9.9"}, "X-Real-Ip": {"9.9.9.9"}, "Via": {"1.1 a"}, "User-Agent": {"u"},
		"Connection": {"X-Forwarded-For"},
	}}
	got := requestHeader(r, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("7.7.7.7"), "id", "")
	equalHeaders(t, got, http.Header{
		"X-Forwarded-For": {"9.9.9.9, 8.8.8.8, 7.7.7.7, 192.0.2.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"public"},
		"X-Forwarded-Port": {"443"}, "X-Real-Ip": {"7.7.7.7"},
		"Via": {"1.1 a", "2.0 sentinel"}, "User-Agent": {"u"}, "X-Request-Id": {"id"},
	})
}

func equalHeaders(t *testing.T, got, want http.Header) {
	t.Helper()
	for k := range want {
		if !slices.Equal(got[k], want[k]) {
			t.Errorf("%s: %q, want %q", k, got[k], want[k])
		}
	}
	for k := range got {
		if want[k] == nil {
			t.Errorf("%s: %q, want none", k, got[k])
		}
	}
}

func TestTheClientGetsTheResponsesHeaderButNotItsHops(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) {
			p.head()
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Authenticate: x\r\n" +
				"X-Request-Id: theirs\r\nVia: 1.0 them\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX_B: 1\r\n\r\nok")
		})}})
		r := e.request(http.MethodGet, "/", nil)
		r.Header.Set("X-Request-Id", "ours")
		a := e.do(e.client(version), r)
		a.Header.Del("Date")
		equalHeaders(t, a.Header, http.Header{
			"Content-Length": {"2"}, "X-Request-Id": {"ours"},
			"Via": {"1.0 them", "1.1 sentinel"}, "Set-Cookie": {"a", "b"}, "X_b": {"1"},
		})
		if a.body != "ok" {
			t.Errorf("body %q", a.body)
		}
		r2 := e.wantRecord(200, OK)
		if r2.ID != "ours" || r2.BytesOut != 2 || r2.Attempts != 1 || r2.Backend == "" || r2.Pool != "pool" || r2.Route != "/*" || r2.ConfigVersion != 1 || r2.Breaker != "closed" {
			t.Errorf("recorded %+v", r2)
		}
	})
}

func TestARequestIDThatIsNotFitForALogIsReplaced(t *testing.T) {
	for id, keep := range map[string]bool{
		"a": true, "A-z_0.9:/+=": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "a\"b": false, "a\x7f": false, "ä": false,
	} {
		if got := requestID(http.Header{"X-Request-Id": {id}}); (got == id) != keep || !validRequestID(got) {
			t.Errorf("%q became %q", id, got)
		}
	}
	one, other := newRequestID(), newRequestID()
	if requestID(http.Header{"X-Request-Id": {"a", "b"}}) == "a" || one == other {
		t.Error("an id is not one's own")
	}
}

func TestMethodsThatAreNotForwarded(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) { t.Error("the backend was reached: " + p.head()) })}})
	for _, c := range []struct {
		head   string
		status int
		reason Reason
	}{
		{"CONNECT h:80 HTTP/1.1\r\nHost: h:80", 405, MethodNotAllowed},
		{"TRACE / HTTP/1.1\r\nHost: h", 405, MethodNotAllowed},
		{"OPTIONS * HTTP/1.1\r\nHost: h", 204, OK},
		{"OPTIONS / HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0", 204, OK},
		{"GET /a/../b HTTP/1.1\r\nHost: h", 400, BadPath},
		{"GET /a/%2e%2e/b HTTP/1.1\r\nHost: h", 400, BadPath},
	} {
		conn := e.dial()
		conn.send(c.head + "\r\n\r\n")
		a := conn.response(strings.Fields(c.head)[0])
		if c.status == 204 {
			if a.StatusCode != 204 {
				t.Errorf("%s: %d", c.head, a.StatusCode)
			}
			continue
		}
		a.wantProblem(t, c.status, c.reason)
		if c.status == 405 && a.Header.Get("Allow") == "" {
			t.Error("405 without Allow")
		}
	}
}

func TestUnknownExpectationsFail(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	r := e.request(http.MethodPost, "/", strings.NewReader("x"))
	r.Header.Set("Expect", "miracles")
	e.do(e.client(2), r).wantProblem(t, 417, BadRequest)
}

func TestOurAnswersAreProblems(t *testing.T) {
	e := newEdge(t, setup{routes: []string{"GET /only"}, backends: []string{raw(t, echoHead)}})
	c := e.client(1)
	e.do(c, e.request("GET", "/nowhere", nil)).wantProblem(t, 404, NoRoute)
	a := e.do(c, e.request("POST", "/only", nil))
	a.wantProblem(t, 405, MethodNotAllowed)
	if allow := a.Header.Get("Allow"); !strings.Contains(allow, "GET") {
		t.Errorf("Allow %q", allow)
	}
	if a = e.do(c, e.request("HEAD", "/nowhere", nil)); a.StatusCode != 404 || a.body != "" || a.ContentLength <= 0 {
		t.Errorf("HEAD: %d, %q, length %d", a.StatusCode, a.body, a.ContentLength)
	}
	if id := a.Header.Get("X-Request-Id"); !validRequestID(id) {
		t.Errorf("X-Request-Id %q", id)
	}
	if r := e.record(3); r.Status != 404 || r.Reason != NoRoute || r.Path != "/nowhere" || r.Method != "HEAD" {
		t.Errorf("recorded %+v", r)
	}
}

func TestWithoutConfigurationThereIs503(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, echoHead)}})
	old := e.handler.Swap(nil)
	e.get(1, "/").wantProblem(t, 503, NotConfigured)
	<-old.Unused()
	old.Backends.Release()
}

func TestWhatTheConnectionRefusedIsAnsweredAndTheLast(t *testing.T) {
	e := newEdge(t, setup{backends: []string{raw(t, func(p *peer) { t.Error("the backend was reached: " + p.head()) })}})
	for head, want := range map[string]struct {
		status int
		reason Reason
	}{
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": {400, BadRequest},
		"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n":                                     {400, BadPath},
		"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n":                                    {400, BadPath},
		"GET /" + strings.Repeat("a", 9<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n":      {414, HeaderTooLarge},
		"GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", 101) + "\r\n": {431, HeaderTooLarge},
	} {
		c := e.dial()
		c.send(head + "GET /second HTTP/1.1\r\nHost: h\r\n\r\n")
		a := c.response("GET")
		a.wantProblem(t, want.status, want.reason)
		if !a.Close {
			t.Error("no Connection: close")
		}
		c.wantClosed()
	}
	// What net/http is given in their stead is nobody's request.
	if r := e.record(1); r.Method != "" || r.Host != "" || r.Path != "" {
		t.Errorf("recorded %s %s%s", r.Method, r.Host, r.Path)
	}
}

// deny is a limiter that lets through what has no X-Deny.
type deny struct{}

func (deny) Allow(w http.ResponseWriter, r *http.Request, client netip.Addr) (bool, Reason) {
	w.Header().Set("X-Limited", client.String())
	if r.Header.Get("X-Deny") == "" {
		return true, OK
	}
	w.Header().Set("Retry-After", "7")
	w.WriteHeader(http.StatusTooManyRequests)
	io.WriteString(w, "slow down")
	return false, RateLimited
}

func TestTheLimiterAnswersAndNoBackendIsReached(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{
			route: Route{Limit: deny{}}, options: Options{TrustedProxies: loopback},
			backends: []string{serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Limited", "theirs")
				if r.Header.Get("X-Deny") != "" {
					t.Error("the backend was reached")
				}
			})},
		})
		r := e.request(http.MethodPost, "/", strings.NewReader("hello"))
		r.Header.Set("X-Deny", "1")
		r.Header.Set("X-Forwarded-For", "192.0.2.9")
		a := e.do(e.client(version), r)
		if a.StatusCode != 429 || a.body != "slow down" || a.Header.Get("Retry-After") != "7" || a.Header.Get("X-Limited") != "192.0.2.9" {
			t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
		}
		if rec := e.wantRecord(429, RateLimited); rec.Client.String() != "192.0.2.9" || rec.BytesOut != 9 || rec.Attempts != 0 {
			t.Errorf("recorded %+v", rec)
		}
		if a = e.get(version, "/"); a.StatusCode != 200 || !slices.Equal(a.Header["X-Limited"], []string{"127.0.0.1"}) {
			t.Errorf("allowed: %d %v", a.StatusCode, a.Header)
		}
	})
}

func TestASmallRefusedBodyLeavesTheConnectionOpen(t *testing.T) {
	e := newEdge(t, setup{routes: []string{"/only"}, backends: []string{raw(t, echoHead)}})
	c := e.dial()
	c.send("POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello" +
		"POST /nowhere HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	for range 2 {
		a := c.response("POST")
		a.wantProblem(t, 404, NoRoute)
		if a.Close {
			t.Error("the connection is closed")
		}
	}
}

func TestARefusedBodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	e := newEdge(t, setup{routes: []string{"/only"}, backends: []string{raw(t, echoHead)}})
	for _, framing := range []string{"Content-Length: 5\r\n\r\nhe", "Content-Length: 9999999\r\n\r\nhe", "Transfer-Encoding: chunked\r\n\r\n5\r\nhe"} {
		c := e.dial()
		began := time.Now()
		c.send("POST /nowhere HTTP/1.1\r\nHost: h\r\n" + framing)
		a := c.response("POST")
		a.wantProblem(t, 404, NoRoute)
		if took := time.Since(began); took > 2*time.Second || !a.Close {
			t.Errorf("took %v, close %t", took, a.Close)
		}
		c.wantClosed()
	}
}

func TestABodyThatIsTooLongByItsLengthIsRefused(t *testing.T) {
	overBoth(t, func(t *testing.T, version int) {
		e := newEdge(t, setup{options: Options{MaxBodyBytes: 10}, backends: []string{raw(t, func(p *peer) {
			if head := p.head(); !strings.Contains(head, "Content-Length: 10\r\n") {
				t.Error("the backend was reached: " + head)
			}
			io.ReadFull(p.r, make([]byte, 10))
			p.say("HTTP/1.1 204 No Content\r\n\r\n")
		})}})
		c := e.client(version)
		e.do(c, e.request("PUT", "/", strings.NewReader("01234567890"))).wantProblem(t, 413, BodyTooLarge)
		if a := e.do(c, e.request("PUT", "/", strings.NewReader("0123456789"))); a.StatusCode != 204 {
			t.Errorf("10 bytes: %d", a.StatusCode)
		}
	})
}

func FuzzConnectionWithdrawsOnlyWhatIsTheClients(f *testing.F) {
	f.Add("close, X-Forwarded-For", "X-A")
	f.Add(",, x_b ;q=1, via", "Te")
	f.Fuzz(func(t *testing.T, connection, name string) {
		name = http.CanonicalHeaderKey(name)
		r := &http.Request{Method: "GET", Host: "h", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{
			name: {"client"}, "Connection": {connection, name},
		}}
		h := requestHeader(r, netip.MustParseAddr("192.0.2.1"), netip.Addr{}, "id", "")
		for key, want := range map[string]string{
			"Via": "1.1 sentinel", "X-Request-Id": "id", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "h",
		} {
			if got := h[key]; len(got) == 0 || got[len(got)-1] != want {
				t.Errorf("%q strips %s: %q", connection, key, got)
			}
		}
		if _, kept := h[name]; kept && !rebuilt(name) && name != "Te" && strings.TrimSpace(name) == name && !strings.Contains(name, ",") && name != "" {
			t.Errorf("%q is for one connection and was forwarded", name)
		}
		if c := h["Connection"]; c != nil && (name != "Te" || !slices.Equal(c, []string{"TE"})) {
			t.Errorf("Connection is forwarded: %q", c)
		}
	})
}
