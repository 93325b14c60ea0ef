package integration_test

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// secure is a rediss:// URL for addr with the query.
func secure(addr string, query url.Values) string {
	return "rediss://" + addr + "?" + query.Encode()
}

func TestTLSOfAPrivateAuthority(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	srv, addr := redistest.StartTLS(t, ca, true)
	cert, key := ca.Issue(t, "client", time.Hour)
	mutual := url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}}
	l := open(t, config(secure(addr, mutual), tokens("a", 3*sentinel.Token, 0)), sentinel.WithStrictStart())
	tenant := fresh(t)
	for i := range 4 {
		if d := allow(t, l, tenant, "a"); d.Allowed != (i < 3) || !d.FromStore {
			t.Errorf("decision %d: %+v", i, d)
		}
	}
	if stateOf(t, srv.Client(t), tenantKey(tenant, "a")) == "" {
		t.Error("another server was charged")
	}

	strangerCert, strangerKey := redistest.NewCA(t).Issue(t, "stranger", time.Hour)
	oldCert, oldKey := ca.Issue(t, "old", -time.Minute)
	for name, c := range map[string]struct {
		query url.Values
		want  string // or that the server has reset the connection already
	}{
		"without the authority":   {url.Values{"cert_file": {cert}, "key_file": {key}}, "signed by an unknown authority"},
		"of another authority":    {url.Values{"ca_file": {redistest.NewCA(t).File}, "cert_file": {cert}, "key_file": {key}}, "signed by an unknown authority"},
		"for another name":        {url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}, "server_name": {"redis.example.com"}}, "for another name"},
		"no client certificate":   {url.Values{"ca_file": {ca.File}}, "the server refused TLS: tls: certificate required"},
		"a stranger's":            {url.Values{"ca_file": {ca.File}, "cert_file": {strangerCert}, "key_file": {strangerKey}}, "the server refused TLS: tls: "},
		"an expired one":          {url.Values{"ca_file": {ca.File}, "cert_file": {oldCert}, "key_file": {oldKey}}, "the server refused TLS: tls: "},
		"no pair":                 {url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {oldKey}}, "no pair of PEM files"},
		"a file that is not here": {url.Values{"ca_file": {ca.File + ".missing"}}, "ca_file cannot be read: no such file"},
		"a file that is no PEM":   {url.Values{"ca_file": {os.Args[0]}}, "ca_file "},
	} {
		err := refusal(t, config(secure(addr, c.query), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
		if err == nil || !sawReset(err, c.want) && !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), ca.File) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	named := url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}, "server_name": {"localhost"}}
	open(t, config(secure(addr, named), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
}

// A certificate that is renewed on the disk counts from the next connection on,
// without a restart.
func TestTLSCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	_, addr := redistest.StartTLS(t, ca, true)
	cert, key := ca.Issue(t, "client", -time.Minute)
	l, err := sentinel.Open(t.Context(), config(secure(addr, url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}}),
		tokens("a", 3*sentinel.Token, 0)), options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if s := l.Status(); s.Ready {
		t.Errorf("ready with an expired certificate: %+v", s)
	}
	ca.Issue(t, "client", time.Hour)
	eventually(t, soon, "the new certificate counts", func() bool { return l.Status().Ready })
	if d := allow(t, l, fresh(t), "a"); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// The least that an ACL user needs, over TLS, as the operations page has it.
func TestTLSWithAnACLUser(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	srv, addr := redistest.StartTLS(t, ca, false)
	acl := []any{"acl", "setuser", "quota", "reset", "on", ">pw with & +", "~sentinel:*", "+evalsha", "+script|load", "+get", "+set", "+time", "+info"}
	if err := srv.Client(t).Do(t.Context(), acl...).Err(); err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "rediss", User: url.UserPassword("quota", "pw with & +"), Host: addr, RawQuery: url.Values{"ca_file": {ca.File}}.Encode()}
	l := open(t, config(u.String(), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
	if d := allow(t, l, fresh(t), "a"); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Every connection to a cluster is TLS, the one for the map and those to what it
// names among them, also after a failover.
func TestTLSCluster(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	c := redistest.StartTLSCluster(t, ca)
	address := "rediss-cluster://" + strings.Join(c.Addrs()[:3], ",") + "?"
	l := refusesStrangers(t, ca, address)
	decidesInEverySlot(t, c, l)
	tenant := fresh(t)
	allow(t, l, tenant, "a")
	c.Master(tenantKey(tenant, "a")).Kill()
	eventually(t, 20*time.Second+soon, "the replica decides", func() bool { return allow(t, l, tenant, "a").FromStore })
}

// Every connection to a Redis Sentinel and to its master is TLS, also after a
// failover.
func TestTLSTrio(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	trio := redistest.StartTLSTrio(t, ca)
	address := "rediss-sentinel://" + strings.Join(trio.Addrs(), ",") + "/0?master=" + redistest.MasterName + "&"
	l := refusesStrangers(t, ca, address)
	tenant := fresh(t)
	if d := allow(t, l, tenant, "a"); !d.FromStore {
		t.Errorf("%+v", d)
	}
	if stateOf(t, trio.Master().Client(t), tenantKey(tenant, "a")) == "" {
		t.Error("another server was charged")
	}
	trio.Master().Kill()
	eventually(t, 20*time.Second+soon, "the new master decides", func() bool { return allow(t, l, tenant, "a").FromStore })
}

// sawReset reports whether the server's word, if that is wanted, was overtaken by
// the end of the connection, which is there at the same moment.
func sawReset(err error, want string) bool {
	return strings.HasPrefix(want, "the server refused") && slices.ContainsFunc(
		[]string{"connection reset by peer", "broken pipe", "the connection was closed"},
		func(end string) bool { return strings.Contains(err.Error(), end) })
}

// refusesStrangers returns a limiter at the address, to which the TLS parameters
// are added, and wants that wrong ones are refused, and why.
func refusesStrangers(t *testing.T, ca *redistest.CA, address string) *sentinel.Limiter {
	t.Helper()
	cert, key := ca.Issue(t, "client", time.Hour)
	for name, c := range map[string]struct {
		query url.Values
		want  string // or that the server has reset the connection already
	}{
		"of another authority":  {url.Values{"ca_file": {redistest.NewCA(t).File}, "cert_file": {cert}, "key_file": {key}}, "signed by an unknown authority"},
		"for another name":      {url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}, "server_name": {"redis.example.com"}}, "for another name"},
		"no client certificate": {url.Values{"ca_file": {ca.File}}, "the server refused TLS: tls: certificate required"},
	} {
		err := refusal(t, config(address+c.query.Encode(), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
		if err == nil || !sawReset(err, c.want) && !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), ca.File) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	mutual := url.Values{"ca_file": {ca.File}, "cert_file": {cert}, "key_file": {key}}
	return open(t, config(address+mutual.Encode(), tokens("a", 3*sentinel.Token, 0)), sentinel.WithStrictStart())
}
