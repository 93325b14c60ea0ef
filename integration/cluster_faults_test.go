package integration_test

import (
	"fmt"
	"testing"
	"time"

	sentinel "github.com/sentinelgo/sentinel/core"
	"github.com/sentinelgo/sentinel/integration/redistest"
)

const clusterCapacity = 1_000_000

// siege is three limiters under load on a cluster to which something happens.
type siege struct {
	*load
	t       *testing.T
	c       *redistest.Cluster
	tenants []string // some on each master
}

func besiege(t *testing.T, flags ...string) *siege {
	s := &siege{t: t, c: redistest.StartCluster(t, append([]string{"--cluster-require-full-coverage", "no"}, flags...)...)}
	var limiters []*sentinel.Limiter
	for range 3 {
		cfg := config(clusterURL(s.c), tokens("a", clusterCapacity*sentinel.Token, 0))
		cfg.App.RedisBudget = 200 * time.Millisecond
		limiters = append(limiters, open(t, cfg, sentinel.WithStrictStart()))
	}
	for _, n := range s.c.Nodes[:3] {
		for here := 0; here < 4; {
			if tenant := fresh(t); s.c.Master(tenantKey(tenant, "a")) == n {
				s.tenants = append(s.tenants, tenant)
				here++
			}
		}
	}
	s.load = startLoad(limiters, func(n int) string { return s.tenants[n%len(s.tenants)] })
	s.more(200)
	return s
}

// more waits for n more decisions.
func (s *siege) more(n int) {
	s.t.Helper()
	before := s.total()
	eventually(s.t, soon, fmt.Sprint(n, " more decisions"), func() bool { return s.total() > before+n })
}

// on are the tenants whose keys are on a master, and those whose are not.
func (s *siege) on(n *redistest.Node) (here, elsewhere []string) {
	for _, tenant := range s.tenants {
		if s.c.Master(tenantKey(tenant, "a")) == n {
			here = append(here, tenant)
		} else {
			elsewhere = append(elsewhere, tenant)
		}
	}
	return here, elsewhere
}

// again waits until a decision for each of the tenants comes from the store.
func (s *siege) again(tenants []string) {
	s.t.Helper()
	for _, tenant := range tenants {
		before := s.of(tenant).admitted
		eventually(s.t, 40*time.Second, "the store decides for "+tenant, func() bool { return s.of(tenant).admitted > before })
	}
}

// unharmed wants that nobody of the tenants has met a failure, and that each was
// charged for what was admitted and for nothing else.
func (s *siege) unharmed(tenants []string) {
	s.t.Helper()
	for _, tenant := range tenants {
		of := s.of(tenant)
		if got := charged(s.t, s.c, tenantKey(tenant, "a"), clusterCapacity); of.failed > 0 || got != of.admitted {
			s.t.Errorf("a tenant of another master: %d charged, %d admitted, %d failed (%v)", got, of.admitted, of.failed, of.rows)
		}
	}
}

// harmed logs what the tenants of the master have met, and wants that nothing
// but the rows of the table was told, and nothing charged twice.
func (s *siege) harmed(what string, tenants []string) (forgotten int64) {
	s.t.Helper()
	var admitted int64
	var away time.Duration
	rows := make(map[sentinel.Reason]int)
	for _, tenant := range tenants {
		of := s.of(tenant)
		got := charged(s.t, s.c, tenantKey(tenant, "a"), clusterCapacity)
		admitted += of.admitted
		forgotten += max(0, of.admitted-got)
		away = max(away, of.lastFailed.Sub(of.firstFailed))
		for row, n := range of.rows {
			rows[row] += n
		}
		// A call that timed out may have been executed, once.
		if got > of.admitted+of.failed {
			s.t.Errorf("%d charged, with %d admitted and %d failed", got, of.admitted, of.failed)
		}
	}
	for row := range rows {
		if row != sentinel.ReasonAllowed && row != sentinel.ReasonFailClosed && row != sentinel.ReasonCircuitOpen {
			s.t.Errorf("a row of its own: %v", rows)
		}
	}
	s.t.Logf("%s: failing for %v, of %d admitted %d are forgotten, slowest decision %v, rows %v", what, away.Round(time.Millisecond), admitted, forgotten, s.slowest, rows)
	return forgotten
}

// A master that dies takes only its own tenants along, and its replica decides
// for them as soon as it is elected.
func TestClusterMasterKilled(t *testing.T) {
	t.Parallel()
	s := besiege(t)
	dead := s.c.Master(tenantKey(s.tenants[0], "a"))
	here, elsewhere := s.on(dead)
	dead.Kill()
	s.again(here)
	s.more(200)
	s.end()
	s.unharmed(elsewhere)
	s.harmed("master killed", here)
}

// A master that dies and is back before its replica is elected has what it wrote
// to its disk, and nothing else.
func TestClusterMasterRestarted(t *testing.T) {
	t.Parallel()
	for name, persistence := range map[string]string{"appendonly": "yes", "nothing on disk": "no"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// It is the process that dies, so writing is enough: a sync of a busy disk
			// can hold up the other masters.
			s := besiege(t, "--appendonly", persistence, "--appendfsync", "no")
			dead := s.c.Master(tenantKey(s.tenants[0], "a"))
			here, elsewhere := s.on(dead)
			s.more(500)
			dead.Kill()
			s.end()
			dead.Restart()
			s.c.WaitWell(dead)
			s.unharmed(elsewhere)
			if forgotten := s.harmed("master restarted, "+name, here); persistence == "yes" && forgotten > 0 {
				t.Errorf("%d are forgotten, and all were written before they were answered", forgotten)
			}
		})
	}
}

// A master that its peers do not reach, and we do, stops by itself, and its
// tenants go over to the replica that the others elect.
func TestClusterMasterCutOff(t *testing.T) {
	t.Parallel()
	s := besiege(t)
	key := tenantKey(s.tenants[0], "a")
	old := s.c.Master(key)
	here, elsewhere := s.on(old)
	s.c.CutOff(old)
	eventually(t, soon+20*time.Second, "a replica takes over", func() bool { return s.c.Master(key) != old })
	s.again(here)
	s.more(200)
	before := charged(t, s.c, key, clusterCapacity)
	s.more(200)
	s.end()
	if after := charged(t, s.c, key, clusterCapacity); after <= before {
		t.Errorf("the new master has charged %d, and 200 decisions later %d", before, after)
	}
	s.unharmed(elsewhere)
	s.harmed("cut off from its peers", here)
	s.c.Heal()
}

// Without a majority no node answers; with it the tenants of a node that lived
// through it are served again at once, and not after the breaker's 30 s.
func TestClusterMajorityLost(t *testing.T) {
	t.Parallel()
	s := besiege(t, "--appendonly", "yes", "--appendfsync", "no")
	alive := s.c.Nodes[0]
	here, _ := s.on(alive)
	for _, i := range []int{1, 2, 4, 5} {
		s.c.Nodes[i].Kill()
	}
	eventually(t, soon, "it stops without a majority", func() bool { return s.of(here[0]).rows[sentinel.ReasonCircuitOpen] > 0 })
	for _, i := range []int{1, 2, 4, 5} {
		s.c.Nodes[i].Restart()
	}
	s.c.WaitWell(alive)
	well := time.Now()
	s.again(here)
	took := time.Since(well)
	s.end()
	t.Logf("decides %v after the cluster was well", took.Round(time.Millisecond))
	if took > 15*time.Second {
		t.Error("it waited for its breaker")
	}
	s.harmed("majority lost", here)
}
