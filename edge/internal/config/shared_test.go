package config

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func mustLocal(t *testing.T, text string) *Config {
	t.Helper()
	c, err := ParseLocal("local", []byte(text), func(name string) (string, bool) { return ":8081", name == "LISTEN" })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const aShared = `rate_limit: {capacity: 10, refill_rate: 5, max_clients: 7}
routes:
  - {path: /a, backend: web}
  - {path: /b, backend: web, timeout: 7s, rate_limit: {capacity: 3, refill_rate: 1}}
backends:
  - {name: web, url: "http://h:1"}
`

func TestJoinedPartsAreOneConfiguration(t *testing.T) {
	local := mustLocal(t, "server: {listen: '${LISTEN}', request_timeout: 9s}\nsentinel: p.json\n")
	c, err := local.Join("version 3", []byte(aShared))
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Listen != ":8081" || c.Sentinel != "p.json" || len(c.Routes) != 2 || len(c.Pools) != 1 {
		t.Errorf("got %+v", c)
	}
	if c.Routes[0].Timeout != local.Server.RequestTimeout || c.Routes[1].Timeout.String() != "7s" {
		t.Errorf("timeouts %s and %s", c.Routes[0].Timeout, c.Routes[1].Timeout)
	}
	if c.Routes[0].RateLimit != c.RateLimit || c.RateLimit.Capacity != 10*token || c.MaxClients() != defaultMaxClients {
		t.Errorf("limit %v, of %d clients", c.RateLimit, c.MaxClients())
	}
	if local.Routes != nil || local.RateLimit != nil {
		t.Errorf("the node's own part has changed: %+v", local)
	}
	var text strings.Builder
	if err := c.Write(&text); err != nil || !strings.Contains(text.String(), "${LISTEN}") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// What a file that is read again has for the start only does not come into force, and
// what is shown is what is: also where it comes from.
func TestWhatOnlyARestartChangesStays(t *testing.T) {
	start := mustLocal(t, "server: {listen: '${LISTEN}', grace: 7s, request_timeout: 9s}\nadmin: {hosts: [edge]}\n")
	for text, want := range map[string]bool{
		"server: {listen: ':8081', grace: 7s, request_timeout: 8s}\nadmin: {hosts: [edge]}\nsentinel: x\n":             false,
		"server: {listen: ':9', grace: '${GRACE}'}\n":                                                                  true,
		"server: {listen: ':8081', grace: 7s}\nadmin: {hosts: [other]}\n":                                              true,
		"server: {listen: ':8081', grace: 7s}\nadmin: {hosts: [edge]}\nrate_limit: {enabled: false, max_clients: 7}\n": true,
	} {
		c, err := ParseLocal("again", []byte(text), func(string) (string, bool) { return "1s", true })
		if err != nil {
			t.Fatal(err)
		}
		timeout, sentinel := c.Server.RequestTimeout, c.Sentinel
		if got := c.KeepStart(start); got != want {
			t.Errorf("%s: differs: %v", text, got)
		}
		if c.Server.Listen != ":8081" || c.Server.Grace != 7*time.Second || c.Admin.Hosts[0] != "edge" || c.MaxClients() != defaultMaxClients {
			t.Errorf("%s: %+v", text, c)
		}
		if c.Server.RequestTimeout != timeout || c.Sentinel != sentinel {
			t.Errorf("%s: more than that stays: %+v", text, c)
		}
		var shown strings.Builder
		if err := c.Write(&shown); err != nil || !strings.Contains(shown.String(), "${LISTEN}") || strings.Contains(shown.String(), "${GRACE}") {
			t.Errorf("%s: %v is shown as\n%s", text, err, shown.String())
		}
	}
}

func TestTheNodesLimitGoesBeforeTheSharedOne(t *testing.T) {
	for own, want := range map[string]int64{
		"rate_limit: {capacity: 2, refill_rate: 1, max_clients: 50}": 2 * token,
		"rate_limit: {enabled: false}":                               0,
	} {
		c, err := mustLocal(t, own).Join("shared", []byte(aShared))
		if err != nil {
			t.Fatal(err)
		}
		var got int64
		if c.RateLimit != nil {
			got = c.RateLimit.Capacity
		}
		if got != want || c.Routes[0].RateLimit != c.RateLimit || c.Routes[1].RateLimit.Capacity != 3*token {
			t.Errorf("%s: %v", own, c.RateLimit)
		}
		if want > 0 && c.MaxClients() != 50 {
			t.Errorf("%d clients", c.MaxClients())
		}
	}
}

func TestAnEmptyLocalFileIsGood(t *testing.T) {
	for _, text := range []string{"", "\n# nothing\n\n"} {
		if c := mustLocal(t, text); c.Server.Listen != ":8080" {
			t.Errorf("%q: %+v", text, c.Server)
		}
	}
}

func TestEachPartHasFieldsOfItsOwn(t *testing.T) {
	local := mustLocal(t, "")
	for text, want := range map[string]string{
		"server: {port: 1}\n" + aShared:     "shared:1: server: unknown key",
		"admin: {listen: ':1'}\n" + aShared: "shared:1: admin: unknown key",
		"sentinel: x\n" + aShared:           "shared:1: sentinel: unknown key",
		"routes: []\nbackends: []\n":        "shared:1: routes: is empty",
		"":                                  "shared:1: the file is empty",
		"routes: [{path: /, backend: x}]":   "backends: required",
		strings.Replace(aShared, "http://h:1", "${LISTEN}", 1):                                      "shared:6: backends[0].url: the environment is a node's own",
		"rate_limit: {mode: distributed, policy: p}\n" + aShared[strings.Index(aShared, "routes"):]: "shared:1: rate_limit.mode: distributed needs sentinel",
	} {
		_, err := local.Join("shared", []byte(text))
		var faults Faults
		if !errors.As(err, &faults) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v\nwant %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		aShared:                           "routes: comes from the control plane; remove it here",
		"server: {port: 1, listen: ':2'}": "keep one of them",
		"rate_limit: {mode: distributed, policy: p}": "distributed needs sentinel",
		"servers: {}": "unknown key",
	} {
		if _, err := ParseLocal("local", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v\nwant %s", text, err, want)
		}
	}
	if _, err := CheckShared("shared", []byte("rate_limit: {mode: distributed, policy: p}\n"+aShared[strings.Index(aShared, "routes"):])); err != nil {
		t.Errorf("whether a node has the library is the node's to say: %v", err)
	}
}

// Whatever comes, it is a configuration or faults, and the node's own part stays.
func FuzzJoin(f *testing.F) {
	f.Add(aShared)
	f.Add("routes: []")
	local, err := ParseLocal("local", nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	hash := local.Hash()
	f.Fuzz(func(t *testing.T, text string) {
		c, err := local.Join("shared", []byte(text))
		var faults Faults
		switch {
		case err == nil && (len(c.Routes) == 0 || len(c.Pools) == 0 || c.Server.Listen != local.Server.Listen):
			t.Errorf("got %+v", c)
		case err != nil && !errors.As(err, &faults):
			t.Error(err)
		}
		if local.Hash() != hash {
			t.Error("the node's own part has changed")
		}
	})
}
