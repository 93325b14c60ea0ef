package integration_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

func sentinelURL(trio *redistest.Trio, query string) string {
	return "redis-sentinel://" + strings.Join(trio.Addrs(), ",") + "/0?master=" + redistest.MasterName + query
}

// After a failover decisions come from the new master, at once where the old
// one was deposed in good order.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	trio := redistest.StartTrio(t)
	l := open(t, config(sentinelURL(trio, ""), tokens("a", 100*sentinel.Token, 0)), sentinel.WithStrictStart())
	tenant := fresh(t)
	for range 3 {
		if d := allow(t, l, tenant, "a"); !d.FromStore {
			t.Errorf("%+v", d)
		}
	}
	first := trio.Master()
	if got := stateOf(t, first.Client(t), tenantKey(tenant, "a")); !strings.HasPrefix(got, "97000000:") {
		t.Errorf("the master has %q", got)
	}
	first.Kill()
	took := eventually(t, 20*time.Second+soon, "the new master decides", func() bool {
		return allow(t, l, tenant, "a").FromStore
	})
	t.Logf("%v after the master was killed", took)
	eventually(t, soon, "every Sentinel knows of the failover", func() bool { return trio.Master() != first })
}

// A master that its Sentinels do not reach, and we do, is left once they have
// named another.
func TestSentinelDeposedMasterIsLeft(t *testing.T) {
	t.Parallel()
	trio := redistest.StartTrio(t)
	l := open(t, config(sentinelURL(trio, ""), tokens("a", 100*sentinel.Token, 0)), sentinel.WithStrictStart())
	old := trio.Master()
	trio.CutOff(old)
	eventually(t, 20*time.Second+soon, "a failover", func() bool { return trio.Master() != old })
	eventually(t, soon, "the new master decides", func() bool {
		tenant := fresh(t)
		return allow(t, l, tenant, "a").FromStore && stateOf(t, trio.Master().Client(t), tenantKey(tenant, "a")) != ""
	})
	tenant := fresh(t)
	for range 20 {
		allow(t, l, tenant, "a")
	}
	if got := stateOf(t, old.Client(t), tenantKey(tenant, "a")); got != "" {
		t.Errorf("the old master still counts: %q", got)
	}
}

// What is wrong with the Sentinels is told at the start, with the remedy.
func TestSentinelsAreWrong(t *testing.T) {
	t.Parallel()
	trio := redistest.StartTrio(t)
	server := strings.TrimPrefix(redistest.Start(t).URL(), "redis://")
	for url, want := range map[string]string{
		"redis-sentinel://" + trio.Addrs()[0] + "?master=other":                        "know no master of that name",
		"redis-sentinel://" + server + "?master=other":                                 "names a server where a Redis Sentinel should be",
		sentinelURL(trio, "&sentinel_username=nobody&sentinel_password=Qz7Xk9VwJ4"):    "refuse sentinel_username or sentinel_password",
		strings.Replace(sentinelURL(trio, ""), "://", "://nobody:Qz7Xk9VwJ4@", 1):      "refuses the user name or password",
		"redis-sentinel://127.0.0.1:1,127.0.0.1:2?master=" + redistest.MasterName:      "a Redis Sentinel: connection refused",
		"redis-sentinel://" + trio.Master().Addr() + "?master=" + redistest.MasterName: "names a server where",
	} {
		err := refusal(t, config(url, tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Qz7X") || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
	// One that is there is enough.
	url := "redis-sentinel://127.0.0.1:1," + trio.Addrs()[1] + ",127.0.0.1:2?master=" + redistest.MasterName
	if d := allow(t, open(t, config(url, tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart()), fresh(t), "a"); !d.FromStore {
		t.Errorf("%+v", d)
	}
}

// A replica is not connected to: whatever leads there, it writes nothing.
func TestReplicaIsNotUsed(t *testing.T) {
	t.Parallel()
	trio := redistest.StartTrio(t)
	err := refusal(t, config(trio.Nodes[1].URL(), tokens("a", sentinel.Token, 0)), sentinel.WithStrictStart())
	if err == nil || !strings.Contains(err.Error(), "it is no master") {
		t.Errorf("%v", err)
	}
}

// A master that dies under load: the Sentinels' choice decides for everybody as
// soon as it is made, and nothing is charged twice.
func TestSentinelMasterKilledUnderLoad(t *testing.T) {
	t.Parallel()
	trio := redistest.StartTrio(t)
	const capacity = 1_000_000
	var limiters []*sentinel.Limiter
	for range 3 {
		cfg := config(sentinelURL(trio, ""), tokens("a", capacity*sentinel.Token, 0))
		cfg.App.RedisBudget = 200 * time.Millisecond
		limiters = append(limiters, open(t, cfg, sentinel.WithStrictStart()))
	}
	tenant := fresh(t)
	load := startLoad(limiters, func(int) string { return tenant })
	eventually(t, soon, "decisions", func() bool { return load.of(tenant).admitted > 500 })
	first := trio.Master()
	first.Kill()
	eventually(t, 20*time.Second+soon, "every Sentinel knows of the failover", func() bool { return trio.Master() != first })
	before := load.of(tenant).admitted
	eventually(t, 20*time.Second+soon, "the new master decides", func() bool { return load.of(tenant).admitted > before+500 })
	load.end()
	of := load.of(tenant)
	text, _, _ := strings.Cut(stateOf(t, trio.Master().Client(t), tenantKey(tenant, "a")), ":")
	left, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	got := capacity - left/int64(sentinel.Token)
	if got > of.admitted+of.failed {
		t.Errorf("%d charged, with %d admitted and %d failed", got, of.admitted, of.failed)
	}
	t.Logf("master killed: failing for %v, of %d admitted %d are forgotten, slowest decision %v, rows %v",
		of.lastFailed.Sub(of.firstFailed).Round(time.Millisecond), of.admitted, max(0, of.admitted-got), load.slowest, of.rows)
}
