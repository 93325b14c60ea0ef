package sentinel

import "testing"

func TestParseJSONTexts(t *testing.T) {
	for data, want := range map[string]string{
		`""`:                         "",
		`"a\"\\\/\b\f\n\r\t"`:        "a\"\\/\b\f\n\r\t",
		`"\u0061\u00FC\ud83d\ude00"`: "a\u00fc\U0001f600",
		` -0.10E+5 `:                 "-0.10E+5",
		`true`:                       "true",
	} {
		v, err := parseJSON([]byte(data))
		if err != nil || v.text != want {
			t.Errorf("%s: %q, %v", data, v.text, err)
		}
	}
}

func TestParseJSONFaults(t *testing.T) {
	for data, want := range map[string]string{
		"":                "line 1, column 1: ends too early",
		"\n\n  ":          "line 3, column 3: ends too early",
		"nul":             "line 1, column 1: ends too early",
		"\x00":            "line 1, column 1: is not JSON: unexpected character looking for beginning of value",
		"truefalse":       "line 1, column 5: has something behind its end",
		"01":              "line 1, column 2: has something behind its end",
		"{} {}":           "line 1, column 4: has something behind its end",
		"[1 2]":           "line 1, column 4: is not JSON: a comma is missing before this",
		"[1,]":            "line 1, column 4: is not JSON: there is a comma too many before this",
		`{"ü": 1 "b": 2}`: "line 1, column 9: is not JSON: a comma is missing before this",
		`{"a" 1}`:         "line 1, column 6: is not JSON: unexpected character after object key",
		`"\ud800"`:        "line 1, column 1: holds a character that is no character",
		`["a","\ud800n"]`: "line 1, column 6: holds a character that is no character",
		"[\n \"a":         "line 2, column 2: ends too early",
		"\"\xc3\x28\"":    "line 1, column 2: is not UTF-8 here",
		"\ufeff{}":        "line 1, column 1: begins with a byte order mark; save the file as UTF-8 without one",
	} {
		if v, err := parseJSON([]byte(data)); err == nil || err.Error() != want {
			t.Errorf("%q: %+v, %v\nwant %s", data, v, err, want)
		}
	}
}
