package sentinel

import (
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever the file: no panic, an error or a config that is valid, and every
// fault on one line.
func FuzzParseConfig(f *testing.F) {
	files, err := filepath.Glob("testdata/config/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if strings.Contains(string(data), "_file") {
			return // reads nothing but what is below testdata
		}
		config, err := ParseConfig(data)
		if (config == nil) != (err != nil) {
			t.Fatalf("config %v, error %v", config, err)
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if line == "" || strings.ContainsAny(line, "\r\t") {
					t.Errorf("a fault that is no line: %q", err)
				}
			}
			return
		}
		if err := config.Validate(); err != nil {
			t.Errorf("loads, but is invalid: %v", err)
		}
	})
}

// Whatever stands around a secret, and whether it is valid or not: no error and
// no print holds a piece of it. The name of a variable is no secret.
func FuzzConfigSecrets(f *testing.F) {
	f.Add("redis://:", "@localhost", "", testJWTSecret, testCookieSecret, `"limit": 1`)
	f.Add("redis://", "\n", "$", "}", "", `"limit": 1, "limit": 2`)
	f.Add("", "", "", "", "", `"limit": `)
	f.Fuzz(func(t *testing.T, before, after, around, jwt, cookie, rest string) {
		const secret = "Qz7Xk9VwJ4"
		url, jwt, cookie := before+secret+after, around+secret+jwt, cookie+secret+around
		if strings.Contains(rest, "_file") || slices.ContainsFunc([]string{url, jwt, cookie}, variable.MatchString) {
			return
		}
		quote := func(text string) string {
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			return string(quoted)
		}
		data := fmt.Sprintf(`{"app": {"redis_url": %s, "jwt_secret": %s, "anonymous_cookie_secret": [%s, %s]},
			"policies": {"a": {"endpoint_id": "a", "algorithm": "sliding_window", "fail_mode": "fail_closed",
			"fallback_per_second": 1, "policy_version": 1, %s}}}`, quote(url), quote(jwt), quote(cookie), quote(cookie+"2"), rest)
		config, err := ParseConfig([]byte(data))
		noPieceOf(t, fmt.Sprintf("%v %+v %#v", err, config, config), secret)
	})
}

// The parser takes what encoding/json takes, but for what is stricter on
// purpose, and reads the same texts and numbers.
func FuzzParseJSON(f *testing.F) {
	for _, text := range []string{
		`{}`, `[]`, `null`, `true`, ` [1, -0, 1.5e+3, "a\u00e9\ud83d\ude00\n"] `, `{"a": {"a": 1, "a": 2}}`, `01`, `1.`, `-`, `1e`,
		`"\ud800"`, "\"\t\"", "\xff", "\ufeff{}", `{"a":1,}`, `[1 2]`, `truefalse`, strings.Repeat("[", 40), `"\u12`, `"\`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := parseJSON(data)
		if err == nil {
			var want any
			if jsonErr := json.Unmarshal(data, &want); jsonErr != nil && !strings.Contains(jsonErr.Error(), "cannot unmarshal number") {
				t.Fatalf("%q: no JSON: %v", data, jsonErr)
			} else if jsonErr == nil && v.kind == jsonString && v.text != want {
				t.Errorf("%q: %q", data, v.text)
			}
			return
		}
		stricter := strings.Contains(err.Error(), "nested") || strings.Contains(err.Error(), "no character") ||
			strings.Contains(err.Error(), "byte order") || !utf8.Valid(data)
		if json.Valid(data) && !stricter {
			t.Errorf("%q: %v", data, err)
		}
	})
}

// scaledDecimal against exact fractions.
func FuzzScaledDecimal(f *testing.F) {
	for _, text := range []string{
		"0", "-0", "1000000000000000001", "0.0", "1", "-1", "10", "0.000001", "0.0000001", "1e6", "1.5e-6", "4503599627.370496", "9223372036854775807",
		"9223372036854775808", "-9223372036854775809", "1e400", "-1e400", "1e-400", "0e999999999999999999999", "1.50000000000000000000",
		"1e99999999999999999999", "1E-99999999999999999999", "123456789012345678901234567890e-20",
	} {
		for _, scale := range []int{0, 6} {
			f.Add(text, scale)
		}
	}
	most := big.NewInt(1<<63 - 1)
	f.Fuzz(func(t *testing.T, text string, scale int) {
		v, err := parseJSON([]byte(text))
		_, exponent, _ := strings.Cut(strings.ToLower(text), "e")
		if err != nil || v.kind != jsonNumber || len(exponent) > 5 || scale < 0 || scale > 6 {
			return // no number, or one that the fraction takes ages for
		}
		want, ok := new(big.Rat).SetString(v.text)
		if !ok {
			t.Fatalf("%q is no fraction", v.text)
		}
		want.Mul(want, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)))
		got, exact := scaledDecimal(v.text, scale)
		switch {
		case exact != want.IsInt():
			t.Errorf("%s * 10^%d: exact %v", v.text, scale, exact)
		case !exact:
		case want.Num().CmpAbs(most) > 0:
			if got != int64(want.Sign())*most.Int64() {
				t.Errorf("%s * 10^%d: %d", v.text, scale, got)
			}
		case want.Num().Cmp(big.NewInt(got)) != 0:
			t.Errorf("%s * 10^%d: %d", v.text, scale, got)
		}
	})
}

func TestScaledDecimalHugeExponents(t *testing.T) {
	for text, want := range map[string]int64{
		"1e99999999999999999999": 1<<63 - 1, "-1e99999999999999999999": -(1<<63 - 1), "0e99999999999999999999": 0, "0e-99999999999999999999": 0,
	} {
		if got, exact := scaledDecimal(text, 6); got != want || !exact {
			t.Errorf("%s: %d, %v", text, got, exact)
		}
	}
	if got, exact := scaledDecimal("1e-99999999999999999999", 6); exact {
		t.Errorf("1e-99999999999999999999: %d", got)
	}
}
