package integration_test

import (
	"errors"
	"strings"
	"testing"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// Masters leads to the server that decides, whatever redis_url names.
func TestMasters(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--requirepass", "the-password-of-this-test")
	trio := redistest.StartTrio(t)
	sentinels := "redis-sentinel://" + strings.Join(trio.Addrs(), ",") + "/0?master="
	for name, c := range map[string]struct{ url, addr string }{
		"one server":      {"redis://:the-password-of-this-test@" + srv.Addr() + "/0", srv.Addr()},
		"Redis Sentinels": {sentinels + redistest.MasterName, trio.Nodes[0].Addr()},
	} {
		clients, err := sentinel.Masters(t.Context(), config(c.url, tokens("a", sentinel.Token, 0)))
		if err != nil || len(clients) != 1 {
			t.Fatalf("%s: %d clients, %v", name, len(clients), err)
		}
		defer clients[0].Close()
		if err := clients[0].Set(t.Context(), "k", "v", 0).Err(); err != nil || clients[0].Options().Addr != c.addr {
			t.Errorf("%s: it leads to %s, %v", name, clients[0].Options().Addr, err)
		}
	}
	if clients, err := sentinel.Masters(t.Context(), config("memory://", tokens("a", sentinel.Token, 0))); clients != nil || err != nil {
		t.Errorf("memory://: %v, %v", clients, err)
	}
	for url, want := range map[string]string{
		"redis://:wrong@" + srv.Addr() + "/0": "refuses the user name or password",
		"redis://" + srv.Addr() + "/0":        "demands a password",
		"redis://127.0.0.1:1/0":               "connection refused",
		sentinels + "other":                   "know no master of that name",
	} {
		clients, err := sentinel.Masters(t.Context(), config(url, tokens("a", sentinel.Token, 0)))
		if clients != nil || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: %v, %v", url, clients, err)
		}
	}
	if _, err := sentinel.Masters(t.Context(), &sentinel.Config{}); sentinel.Faults(errors.Join(err)) == nil {
		t.Errorf("a bad configuration: %v", err)
	}
}
