package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// Who is a tenant, and who is not.
var tenants = []testCase{
	{name: "every credential that proves nothing is answered as none", run: func(t *stage) {
		var ran counter
		s := t.serve(t.limiter(nil), App{Root: guarded("/many", ran.then(ok), tenantMany)})
		none := s.get("/many", nil)
		t.wantProblem(none, http.StatusUnauthorized, unauthenticated)
		for name, credential := range worthless() {
			a := s.get("/many", with("Authorization", credential))
			if a.status != http.StatusUnauthorized {
				t.Errorf("%s: status %d", name, a.status)
			}
			t.wantSame(none, a)
		}
		ran.want(t, 0)
	}},
	{name: "a tenant that the application vouches for is counted, and no token instead", run: func(t *stage) {
		type tenantKey struct{}
		l := t.limiter(func(c *sentinel.Config) {
			c.App.Authentication, c.App.JWTSecret = sentinel.ByApplication, nil
		}, sentinel.WithTenant(func(ctx context.Context) (string, error) {
			tenant, _ := ctx.Value(tenantKey{}).(string)
			return tenant, nil
		}))
		// The application's own sign-in, which runs first. That it is a header
		// here is the test's affair.
		signIn := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, r.Header.Get("Session"))))
			})
		}
		s := t.serve(l, App{Root: everything(ok)}, signIn)
		for _, tenant := range []string{"acme", "globex"} {
			t.wantStatuses(func() answer { return s.get("/"+tenantTwo, with("Session", tenant)) }, 200, 200, 429)
		}
		for _, stranger := range []http.Header{nil, as("acme"), with("Session", " ")} {
			t.wantProblem(s.get("/"+tenantMany, stranger), http.StatusUnauthorized, unauthenticated)
		}
		t.wantProblem(s.get("/"+unknown, with("Session", "acme")), http.StatusNotFound, unknownEndpoint)
	}},
	{name: "two Authorization headers are no credential", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		for _, pair := range [][2]string{
			{bearer("acme"), bearer("acme")}, {bearer("acme"), bearer("globex")}, {"", bearer("acme")}, {"Basic YTpi", bearer("acme")},
		} {
			a := s.get("/"+tenantMany, with("Authorization", pair[0], "Authorization", pair[1]))
			t.wantProblem(a, http.StatusUnauthorized, unauthenticated)
		}
	}},
	{name: "a valid credential is taken in every form that HTTP allows", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		valid := strings.TrimPrefix(bearer("acme"), "Bearer ")
		for _, credential := range []string{"Bearer " + valid, "bearer " + valid, "BEARER " + valid, "Bearer   " + valid} {
			t.wantOK(s.get("/"+tenantMany, with("Authorization", credential)))
		}
	}},
	{name: "a denied stranger is charged to nobody", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		for range 5 {
			t.wantProblem(s.get("/"+tenantNever, with("Authorization", bearer("acme")+"x")), http.StatusUnauthorized, unauthenticated)
		}
		t.wantStatuses(func() answer { return s.get("/"+tenantNever, as("acme")) }, 200, 429)
	}},
	{name: "a tenant is the token's and never a header's or a query's", run: func(t *stage) {
		s := t.serve(t.limiter(nil), App{Root: everything(ok)})
		n := 0
		t.wantStatuses(func() answer {
			n++
			other := fmt.Sprintf("other%d", n)
			return s.get("/"+tenantTwo+"?tenant="+other+"&access_token="+bearer(other)[7:], with(
				"Authorization", bearer("acme"), "X-Tenant", other, "X-Tenant-ID", other, "X-User", other, "X-Authorization", bearer(other),
				"Proxy-Authorization", bearer(other), "Cookie", "Authorization="+bearer(other)[7:]))
		}, 200, 200, 429)
	}},
}

// worthless are credentials that prove nothing, by what is wrong with them.
func worthless() map[string]string {
	enc := base64.RawURLEncoding.EncodeToString
	exp := inOneHour()
	claims := func(sub string) string { return fmt.Sprintf(`{"sub":%q,"exp":%d}`, sub, exp) }
	good := token("HS256", jwtSecret, claims("acme"))
	parts := strings.Split(good, ".")
	hour := time.Hour.Milliseconds() / 1000
	return map[string]string{
		"empty":               "",
		"scheme alone":        "Bearer",
		"empty token":         "Bearer ",
		"no scheme":           good,
		"another scheme":      "Basic " + good,
		"scheme twice":        "Bearer Bearer " + good,
		"two tokens":          "Bearer " + good + " " + good,
		"a list":              "Bearer " + good + ", Bearer " + good,
		"not a token":         "Bearer acme",
		"two parts":           "Bearer " + parts[0] + "." + parts[1],
		"four parts":          "Bearer " + good + "." + parts[2],
		"no signature":        "Bearer " + parts[0] + "." + parts[1] + ".",
		"a byte too many":     "Bearer " + good + "A",
		"padding":             "Bearer " + good + "=",
		"claims exchanged":    "Bearer " + parts[0] + "." + enc([]byte(claims("globex"))) + "." + parts[2],
		"another secret":      "Bearer " + token("HS256", cookieSecret, claims("acme")),
		"the empty secret":    "Bearer " + token("HS256", "", claims("acme")),
		"algorithm none":      "Bearer " + token("none", "", claims("acme")),
		"algorithm not ours":  "Bearer " + token("HS512", jwtSecret, claims("acme")),
		"expired":             "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"sub":"acme","exp":%d}`, exp-2*hour)),
		"not yet valid":       "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"sub":"acme","exp":%d,"nbf":%d}`, exp, exp-60)),
		"no exp":              "Bearer " + token("HS256", jwtSecret, `{"sub":"acme"}`),
		"exp as text":         "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"sub":"acme","exp":"%d"}`, exp)),
		"no sub":              "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"exp":%d}`, exp)),
		"blank sub":           "Bearer " + token("HS256", jwtSecret, claims("  ")),
		"sub as number":       "Bearer " + token("HS256", jwtSecret, fmt.Sprintf(`{"sub":7,"exp":%d}`, exp)),
		"claims are no JSON":  "Bearer " + token("HS256", jwtSecret, "acme"),
		"claims are an array": "Bearer " + token("HS256", jwtSecret, `["acme"]`),
		"over 8 KiB":          "Bearer " + token("HS256", jwtSecret, claims(strings.Repeat("a", 9000))),
		"nothing but dots":    "Bearer " + strings.Repeat(".", 100_000),
	}
}
