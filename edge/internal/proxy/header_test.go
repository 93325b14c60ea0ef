package proxy

import (
	"net/http"
	"reflect"
	"testing"
)

// Of a field that both have, ours counts; of cookies, both.
func TestOurFieldsAndTheBackends(t *testing.T) {
	t.Parallel()
	ours := http.Header{"Ratelimit": {"ours"}, "Set-Cookie": {"anonymous=1"}}
	theirs := http.Header{"Ratelimit": {"theirs"}, "Set-Cookie": {"session=2", "theme=3"}, "Etag": {"x"}}
	copyResponseHeader(ours, &http.Response{ProtoMajor: 1, ProtoMinor: 1, Header: theirs})
	want := http.Header{
		"Ratelimit": {"ours"}, "Set-Cookie": {"anonymous=1", "session=2", "theme=3"}, "Etag": {"x"},
		"Content-Type": nil, "Via": {"1.1 sentinel"},
	}
	if !reflect.DeepEqual(ours, want) {
		t.Errorf("%v\nwant %v", ours, want)
	}
	if got := theirs["Set-Cookie"]; len(got) != 2 {
		t.Errorf("the backend's have become %v", got)
	}
}
