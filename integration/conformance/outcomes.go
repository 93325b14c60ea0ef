package conformance

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// What each outcome looks like while the store answers.
var outcomes = []testCase{
	{name: "an allowed request runs the handler once and carries the quota", run: func(t *stage) {
		var ran counter
		s := t.serve(t.limiter(nil), App{Root: guarded("/two", ran.then(ok), tenantTwo)})
		for left := range int64(2) {
			a := s.get("/two", as("acme"))
			t.wantOK(a)
			t.wantQuota(a, quota{tenantTwo, 2, 20_000, 1 - left, 10_000})
			t.wantNone(a, "Retry-After", "WWW-Authenticate", "Set-Cookie")
		}
		ran.want(t, 2)
	}},
	{name: "a request without a token is answered 401 with a challenge", run: func(t *stage) {
		var ran counter
		s := t.serve(t.limiter(nil), App{Root: guarded("/two", ran.then(ok), tenantTwo)})
		a := s.get("/two", nil)
		t.wantProblem(a, http.StatusUnauthorized, unauthenticated)
		t.wantHeader(a, "WWW-Authenticate", "Bearer")
		t.wantNone(a, "RateLimit", "RateLimit-Policy", "Retry-After", "Set-Cookie")
		ran.want(t, 0)
	}},
	{name: "an endpoint that is not configured is answered 404 to a tenant", run: func(t *stage) {
		var ran counter
		s := t.serve(t.limiter(nil), App{Root: guarded("/unknown", ran.then(ok), unknown)})
		a := s.get("/unknown", as("acme"))
		t.wantProblem(a, http.StatusNotFound, unknownEndpoint)
		t.wantNone(a, ours...)
		ran.want(t, 0)
	}},
	{name: "a stranger cannot tell an unknown endpoint from a known one", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		for _, header := range []http.Header{nil, with("Authorization", bearer("acme")+"x"), with("Authorization", "Basic YTpi")} {
			known, other := s.get("/"+tenantTwo, header), s.get("/"+unknown, header)
			t.wantProblem(known, http.StatusUnauthorized, unauthenticated)
			t.wantSame(known, other)
		}
	}},
	{name: "a request over the quota is answered 429 with the time to wait", run: func(t *stage) {
		var ran counter
		s := t.serve(t.limiter(nil), App{Root: guarded("/two", ran.then(ok), tenantTwo)})
		t.wantStatuses(func() answer { return s.get("/two", as("acme")) }, 200, 200)
		for range 3 {
			t.wantOver(s.get("/two", as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000})
		}
		ran.want(t, 2)
	}},
	{name: "a quota that never comes back is answered 429 without a time", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: guarded("/never", ok, tenantNever)})
		a := s.get("/never", as("acme"))
		t.wantOK(a)
		t.wantQuota(a, quota{tenantNever, 1, -1, 0, -1})
		t.wantOver(s.get("/never", as("acme")), quota{tenantNever, 1, -1, 0, -1})
	}},
	{name: "a sliding window is answered as a token bucket is", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: guarded("/window", ok, tenantWindow)})
		for left := range int64(3) {
			a := s.get("/window", as("acme"))
			t.wantOK(a)
			if got := t.quotaOf(a); got.id != tenantWindow || got.limit != 3 || got.window != 3600 || got.left != 2-left || got.nxt < 1 || got.nxt > 7200 {
				t.Errorf("RateLimit headers say %+v, want %d of 3 in 3600 s", got, 2-left)
			}
		}
		a := s.get("/window", as("acme"))
		wait := t.quotaOf(a).nxt
		t.wantOver(a, quota{tenantWindow, 3, 3600, 0, wait})
		if wait < 1 || wait > 7200 {
			t.Errorf("t=%d, want a time within the next window", wait)
		}
	}},
	{name: "the same outcome looks the same for tenants and the anonymous", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		// The times are read from two buckets, which need not be asked within
		// one second: they are checked on their own and cut out.
		cut := func(a answer) answer {
			for _, name := range []string{"RateLimit", "Retry-After"} {
				v, _, _ := strings.Cut(a.header.Get(name), ";t=")
				if n, err := strconv.Atoi(v); err == nil && n > 0 {
					v = "a time"
				}
				if a.header.Get(name) != "" {
					a.header.Set(name, v)
				}
			}
			a.header.Del("Set-Cookie") // of allowed ones only; see the cookie's own cases
			return a
		}
		for _, kind := range []string{"two", "never", "window"} {
			for range 4 {
				tenant := s.get("/tenant."+kind, as("acme"))
				anon := s.get("/anon."+kind, nil)
				t.wantSame(cut(tenant), cut(anon), `"anon.`, `"tenant.`)
			}
		}
	}},
	{name: "every tenant has a quota of its own", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		for _, tenant := range []string{"acme", "globex", "acme ", "Acme", "ácme"} {
			t.wantStatuses(func() answer { return s.get("/"+tenantTwo, as(tenant)) }, 200, 200, 429)
		}
		t.wantStatuses(func() answer { return s.get("/"+tenantNever, as("acme")) }, 200, 429)
	}},
	{name: "with the quota headers off the answers are the same but for those", run: func(t *stage) {
		l := t.limiter(func(c *sentinel.Config) { c.App.DisableRateLimitHeaders = true })
		s := t.serve(l, App{Root: everything(ok)})
		a := s.get("/"+tenantNever, as("acme"))
		t.wantOK(a)
		t.wantNone(a, ours...)
		a = s.get("/"+tenantNever, as("acme"))
		t.wantProblem(a, http.StatusTooManyRequests, overQuota)
		t.wantNone(a, ours...)
		t.wantStatuses(func() answer { return s.get("/"+tenantTwo, as("acme")) }, 200, 200)
		a = s.get("/"+tenantTwo, as("acme"))
		t.wantProblem(a, http.StatusTooManyRequests, overQuota)
		t.wantNone(a, "RateLimit", "RateLimit-Policy")
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 10_000-slow || n > 10_000 {
			t.Errorf("Retry-After %q, want 10000", a.header.Get("Retry-After"))
		}
	}},
	{name: "an endpoint that is not enforced runs the handler over the quota, and no client can tell", run: func(t *stage) {
		var seen decisions
		s := t.serve(t.limiter(unenforced), App{Root: everything(seen.handler)})
		for i := range 3 {
			for id, header := range map[string]http.Header{tenantNever: as("acme"), anonNever: nil} {
				a := s.get("/"+id, header)
				t.wantOK(a)
				t.wantNone(a, "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "Sentinel-Decision-Id")
				if id == anonNever {
					t.newCookie(a) // the response is allowed
				}
				d := seen.last()
				if !d.Allowed || !d.Unenforced || d.WouldDeny != (i > 0) || !d.FromStore || (d.Reason == sentinel.ReasonRateLimited) != (i > 0) {
					t.Errorf("%s, request %d: the handler ran with %+v", id, i+1, d)
				}
			}
		}
		t.wantProblem(s.get("/"+tenantNever, nil), http.StatusUnauthorized, unauthenticated)
		t.wantProblem(s.get("/"+unknown, as("acme")), http.StatusNotFound, unknownEndpoint)
	}},
	{name: "a guard that is not enforced leaves the quota headers and the denial of another to it", run: func(t *stage) {
		l := t.limiter(func(c *sentinel.Config) {
			p := c.Policies[tenantNever]
			p.Unenforced = true
			c.Policies[tenantNever] = p
		})
		app := App{}
		app.Root.Routes = append(guarded("/before", ok, tenantNever, tenantTwo).Routes, guarded("/behind", ok, tenantTwo, tenantNever).Routes...)
		s := t.serve(l, app)
		for left, path := range []string{"/behind", "/before"} {
			a := s.get(path, as("acme"))
			t.wantOK(a)
			t.wantQuota(a, quota{tenantTwo, 2, 20_000, int64(1 - left), 10_000})
		}
		for _, path := range []string{"/before", "/behind"} {
			t.wantOver(s.get(path, as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000})
		}
	}},
	{name: "a candidate beside the limits changes no answer", run: func(t *stage) {
		tried := t.limiter(func(c *sentinel.Config) {
			for id, p := range c.Policies {
				p.Candidate = &sentinel.Candidate{Quota: sentinel.Quota{Algorithm: sentinel.TokenBucket, Capacity: sentinel.Token}}
				c.Policies[id] = p
			}
		})
		with, without := t.serve(tried, App{Root: everything(ok)}), t.serve(t.limiter(nil), App{Root: everything(ok)})
		for _, s := range []*server{with, without} {
			for left := range int64(2) {
				a := s.get("/"+tenantTwo, as("acme"))
				t.wantOK(a)
				t.wantQuota(a, quota{tenantTwo, 2, 20_000, 1 - left, 10_000})
			}
			t.wantOver(s.get("/"+tenantTwo, as("acme")), quota{tenantTwo, 2, 20_000, 0, 10_000})
			a := s.get("/"+anonNever, nil)
			t.wantOK(a)
			t.newCookie(a)
			t.wantOver(s.get("/"+anonNever, nil), quota{anonNever, 1, -1, 0, -1})
		}
	}},
	{name: "a denial is one response on the wire, and the connection lives on", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		paths := []string{"/" + tenantTwo, "/" + unknown, "/" + tenantNever, "/" + tenantNever}
		var lines []string
		for i, path := range paths {
			lines = append(lines, "GET "+path+" HTTP/1.1", "Host: conformance")
			if i > 0 { // the first is a stranger's
				lines = append(lines, "Authorization: "+bearer("acme"))
			}
			if i == len(paths)-1 {
				lines = append(lines, "Connection: close")
			}
			lines = append(lines, "")
		}
		wire := bufio.NewReader(strings.NewReader(s.exchange(lines...)))
		for i, status := range []int{401, 404, 200, 429} {
			resp, err := http.ReadResponse(wire, nil)
			if err != nil {
				t.Fatalf("response %d: %v", i+1, err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != status {
				t.Errorf("response %d: %d %q, %v, want %d", i+1, resp.StatusCode, body, err, status)
			}
			if status == http.StatusOK {
				continue
			}
			if resp.ContentLength != int64(len(body)) {
				t.Errorf("response %d: Content-Length %d of a body of %d bytes", i+1, resp.ContentLength, len(body))
			}
			if _, err := oneDocument(string(body)); err != nil {
				t.Errorf("response %d: %v: %q", i+1, err, body)
			}
		}
		if rest, err := wire.Peek(1); !errors.Is(err, io.EOF) {
			t.Errorf("more on the wire: %q, %v", rest, err)
		}
	}},
	{name: "an HTTP 1.0 client is denied with one document, too", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		head, body, _ := strings.Cut(s.exchange("GET /"+tenantTwo+" HTTP/1.0", ""), "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.0 401 ") {
			t.Errorf("%q", head)
		}
		if _, err := oneDocument(body); err != nil {
			t.Errorf("%v: %q", err, body)
		}
	}},
	{name: "over HTTP 2 the answers are those of HTTP 1.1", run: func(t *stage) {
		l := t.limiter(nil)
		one, two := t.serve(l, App{Root: everything(ok)}), t.serveOver("https", l, App{Root: everything(ok)})
		if resp, err := two.client.Do(two.request(http.MethodGet, "/", nil)); err != nil || resp.ProtoMajor != 2 || resp.Body.Close() != nil {
			t.Fatalf("not HTTP/2: %v", err)
		}
		for _, id := range []string{tenantNever, unknown} {
			t.wantSame(one.get("/"+id, nil), two.get("/"+id, nil))
			// Two tenants, because both servers have one limiter.
			t.wantSame(one.get("/"+id, as("acme")), two.get("/"+id, as("globex")))
			t.wantSame(one.get("/"+id, as("acme")), two.get("/"+id, as("globex")))
			t.wantSame(one.do(http.MethodHead, "/"+id, as("acme")), two.do(http.MethodHead, "/"+id, as("globex")))
		}
	}},
	{name: "HEAD is answered with the headers of GET and without a body", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		for _, path := range []string{tenantTwo, unknown, tenantNever} {
			var header http.Header
			if path != tenantTwo {
				header = as("acme")
			}
			if path == tenantNever {
				a := s.do(http.MethodHead, "/"+path, header)
				if a.status != http.StatusOK || a.body != "" {
					t.Errorf("allowed HEAD: %d %q", a.status, a.body)
				}
				t.wantQuota(a, quota{tenantNever, 1, -1, 0, -1})
			}
			get, head := s.get("/"+path, header), s.do(http.MethodHead, "/"+path, header)
			if head.body != "" {
				t.Errorf("HEAD has the body %q", head.body)
			}
			t.wantHeader(head, "Content-Length", strconv.Itoa(len(get.body)))
			head.body = get.body
			t.wantSame(get, head)
		}
	}},
}
