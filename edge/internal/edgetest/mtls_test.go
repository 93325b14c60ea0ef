package edgetest

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sentinelgo/sentinel/edge/internal/control/mtls"
	"github.com/sentinelgo/sentinel/edge/internal/control/mtls/mtlstest"
)

// files are the flags for them.
func files(f mtls.Files, ca, cert, key string) []string {
	if f.None() {
		return nil
	}
	return []string{ca, f.CA, cert, f.Cert, key, f.Key}
}

// Only who has a certificate of the authority, which is still good, gets what is shared, and
// from nobody else than who has one, too. New files in the place of the old ones need
// no restart.
func TestOnlyNodesWithACertificateFollow(t *testing.T) {
	t.Parallel()
	ours, other := mtlstest.New(t), mtlstest.New(t)
	hour, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	b := startBackend(t, "b", "")
	p := startPlane(t, "", files(ours.Issue(t, "control", hour, ours), "-tls-ca", "-tls-cert", "-tls-key")...)
	p.apply(routed("/ok", b))

	expired := ours.Issue(t, "expired", past, ours)
	nodes := map[string]*edge{}
	for name, f := range map[string]mtls.Files{
		"good":          ours.Issue(t, "fra-1", hour, ours),
		"none":          {},
		"of another":    other.Issue(t, "of another", hour, ours),
		"expired":       expired,
		"trusts others": ours.Issue(t, "trusts others", hour, other),
	} {
		nodes[name] = launchNode(t, p, "", append(files(f, "-control-ca", "-control-cert", "-control-key"), "-node", name)...)
	}
	nodes["good"].until(1)
	Soon(t, "it is known by its certificate", func() bool {
		n := p.node("good")
		return n.Connected && n.Applied == 1 && n.Certificate == "CN=fra-1"
	})
	if resp := get(t, nodes["good"].url("/ok")); resp.StatusCode != http.StatusOK || nodes["good"].metric("sentinel_edge_control_connected") != 1 {
		t.Errorf("the good one: %s", resp.Status)
	}
	for name, why := range map[string]string{
		"none": "", "of another": "unknown certificate authority", "expired": "expired certificate", "trusts others": "certificate signed by unknown authority",
	} {
		e := nodes[name]
		for range 2 { // and again
			e.line(func(s string) bool { return strings.Contains(s, "no control plane") && strings.Contains(s, why) })
		}
		if n := p.node(name); n.Node != "" {
			t.Errorf("%s: the control plane knows %+v", name, n)
		}
		if resp := get(t, e.url("/ok")); resp.StatusCode != http.StatusServiceUnavailable || e.ready().Ready || e.metric("sentinel_edge_control_connected") != 0 {
			t.Errorf("%s: %s, %+v", name, resp.Status, e.ready())
		}
	}

	fresh := ours.Issue(t, "expired", hour, ours)
	for from, to := range map[string]string{fresh.Key: expired.Key, fresh.Cert: expired.Cert} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nodes["expired"].until(1)
	before := p.descriptors()
	for _, name := range []string{"none", "of another", "trusts others"} {
		nodes[name].kill()
	}
	Soon(t, "those who were refused hold nothing", func() bool { return p.descriptors() <= before })
	if n := p.node("good"); !n.Connected {
		t.Errorf("%+v", n)
	}
}
