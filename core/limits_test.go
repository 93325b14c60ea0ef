package sentinel

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// specCRC16 is the checksum that Redis Cluster takes slots from: CRC16/XMODEM.
func specCRC16(s string) (crc uint16) {
	for _, b := range []byte(s) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// specSlot is the slot of a key, by the rule of the Redis Cluster specification:
// what is between the first brace and the next counts alone, if it is anything.
func specSlot(key string) uint16 {
	if _, behind, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(behind, "}"); ok && tag != "" {
			key = tag
		}
	}
	return specCRC16(key) % 16384
}

func TestSlotOfKnownAnswers(t *testing.T) {
	if got := specCRC16("123456789"); got != 0x31c3 {
		t.Fatalf("CRC16 %#x", got)
	}
	for _, same := range [][2]string{{"{user1000}.following", "{user1000}.followers"}, {"foo{{bar}}zap", "{bar"}, {"foo{bar}{zap}", "bar"}} {
		if specSlot(same[0]) != specSlot(same[1]) {
			t.Errorf("%q and %q", same[0], same[1])
		}
	}
}

// The keys of an endpoint's limits are in one slot, and nobody else's.
func TestFurtherKeys(t *testing.T) {
	var rows []struct {
		Raw, Key string
	}
	readVectors(t, "testdata/keys.json", &rows)
	first := make(map[string]bool)
	for _, row := range rows {
		first[row.Key] = true
	}
	for _, tenant := range []string{"{", "}", "{}", "a{b}c", "{a", "\x00", "sentinel:{", strings.Repeat("{x}", 300), "ü{}", ":2", "}:2"} {
		for _, id := range []string{"a", "a.b_c-d", "2"} {
			key, _ := tenantKey(tenant, id, 1)
			first[key] = true
			key, _ = anonymousKey(tenant, id, maxVersion)
			first[key] = true
		}
	}
	seen := make(map[string]bool)
	for key := range first {
		for number := 2; number <= maxLimits; number++ {
			further := furtherKey(key, number)
			if specSlot(further) != specSlot(key) || specSlot(key) != specCRC16(key)%16384 {
				t.Fatalf("%q is in slot %d, %q in %d", key, specSlot(key), further, specSlot(further))
			}
			if first[further] || seen[further] || !strings.HasPrefix(further, "sentinel:{") {
				t.Fatalf("%q is another's", further)
			}
			seen[further] = true
		}
	}
}

// twoLimits is two at once and one a second, and 5 in an hour.
func twoLimits(id string) Policy {
	p := bucketPolicy(id, 2*Token, Token)
	p.Also = []Quota{{Algorithm: SlidingWindow, Limit: 5, Window: time.Hour}}
	return p
}

// A decision over two limits is one: the tightest is told, the longest wait
// counts, and a denial by one leaves the other as it was.
func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openMemory(t, memoryConfig(twoLimits("jobs")))
		defer l.Close()
		all := []QuotaLimit{{"jobs", 2, 2}, {"jobs:2", 5, 3600}}
		check := func(allowed bool, tightest string, limit, remaining int64, retry time.Duration) {
			t.Helper()
			d := mustAllow(t, l, "acme", "jobs")
			limits, name := d.Limits()
			if d.Allowed != allowed || d.Limit != limit || d.Remaining != remaining || d.RetryAfter != retry || name != tightest {
				t.Fatalf("%+v, by %q", d, name)
			}
			if len(limits) != 2 || limits[0] != all[0] || limits[1] != all[1] {
				t.Fatalf("limits %+v", limits)
			}
		}
		check(true, "jobs", 2, 1, 0)
		check(true, "jobs", 2, 0, 0)
		for range 3 {
			check(false, "jobs", 2, 0, time.Second) // and the second limit is not charged
		}
		time.Sleep(10 * time.Second)
		check(true, "jobs", 2, 1, 0)
		check(true, "jobs", 2, 0, 0)
		time.Sleep(10 * time.Second)
		check(true, "jobs:2", 5, 0, 0)
		// Now the hour's limit denies. Its five requests are those of the
		// window that is over an hour after the first.
		d := mustAllow(t, l, "acme", "jobs")
		if d.Allowed || d.RetryAfter < 59*time.Minute {
			t.Fatalf("%+v", d)
		}
		time.Sleep(d.RetryAfter - time.Microsecond)
		if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.RetryAfter != time.Microsecond {
			t.Fatalf("%+v", d)
		}
		time.Sleep(time.Microsecond)
		if d := mustAllow(t, l, "acme", "jobs"); !d.Allowed {
			t.Fatalf("denied after exactly Retry-After: %+v", d)
		}
	})
}

// Where both limits deny, the wait is the longer one, whichever comes first.
func TestSeveralLimitsLongestWait(t *testing.T) {
	for _, swap := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := bucketPolicy("jobs", Token, Token)
			p.Also = []Quota{{Algorithm: TokenBucket, Capacity: Token, RefillRate: Token / 100}}
			if swap {
				p.RefillRate, p.Also[0].RefillRate = p.Also[0].RefillRate, p.RefillRate
			}
			l := openMemory(t, memoryConfig(p))
			defer l.Close()
			mustAllow(t, l, "acme", "jobs")
			if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.RetryAfter != 100*time.Second {
				t.Errorf("swap %v: %+v", swap, d)
			}
		})
	}
}

// A reset makes every limit fresh; with a limit that never comes back there is
// no wait to tell.
func TestSeveralLimitsReset(t *testing.T) {
	p := bucketPolicy("jobs", Token, Token)
	p.Also = []Quota{{Algorithm: TokenBucket, Capacity: Token}}
	l := openMemory(t, memoryConfig(p))
	defer l.Close()
	mustAllow(t, l, "acme", "jobs")
	if d := mustAllow(t, l, "acme", "jobs"); d.Allowed || d.RetryAfter != 0 {
		t.Fatalf("%+v", d)
	}
	if err := l.Reset(t.Context(), "acme", "jobs"); err != nil {
		t.Fatal(err)
	}
	if d := mustAllow(t, l, "acme", "jobs"); !d.Allowed {
		t.Fatalf("after a reset: %+v", d)
	}
}

// The most that one decision can have: a cookie and a peer under four limits.
func TestMostBuckets(t *testing.T) {
	p := twoLimits("login")
	p.Identity = Anonymous
	p.Also = append(p.Also, Quota{Algorithm: TokenBucket, Capacity: 3 * Token, RefillRate: 1}, Quota{Algorithm: SlidingWindow, Limit: 9, Window: time.Minute})
	l := openMemory(t, memoryConfig(p))
	defer l.Close()
	r := Request{EndpointID: "login", Peer: "192.0.2.1:1"}
	d, err := l.Check(t.Context(), r)
	if err != nil || !d.Allowed || d.Cookie == nil {
		t.Fatalf("%+v, %v", d, err)
	}
	r.Cookies = []string{d.Cookie.Name + "=" + d.Cookie.Value}
	r.Peer = "192.0.2.2:1"
	d, err = l.Check(t.Context(), r)
	if err != nil || !d.Allowed || d.Remaining != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if limits, tightest := d.Limits(); len(limits) != maxLimits || tightest != "login" {
		t.Errorf("%v, %q", limits, tightest)
	}
}

// The kinds of groups as the script takes them.
func TestKinds(t *testing.T) {
	for n, want := range map[int]string{2: "b", 3: "w", 4: "bb", 5: "bw", 6: "wb", 7: "ww", 0b1_0101_0111: "bwbwbwww", 0b1_1111_1111: "wwwwwwww"} {
		if kinds[n] != want {
			t.Errorf("%d: %v, want %s", n, kinds[n], want)
		}
	}
}
