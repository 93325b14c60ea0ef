package edgetest

import (
	"encoding/xml"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// net/http fails these cases of h2spec by itself, for the reasons given, and so does
// the edge. It is to fail no other, and when net/http passes one, so is the edge.
var unmet = map[string]string{
	"http2/3.5: Sends invalid connection preface":                                                                 "the listener has HTTP/1.1, too, and answers in it",
	"http2/4.2: Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE":                        "the maximum is a MiB, not the least that it may be",
	"http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE":                                          "a frame with a setting twice is refused",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field":                     "it is answered with 400, and the stream not reset",
	`http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`: "it is answered with 400, and the stream not reset",
}

func TestH2spec(t *testing.T) {
	command := os.Getenv("SENTINEL_H2SPEC")
	if command == "" {
		t.Skip("SENTINEL_H2SPEC is not set: make h2spec-edge builds it and runs this test")
	}
	e, b := one(t, "")
	itself, ran := h2spec(t, command, b.addr) // testbackend is a server of net/http
	failed, alike := h2spec(t, command, e.addr)
	if ran < 140 || alike != ran {
		t.Fatalf("%d cases ran, and %d of net/http alone", alike, ran)
	}
	for _, name := range failed {
		switch {
		case unmet[name] == "":
			t.Errorf("it fails %s", name)
		case !slices.Contains(itself, name):
			t.Errorf("net/http alone passes %s", name)
		}
	}
	for name := range unmet {
		if !slices.Contains(failed, name) {
			t.Errorf("it passes %s: take it off the list", name)
		}
	}
	t.Logf("%d cases, %d failed, of net/http alone %d", ran, len(failed), len(itself))
}

// h2spec returns the cases that a server fails, and how many there are.
func h2spec(t *testing.T, command, addr string) (failed []string, ran int) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "report.xml")
	out, err := exec.CommandContext(t.Context(), command, "-h", host, "-p", port, "-P", "/ok", "-j", report).CombinedOutput() // #nosec G204 -- our own
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, out) // that cases fail is an exit code
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			ran++
			if c.Failure != nil || c.Error != nil {
				failed = append(failed, c.Package+": "+c.Name)
			}
		}
	}
	return failed, ran
}
