package sentinel

import (
	"strings"
	"testing"
)

func TestKeyVectors(t *testing.T) {
	var rows []struct {
		Kind       string `json:"kind"`
		Raw        string `json:"raw"`
		Peer       string `json:"peer"`
		Prefix     int    `json:"ipv6_prefix"`
		EndpointID string `json:"endpoint_id"`
		Version    int64  `json:"policy_version"`
		Key        string `json:"key"`
	}
	readVectors(t, "testdata/keys.json", &rows)
	kinds := make(map[string]int)
	for _, row := range rows {
		kinds[row.Kind]++
		keyOf := anonymousKey
		if row.Kind == "tenant" {
			keyOf = tenantKey
		}
		if row.Kind == "peer" {
			if got := peerIdentityOf(row.Peer, row.Prefix); got != row.Raw {
				t.Errorf("peer %q, /%d: %q, want %q", row.Peer, row.Prefix, got, row.Raw)
			}
		}
		key, hash := keyOf(row.Raw, row.EndpointID, row.Version)
		if key != row.Key {
			t.Errorf("%s %q: %q, want %q", row.Kind, row.Raw, key, row.Key)
		}
		p := Policy{EndpointID: row.EndpointID, Version: row.Version}
		if row.Kind != "tenant" {
			p.Identity = Anonymous
		}
		if got := p.RedisKey(row.Raw); got != key {
			t.Errorf("%s %q: RedisKey gives %q, want %q", row.Kind, row.Raw, got, key)
		}
		if hash != hashIdentity(row.Raw) || !strings.Contains(key, ":"+hash+":") {
			t.Errorf("%s %q: hash %q", row.Kind, row.Raw, hash)
		}
	}
	if kinds["tenant"] == 0 || kinds["anonymous"] == 0 || kinds["peer"] == 0 || len(kinds) != 3 {
		t.Errorf("rows by kind: %v", kinds)
	}
}

// The same text as a tenant and as an anonymous client is two buckets.
func TestKeySpacesAreApart(t *testing.T) {
	tenant, _ := tenantKey("anon:ip:203.0.113.7", "auth.login", 1)
	anonymous, _ := anonymousKey("anon:ip:203.0.113.7", "auth.login", 1)
	if tenant == anonymous {
		t.Errorf("both are %q", tenant)
	}
}

func TestLongKey(t *testing.T) {
	long := strings.Repeat("a", 1000)
	key, hash := tenantKey(long, long, 1<<31-1)
	if want := "sentinel:v1:" + hashIdentity(long) + ":" + long + ":2147483647"; key != want || hash != hashIdentity(long) {
		t.Errorf("key %q, hash %q", key, hash)
	}
}

func TestKeyAllocations(t *testing.T) {
	allocations := testing.AllocsPerRun(100, func() {
		if key, _ := tenantKey("a tenant with a name that is rather long", "pdftalk.ingest", 1); key == "" {
			t.Error("no key")
		}
	})
	if allocations > 1 {
		t.Errorf("%v allocations for a key", allocations)
	}
}
