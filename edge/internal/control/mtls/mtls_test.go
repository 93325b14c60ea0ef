package mtls_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sentinelgo/sentinel/edge/internal/control/mtls"
	"github.com/sentinelgo/sentinel/edge/internal/control/mtls/mtlstest"
)

// meet has a client and a server shake hands, say a word each, and returns what each thinks of it.
func meet(t testing.TB, server mtls.Files, client credentials.TransportCredentials) (byServer, byClient error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if c, _, err = server.Server().ServerHandshake(c); err == nil {
			_, err = c.Write([]byte("x"))
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	secure, _, byClient := client.ClientHandshake(ctx, l.Addr().String(), c)
	if byClient == nil {
		_, byClient = secure.Read(make([]byte, 1)) // a server refuses a certificate after the client's part is done
	}
	return <-done, byClient
}

func TestOnlyCertificatesOfTheAuthorityPass(t *testing.T) {
	ours, other := mtlstest.New(t), mtlstest.New(t)
	hour, past := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	server := ours.Issue(t, "control", hour, ours)
	for name, c := range map[string]struct {
		server, client mtls.Files
		good           bool
	}{
		"both are good":             {server, ours.Issue(t, "a", hour, ours), true},
		"the node is of another":    {server, other.Issue(t, "a", hour, ours), false},
		"the node's has ended":      {server, ours.Issue(t, "a", past, ours), false},
		"the node trusts another":   {server, ours.Issue(t, "a", hour, other), false},
		"the server is of another":  {other.Issue(t, "control", hour, ours), ours.Issue(t, "a", hour, ours), false},
		"the server trusts another": {ours.Issue(t, "control", hour, other), ours.Issue(t, "a", hour, ours), false},
		"the server's file is gone": {mtls.Files{server.CA, "/none", server.Key}, ours.Issue(t, "a", hour, ours), false},
		"the node shows none":       {server, mtls.Files{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := c.client.Client()
			if err != nil {
				t.Fatal(err)
			}
			byServer, byClient := meet(t, c.server, client)
			if good := byServer == nil && byClient == nil; good != c.good {
				t.Errorf("server: %v, client: %v", byServer, byClient)
			}
		})
	}
}

// New files in the place of the old ones are used by the next handshake.
func TestCertificatesAreReadAgain(t *testing.T) {
	first, second := mtlstest.New(t), mtlstest.New(t)
	hour := time.Now().Add(time.Hour)
	server, node := first.Issue(t, "control", hour, first), second.Issue(t, "a", hour, second)
	client, err := node.Client()
	if err != nil {
		t.Fatal(err)
	}
	if byServer, byClient := meet(t, server, client); byServer == nil && byClient == nil {
		t.Fatal("they are of different authorities")
	}
	fresh := second.Issue(t, "control", hour, second)
	for from, to := range map[string]string{fresh.CA: server.CA, fresh.Cert: server.Cert, fresh.Key: server.Key} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if byServer, byClient := meet(t, server, client); byServer != nil || byClient != nil {
		t.Errorf("server: %v, client: %v", byServer, byClient)
	}
}

func TestFilesAreChecked(t *testing.T) {
	a := mtlstest.New(t)
	good := a.Issue(t, "a", time.Now().Add(time.Hour), a)
	if err := good.Check(); err != nil || good.None() || !(mtls.Files{}).None() {
		t.Error(err)
	}
	for want, f := range map[string]mtls.Files{
		"all of authority":       {CA: good.CA, Cert: good.Cert},
		"no such file":           {CA: good.CA, Cert: good.Cert, Key: "/none"},
		"open /none":             {CA: "/none", Cert: good.Cert, Key: good.Key},
		"has no certificate":     {CA: good.Key, Cert: good.Cert, Key: good.Key},
		"failed to find any PEM": {CA: good.CA, Cert: os.DevNull, Key: good.Key},
	} {
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", f, err, want)
		}
	}
}
