package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestClusterFailsOverAndMovesSlots(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	ctx := t.Context()
	const key = "somewhere"
	from, to := c.Master(key), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	if err := from.Client(t).Set(ctx, key, "here", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c.BeginMove(key, to)
	c.MoveKeys(key, to)
	if err := from.Client(t).Get(ctx, key).Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("in the middle of a move the old master answers %v, want ASK", err)
	}
	c.FinishMove(key, to)
	if got := c.Master(key); got != to {
		t.Error("the slot did not move")
	}
	c.WaitWell(c.Nodes...)
	to.WaitReplicated()

	to.Kill()
	eventually(t, 20*time.Second, func() string {
		if c.Master(key) == nil {
			return "no replica took over"
		}
		return ""
	})
	if got, err := c.Master(key).Client(t).Get(ctx, key).Result(); err != nil || got != "here" {
		t.Errorf("the replica has %q, %v", got, err)
	}
	to.Restart()
	c.WaitWell(c.Nodes...)
}

func TestClusterNodeCutOffFromItsPeers(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	const key = "somewhere"
	old := c.Master(key)
	direct := old.Client(t)
	c.CutOff(old)
	if err := direct.Set(t.Context(), key, "old", 0).Err(); err != nil {
		t.Errorf("its clients reach it: %v", err)
	}
	eventually(t, 20*time.Second, func() string {
		if c.Master(key) == old {
			return "no replica took over"
		}
		return ""
	})
	if got, err := c.Master(key).Client(t).Get(t.Context(), key).Result(); err != redis.Nil { //nolint:errorlint // go-redis returns Nil itself
		t.Errorf("the new master has %q, %v: the replica was not cut off", got, err)
	}
	c.Heal()
	c.WaitWell(c.Nodes...)
	if c.Master(key) == old {
		t.Error("the old master is back, and so is what was lost")
	}
}

func TestTrioFailsOver(t *testing.T) {
	t.Parallel()
	trio := StartTrio(t)
	first := trio.Master()
	if err := first.Client(t).Set(t.Context(), "a", "b", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first.WaitReplicated()
	first.Kill()
	eventually(t, 20*time.Second, func() string {
		if trio.Master() == first {
			return "no replica took over"
		}
		return ""
	})
	if got, err := trio.Master().Client(t).Get(t.Context(), "a").Result(); err != nil || got != "b" {
		t.Errorf("the new master has %q, %v", got, err)
	}
	first.Restart()
	trio.WaitWell()
}

func TestTrioMasterCutOffFromItsPeers(t *testing.T) {
	t.Parallel()
	trio := StartTrio(t)
	old := trio.Master()
	trio.CutOff(old)
	client := clientFor(t, old.URL())
	if err := client.Set(t.Context(), "a", "b", 0).Err(); err != nil {
		t.Errorf("its clients reach it: %v", err)
	}
	eventually(t, 20*time.Second, func() string {
		if trio.Master() == old {
			return "no replica took over"
		}
		return ""
	})
	if got, err := trio.Master().Client(t).Get(t.Context(), "a").Result(); err != redis.Nil { //nolint:errorlint // go-redis returns Nil itself
		t.Errorf("the new master has %q, %v: the replica was not cut off", got, err)
	}
	trio.Heal()
	trio.WaitWell()
	if trio.Master() == old {
		t.Error("the old master is back")
	}
}

// The check value of CRC16/XMODEM, which the specification of Redis Cluster names.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	if got := SlotOf("123456789"); got != 0x31c3 {
		t.Errorf("%#x", got)
	}
}
