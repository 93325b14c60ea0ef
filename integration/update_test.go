package integration_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

// On a real Redis an update keeps the bucket under its key, cuts it, and forgets
// what was denied by the old numbers; the connection stays.
func TestUpdateOnRedis(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	with := func(capacity sentinel.Micro) *sentinel.Config {
		return config(srv.URL(), tokens("a", capacity, 0), tokens("b", sentinel.Token, 0))
	}
	l := open(t, with(2*sentinel.Token), sentinel.WithStrictStart())
	tenant := fresh(t)
	for _, want := range []bool{true, true, false, false} {
		if d := allow(t, l, tenant, "a"); !d.FromStore || d.Allowed != want {
			t.Fatalf("%+v", d)
		}
	}
	allow(t, l, tenant, "b")
	before := connections(t, rdb)
	if err := l.Update(with(5 * sentinel.Token)); err != nil {
		t.Fatal(err)
	}
	// A larger capacity gives nothing by itself: the bucket is as empty as it was,
	// and Redis says so.
	if d := allow(t, l, tenant, "a"); !d.FromStore || d.Allowed || d.Limit != 5 {
		t.Errorf("%+v", d)
	}
	if d := allow(t, l, tenant, "b"); d.Allowed {
		t.Errorf("the bucket of a policy that is the same: %+v", d)
	}
	if err := l.Reset(t.Context(), tenant, "a"); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, rdb, tenantKey(tenant, "a")); !strings.HasPrefix(got, "5000000:") {
		t.Errorf("a reset wrote %q", got)
	}
	if err := l.Update(with(3 * sentinel.Token)); err != nil {
		t.Fatal(err)
	}
	if d := allow(t, l, tenant, "a"); !d.Allowed || d.Remaining != 2 {
		t.Errorf("cut to the new capacity: %+v", d)
	}
	if after := connections(t, rdb); !slices.ContainsFunc(before, func(id string) bool { return slices.Contains(after, id) }) {
		t.Errorf("connections %v, %v before the updates", after, before)
	}
}

// connections are the ids of those that are not the test's own.
func connections(t *testing.T, rdb *redis.Client) (ids []string) {
	t.Helper()
	list, err := rdb.ClientList(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list) {
		if !strings.Contains(line, "cmd=client") {
			id, _, _ := strings.Cut(line, " ")
			ids = append(ids, id)
		}
	}
	return ids
}
