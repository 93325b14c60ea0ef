package main

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sentinelgo/sentinel/integration/redistest"
)

// event is what happens to a topology.
type event struct {
	name  string
	trio  bool
	flags []string // of the servers
	// happen returns when the topology is well again.
	happen    func(*siege)
	everybody bool // hits all tenants, and not only those of the first master
	harmless  bool // every master can answer in time
	forgets   bool // what was charged may be lost
}

func events() []*event {
	persistent := func(on string) []string { return []string{"--appendonly", on} }
	var all []*event
	for _, disk := range []struct{ name, on string }{{"with appendonly", "yes"}, {"without persistence", "no"}} {
		flags := persistent(disk.on)
		all = append(all,
			&event{name: "cluster: a master is killed, " + disk.name, flags: flags, happen: killed, forgets: true},
			&event{name: "cluster: a master is killed and back before the election, " + disk.name, flags: flags, happen: restarted, forgets: disk.on == "no"},
			&event{name: "Redis Sentinel: the master is killed, " + disk.name, trio: true, flags: flags, happen: killed, forgets: true},
		)
	}
	return append(all,
		&event{name: "cluster: a replica takes over in good order (CLUSTER FAILOVER)", happen: changedOver},
		&event{name: "cluster: a master is cut off from its peers, not from the service", happen: cutOff, forgets: true},
		&event{name: "cluster: a slot moves", happen: slotMoved, harmless: true},
		&event{name: "cluster: two of three masters and their replicas are killed, and come back", flags: persistent("yes"), happen: majorityLost, everybody: true},
		&event{name: "cluster: ten replies are lost after execution", happen: repliesLost},
		&event{name: "Redis Sentinel: a replica takes over on demand (SENTINEL FAILOVER)", trio: true, happen: changedOver, forgets: true},
		&event{name: "Redis Sentinel: the master is cut off from its peers, not from the service", trio: true, happen: cutOff, forgets: true},
		&event{name: "Redis Sentinel: two of three Sentinels are killed", trio: true, happen: sentinelsLost, harmless: true},
		&event{name: "Redis Sentinel: ten replies are lost after execution", trio: true, happen: repliesLost},
	)
}

// first is a key of a tenant of the first master, and its master.
func (s *siege) first() (string, *redistest.Node) {
	key := keyOf("v1", s.all[0].group, s.all[0].endpoints()[0])
	return key, s.master(key)
}

// await waits until ok, which is to be soon.
func (s *siege) await(what string, ok func() bool) {
	if !comes(s.ctx, 40*time.Second, ok) {
		s.Fatalf("%s: waited in vain for %s", s.event.name, what)
	}
}

// succeeded waits until another node serves the key.
func (s *siege) succeeded(key string, old *redistest.Node) {
	s.await("another master", func() bool {
		time.Sleep(50 * time.Millisecond) // asking is work
		now := s.master(key)
		return now != nil && now != old
	})
}

func killed(s *siege) {
	key, old := s.first()
	old.Kill()
	s.succeeded(key, old)
}

func restarted(s *siege) {
	_, old := s.first()
	old.Kill()
	old.Restart()
	s.cluster.WaitWell(old)
}

func changedOver(s *siege) {
	key, old := s.first()
	var err error
	if s.cluster != nil {
		err = s.cluster.Nodes[3].Client(s).ClusterFailover(s.ctx).Err()
	} else {
		c := redis.NewSentinelClient(&redis.Options{Addr: s.trio.Sentinels[0].Server.Addr()})
		defer c.Close()
		err = c.Failover(s.ctx, redistest.MasterName).Err()
	}
	if err != nil {
		s.Fatalf("%s: %v", s.event.name, err)
	}
	s.succeeded(key, old)
}

func cutOff(s *siege) {
	key, old := s.first()
	if s.cluster != nil {
		s.cluster.CutOff(old)
	} else {
		s.trio.CutOff(old)
	}
	s.succeeded(key, old)
}

func slotMoved(s *siege) {
	key, _ := s.first()
	to := s.cluster.Nodes[1]
	s.cluster.BeginMove(key, to)
	time.Sleep(300 * time.Millisecond)
	s.cluster.MoveKeys(key, to)
	time.Sleep(300 * time.Millisecond)
	s.cluster.FinishMove(key, to)
}

func majorityLost(s *siege) {
	lost := []int{1, 2, 4, 5}
	for _, i := range lost {
		s.cluster.Nodes[i].Kill()
	}
	time.Sleep(3 * time.Second) // the last master has noticed
	for _, i := range lost {
		s.cluster.Nodes[i].Restart()
	}
	s.cluster.WaitWell(s.cluster.Nodes[:3]...)
}

func sentinelsLost(s *siege) {
	for _, n := range s.trio.Sentinels[1:] {
		n.Kill()
	}
	time.Sleep(3 * time.Second)
}

func repliesLost(s *siege) {
	_, master := s.first()
	for range 10 {
		master.DropNextReply()
		time.Sleep(200 * time.Millisecond) // breakers stay closed
	}
}
