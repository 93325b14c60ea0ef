package sentinel

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

func payloadOf(token string) []byte {
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		panic(err)
	}
	return payload
}

func contains(c jwt.MapClaims, name string) bool {
	_, ok := c[name]
	return ok
}

// FuzzClaims: any text is read as the library reads it into its own map.
func FuzzClaims(f *testing.F) {
	for _, payload := range []string{
		``, `null`, `0`, `"sub"`, `[]`, `["sub","acme"]`, `{}`, ` { } `, `{"sub":"acme"}`, "{\n\t\"sub\" : \"acme\" ,\r\n \"exp\" : 1 }",
		`{"sub":"acme","exp":1790000060,"nbf":1.5e3,"iat":-1.25}`,
		// Of equal names the last one counts, whatever either's value is.
		`{"sub":"a","sub":"b","exp":1,"exp":2}`, `{"sub":"a","sub":null,"exp":1,"exp":"1"}`, `{"sub":{},"sub":"b","exp":[],"exp":3}`,
		`{"exp":5,"exp":0}`, `{"sub":7,"\u0073ub":"escaped"}`, `{"s\u0075b":"escaped","sub":"plain"}`, "{\"s\xffub\":\"a\",\"sub\xff\":\"b\"}",
		// One case, one depth.
		`{"sub":"a","SUB":"b","Sub":"c","ſub":"d"}`, `{"x":{"sub":"inner","exp":1}}`, `{"x":[{"sub":"inner"},",","sub",{}],"exp":2}`, `{"x":["sub","a"],"sub":"b"}`,
		`{"sub":["a","b"],"exp":{"exp":1}}`, `{"sub":"exp","exp":4}`, `{"x":"sub","y":"a"}`, `{"":"sub","sub":""}`,
		`{"sub":"{\"sub\":\"inner\"}","exp":6}`, `{"sub":"a\\","exp":6}`, `{"sub":"\\\"","exp":6}`, `{"sub":"\ud800\udc00\ud800","exp":6}`, "{\"sub\":\"\xc3\"}",
		// Numbers.
		`{"exp":0}`, `{"exp":-0.0}`, `{"exp":1e400}`, `{"x":1e400}`, `{"x":[[-1e400]]}`, `{"exp":1e300,"nbf":-1e300}`, `{"exp":1e-400}`, `{"exp":"1"}`, `{"exp":true,"nbf":null}`,
		// Issuer and audience.
		`{"iss":"i","aud":"a"}`, `{"iss":7,"aud":7}`, `{"iss":null,"aud":null}`, `{"aud":[]}`, `{"aud":["a","b"]}`, `{"aud":["a",7]}`, `{"aud":["a",["b"]]}`,
		`{"aud":["a",{"aud":"b"}],"x":["c"]}`, `{"aud":["a"],"aud":"b"}`, `{"aud":[7],"aud":["b"]}`, `{"aud":["a"],"x":["b"]}`, `{"x":{"aud":["b"]}}`, `{"\u0061ud":["a","\u0062"]}`,
		`{"org":"o","sub":"s"}`, `{"org":["o"],"org":"p"}`, `{"sub":"s"}`,
		`{"exp":01}`, `{"exp":1,}`, `{"exp":1} {}`,
	} {
		f.Add([]byte(payload))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		want, got := jwt.MapClaims{}, &claims{tenantClaim: "sub", reads: true}
		token := signed("", `{"alg":"HS256"}`, string(payload))
		_, _, wantErr := jwt.NewParser().ParseUnverified(token, want)
		_, _, gotErr := jwt.NewParser().ParseUnverified(token, got)
		if (wantErr != nil) != (gotErr != nil) {
			t.Fatalf("%q: error %v, the library's %v", payload, gotErr, wantErr)
		}
		if wantErr != nil {
			return
		}
		wantSub, wantErr := want.GetSubject()
		sub, err := got.GetSubject()
		if sub != wantSub || (err != nil) != (wantErr != nil) {
			t.Errorf("%q: sub %q, %v; the library %q, %v", payload, sub, err, wantSub, wantErr)
		}
		wantIss, wantErr := want.GetIssuer()
		if iss, err := got.GetIssuer(); iss != wantIss || (err != nil) != (wantErr != nil) {
			t.Errorf("%q: iss %q, %v; the library %q, %v", payload, iss, err, wantIss, wantErr)
		}
		wantAud, wantErr := want.GetAudience()
		if aud, err := got.GetAudience(); !slices.Equal(aud, wantAud) || (err != nil) != (wantErr != nil) {
			t.Errorf("%q: aud %q, %v; the library %q, %v", payload, aud, err, wantAud, wantErr)
		}
		for name, get := range map[string]func(jwt.Claims) (*jwt.NumericDate, error){
			"exp": jwt.Claims.GetExpirationTime, "nbf": jwt.Claims.GetNotBefore, "iat": jwt.Claims.GetIssuedAt,
		} {
			wantDate, wantErr := get(want)
			date, err := get(got)
			if (date == nil) != (wantDate == nil) || (err != nil) != (wantErr != nil) || date != nil && !date.Equal(wantDate.Time) {
				t.Errorf("%q: %s %v, %v; the library %v, %v", payload, name, date, err, wantDate, wantErr)
			}
		}
		org := &claims{tenantClaim: "org"}
		if text := payloadOf(token); strings.TrimSpace(string(text)) == "null" {
			return
		} else if err := json.Unmarshal(text, org); err != nil {
			t.Errorf("%q: %v", payload, err)
		}
		wantOrg, isText := want["org"].(string)
		if tenant, err := org.GetSubject(); tenant != wantOrg || (err == nil) != (isText || !contains(want, "org")) {
			t.Errorf("%q: org %q, %v; the library %q", payload, tenant, err, wantOrg)
		}
	})
}
