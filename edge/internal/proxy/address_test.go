package proxy

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestTheClientIsTheRightmostWhoIsNotTrusted(t *testing.T) {
	ours := trusted{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1", nil, "192.0.2.1"},
		{"192.0.2.1", []string{"9.9.9.9"}, "192.0.2.1"},
		{"10.0.0.1", nil, "10.0.0.1"},
		{"10.0.0.1", []string{"9.9.9.9"}, "9.9.9.9"},
		{"10.0.0.1", []string{"1.1.1.1, 9.9.9.9"}, "9.9.9.9"},
		{"10.0.0.1", []string{"1.1.1.1, 9.9.9.9,10.0.0.2 ,\t10.0.0.3"}, "9.9.9.9"},
		{"10.0.0.1", []string{"1.1.1.1", "9.9.9.9", "10.0.0.2"}, "9.9.9.9"},
		{"10.0.0.1", []string{"10.0.0.9, 10.0.0.2"}, "10.0.0.9"},
		{"10.0.0.1", []string{"1.1.1.1, junk, 10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1", []string{"1.1.1.1, "}, "10.0.0.1"},
		{"10.0.0.1", []string{""}, "10.0.0.1"},
		{"10.0.0.1", []string{"9.9.9.9:1234"}, "9.9.9.9"},
		{"10.0.0.1", []string{"[2001:db8::1]:1234"}, "2001:db8::1"},
		{"10.0.0.1", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"10.0.0.1", []string{"2001:db8::1%eth0"}, "2001:db8::1"},
		{"10.0.0.1", []string{"::ffff:9.9.9.9"}, "9.9.9.9"},
		{"10.0.0.1", []string{"9.9.9.9, ::ffff:10.0.0.7"}, "9.9.9.9"},
		{"fd00::1", []string{"9.9.9.9, fd00::2"}, "9.9.9.9"},
	} {
		if got := ours.clientOf(netip.MustParseAddr(c.peer), c.forwarded).String(); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

func TestThePeersAddressIsUnmapped(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[fe80::1%lo]:80": "fe80::1", "@": "invalid IP", "": "invalid IP",
	} {
		if got := peerOf(&http.Request{RemoteAddr: remote}).String(); got != want {
			t.Errorf("%q: %s, want %s", remote, got, want)
		}
	}
}

func FuzzTheClientIsNamedByWhoIsTrusted(f *testing.F) {
	f.Add("9.9.9.9, 10.0.0.2")
	f.Add("[::1]:80,,x")
	ours := trusted{netip.MustParsePrefix("10.0.0.0/8")}
	peer, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	f.Fuzz(func(t *testing.T, list string) {
		if got := ours.clientOf(stranger, []string{list}); got != stranger {
			t.Errorf("a stranger named %s", got)
		}
		// Whatever a client puts before, what our proxy appended decides.
		got := ours.clientOf(peer, []string{list + ", 9.9.9.9"})
		if got.String() != "9.9.9.9" {
			t.Errorf("%q hides the client: %s", list, got)
		}
		// One line or several are the same.
		if one, more := ours.clientOf(peer, []string{list}), ours.clientOf(peer, strings.Split(list, ",")); one != more {
			t.Errorf("%q: %s in one line, %s in several", list, one, more)
		}
	})
}
