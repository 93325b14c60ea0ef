package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// The fixed words of the denials.
const (
	unauthenticated = "authentication required"
	unknownEndpoint = "unknown endpoint"
	overQuota       = "rate limit exceeded"
	unavailable     = "rate limiter unavailable"
)

// wantOK checks that the handler named ok answered.
func (t *stage) wantOK(a answer) {
	t.Helper()
	if a.status != http.StatusOK || a.body != "ok" {
		t.Errorf("got %d %q, want the handler's 200 \"ok\"", a.status, a.body)
	}
}

// wantProblem checks that an answer is exactly one problem document.
func (t *stage) wantProblem(a answer, status int, detail string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d", a.status, status)
	}
	t.wantHeader(a, "Content-Type", "application/problem+json")
	t.wantHeader(a, "Cache-Control", "no-store")
	want := map[string]any{
		"type": "about:blank", "title": http.StatusText(status), "status": float64(status), "detail": detail,
	}
	switch id := a.header.Values("Sentinel-Decision-Id"); {
	case status == http.StatusTooManyRequests && (len(id) != 1 || !decisionForm.MatchString(id[0])):
		t.Errorf("Sentinel-Decision-Id %q, want one UUID of version 7", id)
	case status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable && len(id) > 0:
		t.Errorf("Sentinel-Decision-Id %q where nothing was decided", id)
	}
	got, err := oneDocument(a.body)
	if err != nil {
		t.Errorf("the body is not one JSON document: %v: %q", err, a.body)
		return
	}
	if fmt.Sprint(got) != fmt.Sprint(want) { // maps are printed in order
		t.Errorf("body %v, want %v", got, want)
	}
}

// oneDocument decodes a body that is one JSON object and nothing else.
func oneDocument(body string) (map[string]any, error) {
	dec := json.NewDecoder(strings.NewReader(body))
	var document map[string]any
	if err := dec.Decode(&document); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows")
	}
	return document, nil
}

// wantHeader checks that a header has exactly these values; none is absence.
func (t *stage) wantHeader(a answer, name string, want ...string) {
	t.Helper()
	got := a.header.Values(name)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s: %q, want %q", name, got, want)
	}
}

// wantNone checks that headers are absent.
func (t *stage) wantNone(a answer, names ...string) {
	t.Helper()
	for _, name := range names {
		t.wantHeader(a, name)
	}
}

// quota is what the RateLimit headers say. -1 is a parameter that is absent.
type quota struct {
	id                       string
	limit, window, left, nxt int64
}

var (
	policyForm = regexp.MustCompile(`^"([^"]+)";q=(\d{1,15})(?:;w=(\d{1,15}))?$`)
	limitForm  = regexp.MustCompile(`^"([^"]+)";r=(\d{1,15})(?:;t=(\d{1,15}))?$`)
)

// quotaOf reads the RateLimit headers, one of each.
func (t *stage) quotaOf(a answer) quota {
	t.Helper()
	policies, limits := a.header.Values("RateLimit-Policy"), a.header.Values("RateLimit")
	policy := policyForm.FindStringSubmatch(strings.Join(policies, "\n"))
	limit := limitForm.FindStringSubmatch(strings.Join(limits, "\n"))
	if policy == nil || limit == nil || policy[1] != limit[1] {
		t.Errorf("RateLimit-Policy %q and RateLimit %q: want one of each, for the same id", policies, limits)
		return quota{}
	}
	number := func(digits string) int64 {
		if digits == "" {
			return -1
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			t.Errorf("RateLimit: %v", err)
		}
		return n
	}
	return quota{policy[1], number(policy[2]), number(policy[3]), number(limit[2]), number(limit[3])}
}

// slow is how many seconds a case may take, so that its waits are that much
// shorter than at its begin.
const slow = 60

// wantQuota checks the RateLimit headers.
func (t *stage) wantQuota(a answer, want quota) {
	t.Helper()
	got := t.quotaOf(a)
	if want.nxt > slow && got.nxt >= want.nxt-slow && got.nxt <= want.nxt {
		got.nxt = want.nxt
	}
	if got != want {
		t.Errorf("RateLimit headers say %+v, want %+v", got, want)
	}
}

// wantOver checks a 429 of the store's: the quota and a Retry-After that says
// the same as RateLimit; wait is in seconds, -1 for one that never ends.
func (t *stage) wantOver(a answer, want quota) {
	t.Helper()
	t.wantProblem(a, http.StatusTooManyRequests, overQuota)
	t.wantQuota(a, want)
	if want.nxt < 0 {
		t.wantNone(a, "Retry-After")
	} else {
		t.wantHeader(a, "Retry-After", strconv.FormatInt(t.quotaOf(a).nxt, 10))
	}
	t.wantNone(a, "Set-Cookie", "WWW-Authenticate")
}

// wantStatuses sends the same request again and again.
func (t *stage) wantStatuses(send func() answer, want ...int) {
	t.Helper()
	for i, status := range want {
		if a := send(); a.status != status {
			t.Errorf("request %d: status %d %q, want %d", i+1, a.status, a.body, status)
		}
	}
}

// ours are the headers that a Sentinel answer may carry.
// decisionForm is a UUID of version 7.
var decisionForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

var ours = []string{"RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "Set-Cookie"}

// wantUntouched checks that an answer has nothing of Sentinel's.
func (t *stage) wantUntouched(a answer) {
	t.Helper()
	t.wantNone(a, ours...)
	if a.header.Get("Content-Type") == "application/problem+json" {
		t.Errorf("%d %q is a denial", a.status, a.body)
	}
}

// sameShape compares two answers but for their date and what replace changes
// in the second.
func (t *stage) wantSame(a, b answer, replace ...string) {
	t.Helper()
	r := strings.NewReplacer(replace...)
	show := func(a answer) string {
		h := a.header.Clone()
		h.Del("Date")
		h.Del("Sentinel-Decision-Id") // no two are the same
		return fmt.Sprintf("%d %v %q", a.status, h, a.body)
	}
	if got, want := r.Replace(show(b)), show(a); got != want {
		t.Errorf("the answers differ:\n%s\n%s", want, got)
	}
}
